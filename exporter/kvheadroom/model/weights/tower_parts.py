"""What encoders of images and sound are made of: matrices that no checkpoint quantizes."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.parts import Linear, Part, Ranks, Tensor, column, norm, row

UNDIVIDED: Final = Ranks()
"""Of a part that every rank holds whole."""

_NAME: Final = "tower"


def wide(r: Ranks, inputs: int, *outputs: int, bias: bool = True) -> Linear:
    """Return a matrix whose output rows are divided."""
    return column(r, _NAME, inputs, *outputs, bias=bias, quantizable=False)


def narrow(r: Ranks, inputs: int, outputs: int, *, bias: bool = True) -> Linear:
    """Return a matrix whose inputs are divided."""
    return row(r, _NAME, inputs, outputs, bias=bias, quantizable=False)


def whole(inputs: int, outputs: int, *, bias: bool = True) -> Tensor:
    """Return a matrix that every rank holds whole."""
    return Tensor(outputs * (inputs + bias))


def attention(
    r: Ranks,
    width: int,
    *,
    inner: int | None = None,
    kv: int | None = None,
    bias: bool = True,
    output_bias: bool = True,
) -> list[Part]:
    """Return attention whose queries, keys and values are one matrix.

    Args:
        r: The ranks it is divided over.
        width: Elements in and out.
        inner: Elements of all queries; ``None`` is *width*.
        kv: Elements of all keys; ``None`` is as many as queries.
        bias: Queries, keys and values have biases.
        output_bias: The output projection has one.
    """
    queries = inner or width
    keys = kv or queries
    return [
        wide(r, width, queries, keys, keys, bias=bias),
        narrow(r, queries, width, bias=output_bias),
    ]


def feed_forward(
    r: Ranks, width: int, inner: int, *, bias: bool = True, gated: bool = False
) -> list[Part]:
    """Return a dense layer; *gated* has two matrices in."""
    lead_in = (inner, inner) if gated else (inner,)
    return [wide(r, width, *lead_in, bias=bias), narrow(r, inner, width, bias=bias)]


def encoder_layer(
    r: Ranks,
    width: int,
    inner: int,
    *,
    bias: bool = True,
    gated: bool = False,
    norm_bias: bool = True,
) -> list[Part]:
    """Return attention, a dense layer and the norm before each."""
    return [
        *attention(r, width, bias=bias, output_bias=bias),
        *feed_forward(r, width, inner, bias=bias, gated=gated),
        norm(2 * width, bias=norm_bias),
    ]


def patches(v: Fields, width: int, *, frames: int = 1, bias: bool = True) -> Tensor:
    """Return the convolution that makes one row of each patch of *frames* images."""
    channels = v.whole("num_channels", "in_channels", "in_chans", default=3)
    return whole(channels * frames * side(v, "patch_size") ** 2, width, bias=bias)


def side(v: Fields, name: str) -> int:
    """Return the edge of a square that may be written as both of its edges.

    Raises:
        ModelConfigError: It is neither.
    """
    return v.whole_at(name, 0)


def grid(v: Fields) -> int:
    """Return the patches of an image of the size the encoder was trained with."""
    return (side(v, "image_size") // side(v, "patch_size")) ** 2


def held_layers(layers: int, chosen: object) -> int:
    """Return the layers that are built when only the output of layer *chosen* is read.

    Args:
        layers: Of the encoder.
        chosen: An index, counted from the end when negative, or a list of such.
    """
    wanted = chosen if isinstance(chosen, Sequence) and not isinstance(chosen, str) else [chosen]
    counts = [
        layers + index + 1 if index < 0 else index for index in wanted if isinstance(index, int)
    ]
    return min(layers, max(counts, default=layers))


def linears(*widths: int, bias: bool = True) -> list[Part]:
    """Return matrices that lead from each width to the next, whole on every rank."""
    return [whole(one, two, bias=bias) for one, two in pairwise(widths)]


def text_width(c: Fields) -> int:
    """Return the elements of the language model's residual stream."""
    return c.part("text_config").hidden


def seen(c: Fields) -> Fields:
    """Return the fields of the encoder of images."""
    return c.part("vision_config")


def heard(c: Fields) -> Fields:
    """Return the fields of the encoder of sound."""
    return c.part("audio_config")
