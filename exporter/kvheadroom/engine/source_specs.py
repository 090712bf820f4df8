"""The caches of DeepSeek-V4.1: windows, rows that several layers read, and open groups."""

from typing import Final

from kvheadroom.engine.backends import BLACKWELL, Capability
from kvheadroom.engine.dtypes import indexer_key_bytes, latent_row_bytes
from kvheadroom.engine.kernels import Kernel
from kvheadroom.engine.specs import CacheSpec, round_up
from kvheadroom.model.layers import SourceLayer

_WINDOW_TOKENS: Final = 32
_PLAIN_ALIGNMENT: Final = 512
# Bytes of a packed row and what a page of them is rounded up to; Blackwell has a record of its own.
_PACKED: Final = (584, 576)
_PACKED_BLACKWELL: Final = (528, 512)
_FEWEST_RING_TOKENS: Final = 8
_FLOAT32_BYTES: Final = 4


def source_specs(
    layer: SourceLayer, tokens: int, kernel: Kernel, *, drafts: int, capability: Capability
) -> tuple[CacheSpec, ...]:
    """Return what *layer* asks for.

    Args:
        layer: The layer.
        tokens: Of a block.
        kernel: How it is served.
        drafts: Tokens that speculation adds to a step.
        capability: Of the GPU.
    """
    row_bytes, alignment = latent_row_bytes(kernel.kv_dtype, layer.row_dim), _PLAIN_ALIGNMENT
    if kernel.kv_dtype == "fp8_ds_mla":
        row_bytes, alignment = _PACKED_BLACKWELL if capability[0] == BLACKWELL else _PACKED
    window = CacheSpec(
        kind="SlidingWindowMLASpec",
        block_size=_WINDOW_TOKENS,
        page_bytes=round_up(_WINDOW_TOKENS * row_bytes, alignment),
        content=("window", row_bytes),
        window=layer.window,
    )
    ratio = layer.source_ratio
    if not ratio:
        return (window,)

    def rows_spec(row_bytes: int, name: str) -> CacheSpec:
        return CacheSpec(
            kind="MLAAttentionSpec",
            block_size=tokens,
            page_bytes=round_up(tokens // ratio * row_bytes, alignment),
            content=(name, ratio),
        )

    specs = [window, rows_spec(row_bytes, "rows")]
    if layer.indexer_dim:
        specs.append(rows_spec(indexer_key_bytes(layer.indexer_dim), "indexer"))
    if ratio > 1:
        specs.append(_ring_spec(2 * layer.row_dim * _FLOAT32_BYTES, drafts))
    return tuple(specs)


def _ring_spec(row_bytes: int, drafts: int) -> CacheSpec:
    """Return the ring of sums and scores of the group that is not complete."""
    # The drafts, the token they follow and the row before it.
    tokens = max(_FEWEST_RING_TOKENS, 1 << (drafts + 1).bit_length())
    return CacheSpec(
        kind="CircularBufferSpec",
        block_size=tokens,
        page_bytes=tokens * row_bytes,
        content=("ring", row_bytes),
    )
