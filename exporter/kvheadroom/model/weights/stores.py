"""Bytes of a matrix as each quantization method stores it: one function of shape per method."""

from collections.abc import Callable
from typing import Final

Store = Callable[[int, tuple[int, ...], int], int]
"""Bytes of a matrix: inputs, output rows of the matrices fused into it, bytes of the dtype."""

SCALE_BYTES: Final = 4
"""A float32."""

_BITSANDBYTES_BLOCK: Final = 64


def _ceil(value: int, by: int) -> int:
    return -(-value // by)


def unquantized(inputs: int, rows: tuple[int, ...], dtype_bytes: int) -> int:
    """Return the bytes of a matrix in the model's dtype."""
    return inputs * sum(rows) * dtype_bytes


def grouped_integers(bits: int, group: int, *, zeros: bool, index: bool) -> Store:
    """Describe packed integers with a scale per group (GPTQ, AWQ, pack-quantized).

    Args:
        bits: Of one weight.
        group: Inputs per scale; -1 is one scale per row.
        zeros: A packed zero point beside each scale.
        index: An int32 per input says its group.
    """

    def store(inputs: int, rows: tuple[int, ...], dtype_bytes: int) -> int:
        outputs, groups = sum(rows), _ceil(inputs, group) if group > 0 else 1
        packed = inputs * outputs * bits // 8
        scales = groups * outputs * dtype_bytes
        points = groups * outputs * bits // 8 if zeros else 0
        return packed + scales + points + (4 * inputs if index else 0)

    return store


def scaled_bytes(*, per_row: bool, static_input: bool) -> Store:
    """Describe 8-bit weights with a float32 scale per output row, or per fused matrix."""

    def store(inputs: int, rows: tuple[int, ...], _dtype_bytes: int) -> int:
        scales = sum(rows) if per_row else len(rows)
        return inputs * sum(rows) + SCALE_BYTES * (scales + (len(rows) if static_input else 0))

    return store


def block_scaled_bytes(rows_per_block: int, inputs_per_block: int, scale_bytes: int = 4) -> Store:
    """Describe 8-bit weights with a scale per block."""

    def store(inputs: int, rows: tuple[int, ...], _dtype_bytes: int) -> int:
        across = _ceil(inputs, inputs_per_block)
        blocks = sum(_ceil(count, rows_per_block) for count in rows) * across
        return inputs * sum(rows) + scale_bytes * blocks

    return store


def four_bit_floats(block: int, *, scales_per_matrix: int) -> Store:
    """Describe 4-bit floats with an 8-bit scale per *block* inputs (NVFP4, MXFP4).

    Args:
        block: Inputs per scale.
        scales_per_matrix: Float32 scales beside them for each fused matrix.
    """

    def store(inputs: int, rows: tuple[int, ...], _dtype_bytes: int) -> int:
        outputs = sum(rows)
        packed = inputs * outputs // 2 + _ceil(inputs, block if block > 0 else inputs) * outputs
        return packed + SCALE_BYTES * scales_per_matrix * len(rows)

    return store


def bitsandbytes(inputs: int, rows: tuple[int, ...], _dtype_bytes: int) -> int:
    """Return the bytes of 4-bit weights with a float32 maximum per 64 of them."""
    count = inputs * sum(rows)
    return _ceil(count, 2) + SCALE_BYTES * _ceil(count, _BITSANDBYTES_BLOCK)


def with_shape(store: Store) -> Store:
    """Describe *store* and the two int64 that tell a packed matrix's true shape."""
    return lambda inputs, rows, dtype_bytes: store(inputs, rows, dtype_bytes) + 2 * 8
