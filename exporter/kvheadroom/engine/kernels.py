"""The attention backend and cache dtype of every layer of a model on a server."""

from dataclasses import dataclass, replace
from typing import Final

from kvheadroom.engine.backend_rules import choose_backend
from kvheadroom.engine.backends import (
    ASSUMED_CAPABILITY,
    BLACKWELL_DESKTOP,
    FP8,
    HOPPER,
    Backend,
    Capability,
    Query,
    named_backend,
    query_of,
)
from kvheadroom.engine.options import EngineOptions
from kvheadroom.engine.versions import Version
from kvheadroom.errors import ConfigError
from kvheadroom.model.layers import (
    AttentionLayer,
    ConvolutionLayer,
    CrossAttentionLayer,
    KeyLayer,
    LatentLayer,
    Layer,
    ModelLayers,
    RingLayer,
    SourceLayer,
    StateLayer,
)

# Up to here every fp8 cache of a sparse latent model was the packed one.
_PACKED_ONLY_ONE_BACKEND_SINCE: Final[Version] = (0, 19, 0)

_LOOKS_BACK: Final = "TRITON_ATTN"


@dataclass(frozen=True, slots=True)
class Kernel:
    """How one layer is served.

    Attributes:
        backend: Its backend.
        kv_dtype: Of its cache, never ``auto``.
    """

    backend: Backend
    kv_dtype: str


@dataclass(frozen=True, slots=True)
class ServerKernels:
    """What decides about kernels on one server.

    Attributes:
        query: What every layer asks for alike.
        requested: Backend the user insists on.
        version: vLLM's version.
        skipped: Layer indices, as text, whose cache keeps the model's dtype; and perhaps
            ``sliding_window``.
    """

    query: Query
    requested: str | None
    version: Version
    skipped: frozenset[str]

    def skips(self, index: int, layer: Layer) -> bool:
        """Return whether layer *index* keeps the model's dtype in its cache."""
        if not self.skipped:
            return False
        windowed = isinstance(layer, AttentionLayer) and layer.window is not None
        return str(index) in self.skipped or (windowed and "sliding_window" in self.skipped)


def server_kernels(model: ModelLayers, options: EngineOptions) -> ServerKernels:
    """Return what decides about the kernels of *model* under *options*."""
    capability = options.device.capability or ASSUMED_CAPABILITY
    asked = _asked_kv_dtype(model, options, capability)
    return ServerKernels(
        query=Query(
            head_dim=model.traits.head_dim,
            dtype=options.dtype,
            kv_dtype=asked,
            capability=capability,
            traits=model.traits,
            rank_heads=model.traits.query_heads // options.tensor_parallel,
            block_size=options.block_size,
            context_ranks=options.decode_context_parallel,
        ),
        requested=options.attention_backend,
        version=options.version,
        skipped=frozenset(options.kv_cache_dtype_skip_layers) | _boundary(model, asked),
    )


def kernel_of(layer: Layer, server: ServerKernels, *, skipped: bool = False) -> Kernel:
    """Return how *layer* is served.

    Raises:
        ConfigError: No backend can.
    """
    if isinstance(layer, LatentLayer) and layer.compressed:
        return Kernel(named_backend("DEEPSEEK_V4"), _compressed_dtype(server.query))
    if isinstance(layer, SourceLayer):
        return Kernel(_source_backend(server.query.capability), _compressed_dtype(server.query))
    if isinstance(layer, KeyLayer):
        return Kernel(_scoring_backend(layer, server.query.capability), "uint8")
    query = replace(server.query, kv_dtype="auto") if skipped else server.query
    if isinstance(layer, CrossAttentionLayer):
        layer = AttentionLayer(layer.kv_heads, layer.head_dim, layer.head_dim)
    if isinstance(layer, StateLayer | RingLayer | ConvolutionLayer):
        raise TypeError("the layer has no attention backend")
    asked = query_of(layer, query)
    backend = choose_backend(asked, server.requested)
    if backend is None:
        major, minor = query.capability
        raise ConfigError(
            f"no attention backend serves head size {asked.head_dim}, dtype {asked.dtype} and "
            f"cache dtype {asked.kv_dtype} on compute capability {major}.{minor}"
        )
    if query.traits.looks_back and backend.name != _LOOKS_BACK:
        raise ConfigError(
            f"vLLM takes {backend.name}, which cannot attend to the chunk before and ends the "
            f"start; --attention-backend {_LOOKS_BACK} serves this model"
        )
    return Kernel(backend, _stored_dtype(asked, backend, server.version))


def _source_backend(capability: Capability) -> Backend:
    tokens = 64 if capability[0] == HOPPER else 128
    return Backend("DEEPSEEK_V41", (tokens,), any_multiple=False)


def _scoring_backend(layer: KeyLayer, capability: Capability) -> Backend:
    keys = layer.kernel_keys
    if layer.quantized and capability[0] == BLACKWELL_DESKTOP:
        # The paged kernel of these cards takes the largest page only.
        keys = keys[-1:]
    tokens = tuple(count * layer.tokens_per_key for count in keys)
    return Backend("INDEXER", tokens or (1,), any_multiple=not tokens)


def _asked_kv_dtype(model: ModelLayers, options: EngineOptions, capability: Capability) -> str:
    if model.ignores_kv_cache_dtype:
        return "auto"
    asked = options.kv_cache_dtype
    if asked == "auto" and model.prescribed_kv_dtype:
        return model.prescribed_kv_dtype
    blackwell = 10
    if asked == "auto" and model.architecture == "GlmMoeDsaForCausalLM":
        return "fp8_e4m3" if capability[0] == blackwell else asked
    if asked == "bfloat16" and model.traits.index_topk is not None and not _is_compressed(model):
        return "auto"
    return asked


def _is_compressed(model: ModelLayers) -> bool:
    return any(isinstance(layer, LatentLayer) and layer.compressed for layer in model.blocks[0][:1])


def _compressed_dtype(query: Query) -> str:
    packed = query.kv_dtype in FP8 | {"auto", "fp8_ds_mla"}
    return "fp8_ds_mla" if packed else query.kv_dtype


def _stored_dtype(query: Query, backend: Backend, version: Version) -> str:
    """Return what the worker makes of the cache dtype asked for."""
    if backend.name == "FLASHINFER_MLA_SPARSE_SM120":
        return "fp8_ds_mla"
    packs = backend.name == "FLASHMLA_SPARSE" or version < _PACKED_ONLY_ONE_BACKEND_SINCE
    if query.sparse and query.kv_dtype in FP8 and packs:
        return "fp8_ds_mla"
    return query.dtype if query.kv_dtype == "auto" else query.kv_dtype


def _boundary(model: ModelLayers, kv_dtype: str) -> frozenset[str]:
    """Return the outermost layers, which packed caches leave unquantized in plain models."""
    if not kv_dtype.startswith(("turboquant_", "ultraquant_")):
        return frozenset()
    if any(isinstance(layer, StateLayer) for block in set(model.blocks) for layer in block):
        return frozenset()
    count = len(model.blocks)
    outer = min(2, count // 2)
    return frozenset(str(index) for index in (*range(outer), *range(count - outer, count)))
