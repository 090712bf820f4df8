"""The few kinds of parameter that models are made of, as one rank holds them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kvheadroom.errors import ModelConfigError
from kvheadroom.model.weights.fields import Fields

FLOAT32: Final = 4
"""Bytes of an element that stays float32 whatever the model's dtype."""

_VOCABULARY_PADDING: Final = 64


@dataclass(frozen=True, slots=True)
class Ranks:
    """Over how many ranks each kind of parameter is divided.

    Attributes:
        tensor: Attention, dense layers and embeddings.
        expert: Ranks that share whole experts; 1 when experts are cut instead.
        expert_tensor: Ranks that each expert is cut over; 1 when whole experts are shared.
    """

    tensor: int = 1
    expert: int = 1
    expert_tensor: int = 1


@dataclass(frozen=True, slots=True)
class Linear:
    """A matrix that a quantization method may store in its own way.

    Attributes:
        name: Module path inside the layer, as ignore lists spell it.
        inputs: Elements per input row on this rank.
        outputs: Output rows on this rank of each matrix that is fused into this one.
        bias: One more element per output row, never quantized.
        quantizable: The class builds it with the checkpoint's method.
    """

    name: str
    inputs: int
    outputs: tuple[int, ...]
    bias: bool = False
    quantizable: bool = True


@dataclass(frozen=True, slots=True)
class Experts:
    """The routed experts of a layer.

    Attributes:
        name: Module path inside the layer.
        count: Experts on this rank.
        hidden: Elements in and out.
        width: Elements between, on this rank.
        gated: Two matrices lead in, not one.
        bias: Every matrix has a bias.
        usual: The activation is one that NVIDIA's fused kernels know (SiLU, squared ReLU).
    """

    name: str
    count: int
    hidden: int
    width: int
    gated: bool = True
    bias: bool = False
    usual: bool = True


@dataclass(frozen=True, slots=True)
class Tensor:
    """Anything that is never quantized: embeddings, norms, convolutions.

    Attributes:
        elements: On this rank.
        element_bytes: ``None`` follows the model's dtype.
    """

    elements: int
    element_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class PreciseRouter:
    """A router whose product is float32.

    It follows the model's dtype where the GPU has a kernel for that, and is float32 elsewhere.

    Attributes:
        elements: Whole on every rank.
    """

    elements: int


@dataclass(frozen=True, slots=True)
class CacheScales:
    """The scales of one attention's cache, which some quantization methods load."""


Part = Linear | Experts | Tensor | PreciseRouter | CacheScales
Block = Callable[[Fields, Ranks, int], list[Part]]
"""The parameters of one layer, by its index."""


def share(total: int, ranks: int, what: str) -> int:
    """Return one rank's part of *total*.

    Raises:
        ModelConfigError: The ranks do not divide it, which vLLM refuses too.
    """
    if total % ranks:
        raise ModelConfigError(f"{what}: {total} cannot be divided over {ranks} ranks")
    return total // ranks


def kv_share(kv_heads: int, ranks: int) -> int:
    """Return the key-value heads of one rank: replicated when there are more ranks than heads."""
    return 1 if ranks >= kv_heads else share(kv_heads, ranks, "key-value heads")


def column(
    ranks: Ranks,
    name: str,
    inputs: int,
    *outputs: int,
    bias: bool = False,
    quantizable: bool = True,
) -> Linear:
    """Return a matrix whose output rows are divided."""
    rows = tuple(share(rows, ranks.tensor, name) for rows in outputs)
    return Linear(name, inputs, rows, bias, quantizable)


def row(
    ranks: Ranks,
    name: str,
    inputs: int,
    outputs: int,
    *,
    bias: bool = False,
    quantizable: bool = True,
) -> Linear:
    """Return a matrix whose inputs are divided; its bias is whole on every rank."""
    return Linear(name, share(inputs, ranks.tensor, name), (outputs,), bias, quantizable)


def replicated(
    name: str, inputs: int, *outputs: int, bias: bool = False, quantizable: bool = True
) -> Linear:
    """Return a matrix that every rank holds whole."""
    return Linear(name, inputs, outputs, bias, quantizable)


def norm(width: int, *, bias: bool = False) -> Tensor:
    """Return the scale (and shift) of a normalization, whole on every rank."""
    return Tensor(2 * width if bias else width)


def padded_vocabulary(rows: int) -> int:
    """Return *rows* rounded up to what vLLM allocates for a vocabulary.

    Source:
        vLLM 0.32 pads to 64 rows in all, whatever the number of ranks.
    """
    return -(-rows // _VOCABULARY_PADDING) * _VOCABULARY_PADDING


def vocabulary(ranks: Ranks, rows: int, width: int, *, bias: bool = False) -> Tensor:
    """Return an embedding or an output head, its rows divided."""
    own = share(padded_vocabulary(rows), ranks.tensor, "vocabulary")
    return Tensor(own * (width + 1 if bias else width))
