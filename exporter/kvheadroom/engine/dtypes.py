"""Bytes of what a cache dtype stores for one head and token, packing and scales included."""

from math import ceil
from typing import Final

from kvheadroom.errors import ConfigError

_ELEMENT_BYTES: Final = {
    "float32": 4,
    "float": 4,
    "float16": 2,
    "half": 2,
    "bfloat16": 2,
}
_ONE_BYTE_PREFIXES: Final = ("fp8", "int8", "int4", "nvfp4", "turboquant_", "ultraquant_")
_SCALE_BYTES: Final = 4
KEY_BYTES: Final = 2
"""Of an element of an indexer's key that is not quantized, whatever the cache's dtype."""
# Rows of a sparse latent cache that mix quantized, scale and 16-bit parts.
PACKED_LATENT_ROW_BYTES: Final = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
# Bits of a key (8: one fp8 byte per element) and of a value.
_TURBOQUANT_BITS: Final = {
    "turboquant_k8v4": (8, 4),
    "turboquant_4bit_nc": (4, 4),
    "turboquant_k3v4_nc": (3, 4),
    "turboquant_3bit_nc": (3, 3),
}


def element_bytes(dtype: str) -> int:
    """Return the bytes of one stored element of *dtype*, before any packing.

    Raises:
        ConfigError: The dtype is not known.
    """
    if dtype in _ELEMENT_BYTES:
        return _ELEMENT_BYTES[dtype]
    if dtype.startswith(_ONE_BYTE_PREFIXES):
        return 1
    raise ConfigError(f"not a known dtype: {dtype!r}")


def is_quantized(dtype: str) -> bool:
    """Return whether *dtype* stores less than the model computes with."""
    return dtype.startswith(_ONE_BYTE_PREFIXES)


def head_content_bytes(dtype: str, key_dim: int, value_dim: int, *, backend: str) -> int:
    """Return the bytes of one head's key and value of one token.

    Args:
        dtype: Of the cache, ``auto`` already resolved.
        key_dim: Elements of the key.
        value_dim: Elements of the value.
        backend: Attention backend, which owns the packing: others store plain elements.

    Raises:
        ConfigError: The dtype is not known.
    """
    if dtype.endswith("_per_token_head") and backend.startswith("TRITON_"):
        halved = 2 if dtype.startswith("int4") else 1
        return key_dim // halved + value_dim // halved + 2 * _SCALE_BYTES
    if dtype in {"nvfp4", "nvfp4_4over6"} and backend.endswith("FLASHINFER"):
        return 2 * (key_dim // 2 + key_dim // 16)
    if dtype in _TURBOQUANT_BITS and backend == "TURBOQUANT":
        return _turboquant_bytes(key_dim, *_TURBOQUANT_BITS[dtype])
    if dtype == "ultraquant_4bit" and backend == "ULTRAQUANT":
        return 2 * (key_dim // 2 + key_dim // 32)
    return (key_dim + value_dim) * element_bytes(dtype)


def _turboquant_bytes(dim: int, key_bits: int, value_bits: int) -> int:
    full_byte_key = 8
    key = dim if key_bits == full_byte_key else ceil(dim * key_bits / 8) + 2
    value = ceil(dim * value_bits / 8) + 4
    return key + value + (key + value) % 2


def latent_row_bytes(dtype: str, width: int) -> int:
    """Return the bytes of one latent vector of *width* elements.

    Raises:
        ConfigError: The dtype is not known.
    """
    return PACKED_LATENT_ROW_BYTES.get(dtype) or width * element_bytes(dtype)


def indexer_key_bytes(width: int) -> int:
    """Return the bytes of a sparse indexer's key: fp8 with one scale for 128 elements."""
    return width + width // 128 * _SCALE_BYTES
