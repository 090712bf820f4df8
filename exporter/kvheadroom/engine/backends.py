"""Attention backends: the block sizes their kernels take, and what a layer asks of one."""

from dataclasses import dataclass, replace
from typing import Final

from kvheadroom.model.layers import AttentionLayer, KernelTraits, LatentLayer

Capability = tuple[int, int]

HOPPER: Final = 9
BLACKWELL: Final = 10
BLACKWELL_THOR: Final = 11
BLACKWELL_DESKTOP: Final = 12
# A server whose GPU is not known is taken for the one most of them have.
ASSUMED_CAPABILITY: Final[Capability] = (9, 0)
FP8: Final = frozenset({"fp8", "fp8_e4m3"})
_WIDE_HEAD: Final = 256
WIDEST_HEAD: Final = 512
_KERNEL_TOKENS: Final[dict[str, tuple[int, ...]]] = {
    "FLASHINFER": (16, 32, 64),
    "TRITON_FLASHINFER": (16, 32, 64),
    "TURBOQUANT": (16, 32, 64, 128),
    "ULTRAQUANT": (64,),
    "FLASHMLA": (64,),
    "FLASHINFER_MLA": (32, 64),
    "TOKENSPEED_MLA": (32, 64),
    "CUTLASS_MLA": (128,),
    "DEEPSEEK_V32_INDEXER": (64,),
    "DEEPSEEK_V4": (256,),
    "HPC_ATTN": (64,),
    "B12X": (64, 128),
}
_MULTIPLES: Final[dict[str, int]] = {
    "FLASH_ATTN_MLA_SPARSE": 64,
    "FLASHMLA_SPARSE": 64,
    "FLASHINFER_MLA_SPARSE": 32,
    "FLASHINFER_MLA_SPARSE_SM90": 64,
    "FLASHINFER_MLA_SPARSE_SM120": 64,
}
_DEFAULT_MULTIPLE: Final = 16
# Blackwell's grouped-query kernels take whole pages of these sizes too.
_LARGE_PAGES: Final = (16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True, slots=True)
class Backend:
    """One attention backend.

    Attributes:
        name: vLLM's name, ``FLASH_ATTN``.
        kernel_tokens: Block sizes its kernels take; their multiples too, in pieces.
        any_multiple: Kernels take every multiple of the only size in one piece.
    """

    name: str
    kernel_tokens: tuple[int, ...]
    any_multiple: bool

    def accepts(self, tokens: int) -> bool:
        """Return whether a block of *tokens* can be served."""
        return any(tokens % size == 0 for size in self.kernel_tokens)

    def preferred(self, default: int) -> int:
        """Return the block size it takes when asked for *default*."""
        if self.name == "ULTRAQUANT":
            return 64
        return default if self.accepts(default) else min(self.kernel_tokens)


@dataclass(frozen=True, slots=True)
class Query:
    """What one layer asks of a backend.

    Attributes:
        head_dim: Elements of a head, or of a latent row.
        dtype: Of the activations.
        kv_dtype: Of the cache, as asked for.
        capability: Compute capability.
        traits: Of the model.
        sink: The layer has a learned sink.
        narrow_values: Values are shorter than keys.
        sparse: A sparse indexer selects the tokens.
        rank_heads: Query heads on one rank.
        block_size: Tokens of a block the user insists on.
        context_ranks: Ranks that share a request's tokens.
    """

    head_dim: int
    dtype: str
    kv_dtype: str
    capability: Capability
    traits: KernelTraits
    sink: bool = False
    narrow_values: bool = False
    sparse: bool = False
    rank_heads: int = 0
    block_size: int | None = None
    context_ranks: int = 1


def named_backend(name: str) -> Backend:
    """Return the backend called *name* with the sizes its kernels take."""
    if name in _KERNEL_TOKENS:
        return Backend(name, _KERNEL_TOKENS[name], any_multiple=False)
    return Backend(name, (_MULTIPLES.get(name, _DEFAULT_MULTIPLE),), any_multiple=True)


def query_of(layer: AttentionLayer | LatentLayer, base: Query) -> Query:
    """Return *base* with what *layer* asks for."""
    if isinstance(layer, LatentLayer):
        return replace(
            base,
            head_dim=layer.latent_dim + layer.rope_dim,
            sparse=base.traits.index_topk is not None and layer.window is None,
        )
    return replace(
        base,
        head_dim=layer.head_dim,
        sink=layer.sink,
        narrow_values=layer.value_head_dim != layer.head_dim,
    )


def sized_backend(name: str, query: Query) -> Backend:
    """Return the backend called *name* with the sizes its kernels take for *query*."""
    if name.startswith("FLASH_ATTN") and "MLA" not in name:
        major = query.capability[0]
        # The widest head's fp8 kernel on Hopper moves tiles of 64 tokens.
        if major == HOPPER and query.kv_dtype in FP8 and query.head_dim == WIDEST_HEAD:
            return Backend(name, (64,), any_multiple=False)
        wide = query.head_dim == _WIDE_HEAD and not query.narrow_values
        if major in {BLACKWELL, BLACKWELL_THOR} and wide:
            return Backend(name, (128,), any_multiple=False)
    if name.endswith("FLASHINFER") and query.capability[0] == BLACKWELL and _shares_heads(query):
        return Backend(name, _LARGE_PAGES, any_multiple=False)
    return named_backend(name)


def _shares_heads(query: Query) -> bool:
    """Return whether several query heads of a rank read one key-value head."""
    traits = query.traits
    if not traits.query_heads or not traits.kv_heads:
        return False
    own_heads = max(1, traits.kv_heads * query.rank_heads // traits.query_heads)
    return query.rank_heads // own_heads > 1
