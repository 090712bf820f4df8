"""Decoders with recurrent layers, alone or beside attention."""

from collections.abc import Mapping
from typing import Final

from kvheadroom.model.weights.attention import grouped_attention
from kvheadroom.model.weights.experts import (
    BLOCK_SPARSE,
    granite_shared,
    qwen_routed,
    sparse_by_step,
)
from kvheadroom.model.weights.family import EVERY_STAGE, UNTIED_EVERY_STAGE, Ends, Family
from kvheadroom.model.weights.feed_forward import either, gated, layer, routed
from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.parts import FLOAT32, Part, Ranks, Tensor, column, norm, row, share
from kvheadroom.model.weights.states import (
    Mamba1,
    Mamba2,
    full_rank_delta_net,
    gated_delta_net,
    mamba1,
    mamba2,
    short_convolution,
)


def _mamba_fields(c: Fields) -> Mamba1:
    return Mamba1(
        inner=c.whole("intermediate_size"),
        state=c.whole("state_size"),
        kernel=c.whole("conv_kernel"),
        time_rank=c.whole("time_step_rank", default=-(-c.hidden // 16)),
        conv_bias=c.says("use_conv_bias"),
        bias=c.says("use_bias"),
        norms=False,
    )


def _jamba_fields(c: Fields) -> Mamba1:
    return Mamba1(
        inner=c.whole("mamba_expand") * c.hidden,
        state=c.whole("mamba_d_state"),
        kernel=c.whole("mamba_d_conv"),
        time_rank=c.whole("mamba_dt_rank", default=-(-c.hidden // 16)),
        conv_bias=c.says("mamba_conv_bias"),
        bias=c.says("mamba_proj_bias"),
        norms=True,
    )


def _mamba2_fields(c: Fields) -> Mamba2:
    return Mamba2(
        inner=c.whole("intermediate_size", default=c.whole("expand", default=2) * c.hidden),
        heads=c.whole("num_heads"),
        groups=c.whole("n_groups"),
        state=c.whole("state_size"),
        kernel=c.whole("conv_kernel"),
        conv_bias=c.says("use_conv_bias"),
        bias=c.says("use_bias"),
    )


def _granite_fields(c: Fields) -> Mamba2:
    return Mamba2(
        inner=c.whole("mamba_expand") * c.hidden,
        heads=c.whole("mamba_n_heads"),
        groups=c.whole("mamba_n_groups"),
        state=c.whole("mamba_d_state"),
        kernel=c.whole("mamba_d_conv"),
        conv_bias=c.says("mamba_conv_bias"),
        bias=c.says("mamba_proj_bias"),
    )


def _falcon_h1_fields(c: Fields) -> Mamba2:
    return Mamba2(
        inner=c.whole("mamba_d_ssm", default=c.whole("mamba_expand", default=2) * c.hidden),
        heads=c.whole("mamba_n_heads"),
        groups=c.whole("mamba_n_groups"),
        state=c.whole("mamba_d_state"),
        kernel=c.whole("mamba_d_conv"),
        conv_bias=c.says("mamba_conv_bias"),
        bias=c.says("mamba_proj_bias"),
        normed=c.says("mamba_rms_norm"),
    )


def _zamba2_fields(c: Fields) -> Mamba2:
    return Mamba2(
        inner=c.whole("mamba_expand") * c.hidden,
        heads=c.whole("n_mamba_heads"),
        groups=c.whole("mamba_ngroups"),
        state=c.whole("mamba_d_state"),
        kernel=c.whole("mamba_d_conv"),
        conv_bias=c.says("use_conv_bias"),
        bias=c.says("add_bias_linear"),
    )


def _jamba_is_attention(c: Fields, index: int) -> bool:
    period = c.whole("attn_layer_period")
    return index % period == c.count("attn_layer_offset")


def _jamba_is_routed(c: Fields, index: int) -> bool:
    period = c.whole("expert_layer_period")
    return c.whole("num_experts") > 1 and index % period == c.count("expert_layer_offset")


def _granite_feed_forward(c: Fields, r: Ranks, index: int) -> list[Part]:
    shared = granite_shared(c, r, index)
    if not c.count("num_local_experts"):
        return shared
    return [*BLOCK_SPARSE(c, r, index), *shared]


def _is_granite_attention(c: Fields, index: int) -> bool:
    name = "layer_types" if c.get("layer_types") else "layers_block_type"
    return bool(c.at(name, index) == "attention")


def _qwen_is_full(c: Fields, index: int) -> bool:
    if c.per_layer("layer_types"):
        return bool(c.at("layer_types", index) == "full_attention")
    return (index + 1) % c.whole("full_attention_interval", default=4) == 0


def _qwen_attention(c: Fields, r: Ranks, index: int) -> list[Part]:
    return grouped_attention(
        qkv_bias="attention_bias",
        head_norms="head",
        gate=c.get("attn_output_gate") is not False,
    )(c, r, index)


def _lfm2_width(c: Fields) -> int:
    """Return the width after the adjustment that LFM2 makes to the one it states."""
    width = c.whole("block_ff_dim", "intermediate_size")
    if c.get("block_auto_adjust_ff_dim"):
        width = int(c.number("block_ffn_dim_multiplier", 1.0) * int(2 * width / 3))
        multiple = c.whole("block_multiple_of", default=256)
        width = -(-width // multiple) * multiple
    return width


def _lfm2_is_attention(c: Fields, index: int) -> bool:
    return bool(c.at("layer_types", index) == "full_attention")


def _minimax_is_full(c: Fields, index: int) -> bool:
    if c.per_layer("attn_type_list"):
        return bool(c.at("attn_type_list", index))
    return bool(c.at("layer_types", index) == "full_attention")


def _lightning_attention(c: Fields, r: Ranks, _index: int) -> list[Part]:
    """Return linear attention with as many keys and values as queries, a gate and a norm."""
    width = c.heads * c.head_dim
    return [
        column(r, "self_attn.qkv_proj", c.hidden, width, width, width),
        column(r, "self_attn.output_gate", c.hidden, width),
        row(r, "self_attn.out_proj", width, c.hidden),
        Tensor(share(width, r.tensor, "attention heads")),
    ]


def _zamba2_layer(c: Fields, r: Ranks, index: int) -> list[Part]:
    parts = [*mamba2(_zamba2_fields, name="mamba")(c, r, index), norm(c.hidden)]
    if c.at("layers_block_type", index) == "hybrid":
        parts.append(Tensor(c.hidden * c.hidden))
    return parts


def _zamba2_shared(c: Fields, r: Ranks) -> list[Part]:
    """Return the attention blocks that the hybrid layers take turns with."""
    wide = c.whole("attention_hidden_size", default=2 * c.hidden)
    inner, rank, tp = c.whole("intermediate_size"), c.count("adapter_rank"), r.tensor
    uses = sum(kind == "hybrid" for kind in c.per_layer("layers_block_type"))
    one = (
        wide * 3 * wide // tp
        + wide // tp * c.hidden
        + c.hidden * 2 * inner // tp
        + inner // tp * c.hidden
        + wide
        + c.hidden
    )
    adapters = uses * rank * (c.hidden + 2 * inner // tp)
    if c.get("use_shared_attention_adapter"):
        adapters += uses * 3 * rank * (wide + wide // tp)
    return [Tensor(c.whole("num_mem_blocks", default=1) * one + adapters)]


_LFM2_MIXER: Final = either(
    _lfm2_is_attention,
    grouped_attention(head_norms="head", output="out_proj"),
    short_convolution(name="short_conv", bias="conv_bias"),
)
_QWEN_HYBRID: Final = either(_qwen_is_full, _qwen_attention, gated_delta_net)
_QWEN_ENDS: Final = Ends(embedding="every")
_MINIMAX: Final = Family(
    layer(
        either(_minimax_is_full, grouped_attention(), _lightning_attention),
        routed(
            "num_local_experts",
            "intermediate_size",
            name="block_sparse_moe",
            router_bytes=FLOAT32,
        ),
    ),
    Ends(embedding="first"),
)
_MAMBA: Final = Family(
    layer(mamba1(_mamba_fields, name="mixer"), norms=1),
    EVERY_STAGE,
    {"tie_word_embeddings": True},
)
QWEN3_5: Final = layer(_QWEN_HYBRID, gated())
QWEN3_5_MOE: Final = layer(_QWEN_HYBRID, qwen_routed)

HYBRID: Final[Mapping[str, Family]] = {
    "MambaForCausalLM": _MAMBA,
    "FalconMambaForCausalLM": _MAMBA,
    "Mamba2ForCausalLM": Family(layer(mamba2(_mamba2_fields, name="mixer"), norms=1), EVERY_STAGE),
    "JambaForCausalLM": Family(
        layer(
            either(
                _jamba_is_attention,
                grouped_attention(),
                mamba1(_jamba_fields, name="mamba"),
            ),
            either(
                _jamba_is_routed,
                routed("num_experts", "intermediate_size", name="feed_forward"),
                gated(name="feed_forward"),
            ),
        ),
        UNTIED_EVERY_STAGE,
    ),
    "OlmoHybridForCausalLM": Family(
        layer(
            either(
                _qwen_is_full,
                grouped_attention(
                    qkv_bias="attention_bias", output_bias="attention_bias", head_norms="width"
                ),
                full_rank_delta_net,
            ),
            gated(),
        ),
        EVERY_STAGE,
    ),
    "GraniteMoeHybridForCausalLM": Family(
        layer(
            either(
                _is_granite_attention,
                grouped_attention(qkv_bias="attention_bias", output_bias="attention_bias"),
                mamba2(_granite_fields, name="mamba"),
            ),
            _granite_feed_forward,
        ),
        EVERY_STAGE,
    ),
    "BambaForCausalLM": Family(
        layer(
            either(
                lambda c, index: index in c.per_layer("attn_layer_indices"),
                grouped_attention(),
                mamba2(_granite_fields, name="mamba"),
            ),
            gated(name="feed_forward"),
        ),
        EVERY_STAGE,
    ),
    "MiniMaxForCausalLM": _MINIMAX,
    "MiniMaxM1ForCausalLM": _MINIMAX,
    "MiniMaxText01ForCausalLM": _MINIMAX,
    "FalconH1ForCausalLM": Family(
        layer(
            grouped_attention(qkv_bias="attention_bias", output_bias="attention_bias"),
            mamba2(_falcon_h1_fields, name="mamba"),
            gated(name="feed_forward", bias="mlp_bias"),
        ),
        Ends(embedding="first"),
    ),
    "Qwen3NextForCausalLM": Family(
        layer(_QWEN_HYBRID, either(sparse_by_step, qwen_routed, gated())),
        Ends(embedding="every", head="every", never_tied=True),
    ),
    "Qwen3_5ForCausalLM": Family(QWEN3_5, _QWEN_ENDS),
    "Qwen3_5MoeForCausalLM": Family(QWEN3_5_MOE, _QWEN_ENDS),
    "Lfm2ForCausalLM": Family(
        layer(
            _LFM2_MIXER,
            gated(_lfm2_width, name="feed_forward", lead_in="w13", lead_out="w2"),
        ),
        Ends(embedding="every", always_tied=True),
        {"block_auto_adjust_ff_dim": True},
    ),
    "Lfm2MoeForCausalLM": Family(
        layer(
            _LFM2_MIXER,
            either(
                lambda c, index: index < c.count("num_dense_layers"),
                gated(name="feed_forward", lead_in="w13", lead_out="w2"),
                routed(
                    "num_experts",
                    "moe_intermediate_size",
                    name="feed_forward",
                    correction="use_expert_bias",
                ),
            ),
        ),
        Ends(embedding="every", always_tied=True),
    ),
    "Zamba2ForCausalLM": Family(
        _zamba2_layer,
        EVERY_STAGE,
        {"tie_word_embeddings": True},
        every=_zamba2_shared,
        staged=False,
    ),
}
