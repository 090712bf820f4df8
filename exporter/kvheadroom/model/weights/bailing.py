"""The Ling and Ring generations of Bailing, and the Indian models built like them."""

from collections.abc import Mapping
from typing import Final

from kvheadroom.model.weights.attention import grouped_attention, latent_attention
from kvheadroom.model.weights.family import UNTIED, Family
from kvheadroom.model.weights.feed_forward import either, gated, layer, routed
from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.parts import (
    FLOAT32,
    Block,
    CacheScales,
    Part,
    Ranks,
    Tensor,
    column,
    norm,
    row,
    share,
)
from kvheadroom.model.weights.states import delta_state

_SHARED_FIELD: Final = "moe_shared_expert_intermediate_size"


def _shared_width(c: Fields) -> int:
    return c.whole(_SHARED_FIELD, "moe_intermediate_size") * c.whole("num_shared_experts")


def _stated_shared_width(c: Fields) -> int:
    """Return the width of the shared experts, which a file states for all of them together."""
    stated = c.count(_SHARED_FIELD)
    return stated or c.whole("moe_intermediate_size") * c.whole("num_shared_experts")


def _experts(*, router_bytes: int | None, of_router: str = "", bias: bool = True) -> Block:
    """Describe routed experts beside shared ones.

    Args:
        router_bytes: Of an element of the router where the file does not say.
        of_router: The field that says it; ``""`` for a class that does not look.
        bias: The shared experts have the biases that ``use_bias`` asks for.
    """

    def block(c: Fields, r: Ranks, index: int) -> list[Part]:
        stated = c.get(of_router) if of_router else None
        width = router_bytes if stated is None else FLOAT32 if stated == "fp32" else None
        each = _shared_width if bias else _stated_shared_width
        shared = gated(each, name="mlp.shared_experts", bias="use_bias" if bias else False)
        return routed(
            "num_experts",
            "moe_intermediate_size",
            shared=shared if c.count("num_shared_experts") else None,
            router_bytes=width,
            correction="moe_router_enable_expert_bias",
        )(c, r, index)

    return block


def _is_routed(c: Fields, index: int) -> bool:
    return index >= c.count("first_k_dense_replace")


def _attention(c: Fields, r: Ranks, index: int) -> list[Part]:
    parts = grouped_attention(
        name="attention",
        qkv_bias=bool(c.get("use_bias") or c.get("use_qkv_bias")),
        output_bias="use_bias",
        output="dense",
    )(c, r, index)
    # The class does not tell its attention how the model is quantized.
    parts = [part for part in parts if not isinstance(part, CacheScales)]
    if c.says("use_qk_norm"):
        parts.append(norm(2 * c.head_dim, bias=not c.says("use_rmsnorm")))
    return parts


def _linear_attention(c: Fields, r: Ranks, _index: int) -> list[Part]:
    """Return lightning attention: as many keys and values as queries, a gate, a norm by group."""
    width = c.heads * c.head_dim
    own = share(width, r.tensor, "attention heads")
    share(c.whole("group_norm_size", default=1), r.tensor, "group_norm_size")
    bias = bool(c.get("use_bias") or c.get("use_qkv_bias"))
    parts: list[Part] = [
        column(r, "self_attn.query_key_value", c.hidden, width, width, width, bias=bias),
        column(r, "self_attn.g_proj", c.hidden, width),
        row(r, "self_attn.dense", width, c.hidden, bias=c.says("use_bias")),
        Tensor(own),
    ]
    return [*parts, norm(2 * c.head_dim)] if c.says("use_qk_norm") else parts


def _delta_attention(c: Fields, r: Ranks, _index: int) -> list[Part]:
    """Return the delta attention of the third generation, its gates of full rank."""
    width = c.heads * c.head_dim
    return [
        column(r, "self_attn.qkvb_proj", c.hidden, width, width, width, c.heads),
        column(r, "self_attn.f_proj", c.hidden, width),
        column(r, "self_attn.g_proj", c.hidden, width),
        *delta_state(r, c.heads, c.head_dim, c.whole("short_conv_kernel_size")),
        row(r, "self_attn.o_proj", width, c.hidden),
    ]


def _gated_latent(c: Fields, r: Ranks, index: int) -> list[Part]:
    rows = {"head_wise": c.heads, "element_wise": c.heads * c.whole("v_head_dim")}
    gate = rows.get(str(c.get("gated_attention_proj_granularity_type")))
    parts = latent_attention(c, r, index)
    return [*parts, column(r, "self_attn.g_proj", c.hidden, gate)] if gate else parts


def _is_linear(c: Fields, index: int) -> bool:
    return (index + 1) % c.whole("layer_group_size") != 0


def _is_delta(c: Fields, index: int) -> bool:
    every, count = c.whole("layer_group_size"), c.layers("num_hidden_layers")
    return _is_linear(c, index) and index < count // every * every


def _sarvam_latent(c: Fields, r: Ranks, index: int) -> list[Part]:
    return latent_attention(c, r, index, fused=False)


_DENSE: Final = gated(bias="use_bias")
_BAILING: Final = Family(
    layer(
        _attention,
        either(_is_routed, _experts(router_bytes=None, of_router="router_dtype"), _DENSE),
    )
)
_LATER_EXPERTS: Final = _experts(router_bytes=FLOAT32, of_router="router_dtype")
_SARVAM: Final[Mapping[str, object]] = {
    "first_k_dense_replace": 1,
    "moe_router_enable_expert_bias": True,
    "num_shared_experts": 1,
}

BAILING: Final[Mapping[str, Family]] = {
    "BailingMoeForCausalLM": _BAILING,
    "BailingMoeV2ForCausalLM": _BAILING,
    "SarvamMoEForCausalLM": _BAILING,
    "BailingMoeV2_5ForCausalLM": Family(
        layer(
            either(_is_linear, _linear_attention, latent_attention),
            either(_is_routed, _LATER_EXPERTS, _DENSE),
        ),
        UNTIED,
    ),
    "BailingMoeV3ForCausalLM": Family(
        layer(
            either(_is_delta, _delta_attention, _gated_latent),
            either(_is_routed, _experts(router_bytes=FLOAT32), _DENSE),
        ),
        UNTIED,
        {"moe_router_enable_expert_bias": True},
    ),
    "Param2MoEForCausalLM": Family(
        layer(
            grouped_attention(
                qkv_bias="use_qkv_bias",
                output_bias="use_bias",
                head_norms="head",
                normed="use_qk_norm",
            ),
            either(_is_routed, _experts(router_bytes=FLOAT32, bias=False), gated()),
        ),
        defaults=_SARVAM,
    ),
    "SarvamMLAForCausalLM": Family(
        layer(_sarvam_latent, either(_is_routed, _experts(router_bytes=None), _DENSE)),
        defaults=_SARVAM,
    ),
}
