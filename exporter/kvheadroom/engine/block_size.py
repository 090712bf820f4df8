"""Tokens of a block: what the backends take, and what states of fixed size make of it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from math import lcm
from typing import Final

from kvheadroom.engine.backends import (
    BLACKWELL,
    HOPPER,
    Backend,
    named_backend,
    sized_backend,
)
from kvheadroom.engine.dtypes import element_bytes, head_content_bytes
from kvheadroom.engine.kernels import Kernel, ServerKernels, kernel_of
from kvheadroom.engine.options import EngineOptions
from kvheadroom.engine.specs import ceil_div
from kvheadroom.engine.states import state_bytes
from kvheadroom.engine.versions import BLOCK_SIZE_CHOSEN_BY_WORKER, Version
from kvheadroom.errors import ConfigError
from kvheadroom.model.layers import (
    AttentionLayer,
    ConvolutionLayer,
    LatentLayer,
    ModelLayers,
    RingLayer,
    StateLayer,
)

_DEFAULT_TOKENS: Final = 16
_FLASHINFER_LATENT_SINCE: Final[Version] = (0, 12, 0)
# Blackwell's latent decode kernels want whole groups of this many tokens.
_LATENT_HYBRID_TOKENS: Final = 128


@dataclass(frozen=True, slots=True)
class BlockChoice:
    """The block of a server.

    Attributes:
        tokens: Tokens of a block of attention.
        state_page_bytes: What pages of states are padded to; ``None`` leaves them as they are.
        skip_page_bytes: What unquantized pages of windows are padded to; ``None`` likewise.
    """

    tokens: int
    state_page_bytes: int | None = None
    skip_page_bytes: int | None = None


def choose_block_size(
    models: Sequence[ModelLayers], options: EngineOptions, server: ServerKernels
) -> BlockChoice:
    """Return the block vLLM settles on.

    Args:
        models: The model, and the draft model if there is one.
        options: Of the server.
        server: What decides about kernels.

    Raises:
        ConfigError: The backends share no block size, or a layer has none.
    """
    kernels = _kernels(models, server)
    if not kernels:
        return BlockChoice(options.block_size or _DEFAULT_TOKENS)
    backends = tuple(dict.fromkeys(_asked_once(kernel.backend, server) for kernel in kernels))
    tokens = options.block_size or _early_tokens(models[0], server) or common_tokens(backends)
    choice = BlockChoice(tokens)
    states, attention = _states(models[0]), _attention(models[0])
    if states and attention is not None:
        largest = max(state_bytes(layer, options, options.dtype) for layer in states)
        per_token = _token_bytes(attention, models[0], options, server)
        choice = _aligned_to_states(
            tokens, backends, largest, per_token, latent=isinstance(attention, LatentLayer)
        )
    if server.skipped:
        choice = _aligned_to_skipped(models[0], options, server, choice, backends[0])
    return choice


def _asked_once(backend: Backend, server: ServerKernels) -> Backend:
    """Return *backend* as vLLM asks it: once for all layers, by the model's largest head."""
    return sized_backend(backend.name, server.query) if backend.name == "FLASH_ATTN" else backend


def _early_tokens(model: ModelLayers, server: ServerKernels) -> int | None:
    """Return the block that vLLM's front end forced on latent attention before workers chose.

    Source:
        vLLM 0.10 to 0.17, the CUDA platform's update of the configuration: FlashMLA on Hopper, and
        on Blackwell CUTLASS first and FlashInfer later.
    """
    if server.version >= BLOCK_SIZE_CHOSEN_BY_WORKER or model.traits.nope_dim is None:
        return None
    major = server.query.capability[0]
    if major == BLACKWELL:
        return 128 if server.version < _FLASHINFER_LATENT_SINCE else 64
    return 64 if major == HOPPER else None


def common_tokens(backends: Sequence[Backend]) -> int:
    """Return the smallest block size that all *backends* take, 16 if they do.

    Raises:
        ConfigError: There is none.
    """
    if len(backends) == 1:
        return backends[0].preferred(_DEFAULT_TOKENS)
    if all(backend.accepts(_DEFAULT_TOKENS) for backend in backends):
        return _DEFAULT_TOKENS
    candidates = {lcm(*sizes) for sizes in product(*(b.kernel_tokens for b in backends))}
    for tokens in sorted(candidates):
        if all(backend.accepts(tokens) for backend in backends):
            return tokens
    raise ConfigError("the attention backends share no block size")


def _kernels(models: Iterable[ModelLayers], server: ServerKernels) -> list[Kernel]:
    """Return the distinct kernels of all layers, in the order the layers are built."""
    layers = dict.fromkeys(
        (layer, server.skips(index, layer))
        for model in models
        for index, block in enumerate((*model.blocks, *model.draft_blocks[:1]))
        for layer in block
    )
    found: dict[Kernel, None] = {}
    for layer, skipped in layers:
        if isinstance(layer, StateLayer | RingLayer | ConvolutionLayer):
            continue
        found[kernel_of(layer, server, skipped=skipped)] = None
        if isinstance(layer, LatentLayer) and layer.indexer_dim and not layer.compressed:
            found[Kernel(named_backend("DEEPSEEK_V32_INDEXER"), "uint8")] = None
    return list(found)


def _states(model: ModelLayers) -> list[StateLayer]:
    return [
        layer
        for block in dict.fromkeys(model.blocks)
        for layer in block
        if isinstance(layer, StateLayer)
    ]


def _attention(model: ModelLayers) -> AttentionLayer | LatentLayer | None:
    """Return the first attention layer."""
    for block in model.blocks:
        for layer in block:
            if isinstance(layer, AttentionLayer | LatentLayer):
                return layer
    return None


def _aligned_to_states(
    tokens: int, backends: Sequence[Backend], state_page_bytes: int, per_token: int, *, latent: bool
) -> BlockChoice:
    """Return a block whose attention page holds the largest state, which is padded to it."""
    step = max(min(backends[0].kernel_tokens), tokens)
    if latent:
        step = max(step, _LATENT_HYBRID_TOKENS)
    needed = step * ceil_div(state_page_bytes, step * per_token)
    every = lcm(*(min(backend.kernel_tokens) for backend in backends))
    tokens = max(tokens, every * ceil_div(needed, every))
    return BlockChoice(tokens, state_page_bytes=tokens * per_token)


def _token_bytes(
    layer: AttentionLayer | LatentLayer,
    model: ModelLayers,
    options: EngineOptions,
    server: ServerKernels,
) -> int:
    """Return the bytes of one token in one attention layer on one rank."""
    kernel = kernel_of(layer, server)
    if isinstance(layer, LatentLayer):
        # Before the workers look, a packed row is taken for plain bytes.
        return layer.row_dim * element_bytes(kernel.kv_dtype)
    heads = max(1, model.traits.kv_heads // options.tensor_parallel)
    dim = model.traits.head_dim
    return heads * head_content_bytes(kernel.kv_dtype, dim, dim, backend=kernel.backend.name)


def _aligned_to_skipped(
    model: ModelLayers,
    options: EngineOptions,
    server: ServerKernels,
    choice: BlockChoice,
    backend: Backend,
) -> BlockChoice:
    """Return a block whose quantized page holds the unquantized page of a kernel's block."""
    heads = max(1, model.traits.kv_heads // options.tensor_parallel)
    dim = model.traits.head_dim
    asked = server.query.kv_dtype
    stored = options.dtype if asked == "auto" else asked
    primary = heads * head_content_bytes(stored, dim, dim, backend=backend.name)
    skipped = heads * 2 * dim * element_bytes(options.dtype)
    if skipped == primary:
        return choice
    smallest = min(backend.kernel_tokens)
    step = max(smallest, choice.tokens)
    required = max(skipped * smallest, choice.state_page_bytes or 0)
    tokens = max(choice.tokens, step * ceil_div(required, step * primary))
    page = tokens * primary
    return BlockChoice(
        tokens,
        state_page_bytes=page if choice.state_page_bytes else None,
        skip_page_bytes=page,
    )
