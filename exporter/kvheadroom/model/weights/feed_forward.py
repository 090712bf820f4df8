"""Parameters of feed-forward layers: dense, and experts behind a router."""

from collections.abc import Callable

from kvheadroom.model.weights.fields import Fields, Rule
from kvheadroom.model.weights.parts import (
    Block,
    Experts,
    Part,
    PreciseRouter,
    Ranks,
    Tensor,
    column,
    norm,
    replicated,
    row,
    share,
)

Size = str | Callable[[Fields], int]
"""A width: the name of its field, or a function of the config."""


def size(c: Fields, what: Size) -> int:
    """Return the width that *what* stands for."""
    return c.whole(what) if isinstance(what, str) else what(c)


def gated(
    width: Size = "intermediate_size",
    *,
    name: str = "mlp",
    bias: Rule = False,
    lead_in: str = "gate_up_proj",
    lead_out: str = "down_proj",
) -> Block:
    """Describe a dense layer with two matrices in, fused, and one out."""

    def block(c: Fields, r: Ranks, _layer: int) -> list[Part]:
        inner = size(c, width)
        return [
            column(r, f"{name}.{lead_in}", c.hidden, inner, inner, bias=c.says(bias)),
            row(r, f"{name}.{lead_out}", inner, c.hidden, bias=c.says(bias)),
        ]

    return block


def plain(
    width: Size = "intermediate_size",
    *,
    name: str = "mlp",
    bias: Rule = False,
    lead_in: str = "up_proj",
    lead_out: str = "down_proj",
) -> Block:
    """Describe a dense layer with one matrix in and one out."""

    def block(c: Fields, r: Ranks, _layer: int) -> list[Part]:
        inner = size(c, width)
        return [
            column(r, f"{name}.{lead_in}", c.hidden, inner, bias=c.says(bias)),
            row(r, f"{name}.{lead_out}", inner, c.hidden, bias=c.says(bias)),
        ]

    return block


def shared_experts(count: str, width: str = "moe_intermediate_size") -> Block:
    """Describe the dense layer as wide as the field *count*'s experts of *width*, if any."""

    def block(c: Fields, r: Ranks, layer: int) -> list[Part]:
        experts = c.count(count)
        if not experts:
            return []
        inner = experts * c.whole(width)
        return gated(lambda _c: inner, name="mlp.shared_experts")(c, r, layer)

    return block


def routed(
    count: Size,
    width: Size,
    *,
    name: str = "mlp",
    shared: Block | None = None,
    shared_gate: bool = False,
    router_bytes: int | None = None,
    router_bias: bool = False,
    correction: Rule = False,
    correction_bytes: int | None = 4,
    zero_experts: Size | None = None,
    gated_experts: bool = True,
    bias: bool = False,
    usual: bool = True,
    inner_hidden: int | None = None,
    precise_router: bool = False,
) -> Block:
    """Describe experts behind a router.

    Args:
        count: Experts of the whole model.
        width: Elements inside one expert.
        name: Module inside the layer.
        shared: Dense layer that every token passes beside the experts.
        shared_gate: That layer's output is scaled by a gate of one row.
        router_bytes: Of an element of the router; ``None`` follows the model's dtype.
        router_bias: The router has a bias.
        correction: A bias per expert that only the choice sees.
        correction_bytes: Of an element of that bias; ``None`` follows the model's dtype.
        zero_experts: Experts the router knows that hold no parameters.
        gated_experts: Experts have two matrices in.
        bias: Experts have biases.
        usual: Their activation is one that every kernel knows.
        inner_hidden: Elements in and out of an expert; ``None`` is the residual's width.
        precise_router: The router's product is float32, whatever *router_bytes* says.
    """

    def block(c: Fields, r: Ranks, layer: int) -> list[Part]:
        experts = size(c, count)
        known = experts + (size(c, zero_experts) if zero_experts is not None else 0)
        router = known * (c.hidden + router_bias)
        parts: list[Part] = [
            PreciseRouter(router) if precise_router else Tensor(router, router_bytes),
            Experts(
                f"{name}.experts",
                -(-experts // r.expert),
                inner_hidden or c.hidden,
                share(size(c, width), r.expert_tensor, "experts"),
                gated_experts,
                bias,
                usual,
            ),
        ]
        if c.says(correction):
            parts.append(Tensor(known, correction_bytes))
        if shared:
            parts += shared(c, r, layer)
            parts += [replicated(f"{name}.shared_expert_gate", c.hidden, 1)] * shared_gate
        return parts

    return block


def layer(*members: Block, norms: int = 2, norm_bias: bool = False) -> Block:
    """Describe a layer as its members and *norms* normalizations of the residual's width."""

    def block(c: Fields, r: Ranks, index: int) -> list[Part]:
        parts = [part for member in members for part in member(c, r, index)]
        return [*parts, *[norm(c.hidden, bias=norm_bias)] * norms]

    return block


def either(choose: Callable[[Fields, int], bool], yes: Block, no: Block) -> Block:
    """Describe a member that differs by layer."""

    def block(c: Fields, r: Ranks, index: int) -> list[Part]:
        return yes(c, r, index) if choose(c, index) else no(c, r, index)

    return block
