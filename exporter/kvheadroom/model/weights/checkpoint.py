"""Bytes of a checkpoint on disk, from its headers, its index or the hub's description."""

from collections import Counter
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, Final

from kvheadroom.errors import ModelConfigError

# The format's own names; the packed ones hold several values in a byte.
_DTYPE_BITS: Final[Mapping[str, int]] = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F4": 4,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
}
_METADATA: Final = "__metadata__"
# A tensor's bytes lie between two offsets.
_ENDS: Final = 2
# Beyond any real tensor; a file may hold any number.
_MOST_DIMENSIONS: Final = 16
_LARGEST: Final = 1 << 63


def bytes_by_dtype(headers: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the bytes of all tensors of each dtype.

    Args:
        headers: The parsed header of every safetensors file of the model.

    Raises:
        ModelConfigError: A tensor's entry is malformed, or contradicts itself.
    """
    total: Counter[str] = Counter()
    for header in headers:
        for name, entry in header.items():
            if name != _METADATA:
                dtype, size = _tensor(name, entry)
                total[dtype] += size
    return dict(total)


def _tensor(name: str, entry: object) -> tuple[str, int]:
    if not isinstance(entry, Mapping):
        raise ModelConfigError(f"tensor {name[:60]!r}: its entry is not an object")
    dtype, shape = entry.get("dtype"), _whole_numbers(entry.get("shape"))
    offsets = _whole_numbers(entry.get("data_offsets"))
    if not isinstance(dtype, str) or shape is None or offsets is None or len(offsets) != _ENDS:
        raise ModelConfigError(f"tensor {name[:60]!r}: dtype, shape or data_offsets is malformed")
    size = offsets[1] - offsets[0]
    bits = _DTYPE_BITS.get(dtype)
    if size < 0 or (bits and size != -(-prod(shape) * bits // 8)):
        raise ModelConfigError(f"tensor {name[:60]!r}: its offsets contradict its shape")
    return dtype, size


def _whole_numbers(value: object) -> list[int] | None:
    if not isinstance(value, list) or len(value) > _MOST_DIMENSIONS:
        return None
    numbers = [each for each in value if type(each) is int and 0 <= each < _LARGEST]
    return numbers if len(numbers) == len(value) else None


def bytes_of_index(index: Mapping[str, Any]) -> int:
    """Return the bytes that an index of shards states.

    Raises:
        ModelConfigError: It states none.
    """
    metadata = index.get("metadata")
    size = metadata.get("total_size") if isinstance(metadata, Mapping) else None
    if isinstance(size, bool) or not isinstance(size, int | float) or not 0 < size < float("inf"):
        raise ModelConfigError("the index of shards states no metadata.total_size")
    return int(size)


def bytes_of_hub_answer(answer: Mapping[str, Any]) -> dict[str, int]:
    """Return the bytes of each dtype from the hub's description of a model.

    Args:
        answer: The saved JSON; ``safetensors.parameters`` counts the values of each dtype.

    Raises:
        ModelConfigError: It counts none, or a dtype is not known.
    """
    described = answer.get("safetensors")
    counts = described.get("parameters") if isinstance(described, Mapping) else None
    if not isinstance(counts, Mapping) or not counts:
        raise ModelConfigError("the hub's answer has no safetensors.parameters")
    sizes = {}
    for dtype, count in counts.items():
        bits = _DTYPE_BITS.get(str(dtype))
        if bits is None or isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ModelConfigError(
                f"the hub's answer counts {count!r:.30} parameters of {str(dtype)[:20]!r}"
            )
        sizes[str(dtype)] = -(-count * bits // 8)
    return sizes
