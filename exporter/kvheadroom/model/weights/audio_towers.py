"""Encoders of sound that several models share."""

from typing import Final

from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.parts import Part, Ranks, Tensor, norm
from kvheadroom.model.weights.tower_parts import (
    UNDIVIDED,
    encoder_layer,
    feed_forward,
    linears,
    narrow,
    whole,
    wide,
)

_KERNEL: Final = 3


def width_of(a: Fields) -> int:
    """Return the elements of the residual stream of a Whisper-like encoder."""
    return a.whole("d_model", "hidden_size")


def _inner(a: Fields) -> int:
    return a.whole("encoder_ffn_dim", "intermediate_size")


def _layers(a: Fields) -> int:
    return a.layers("encoder_layers", "num_hidden_layers")


def _convolutions(a: Fields) -> list[Part]:
    width = width_of(a)
    return [
        whole(a.whole("num_mel_bins", default=128) * _KERNEL, width),
        whole(width * _KERNEL, width),
    ]


def undivided_whisper(a: Fields, *, positions: bool = True) -> list[Part]:
    """Return Whisper's encoder as Transformers builds it: whole, its keys without a bias.

    Args:
        a: Its fields.
        positions: They are learned rather than computed.
    """
    width = width_of(a)
    block: list[Part] = [
        whole(width, 4 * width, bias=False),
        Tensor(3 * width),
        *feed_forward(UNDIVIDED, width, _inner(a)),
        norm(2 * width, bias=True),
    ]
    return [
        *_convolutions(a),
        *[Tensor(a.whole("max_source_positions", default=1500) * width)] * positions,
        *block * _layers(a),
        norm(width, bias=True),
    ]


def whisper(a: Fields, r: Ranks, *, position_bytes: int | None = None) -> list[Part]:
    """Return Whisper's encoder as vLLM builds it.

    Args:
        a: Its fields.
        r: The ranks.
        position_bytes: Of an element of a position; ``None`` follows the model's dtype.
    """
    width = width_of(a)
    return [
        *_convolutions(a),
        Tensor(a.whole("max_source_positions", default=1500) * width, position_bytes),
        *encoder_layer(r, width, _inner(a)) * _layers(a),
        norm(width, bias=True),
    ]


def rotated_whisper(a: Fields, r: Ranks) -> list[Part]:
    """Return Whisper's encoder with rotary positions."""
    width = width_of(a)
    block = encoder_layer(r, width, _inner(a))
    return [*_convolutions(a), *block * _layers(a), norm(width, bias=True)]


def qwen3(a: Fields, r: Ranks) -> list[Part]:
    """Return the encoder of Qwen3-Omni, whose three convolutions halve time and pitch."""
    width, channels = width_of(a), a.whole("downsample_hidden_size", default=480)
    pitches = a.whole("num_mel_bins", default=128)
    for _ in range(3):
        pitches = (pitches + 1) // 2
    square = _KERNEL * _KERNEL
    return [
        whole(square, channels),
        whole(channels * square, channels),
        whole(channels * square, channels),
        whole(channels * pitches, width, bias=False),
        *encoder_layer(r, width, _inner(a)) * _layers(a),
        norm(width, bias=True),
        *linears(width, width, a.whole("output_dim")),
    ]


def conformer_of_granite(e: Fields, r: Ranks) -> list[Part]:
    """Return the conformer of Granite Speech, of which only the dense layers are divided."""
    width = e.whole("hidden_dim")
    heads, dim = e.whole("num_heads"), e.whole("dim_head")
    inner = width * e.whole("conv_expansion_factor")
    dense: list[Part] = [
        norm(width, bias=True),
        *feed_forward(r, width, width * e.whole("feedforward_mult")),
    ]
    block: list[Part] = [
        *dense,
        norm(width, bias=True),
        whole(width, 3 * heads * dim, bias=False),
        whole(heads * dim, width),
        Tensor((2 * e.whole("max_pos_emb") + 1) * dim),
        norm(width, bias=True),
        whole(width, 2 * inner),
        Tensor(inner * e.whole("conv_kernel_size")),
        norm(inner, bias=True),
        whole(inner, width),
        *dense,
        norm(width, bias=True),
    ]
    out = e.whole("output_dim")
    return [
        whole(e.whole("input_dim"), width),
        *block * e.layers("num_layers"),
        wide(r, width, out),
        narrow(r, out, width),
    ]


def conformer_of_gemma(
    width: int, layers: int, *, heads: int, kernel: int, channels: tuple[int, int]
) -> list[Part]:
    """Return Google's universal speech model as Gemma has it, whole on every rank.

    Args:
        width: Elements of the residual stream.
        layers: Its layers.
        heads: Its heads.
        kernel: Steps of time that its convolutions span.
        channels: Of the two convolutions that shorten the sound.
    """
    one, two = channels
    dense: list[Part] = [
        norm(2 * width),
        *feed_forward(UNDIVIDED, width, 4 * width, bias=False),
    ]
    block: list[Part] = [
        *dense,
        *dense,
        norm(2 * width),
        Tensor(width // heads),
        whole(width, 5 * width, bias=False),
        norm(2 * width),
        whole(width, 2 * width, bias=False),
        Tensor(width * kernel),
        whole(width, width, bias=False),
        norm(width),
    ]
    # The 128 pitches of a step are quartered.
    return [
        Tensor(9 * one + one + 9 * one * two + two),
        whole(two * 32, width, bias=False),
        *block * layers,
    ]


def qformer(q: Fields, *, seen: int) -> list[Part]:
    """Return BLIP-2's transformer, whose queries read an encoder of *seen* elements.

    Args:
        q: Its fields.
        seen: Elements of a row of what it reads.
    """
    width, inner = q.hidden, q.whole("intermediate_size")
    layers, every = q.layers("num_hidden_layers"), q.whole("cross_attention_frequency")
    block: list[Part] = [
        whole(width, 4 * width),
        norm(width, bias=True),
        *linears(width, inner, width),
        norm(width, bias=True),
    ]
    cross: list[Part] = [
        whole(width, 2 * width),
        whole(seen, 2 * width),
        norm(width, bias=True),
    ]
    return [norm(width, bias=True), *block * layers, *cross * -(-layers // every)]
