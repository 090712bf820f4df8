"""Which attention backend vLLM picks on a CUDA device: the first in its order that is able.

The choice assumes a complete installation: FlashAttention, FlashInfer, FlashMLA and DeepGEMM.
"""

from collections.abc import Callable, Mapping
from typing import Final, Literal

from kvheadroom.engine.backends import (
    BLACKWELL,
    BLACKWELL_DESKTOP,
    BLACKWELL_THOR,
    FP8,
    HOPPER,
    WIDEST_HEAD,
    Backend,
    Query,
    sized_backend,
)
from kvheadroom.engine.dtypes import is_quantized

_AMPERE: Final = 8
_SIXTEEN_BIT: Final = frozenset({"auto", "float16", "bfloat16"})
_PER_TOKEN_HEAD: Final = frozenset(
    {"int4_per_token_head", "int8_per_token_head", "fp8_per_token_head"}
)
_TRITON_DTYPES: Final = _SIXTEEN_BIT | FP8 | {"fp8_e5m2"} | _PER_TOKEN_HEAD
_FLASHINFER_HEADS: Final = frozenset({64, 128, 256, 512})
_NARROW_HEADS: Final = 256
_FA4_HEADS: Final = 128
_TRITON_SMALLEST_HEAD: Final = 32
_FEW_QUERY_HEADS: Final = 16
_DESKTOP_TOPK: Final = 2048
_R1_DIMS: Final = (128, 128)
# Elements of a latent row without a rotated part.
_UNROTATED_ROW: Final = 512


def choose_backend(query: Query, requested: str | None) -> Backend | None:
    """Return the backend of one layer: *requested*, or the first in vLLM's order that can.

    Returns:
        ``None`` when no backend can serve the layer.
    """
    if requested is not None and requested.upper() != "AUTO":
        return sized_backend(requested.upper(), query)
    latent = query.traits.nope_dim is not None
    for name in _latent_order(query) if latent else _softmax_order(query):
        backend = sized_backend(name, query)
        fits = query.block_size is None or backend.accepts(query.block_size)
        if fits and _ABLE[name](query):
            return backend
    return None


def _softmax_order(query: Query) -> tuple[str, ...]:
    major = query.capability[0]
    if query.narrow_values:
        return ("FLASH_ATTN_DIFFKV" if _flash_version(query) != 2 else "TRITON_ATTN_DIFFKV",)  # noqa: PLR2004
    rest = ("TRITON_ATTN", "FLEX_ATTENTION", "TURBOQUANT")
    if major == BLACKWELL:
        first = ("TRITON_FLASHINFER",) if query.traits.image_prefix else ()
        if query.traits.looks_ahead:
            return ("FLASH_ATTN", *rest)
        return (*first, "FLASHINFER", "FLASH_ATTN", *rest)
    if query.traits.mixed_head_dims and major not in {HOPPER, BLACKWELL_THOR}:
        return ("TRITON_ATTN",)
    first = ("TRITON_FLASH_ATTN",) if major == HOPPER and query.traits.image_prefix else ()
    return (*first, "FLASH_ATTN", "FLASHINFER", *rest)


def _latent_order(query: Query) -> tuple[str, ...]:
    major = query.capability[0]
    if major == BLACKWELL:
        sparse = ("FLASHINFER_MLA_SPARSE", "FLASHMLA_SPARSE")
        if not (is_quantized(query.kv_dtype) or query.rank_heads <= _FEW_QUERY_HEADS):
            sparse = sparse[::-1]
        return ("FLASHINFER_MLA", "TOKENSPEED_MLA", "CUTLASS_MLA", "TRITON_MLA", *sparse)
    if major == BLACKWELL_DESKTOP:
        return ("TRITON_MLA", "FLASHINFER_MLA_SPARSE_SM120")
    sparse = ("FLASH_ATTN_MLA_SPARSE", "FLASHMLA_SPARSE")
    return ("FLASH_ATTN_MLA", "FLASHMLA", "TRITON_MLA", *sparse, "FLASHINFER_MLA_SPARSE_SM90")


def _flash_version(query: Query) -> Literal[2, 3, 4]:
    """Return the FlashAttention that would run: 3 on Hopper, 4 on Blackwell, else 2."""
    major = query.capability[0]
    if major == HOPPER:
        upgraded = query.head_dim > _NARROW_HEADS or (query.sink and query.narrow_values)
        forced = query.traits.mixed_head_dims and query.kv_dtype not in FP8
        return 4 if upgraded or forced else 3
    fits = query.head_dim <= _FA4_HEADS or query.head_dim == _NARROW_HEADS
    return 4 if major == BLACKWELL and fits else 2


def _plain_or_fp8(query: Query) -> bool:
    return query.kv_dtype in _SIXTEEN_BIT | FP8


def _half(query: Query) -> bool:
    return query.dtype in _SIXTEEN_BIT


def _flash_able(query: Query) -> bool:
    return (
        _half(query)
        and query.capability[0] >= _AMPERE
        and _flash_takes_heads(query)
        and _flash_takes_cache(query)
    )


def _flash_takes_heads(query: Query) -> bool:
    wide = query.capability[0] in {HOPPER, BLACKWELL, BLACKWELL_THOR}
    version = _flash_version(query)
    return (
        query.head_dim % 8 == 0
        and query.head_dim <= (WIDEST_HEAD if wide else _NARROW_HEADS)
        and not (query.sink and version == 2)  # noqa: PLR2004
        and not (query.traits.image_prefix and version != 4)  # noqa: PLR2004
    )


def _flash_takes_cache(query: Query) -> bool:
    if not is_quantized(query.kv_dtype):
        return query.kv_dtype in _SIXTEEN_BIT
    major, version = query.capability[0], _flash_version(query)
    if query.kv_dtype not in FP8:
        return False
    if major == HOPPER:
        kernel = version == 3 or query.head_dim == WIDEST_HEAD  # noqa: PLR2004
        return kernel and not query.traits.image_prefix
    return major == BLACKWELL and version == 4  # noqa: PLR2004


def _flashinfer_able(query: Query) -> bool:
    return not query.traits.image_prefix and _flashinfer_takes(query)


def _flashinfer_takes(query: Query) -> bool:
    major = query.capability[0]
    sinks = query.capability == (HOPPER, 0) or major in {BLACKWELL, BLACKWELL_DESKTOP}
    return (
        _half(query)
        and (8, 0) <= query.capability <= (12, 1)
        and query.head_dim in _FLASHINFER_HEADS
        and (sinks or not query.sink)
        and _flashinfer_takes_cache(query)
    )


def _flashinfer_takes_cache(query: Query) -> bool:
    if not query.kv_dtype.startswith("nvfp4"):
        return query.kv_dtype in _SIXTEEN_BIT | FP8 | {"fp8_e5m2"}
    major = query.capability[0]
    if major == BLACKWELL:
        return True
    reads = query.head_dim != min(_FLASHINFER_HEADS) and not query.sink
    return major in {_AMPERE, HOPPER, BLACKWELL_DESKTOP} and reads and query.kv_dtype == "nvfp4"


def _triton_able(query: Query) -> bool:
    return query.kv_dtype in _TRITON_DTYPES and query.head_dim >= _TRITON_SMALLEST_HEAD


def _triton_flash_able(query: Query) -> bool:
    heads = query.head_dim in {_NARROW_HEADS, WIDEST_HEAD}
    return _half(query) and heads and _plain_or_fp8(query) and not query.sink


def _triton_flashinfer_able(query: Query) -> bool:
    return _flashinfer_takes(query) and _triton_able(query) and not query.sink


def _flex_able(query: Query) -> bool:
    return query.kv_dtype in _SIXTEEN_BIT and not query.sink


def _turboquant_able(query: Query) -> bool:
    return _half(query) and query.kv_dtype.startswith("turboquant_") and not query.sink


def _flash_latent_able(query: Query) -> bool:
    return not query.sparse and query.capability[0] == HOPPER and query.kv_dtype in _SIXTEEN_BIT


def _flashmla_able(query: Query) -> bool:
    return not query.sparse and query.capability[0] == HOPPER and _plain_or_fp8(query)


def _flashinfer_latent_able(query: Query) -> bool:
    return not query.sparse and query.traits.nope_dim in {64, 128, 192} and _plain_or_fp8(query)


def _tokenspeed_able(query: Query) -> bool:
    dims = (query.traits.nope_dim, query.traits.value_dim)
    return not query.sparse and dims == _R1_DIMS and query.kv_dtype in FP8


def _dense_latent_able(query: Query) -> bool:
    return not query.sparse and _plain_or_fp8(query)


def _flash_sparse_able(query: Query) -> bool:
    hopper = query.capability[0] == HOPPER
    return hopper and query.sparse and query.context_ranks == 1 and query.kv_dtype in _SIXTEEN_BIT


def _flashmla_sparse_able(query: Query) -> bool:
    major, dtype = query.capability[0], query.kv_dtype
    if not query.sparse or query.dtype != "bfloat16":
        return False
    if query.head_dim == _UNROTATED_ROW and (major != HOPPER or dtype in FP8):
        return False
    if dtype == "nvfp4_ds_mla":
        return major == BLACKWELL
    return major in {HOPPER, BLACKWELL} and dtype in {"auto", "bfloat16", "fp8", "fp8_ds_mla"}


def _flashinfer_sparse_able(query: Query) -> bool:
    dims = {256} if query.head_dim == _UNROTATED_ROW else {128, 192}
    return query.sparse and query.traits.nope_dim in dims and _plain_or_fp8(query)


def _flashinfer_sparse_hopper_able(query: Query) -> bool:
    plain = query.kv_dtype in {"auto", "bfloat16"} | FP8
    return query.sparse and query.capability[0] == HOPPER and plain


def _flashinfer_sparse_desktop_able(query: Query) -> bool:
    dtypes = FP8 | {"auto", "fp8_ds_mla"}
    return (
        query.sparse
        and query.dtype == "bfloat16"
        and query.kv_dtype in dtypes
        and query.traits.index_topk == _DESKTOP_TOPK
    )


def _always(query: Query) -> bool:
    return query.narrow_values


_ABLE: Final[Mapping[str, Callable[[Query], bool]]] = {
    "FLASH_ATTN": _flash_able,
    "FLASH_ATTN_DIFFKV": _always,
    "TRITON_ATTN_DIFFKV": _always,
    "TRITON_FLASH_ATTN": _triton_flash_able,
    "FLASHINFER": _flashinfer_able,
    "TRITON_FLASHINFER": _triton_flashinfer_able,
    "TRITON_ATTN": _triton_able,
    "FLEX_ATTENTION": _flex_able,
    "TURBOQUANT": _turboquant_able,
    "FLASH_ATTN_MLA": _flash_latent_able,
    "FLASHMLA": _flashmla_able,
    "FLASHINFER_MLA": _flashinfer_latent_able,
    "TOKENSPEED_MLA": _tokenspeed_able,
    "CUTLASS_MLA": _dense_latent_able,
    "TRITON_MLA": _dense_latent_able,
    "FLASH_ATTN_MLA_SPARSE": _flash_sparse_able,
    "FLASHMLA_SPARSE": _flashmla_sparse_able,
    "FLASHINFER_MLA_SPARSE": _flashinfer_sparse_able,
    "FLASHINFER_MLA_SPARSE_SM90": _flashinfer_sparse_hopper_able,
    "FLASHINFER_MLA_SPARSE_SM120": _flashinfer_sparse_desktop_able,
}
