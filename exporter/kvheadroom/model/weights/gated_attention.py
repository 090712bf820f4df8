"""Decoders whose attention passes a gate, runs in loops or stands between four norms."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kvheadroom.errors import ModelConfigError
from kvheadroom.model.own_fields import OWN_FIELDS
from kvheadroom.model.weights.attention import Heads, grouped_attention
from kvheadroom.model.weights.experts import after_dense_layers, sparse_by_step
from kvheadroom.model.weights.family import EVERY_STAGE, UNTIED_EVERY_STAGE, Ends, Family
from kvheadroom.model.weights.feed_forward import either, gated, layer, plain, routed
from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.gemma import GEMMA3
from kvheadroom.model.weights.parts import (
    FLOAT32,
    CacheScales,
    Linear,
    Part,
    Ranks,
    Tensor,
    column,
    kv_share,
    norm,
    replicated,
    row,
    share,
)

_TIED: Final = {"tie_word_embeddings": True}


def _output_gate(c: Fields, r: Ranks, name: str) -> list[Part]:
    return [column(r, f"self_attn.{name}", c.hidden, c.heads * c.head_dim)]


def _muse_attention(c: Fields, r: Ranks, index: int) -> list[Part]:
    parts = grouped_attention()(c, r, index)
    return (
        [*parts, *_output_gate(c, r, "output_gate_proj")]
        if c.says("use_attn_output_gate")
        else parts
    )


def _even_heads(c: Fields, _layer: int) -> Heads:
    dim = c.hidden // c.heads
    return Heads(c.heads, c.kv_heads, dim, dim)


def _loop_gate(c: Fields, r: Ranks, _index: int) -> list[Part]:
    """Return what weighs the first pass over a layer against the later ones."""
    return [column(r, "gate_proj", c.hidden // c.heads, c.heads, bias=True)]


def _horizon_attention(c: Fields, r: Ranks, index: int) -> list[Part]:
    own, kv = share(c.heads, r.tensor, "attention heads"), kv_share(c.kv_heads, r.tensor)
    bias, dim = c.says("attention_bias"), c.head_dim
    values = c.count("mova_num_experts") if sparse_by_step(c, index) else 0
    parts: list[Part] = [
        CacheScales(),
        row(r, "self_attn.o_proj", c.heads * dim, c.hidden, bias=bias),
    ]
    if values:
        rows = (own * dim, kv * dim)
        parts += [
            Linear("self_attn.qk_proj", c.hidden, rows, bias),
            *_router(c, values, "self_attn.v_router"),
            *[Linear("self_attn.v_experts", c.hidden, (kv * dim,))] * values,
        ]
    else:
        fused = (own * dim, kv * dim, kv * dim)
        parts.append(Linear("self_attn.qkv_proj", c.hidden, fused, bias))
    if c.says("query_key_norm"):
        parts.append(norm((own + kv) * dim))
    return [*parts, *_output_gate(c, r, "gate_proj")] if c.get("attention_gate_func") else parts


def _router(c: Fields, experts: int, name: str) -> list[Part]:
    parts: list[Part] = [replicated(name, c.hidden, experts)]
    return [*parts, Tensor(experts, FLOAT32)] if c.says("moe_gate_bias") else parts


def _horizon_experts(c: Fields, r: Ranks, index: int) -> list[Part]:
    shared = c.count("num_shared_experts")
    width = shared * c.whole("moe_intermediate_size")
    return routed(
        "num_experts",
        "moe_intermediate_size",
        shared=gated(lambda _c: width, name="mlp.shared_experts") if shared else None,
        correction="moe_gate_bias",
    )(c, r, index)


def _pangu_attention(c: Fields, r: Ranks, _index: int) -> list[Part]:
    """Return attention behind learned keys, its values narrower than its keys."""
    if not c.count("param_sink_number"):
        raise ModelConfigError(f"{c.architecture}: param_sink_number must be above 0")
    dim, value = c.whole("qk_nope_dim") + c.whole("qk_rope_dim"), c.whole("v_channels")
    own = share(c.heads, r.tensor, "attention heads")
    kv = share(c.kv_heads, r.tensor, "key-value heads")
    output_bias = bool(c.get("attention_bias") or c.get("bias"))
    stated = c.get("qkv_bias")
    bias = output_bias if stated is None else bool(stated)
    sunk = dim + (value if c.says("param_sink_with_value") else 0)
    return [
        Linear("self_attn.qkv_proj", c.hidden, (own * dim, kv * dim, kv * value), bias),
        row(r, "self_attn.o_proj", c.heads * value, c.hidden, bias=output_bias),
        norm(dim),
        Tensor(c.whole("param_sink_number") * kv * sunk),
    ]


def _pangu_shared(c: Fields, r: Ranks, index: int) -> list[Part]:
    shared = c.count("n_shared_experts")
    width = shared * c.whole("moe_intermediate_size")
    return gated(lambda _c: width, name="mlp.shared_experts")(c, r, index) if shared else []


def _pangu_norms(c: Fields, _r: Ranks, _index: int) -> list[Part]:
    return [norm(c.hidden)] * (4 if c.says("sandwich_norm") else 2)


def _edge_half(c: Fields, r: Ranks, index: int) -> list[Part]:
    """Return one half of a layer: attention or dense."""
    if c.get("layers_block_type") is not None:
        dense = c.at("layers_block_type", index) in {"mlp", "-"}
    else:
        dense = index % 2 == 1
    half = (
        plain(name="mixer", bias="mlp_bias")
        if dense
        else grouped_attention(
            name="mixer", qkv_bias="attention_bias", output_bias="attention_bias"
        )
    )
    return [*half(c, r, index), norm(c.hidden)]


COMPASS: Final = Family(
    layer(
        grouped_attention(
            heads=_even_heads, qkv_bias="attention_bias", output_bias="attention_bias"
        ),
        gated(),
        norms=1,
    ),
    Ends(embedding="every", norm="every", always_tied=True),
)
COSMOS_EDGE: Final = Family(_edge_half, UNTIED_EVERY_STAGE, {"head_dim": 128}, halves=2)
MUSE: Final = Family(
    layer(_muse_attention, gated(), norms=4), UNTIED_EVERY_STAGE, OWN_FIELDS["muse_glimmer_text"]
)

GATED_ATTENTION: Final[Mapping[str, Family]] = {
    "IQuestLoopCoderForCausalLM": Family(
        layer(grouped_attention(heads=_even_heads), gated(), _loop_gate), EVERY_STAGE, _TIED
    ),
    "K2HorizonForCausalLM": Family(
        layer(_horizon_attention, either(sparse_by_step, _horizon_experts, gated())),
        EVERY_STAGE,
        _TIED,
    ),
    "MuseGlimmerForCausalLM": MUSE,
    "PanguProMoEV2ForCausalLM": Family(
        layer(
            _pangu_attention,
            either(
                after_dense_layers,
                routed(
                    "n_routed_experts",
                    "moe_intermediate_size",
                    shared=_pangu_shared,
                    correction="router_enable_expert_bias",
                ),
                gated(bias="mlp_bias"),
            ),
            _pangu_norms,
            norms=0,
        ),
        defaults=_TIED,
    ),
    "Plamo3ForCausalLM": Family(
        layer(grouped_attention(name="mixer", head_norms="head"), gated(), norms=4),
        EVERY_STAGE,
        _TIED,
    ),
    "Rnj1ForCausalLM": replace(GEMMA3, ends=EVERY_STAGE, defaults={**GEMMA3.defaults, **_TIED}),
}
