"""Decoders whose config says which layers are routed experts and which are dense."""

from collections.abc import Callable, Mapping
from typing import Final

from kvheadroom.model.weights.attention import Heads, grouped_attention
from kvheadroom.model.weights.experts import step3_is_routed
from kvheadroom.model.weights.family import EVERY_STAGE, UNTIED, Ends, Family
from kvheadroom.model.weights.feed_forward import either, gated, layer, routed, shared_experts
from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.parts import FLOAT32, Block, Part, Ranks, column

_HEADS_OF_128: Final = {"head_dim": 128}


def _listed(dense_before: str | int) -> Callable[[Fields, int], bool]:
    """Return a rule: routed as ``mlp_layer_types`` lists, else after the first dense layers.

    Args:
        dense_before: How many those are, or the field that says it.
    """

    def is_routed(c: Fields, index: int) -> bool:
        if c.per_layer("mlp_layer_types"):
            return bool(c.at("mlp_layer_types", index) == "sparse")
        dense = c.count(dense_before) if isinstance(dense_before, str) else dense_before
        return index >= dense

    return is_routed


def _after(field: str) -> Callable[[Fields, int], bool]:
    return lambda c, index: index >= c.count(field)


def _experts(
    width_field: str = "moe_intermediate_size",
    *,
    router_bytes: int | None = None,
    correction: bool = True,
) -> Block:
    return routed(
        "num_experts",
        width_field,
        shared=shared_experts("num_shared_experts", width_field),
        router_bytes=router_bytes,
        correction=correction,
    )


def _afmoe_gate(c: Fields, r: Ranks, _index: int) -> list[Part]:
    return [column(r, "self_attn.gate_proj", c.hidden, c.heads * c.head_dim)]


def _cohere_dense_width(c: Fields) -> int:
    return c.whole("prefix_dense_intermediate_size", "intermediate_size")


def _laguna_heads(c: Fields, index: int) -> Heads:
    listed = c.per_layer("num_attention_heads_per_layer")
    query = c.whole_at("num_attention_heads_per_layer", index) if listed else c.heads
    return Heads(query, c.kv_heads, c.head_dim, c.head_dim)


def _laguna_gate(c: Fields, r: Ranks, index: int) -> list[Part]:
    gating = c.get("gating")
    if not gating:
        return []
    heads = _laguna_heads(c, index)
    per_head = gating is True or gating == "per-head"
    return [column(r, "self_attn.g_proj", c.hidden, heads.query * (1 if per_head else heads.dim))]


def _laguna_has_sinks(c: Fields, index: int) -> bool:
    slides = bool(c.per_layer("layer_types")) and c.at("layer_types", index) == "sliding_attention"
    return slides and bool(c.get("swa_attention_sink_enabled"))


def _laguna_shared(c: Fields, r: Ranks, index: int) -> list[Part]:
    if not c.count("shared_expert_intermediate_size"):
        return []
    return gated("shared_expert_intermediate_size", name="mlp.shared_expert")(c, r, index)


def _step3p5_heads(c: Fields, index: int) -> Heads:
    listed, other = c.per_layer("layer_types"), c.get("attention_other_setting")
    own = c
    if listed and isinstance(other, Mapping):
        part = c.part("attention_other_setting")
        own = part if c.at("layer_types", index) == part.get("attention_type") else c
    dim = own.whole("head_dim", default=c.head_dim)
    return Heads(own.heads, own.whole("num_attention_groups"), dim, dim)


def _step3p5_gate(c: Fields, r: Ranks, index: int) -> list[Part]:
    if not c.get("use_head_wise_attn_gate"):
        return []
    return [column(r, "self_attn.g_proj", c.hidden, _step3p5_heads(c, index).query)]


def _exaone_attention(c: Fields, r: Ranks, index: int) -> list[Part]:
    bias = bool(c.get("attention_bias") or c.get("bias"))
    return grouped_attention(qkv_bias=bias, output_bias=bias, head_norms="head")(c, r, index)


_EXAONE_MOE: Final = Family(
    layer(
        _exaone_attention,
        either(_listed("first_k_dense_replace"), _experts(), gated(bias="mlp_bias")),
    ),
    defaults={"first_k_dense_replace": 1, "num_shared_experts": 1},
)

SPARSE_LAYERS: Final[Mapping[str, Family]] = {
    "AfmoeForCausalLM": Family(
        layer(
            grouped_attention(head_norms="head"),
            _afmoe_gate,
            either(_after("num_dense_layers"), _experts(router_bytes=FLOAT32), gated()),
            norms=4,
        ),
        UNTIED,
        {**_HEADS_OF_128, "num_dense_layers": 1, "num_shared_experts": 2},
    ),
    "Cohere2MoeForCausalLM": Family(
        layer(
            grouped_attention(),
            either(
                _listed("first_k_dense_replace"),
                _experts("intermediate_size", correction=False),
                gated(_cohere_dense_width),
            ),
            norms=1,
        ),
        Ends(embedding="every", norm="every", always_tied=True),
        _HEADS_OF_128,
    ),
    "ExaoneMoEForCausalLM": _EXAONE_MOE,
    "ExaoneMoeForCausalLM": _EXAONE_MOE,
    "HYV3ForCausalLM": Family(
        layer(
            grouped_attention(head_norms="head", normed="qk_norm"),
            either(
                _after("first_k_dense_replace"),
                _experts("expert_hidden_dim", router_bytes=FLOAT32),
                gated(),
            ),
        ),
        EVERY_STAGE,
        {**_HEADS_OF_128, "num_shared_experts": 1},
    ),
    "LagunaForCausalLM": Family(
        layer(
            grouped_attention(
                heads=_laguna_heads,
                qkv_bias="attention_bias",
                output_bias="attention_bias",
                head_norms="head",
                sinks=_laguna_has_sinks,
            ),
            _laguna_gate,
            either(
                _listed(1),
                routed(
                    "num_experts", "moe_intermediate_size", shared=_laguna_shared, correction=True
                ),
                gated(),
            ),
        ),
        defaults={**_HEADS_OF_128, "gating": True, "shared_expert_intermediate_size": 512},
    ),
    "MellumForCausalLM": Family(
        layer(
            grouped_attention(
                qkv_bias="attention_bias", output_bias="attention_bias", head_norms="head"
            ),
            either(_listed(0), routed("num_experts", "moe_intermediate_size"), gated()),
        ),
        defaults=_HEADS_OF_128,
    ),
    "Step3p5ForCausalLM": Family(
        layer(
            grouped_attention(heads=_step3p5_heads, qkv_bias="attention_bias", head_norms="head"),
            _step3p5_gate,
            either(
                step3_is_routed,
                routed(
                    "moe_num_experts",
                    "moe_intermediate_size",
                    name="moe",
                    shared=gated("share_expert_dim", name="share_expert"),
                    router_bytes=FLOAT32,
                    correction=True,
                ),
                gated(),
            ),
        ),
        Ends(never_tied=True),
    ),
}
