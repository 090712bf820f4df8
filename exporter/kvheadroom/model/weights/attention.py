"""Parameters of attention: grouped heads, and the latent form of DeepSeek."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from kvheadroom.model.weights.fields import Fields, Rule
from kvheadroom.model.weights.parts import (
    Block,
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

HeadNorms = Literal["none", "head", "every_head", "width", "divided_width"]
"""Norms of queries and keys: one scale for all heads, one each, or over all heads at once."""


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of one layer of the whole model.

    Attributes:
        query: Query heads.
        kv: Key-value heads.
        dim: Elements of a query or key.
        value_dim: Elements of a value.
    """

    query: int
    kv: int
    dim: int
    value_dim: int


def usual_heads(c: Fields, _layer: int) -> Heads:
    """Return the heads that the common field names describe."""
    return Heads(c.heads, c.kv_heads, c.head_dim, c.head_dim)


def grouped_attention(
    *,
    name: str = "self_attn",
    heads: Callable[[Fields, int], Heads] = usual_heads,
    qkv_bias: Rule = False,
    output_bias: Rule = False,
    head_norms: HeadNorms = "none",
    normed: Rule = True,
    gate: bool = False,
    sinks: Rule | Callable[[Fields, int], bool] = False,
    output: str = "o_proj",
) -> Block:
    """Describe attention over grouped heads, queries, keys and values fused into one matrix.

    Args:
        name: Module of the attention inside the layer.
        heads: The layer's heads.
        qkv_bias: Queries, keys and values have biases.
        output_bias: The output projection has one.
        head_norms: How queries and keys are normalized, if they are.
        normed: Whether they are.
        gate: A gate as wide as the queries is computed beside them.
        sinks: One learned logit per query head.
        output: Module of the output projection.
    """

    def block(c: Fields, r: Ranks, layer: int) -> list[Part]:
        h = heads(c, layer)
        own = share(h.query, r.tensor, "attention heads")
        kv = kv_share(h.kv, r.tensor)
        rows = (own * h.dim * (2 if gate else 1), kv * h.dim, kv * h.value_dim)
        parts: list[Part] = [
            Linear(f"{name}.qkv_proj", c.hidden, rows, c.says(qkv_bias)),
            CacheScales(),
            row(r, f"{name}.{output}", h.query * h.value_dim, c.hidden, bias=c.says(output_bias)),
        ]
        if c.says(normed):
            parts += _head_norms(head_norms, h, own, kv)
        if sinks(c, layer) if callable(sinks) else c.says(sinks):
            parts.append(Tensor(own))
        return parts

    return block


def _head_norms(kind: HeadNorms, h: Heads, own: int, kv: int) -> list[Part]:
    match kind:
        case "none":
            return []
        case "head":
            return [norm(2 * h.dim)]
        case "every_head" | "divided_width":
            return [norm((own + kv) * h.dim)]
        case "width":
            return [norm((h.query + h.kv) * h.dim)]


def latent_attention(
    c: Fields, r: Ranks, _layer: int, *, name: str = "self_attn", fused: bool = True
) -> list[Part]:
    """Return multi-head latent attention: what leads into the latent is whole on every rank.

    Args:
        c: The config.
        r: The ranks.
        name: Module of the attention inside the layer.
        fused: The two matrices that lead in are one.
    """
    latent = c.whole("kv_lora_rank")
    # GLM-5-Next states 0: its latent attention does not rotate.
    rope = 0 if c.get("qk_rope_head_dim") == 0 else c.whole("qk_rope_head_dim")
    nope, value = c.whole("qk_nope_head_dim"), c.whole("v_head_dim")
    query_rank = c.count("q_lora_rank")
    query_rows = c.heads * (nope + rope)
    parts: list[Part] = [
        norm(latent),
        column(r, f"{name}.kv_b_proj", latent, c.heads * (nope + value)),
        row(r, f"{name}.o_proj", c.heads * value, c.hidden),
    ]
    if not query_rank:
        return [
            *parts,
            column(r, f"{name}.q_proj", c.hidden, query_rows),
            replicated(f"{name}.kv_a_proj_with_mqa", c.hidden, latent + rope),
        ]
    parts += [norm(query_rank), column(r, f"{name}.q_b_proj", query_rank, query_rows)]
    if fused:
        return [
            *parts,
            replicated(f"{name}.fused_qkv_a_proj", c.hidden, query_rank, latent + rope),
        ]
    return [
        *parts,
        replicated(f"{name}.q_a_proj", c.hidden, query_rank),
        replicated(f"{name}.kv_a_proj_with_mqa", c.hidden, latent + rope),
    ]
