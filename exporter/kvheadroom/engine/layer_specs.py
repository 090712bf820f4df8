"""From what a layer keeps to what it asks of the block pool of one rank."""

from dataclasses import dataclass
from typing import Final

from kvheadroom.engine.backends import Backend
from kvheadroom.engine.block_size import BlockChoice
from kvheadroom.engine.dtypes import (
    KEY_BYTES,
    head_content_bytes,
    indexer_key_bytes,
    is_quantized,
    latent_row_bytes,
)
from kvheadroom.engine.kernels import Kernel, ServerKernels, kernel_of
from kvheadroom.engine.options import EngineOptions
from kvheadroom.engine.source_specs import source_specs
from kvheadroom.engine.specs import CacheSpec, SpecKind, ceil_div, round_up
from kvheadroom.engine.states import resident_states, state_blocks, state_bytes
from kvheadroom.errors import ConfigError
from kvheadroom.model.layers import (
    AttentionLayer,
    ConvolutionLayer,
    CrossAttentionLayer,
    KeyLayer,
    LatentLayer,
    Layer,
    RingLayer,
    SourceLayer,
    StateLayer,
)

_ROW_BYTES_PACKED: Final = 584
_PACKED_ALIGNMENT: Final = 576
_PLAIN_ALIGNMENT: Final = 512
_WINDOW_TOKENS: Final = 64
_FLOAT32_BYTES: Final = 4
# Tokens of a block of the compressor's running state, by its ratio.
_COMPRESSOR_TOKENS: Final = {4: 4, 128: 8}


@dataclass(frozen=True, slots=True)
class Pool:
    """What decides about every layer's page.

    Attributes:
        options: Of the server.
        server: What decides about kernels.
        choice: The block of the server.
        max_model_len: Longest request, tokens.
    """

    options: EngineOptions
    server: ServerKernels
    choice: BlockChoice
    max_model_len: int


def specs_of(layer: Layer, pool: Pool, *, skipped: bool) -> tuple[CacheSpec, ...]:
    """Return what *layer* asks for: usually one spec.

    Args:
        layer: The layer.
        pool: What decides about its page.
        skipped: Its cache keeps the model's dtype.

    Raises:
        ConfigError: No backend serves the layer.
    """
    match layer:
        case StateLayer():
            return (_state_spec(layer, pool),)
        case RingLayer():
            return (_ring_spec(layer, pool),)
        case ConvolutionLayer():
            return (_convolution_spec(layer, pool),)
    return _served_specs(layer, pool, kernel_of(layer, pool.server, skipped=skipped), skipped)


def _served_specs(layer: Layer, pool: Pool, kernel: Kernel, skipped: bool) -> tuple[CacheSpec, ...]:
    """Return what a layer that *kernel* reads asks for."""
    match layer:
        case CrossAttentionLayer():
            dims = (layer.kv_heads, layer.head_dim, layer.head_dim)
            specs: tuple[CacheSpec, ...] = (
                _head_spec(pool, kernel, "CrossAttentionSpec", dims, pool.choice.tokens),
            )
        case AttentionLayer():
            specs = (_attention_spec(layer, pool, kernel, skipped=skipped),)
        case KeyLayer():
            specs = (_key_spec(layer, pool),)
        case SourceLayer():
            capability = pool.server.query.capability
            specs = source_specs(
                layer, pool.choice.tokens, kernel, drafts=_drafts(pool), capability=capability
            )
        case LatentLayer() if layer.compressed:
            specs = _compressed_specs(layer, pool, kernel)
        case LatentLayer():
            specs = _latent_specs(layer, pool, kernel)
        case _:
            raise TypeError("the layer has no attention backend")
    return specs


def _head_spec(
    pool: Pool,
    kernel: Kernel,
    kind: SpecKind,
    dims: tuple[int, int, int],
    tokens: int,
    *,
    window: int | None = None,
    chunk: int | None = None,
    padded_bytes: int | None = None,
) -> CacheSpec:
    heads, key_dim, value_dim = dims
    own = max(1, heads // pool.options.tensor_parallel)
    content = own * head_content_bytes(
        kernel.kv_dtype, key_dim, value_dim, backend=kernel.backend.name
    )
    return CacheSpec(
        kind=kind,
        block_size=tokens,
        page_bytes=padded_bytes or tokens * content,
        content=(own, key_dim, value_dim, kernel.kv_dtype),
        window=window,
        chunk=chunk,
    )


def _attention_spec(
    layer: AttentionLayer, pool: Pool, kernel: Kernel, *, skipped: bool
) -> CacheSpec:
    dims = (layer.kv_heads, layer.head_dim, layer.value_head_dim)
    tokens = pool.choice.tokens
    if layer.chunk is not None:
        return _head_spec(
            pool, kernel, "ChunkedLocalAttentionSpec", dims, tokens, chunk=layer.chunk
        )
    if layer.window is None:
        kind: SpecKind = "SinkFullAttentionSpec" if layer.sink_tokens else "FullAttentionSpec"
        return _head_spec(pool, kernel, kind, dims, tokens)
    shared = pool.choice.skip_page_bytes if skipped else None
    one = _head_spec(pool, kernel, "SlidingWindowSpec", dims, 1, window=layer.window)
    budget = (shared or tokens * one.page_bytes) // one.page_bytes
    return _head_spec(
        pool,
        kernel,
        "SlidingWindowSpec",
        dims,
        _largest_kernel_block(kernel.backend, budget),
        window=layer.window,
        padded_bytes=shared,
    )


def _largest_kernel_block(backend: Backend, budget_tokens: int) -> int:
    """Return the largest block one kernel takes in one piece within *budget_tokens*."""
    smallest = min(backend.kernel_tokens)
    if backend.any_multiple:
        return max(smallest, budget_tokens // smallest * smallest)
    fitting = [size for size in backend.kernel_tokens if size <= budget_tokens]
    return max(fitting, default=smallest)


def _latent_specs(layer: LatentLayer, pool: Pool, kernel: Kernel) -> tuple[CacheSpec, ...]:
    tokens, width = pool.choice.tokens, layer.row_dim
    if layer.stored_dim and is_quantized(kernel.kv_dtype):
        raise ConfigError(f"no kernel reads padded rows of cache dtype {kernel.kv_dtype}")
    rows = CacheSpec(
        kind="SlidingWindowMLASpec" if layer.window else "MLAAttentionSpec",
        block_size=tokens,
        page_bytes=tokens * latent_row_bytes(kernel.kv_dtype, width),
        content=(width, kernel.kv_dtype),
        window=layer.window,
    )
    if layer.indexer_dim is None:
        return (rows,)
    keys = CacheSpec(
        kind="MLAAttentionSpec",
        block_size=tokens,
        page_bytes=tokens * indexer_key_bytes(layer.indexer_dim),
        content=("indexer", layer.indexer_dim),
    )
    return rows, keys


def _compressed_specs(layer: LatentLayer, pool: Pool, kernel: Kernel) -> tuple[CacheSpec, ...]:
    """Return a DeepSeek-V4 layer's caches: window, compressed rows, indexer, running states."""
    packed = kernel.kv_dtype == "fp8_ds_mla"
    width = layer.latent_dim + layer.rope_dim
    row = _ROW_BYTES_PACKED if packed else latent_row_bytes(kernel.kv_dtype, width)
    alignment = _PACKED_ALIGNMENT if packed else _PLAIN_ALIGNMENT

    def window_spec(tokens: int, row_bytes: int, window: int, name: str) -> CacheSpec:
        page = round_up(tokens * row_bytes, alignment)
        return CacheSpec("SlidingWindowMLASpec", tokens, page, (name, row_bytes), window)

    specs = [window_spec(_WINDOW_TOKENS, row, layer.window or 1, "window")]
    ratio = layer.compress_ratio
    if ratio == 1:
        return tuple(specs)
    rows = pool.choice.tokens // ratio
    overlap = 2 if layer.indexer_dim else 1
    state_tokens = _COMPRESSOR_TOKENS[ratio]

    def full_spec(row_bytes: int, name: str) -> CacheSpec:
        # A block of several kernel blocks must be cut at whole kernel pages.
        kernel_rows = min(pool.choice.tokens, *kernel.backend.kernel_tokens) // ratio
        return CacheSpec(
            kind="MLAAttentionSpec",
            block_size=pool.choice.tokens,
            page_bytes=round_up(rows * row_bytes, alignment),
            content=(name, ratio),
            stride_bytes=round_up(kernel_rows * row_bytes, alignment) if kernel_rows < rows else 1,
        )

    def state_spec(dim: int, name: str) -> CacheSpec:
        row_bytes = 2 * overlap * dim * _FLOAT32_BYTES
        return window_spec(state_tokens, row_bytes, overlap * ratio, name)

    specs += [full_spec(row, "rows"), state_spec(width, "state")]
    if layer.indexer_dim:
        specs.append(full_spec(indexer_key_bytes(layer.indexer_dim), "indexer"))
        specs.append(state_spec(layer.indexer_dim, "indexer state"))
    return tuple(specs)


def _drafts(pool: Pool) -> int:
    return pool.options.speculation.tokens if pool.options.speculation else 0


def _key_spec(layer: KeyLayer, pool: Pool) -> CacheSpec:
    tokens = pool.choice.tokens
    key = indexer_key_bytes(layer.dim) if layer.quantized else layer.dim * KEY_BYTES
    return CacheSpec(
        kind="MLAAttentionSpec",
        block_size=tokens,
        page_bytes=tokens // layer.tokens_per_key * key,
        content=("indexer", layer.dim, layer.tokens_per_key),
    )


def _ring_spec(layer: RingLayer, pool: Pool) -> CacheSpec:
    """Return a ring that no draft can make overwrite what the next step still reads."""
    groups = ceil_div(layer.group_tokens + _drafts(pool), layer.group_tokens)
    if layer.doubles:
        groups = 1 << (groups - 1).bit_length()
    tokens = groups * layer.group_tokens
    if pool.choice.tokens % tokens:
        raise ConfigError(
            f"a ring of {tokens} tokens does not divide a block's {pool.choice.tokens}"
        )
    return CacheSpec(
        kind="CircularBufferSpec",
        block_size=tokens,
        page_bytes=tokens * layer.row_bytes,
        content=("ring", layer.row_bytes),
    )


def _convolution_spec(layer: ConvolutionLayer, pool: Pool) -> CacheSpec:
    own = layer.kv_heads // pool.options.tensor_parallel
    return CacheSpec(
        kind="SlidingWindowSpec",
        block_size=layer.taps,
        page_bytes=layer.taps * own * layer.head_dim * KEY_BYTES,
        content=("convolution", own, layer.head_dim),
        window=layer.taps,
    )


def _state_spec(layer: StateLayer, pool: Pool) -> CacheSpec:
    options = pool.options
    own = state_bytes(layer, options, options.dtype)
    if options.mamba_cache_mode == "none":
        tokens = options.mamba_block_size or pool.max_model_len
    else:
        tokens = pool.choice.tokens
    return CacheSpec(
        kind="MambaSpec",
        block_size=tokens,
        page_bytes=pool.choice.state_page_bytes or own,
        content=(layer.kind, own),
        state_blocks=state_blocks(layer, options),
        resident_states=resident_states(options),
        replicated=layer.replicated,
    )
