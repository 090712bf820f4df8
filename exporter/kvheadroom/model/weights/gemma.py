"""The Gemma generations, which tie their embeddings and norm around every member."""

from collections.abc import Mapping
from typing import Final

from kvheadroom.model.weights.attention import Heads, grouped_attention
from kvheadroom.model.weights.family import Ends, Family
from kvheadroom.model.weights.feed_forward import gated, layer, routed
from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.parts import (
    FLOAT32,
    Part,
    Ranks,
    Tensor,
    column,
    norm,
    replicated,
    row,
    vocabulary,
)

_ALWAYS_TIED: Final = Ends(embedding="every", norm="every", always_tied=True)
_ENDS: Final = Ends(embedding="every", norm="every")
_TIED: Final = {"tie_word_embeddings": True}


def _is_shared(c: Fields, index: int) -> bool:
    """Return whether a layer reads keys and values that an earlier one cached."""
    return index >= c.layers("num_hidden_layers") - c.count("num_kv_shared_layers")


def _is_full(c: Fields, index: int) -> bool:
    return bool(c.at("layer_types", index) == "full_attention")


def _gemma4_heads(c: Fields, index: int) -> Heads:
    if not _is_full(c, index):
        return Heads(c.heads, c.kv_heads, c.head_dim, c.head_dim)
    dim = c.whole("global_head_dim", default=c.head_dim)
    shares = c.get("attention_k_eq_v") and c.get("num_global_key_value_heads")
    return Heads(c.heads, c.whole("num_global_key_value_heads") if shares else c.kv_heads, dim, dim)


def _usual(c: Fields, _index: int) -> Heads:
    return Heads(c.heads, c.kv_heads, c.head_dim, c.head_dim)


def _queries_only(c: Fields, r: Ranks, h: Heads) -> list[Part]:
    return [
        column(r, "self_attn.q_proj", c.hidden, h.query * h.dim),
        norm(h.dim),
        row(r, "self_attn.o_proj", h.query * h.dim, c.hidden),
    ]


def _gemma4_attention(c: Fields, r: Ranks, index: int) -> list[Part]:
    if _is_shared(c, index):
        return _queries_only(c, r, _gemma4_heads(c, index))
    return grouped_attention(heads=_gemma4_heads, head_norms="head")(c, r, index)


def _gemma4_feed_forward(c: Fields, r: Ranks, index: int) -> list[Part]:
    wide = c.get("use_double_wide_mlp") and _is_shared(c, index)
    width = c.whole("intermediate_size") * (2 if wide else 1)
    parts = gated(lambda _c: width)(c, r, index)
    if c.get("enable_moe_block"):
        parts += routed("num_experts", "moe_intermediate_size", name="moe", usual=False)(
            c, r, index
        )
        parts += [Tensor(c.hidden + c.whole("num_experts")), norm(3 * c.hidden)]
    return parts


def _per_layer_inputs(c: Fields, _r: Ranks, _index: int) -> list[Part]:
    """Return what mixes a layer's own embedding of the token into the residual."""
    inner = c.count("hidden_size_per_layer_input")
    if not inner:
        return []
    return [
        replicated("per_layer_input_gate", c.hidden, inner),
        replicated("per_layer_projection", inner, c.hidden),
        norm(c.hidden),
    ]


def _per_layer_table(c: Fields, r: Ranks) -> list[Part]:
    inner = c.count("hidden_size_per_layer_input")
    if not inner:
        return []
    width = inner * c.layers("num_hidden_layers")
    return [
        vocabulary(r, c.whole("vocab_size_per_layer_input", "vocab_size"), width),
        column(r, "per_layer_model_projection", c.hidden, width),
        norm(inner),
    ]


def _gemma3n_attention(c: Fields, r: Ranks, index: int) -> list[Part]:
    if _is_shared(c, index):
        return _queries_only(c, r, _usual(c, index))
    return grouped_attention(head_norms="head")(c, r, index)


def _gemma3n_feed_forward(c: Fields, r: Ranks, index: int) -> list[Part]:
    width = c.whole_at("intermediate_size", index)
    return gated(lambda _c: width)(c, r, index)


def _gemma3n_mixing(c: Fields, r: Ranks, _index: int) -> list[Part]:
    """Return the alternating updates and the low-rank residual of one layer."""
    streams, rank = c.layers("altup_num_inputs"), c.whole("laurel_rank")
    return [
        Tensor(c.hidden, FLOAT32),
        replicated("altup.correction_coefs", streams, streams, quantizable=False),
        replicated("altup.prediction_coefs", streams, streams**2, quantizable=False),
        replicated("altup.modality_router", c.hidden, streams, quantizable=False),
        norm(c.hidden),
        column(r, "laurel.linear_left", c.hidden, rank),
        row(r, "laurel.linear_right", rank, c.hidden),
        norm(c.hidden),
    ]


def _gemma3n_streams(c: Fields, r: Ranks) -> list[Part]:
    projections = 2 * (c.layers("altup_num_inputs") - 1)
    return [column(r, "altup_projections", c.hidden, c.hidden)] * projections


_GEMMA2: Final = Family(
    layer(
        grouped_attention(qkv_bias="attention_bias", output_bias="attention_bias"),
        gated(),
        norms=4,
    ),
    _ALWAYS_TIED,
    {"head_dim": 256},
)
GEMMA3: Final = Family(
    layer(
        grouped_attention(
            qkv_bias="attention_bias", output_bias="attention_bias", head_norms="head"
        ),
        gated(),
        norms=4,
    ),
    _ENDS,
    {
        **_TIED,
        "head_dim": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
    },
)

GEMMA: Final[Mapping[str, Family]] = {
    "GemmaForCausalLM": Family(
        layer(grouped_attention(), gated()), _ENDS, {**_TIED, "head_dim": 256}
    ),
    "Gemma2ForCausalLM": _GEMMA2,
    "Gemma2Model": _GEMMA2,
    "Gemma3ForCausalLM": GEMMA3,
    "Gemma3TextModel": GEMMA3,
    "Gemma3nForCausalLM": Family(
        layer(
            _gemma3n_attention,
            _gemma3n_feed_forward,
            _gemma3n_mixing,
            _per_layer_inputs,
            norms=4,
        ),
        _ALWAYS_TIED,
        {
            "head_dim": 256,
            "altup_num_inputs": 4,
            "laurel_rank": 64,
            "hidden_size_per_layer_input": 256,
            "vocab_size_per_layer_input": 262144,
            "num_kv_shared_layers": 15,
        },
        every=lambda c, r: [*_per_layer_table(c, r), *_gemma3n_streams(c, r)],
    ),
    "Gemma4ForCausalLM": Family(
        layer(_gemma4_attention, _gemma4_feed_forward, _per_layer_inputs, norms=4),
        _ENDS,
        {
            **_TIED,
            "head_dim": 256,
            "global_head_dim": 512,
            "hidden_size_per_layer_input": 256,
        },
        every=_per_layer_table,
    ),
    "VaultGemmaForCausalLM": Family(
        layer(grouped_attention(qkv_bias="attention_bias", output_bias="attention_bias"), gated()),
        Ends(always_tied=True),
        {"head_dim": 256},
    ),
}
