"""Kimi Linear and Kimi K3: delta attention beside latent attention, experts of a latent width."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kvheadroom.model.weights.attention import latent_attention
from kvheadroom.model.weights.experts import after_dense_layers
from kvheadroom.model.weights.family import UNTIED, Family
from kvheadroom.model.weights.feed_forward import either, gated, layer, routed
from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.parts import (
    Experts,
    Part,
    Ranks,
    column,
    norm,
    replicated,
)
from kvheadroom.model.weights.states import kimi_delta_attention

# The least width of an expert's piece: narrower ones are padded.
_LEAST_WIDTH: Final = 256


def _is_full(c: Fields, index: int) -> bool:
    # The list counts layers from one.
    return index + 1 in c.part("linear_attn_config").per_layer("full_attn_layers")


def _full_attention(c: Fields, r: Ranks, index: int) -> list[Part]:
    parts = latent_attention(c, r, index)
    if c.says("mla_use_output_gate"):
        parts.append(column(r, "self_attn.g_proj", c.hidden, c.heads * c.whole("v_head_dim")))
    return parts


def _shared_width(c: Fields) -> int:
    return c.whole("moe_intermediate_size") * c.whole("num_shared_experts")


def _experts(c: Fields, r: Ranks, index: int) -> list[Part]:
    """Return experts, whose input and output may be projected to a width of their own."""
    narrow = c.count("routed_expert_hidden_size")
    shared = c.count("num_shared_experts")
    parts = routed(
        "num_experts",
        "moe_intermediate_size",
        shared=gated(_shared_width, name="mlp.shared_experts") if shared else None,
        correction=True,
    )(c, r, index)
    parts = [_stored(part, r, narrow) for part in parts]
    if narrow:
        parts += [
            replicated("mlp.routed_expert_down_proj", c.hidden, narrow),
            replicated("mlp.routed_expert_up_proj", narrow, c.hidden),
        ]
        parts += [norm(narrow)] * c.says("latent_moe_use_norm")
    return parts


def _stored(part: Part, r: Ranks, narrow: int) -> Part:
    if not isinstance(part, Experts):
        return part
    cut = r.tensor > 1 and r.expert == 1
    width = max(part.width, _LEAST_WIDTH) if cut else part.width
    return replace(part, width=width, hidden=narrow or part.hidden)


def _residuals(c: Fields, _r: Ranks, _index: int) -> list[Part]:
    """Return what attends over the outputs of earlier layers, once for each member."""
    scores: list[Part] = [norm(c.hidden), replicated("res_proj", c.hidden, 1)]
    return scores * 2 if c.count("attn_res_block_size") else []


def _last_residual(c: Fields, r: Ranks) -> list[Part]:
    return _residuals(c, r, 0)[:2]


KIMI_LINEAR: Final = Family(
    layer(
        either(_is_full, _full_attention, kimi_delta_attention),
        either(after_dense_layers, _experts, gated()),
        _residuals,
    ),
    UNTIED,
    last=_last_residual,
)

KIMI: Final[Mapping[str, Family]] = {"KimiLinearForCausalLM": KIMI_LINEAR}
