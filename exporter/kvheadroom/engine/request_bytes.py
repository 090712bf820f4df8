"""The ideal payload of one request: bytes on one rank, without blocks, padding or groups."""

from dataclasses import dataclass
from typing import Final

from kvheadroom.engine.dtypes import (
    KEY_BYTES,
    head_content_bytes,
    indexer_key_bytes,
    latent_row_bytes,
)
from kvheadroom.engine.options import EngineOptions
from kvheadroom.engine.states import state_bytes
from kvheadroom.errors import ModelConfigError
from kvheadroom.model.layers import (
    AttentionLayer,
    KeyLayer,
    LatentLayer,
    Layer,
    ModelLayers,
    StateLayer,
)

_PACKING_BACKENDS: Final = {
    "nvfp4": "FLASHINFER",
    "turboquant": "TURBOQUANT",
    "ultraquant": "ULTRAQUANT",
}


@dataclass(frozen=True, slots=True)
class LayerCost:
    """What one layer keeps of one request.

    Attributes:
        token_bytes: Bytes of one token.
        most_tokens: Tokens it keeps at most: a window or a chunk; ``None`` keeps all.
        fixed_bytes: Bytes whatever the length: a state.
    """

    token_bytes: int = 0
    most_tokens: int | None = None
    fixed_bytes: int = 0

    def bytes_for(self, tokens: int) -> int:
        """Return the bytes a request of *tokens* keeps in this layer."""
        kept = tokens if self.most_tokens is None else min(tokens, self.most_tokens)
        return self.fixed_bytes + kept * self.token_bytes


def request_costs(layers: ModelLayers, options: EngineOptions) -> tuple[LayerCost, ...]:
    """Return what each layer of *layers* keeps of one request on one rank.

    Heads are split over the ranks and copied once there are fewer heads than ranks; a latent row
    is the same on every rank.

    Raises:
        ModelConfigError: A layer's cost depends on more than its shape (compressed caches, cross
            attention).
    """
    kv_dtype = options.kv_cache_dtype if options.kv_cache_dtype != "auto" else options.dtype
    return tuple(_cost(layer, options, kv_dtype) for block in layers.blocks for layer in block)


def request_bytes(layers: ModelLayers, options: EngineOptions, tokens: int) -> int:
    """Return the bytes a request of *tokens* keeps on one rank."""
    return sum(cost.bytes_for(tokens) for cost in request_costs(layers, options))


def growing_token_bytes(layers: ModelLayers, options: EngineOptions) -> int:
    """Return the bytes each further token of a long request adds on one rank."""
    costs = request_costs(layers, options)
    return sum(cost.token_bytes for cost in costs if cost.most_tokens is None)


def _packing_backend(kv_dtype: str) -> str:
    # A packed format belongs to a backend; what is asked for is taken to be what is used.
    for prefix, backend in _PACKING_BACKENDS.items():
        if kv_dtype.startswith(prefix):
            return backend
    return "TRITON_ATTN"


def _cost(layer: Layer, options: EngineOptions, kv_dtype: str) -> LayerCost:
    if isinstance(layer, StateLayer):
        return LayerCost(fixed_bytes=state_bytes(layer, options, options.dtype))
    if isinstance(layer, AttentionLayer):
        heads = max(1, layer.kv_heads // options.tensor_parallel)
        content = head_content_bytes(
            kv_dtype, layer.head_dim, layer.value_head_dim, backend=_packing_backend(kv_dtype)
        )
        return LayerCost(heads * content, layer.window or layer.chunk)
    if isinstance(layer, LatentLayer) and not layer.compressed:
        row = latent_row_bytes(kv_dtype, layer.row_dim)
        key = indexer_key_bytes(layer.indexer_dim) if layer.indexer_dim else 0
        return LayerCost(row + key, layer.window)
    if isinstance(layer, KeyLayer) and layer.tokens_per_key == 1 and not layer.quantized:
        return LayerCost(layer.dim * KEY_BYTES)
    raise ModelConfigError(
        "the payload of a compressed or cross-attention layer has no simple form"
    )
