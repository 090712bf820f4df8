"""Decoders whose feed-forward layers are routed experts, attention over grouped heads."""

from collections.abc import Mapping
from typing import Final

from kvheadroom.model.weights.attention import Heads, grouped_attention
from kvheadroom.model.weights.dense import has_sinks
from kvheadroom.model.weights.family import EVERY_STAGE, UNTIED, UNTIED_EVERY_STAGE, Ends, Family
from kvheadroom.model.weights.feed_forward import either, gated, layer, routed
from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.parts import (
    FLOAT32,
    Linear,
    Part,
    Ranks,
    column,
    norm,
    row,
)


def sparse_by_step(c: Fields, index: int) -> bool:
    """Return whether Qwen's classes route layer *index*."""
    dense = c.per_layer("mlp_only_layers")
    step = c.whole("decoder_sparse_step", default=1)
    experts = c.count("num_experts")
    return index not in dense and experts > 0 and (index + 1) % step == 0


def after_dense_layers(c: Fields, index: int) -> bool:
    """Return whether DeepSeek's and GLM's classes route layer *index*."""
    first = c.count("first_k_dense_replace")
    frequency = c.get("moe_layer_freq")
    step = frequency if isinstance(frequency, int) and frequency > 0 else 1
    return index >= first and index % step == 0


def shared_width(c: Fields) -> int:
    """Return the width of the experts that every token passes."""
    return c.whole("moe_intermediate_size") * c.whole("n_shared_experts")


def optional_shared(c: Fields, r: Ranks, index: int) -> list[Part]:
    """Return the shared experts of a layer that may have none."""
    if not c.count("n_shared_experts"):
        return []
    return gated(shared_width, name="mlp.shared_experts")(c, r, index)


QWEN_SHARED: Final = gated("shared_expert_intermediate_size", name="mlp.shared_expert")


def qwen_routed(c: Fields, r: Ranks, index: int) -> list[Part]:
    """Return routed experts beside a gated shared one, where the config has that."""
    shared = bool(c.count("shared_expert_intermediate_size"))
    return routed(
        "num_experts",
        "moe_intermediate_size",
        shared=QWEN_SHARED if shared else None,
        shared_gate=shared,
    )(c, r, index)


def _llama4_is_routed(c: Fields, index: int) -> bool:
    chosen = c.per_layer("moe_layers")
    if chosen:
        return index in chosen
    step = c.count("interleave_moe_layer_step", default=1)
    return step > 0 and (index + 1) % step == 0


def _mimo_is_windowed(c: Fields, index: int) -> bool:
    return bool(c.at("hybrid_layer_pattern", index))


def _mimo_heads(c: Fields, index: int) -> Heads:
    prefix = "swa_" if _mimo_is_windowed(c, index) else ""
    dim = c.whole(f"{prefix}head_dim", "head_dim")
    return Heads(
        c.whole(f"{prefix}num_attention_heads", "num_attention_heads"),
        c.whole(f"{prefix}num_key_value_heads", "num_key_value_heads"),
        dim,
        c.whole(f"{prefix}v_head_dim", "v_head_dim", default=dim),
    )


def _mimo_has_sinks(c: Fields, index: int) -> bool:
    kind = "swa" if _mimo_is_windowed(c, index) else "full"
    return bool(c.get(f"add_{kind}_attention_sink_bias"))


def _step3_attention(c: Fields, r: Ranks, _index: int) -> list[Part]:
    """Return queries through a shared latent, with one key and value for all heads."""
    dim, latent = c.head_dim, c.whole("share_q_dim")
    return [
        Linear("self_attn.qkv_proj", c.hidden, (latent + 2 * dim,)),
        norm(latent),
        column(r, "self_attn.wq", latent, c.heads * dim),
        row(r, "self_attn.o_proj", c.heads * dim, c.hidden),
    ]


def step3_is_routed(c: Fields, index: int) -> bool:
    """Return whether Step's classes route layer *index*."""
    listed = c.get("moe_layers_enum")
    if not listed:
        return index > 0
    return str(index) in [entry.strip() for entry in str(listed).split(",")]


def _ernie_is_routed(c: Fields, index: int) -> bool:
    first = c.count("moe_layer_start_index")
    last = c.count("moe_layer_end_index", default=c.whole("num_hidden_layers") - 1)
    interval = c.whole("moe_layer_interval", default=1)
    return first <= index <= last and (index + 1) % interval == 0


def _ernie_shared(c: Fields, r: Ranks, index: int) -> list[Part]:
    shared = c.count("moe_num_shared_experts")
    if not shared:
        return []
    width = shared * c.whole("moe_intermediate_size")
    return gated(lambda _c: width, name="mlp.shared_experts")(c, r, index)


def _hunyuan_experts(c: Fields, r: Ranks, index: int) -> list[Part]:
    """Return experts of this layer's width beside shared ones of the dense width."""
    stated = c.get("moe_intermediate_size") is not None
    width = c.whole_at("moe_intermediate_size" if stated else "intermediate_size", index)
    return routed("num_experts", lambda _c: width, shared=gated(name="mlp.shared_mlp"))(c, r, index)


def _dbrx_heads(c: Fields, _index: int) -> Heads:
    dim = c.hidden // c.heads
    return Heads(c.heads, c.part("attn_config").whole("kv_n_heads"), dim, dim)


def _dbrx_experts(c: Fields, r: Ranks, index: int) -> list[Part]:
    feed_forward = c.part("ffn_config")
    experts, width = feed_forward.whole("moe_num_experts"), feed_forward.whole("ffn_hidden_size")
    return routed(lambda _c: experts, lambda _c: width, name="ffn")(c, r, index)


def granite_shared(c: Fields, r: Ranks, index: int) -> list[Part]:
    """Return the dense layer that Granite's classes may have beside their experts."""
    if not c.count("shared_intermediate_size"):
        return []
    return gated(
        "shared_intermediate_size",
        name="shared_mlp",
        lead_in="input_linear",
        lead_out="output_linear",
    )(c, r, index)


BLOCK_SPARSE: Final = routed("num_local_experts", "intermediate_size", name="block_sparse_moe")
_GRANITE_MOE: Final = Family(
    layer(
        grouped_attention(qkv_bias="attention_bias", output_bias="attention_bias", sinks=has_sinks),
        BLOCK_SPARSE,
        granite_shared,
    ),
    EVERY_STAGE,
)
_QWEN3_MOE: Final = Family(
    layer(
        grouped_attention(qkv_bias="attention_bias", output_bias=False, head_norms="head"),
        either(sparse_by_step, routed("num_experts", "moe_intermediate_size"), gated()),
    ),
    EVERY_STAGE,
)
_GLM4_MOE: Final = Family(
    layer(
        grouped_attention(qkv_bias="attention_bias", head_norms="head", normed="use_qk_norm"),
        either(
            after_dense_layers,
            routed(
                "n_routed_experts",
                "moe_intermediate_size",
                shared=optional_shared,
                router_bytes=FLOAT32,
                correction=True,
            ),
            gated(),
        ),
    ),
    UNTIED,
)
_MIMO_V2: Final = Family(
    layer(
        grouped_attention(heads=_mimo_heads, qkv_bias="attention_bias", sinks=_mimo_has_sinks),
        either(
            lambda c, index: bool(c.at("moe_layer_freq", index)),
            routed(
                "n_routed_experts", "moe_intermediate_size", router_bytes=FLOAT32, correction=True
            ),
            gated(),
        ),
    ),
    Ends(never_tied=True),
)

EXPERTS: Final[Mapping[str, Family]] = {
    "MixtralForCausalLM": Family(
        layer(
            grouped_attention(),
            BLOCK_SPARSE,
        ),
        EVERY_STAGE,
    ),
    "Qwen2MoeForCausalLM": Family(
        layer(grouped_attention(qkv_bias=True), either(sparse_by_step, qwen_routed, gated())),
        EVERY_STAGE,
        {"qkv_bias": True},
    ),
    "Qwen3MoeForCausalLM": _QWEN3_MOE,
    "OlmoeForCausalLM": Family(
        layer(grouped_attention(head_norms="width"), routed("num_experts", "intermediate_size")),
        UNTIED_EVERY_STAGE,
    ),
    "GptOssForCausalLM": Family(
        layer(
            grouped_attention(name="attn", qkv_bias=True, output_bias=True, sinks=True),
            routed("num_local_experts", "intermediate_size", router_bias=True, bias=True),
        ),
        UNTIED_EVERY_STAGE,
    ),
    "GraniteMoeForCausalLM": _GRANITE_MOE,
    "GraniteMoeSharedForCausalLM": _GRANITE_MOE,
    "GraniteMoeSWAForCausalLM": _GRANITE_MOE,
    "DbrxForCausalLM": Family(
        layer(grouped_attention(heads=_dbrx_heads), _dbrx_experts), EVERY_STAGE
    ),
    "DeepseekForCausalLM": Family(
        layer(
            grouped_attention(),
            either(
                after_dense_layers,
                routed("n_routed_experts", "moe_intermediate_size", shared=optional_shared),
                gated(),
            ),
        ),
        Ends(embedding="first"),
    ),
    "FlexOlmoForCausalLM": Family(
        layer(
            grouped_attention(
                qkv_bias="attention_bias", output_bias="attention_bias", head_norms="width"
            ),
            routed("num_experts", "intermediate_size"),
        )
    ),
    "PhiMoEForCausalLM": Family(
        layer(
            grouped_attention(qkv_bias="attention_bias", output_bias="attention_bias"),
            BLOCK_SPARSE,
            norm_bias=True,
        ),
        Ends(embedding="every", head="every", norm="every", norm_bias=True, head_bias=True),
        {"attention_bias": True},
    ),
    "Ernie4_5_MoeForCausalLM": Family(
        layer(
            grouped_attention(qkv_bias="use_bias", output_bias="use_bias"),
            either(
                _ernie_is_routed,
                routed(
                    "moe_num_experts",
                    "moe_intermediate_size",
                    shared=_ernie_shared,
                    router_bytes=FLOAT32,
                    correction=True,
                ),
                gated(bias="use_bias"),
            ),
        ),
        Ends(embedding="first"),
        {"tie_word_embeddings": True},
    ),
    "Dots1ForCausalLM": Family(
        layer(
            grouped_attention(
                qkv_bias="attention_bias", output_bias="attention_bias", head_norms="head"
            ),
            either(
                after_dense_layers,
                routed("n_routed_experts", "moe_intermediate_size", shared=optional_shared),
                gated(),
            ),
        )
    ),
    "HunYuanMoEV1ForCausalLM": Family(
        layer(
            grouped_attention(
                qkv_bias="attention_bias",
                output_bias="attention_bias",
                head_norms="head",
                normed="use_qk_norm",
            ),
            _hunyuan_experts,
        ),
        defaults={"use_qk_norm": True},
    ),
    "Glm4MoeForCausalLM": _GLM4_MOE,
    "MiniMaxM2ForCausalLM": Family(
        layer(
            grouped_attention(head_norms="divided_width"),
            routed(
                "num_local_experts",
                "intermediate_size",
                name="block_sparse_moe",
                router_bytes=FLOAT32,
                correction="use_routing_bias",
            ),
        ),
        UNTIED,
    ),
    "Llama4ForCausalLM": Family(
        layer(
            grouped_attention(qkv_bias="attention_bias", output_bias="attention_bias"),
            either(
                _llama4_is_routed,
                routed(
                    "num_local_experts",
                    "intermediate_size",
                    name="feed_forward",
                    shared=gated("intermediate_size", name="feed_forward.shared_expert"),
                ),
                gated("intermediate_size_mlp", name="feed_forward"),
            ),
        )
    ),
    "MiMoV2FlashForCausalLM": _MIMO_V2,
    "MiMoV2ForCausalLM": _MIMO_V2,
    "Step3TextForCausalLM": Family(
        layer(
            _step3_attention,
            either(
                step3_is_routed,
                routed(
                    "moe_num_experts",
                    "moe_intermediate_size",
                    name="moe",
                    shared=gated("share_expert_dim", name="share_expert"),
                ),
                gated(),
            ),
        ),
        Ends(never_tied=True),
    ),
}
