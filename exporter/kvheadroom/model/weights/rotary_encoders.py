"""Encoders with rotary positions: GTE and Nomic, one of them with experts."""

from collections.abc import Mapping
from typing import Final

from kvheadroom.model.weights.attention import grouped_attention
from kvheadroom.model.weights.encoders import NO_ENDS, labels
from kvheadroom.model.weights.family import Family
from kvheadroom.model.weights.feed_forward import either, gated, layer, plain
from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.parts import (
    FLOAT32,
    Part,
    Ranks,
    Tensor,
    column,
    norm,
    row,
    share,
    vocabulary,
)


def _embeddings(c: Fields, r: Ranks) -> list[Part]:
    types = c.count("type_vocab_size")
    parts: list[Part] = [vocabulary(r, c.whole("vocab_size"), c.hidden), norm(c.hidden, bias=True)]
    return [*parts, vocabulary(r, types, c.hidden)] if types else parts


def _gte_classified(c: Fields, r: Ranks) -> list[Part]:
    head = (c.hidden + labels(c)) * (c.hidden + 1)
    return [*_embeddings(c, r), Tensor(head, FLOAT32)]


def _gte_feed_forward(c: Fields, r: Ranks, _index: int) -> list[Part]:
    """Return a gated dense layer with a bias on its way out only."""
    inner = c.whole("intermediate_size")
    return [
        column(r, "mlp.gate_up_proj", c.hidden, inner, inner),
        row(r, "mlp.down_proj", inner, c.hidden, bias=True),
    ]


def _nomic_width(c: Fields) -> int:
    return c.whole("n_inner", "intermediate_size")


def _nomic_dense(c: Fields, r: Ranks, index: int) -> list[Part]:
    block = gated if c.get("activation_function") == "swiglu" else plain
    return block(_nomic_width, bias="qkv_proj_bias")(c, r, index)


def _nomic_is_routed(c: Fields, index: int) -> bool:
    every = c.count("moe_every_n_layers")
    return every > 0 and index % every == 1


def _nomic_experts(c: Fields, r: Ranks, _index: int) -> list[Part]:
    """Return experts that no method quantizes, one bias for all of them."""
    experts, own = c.whole("num_experts"), share(_nomic_width(c), r.tensor, "experts")
    return [Tensor(experts * (2 * own + 1) * c.hidden + c.hidden)]


_GTE: Final = layer(
    grouped_attention(name="attn", qkv_bias=True, output_bias=True, output="out_proj"),
    _gte_feed_forward,
    norm_bias=True,
)

ROTARY_ENCODERS: Final[Mapping[str, Family]] = {
    "GteModel": Family(_GTE, NO_ENDS, every=_embeddings, staged=False),
    "GteNewModel": Family(_GTE, NO_ENDS, every=_embeddings, staged=False),
    "GteNewForSequenceClassification": Family(_GTE, NO_ENDS, every=_gte_classified, staged=False),
    "NomicBertModel": Family(
        layer(
            grouped_attention(
                name="attn",
                qkv_bias="qkv_proj_bias",
                output_bias="qkv_proj_bias",
                output="out_proj",
            ),
            either(_nomic_is_routed, _nomic_experts, _nomic_dense),
            norm_bias=True,
        ),
        NO_ENDS,
        {"type_vocab_size": 2},
        every=_embeddings,
        staged=False,
    ),
}
