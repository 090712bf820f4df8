"""Whether the heads of a model can be divided over the ranks asked for."""

from kvheadroom.engine.options import EngineOptions
from kvheadroom.errors import ConfigError
from kvheadroom.model.layers import (
    AttentionLayer,
    ConvolutionLayer,
    Layer,
    ModelLayers,
    StateLayer,
)


def check_ranks(model: ModelLayers, options: EngineOptions) -> None:
    """Check that vLLM can divide *model* as *options* ask.

    Raises:
        ConfigError: Heads or layers do not divide, or tokens of a window would be.

    Source:
        vLLM's checks of the parallel configuration and its division of heads and states.
    """
    ranks, queries = options.tensor_parallel, model.traits.query_heads
    if queries % ranks:
        raise ConfigError(f"{queries} attention heads cannot be divided over {ranks} ranks")
    if options.pipeline_parallel > max(1, len(model.blocks)) and not model.is_encoder:
        raise ConfigError(
            f"{len(model.blocks)} layers cannot be divided over {options.pipeline_parallel} stages"
        )
    for layer in {layer for block in set(model.blocks) for layer in block}:
        _check_layer(layer, options)


def _check_layer(layer: Layer, options: EngineOptions) -> None:
    ranks = options.tensor_parallel
    if isinstance(layer, ConvolutionLayer) and layer.kv_heads % ranks:
        raise ConfigError(f"{layer.kv_heads} heads cannot be divided over {ranks} ranks")
    if isinstance(layer, StateLayer) and not layer.replicated and layer.heads % ranks:
        raise ConfigError(f"{layer.heads} heads of a state cannot be divided over {ranks} ranks")
    if isinstance(layer, AttentionLayer):
        heads = layer.kv_heads
        if heads % ranks and ranks % heads:
            raise ConfigError(f"{heads} key-value heads cannot be shared by {ranks} ranks")
        if options.decode_context_parallel > 1 and (layer.window or layer.chunk):
            raise ConfigError("decode context parallelism does not support windows")
