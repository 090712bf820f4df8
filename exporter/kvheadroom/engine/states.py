"""Bytes of a recurrent or convolution state on one rank."""

from math import prod
from typing import Final

from kvheadroom.engine.backends import ASSUMED_CAPABILITY
from kvheadroom.engine.dtypes import element_bytes
from kvheadroom.engine.options import EngineOptions
from kvheadroom.engine.versions import Version
from kvheadroom.model.layers import StateLayer

# Mamba 2's prefill exports the state at a block's edge, into one block more, since the mode that
# cached every state went (vLLM 0.32.0).
_CHECKPOINTS_SINCE: Final[Version] = (0, 32, 0)
# GPUs whose kernel for bounded delta attention does the same.
_KDA_MAJORS: Final = frozenset({9, 10, 12})


def state_bytes(layer: StateLayer, options: EngineOptions, dtype: str) -> int:
    """Return the bytes of one request's state in *layer* on one rank.

    Args:
        layer: The layer.
        options: Of the server; speculation lengthens the convolution's memory.
        dtype: Of the activations, which ``auto`` follows.
    """
    ranks = _ranks(layer, options)
    conv_dtype = _conv_dtype(options, dtype)
    recurrent = layer.heads // ranks * prod(layer.state_shape) if layer.heads else 0
    return _conv_elements(layer, options) * element_bytes(conv_dtype) + recurrent * element_bytes(
        _recurrent_dtype(layer, options, conv_dtype)
    )


def state_blocks(layer: StateLayer, options: EngineOptions) -> int:
    """Return the most blocks of states one request holds."""
    drafts = options.speculation.tokens if options.speculation else 0
    if options.mamba_cache_mode == "none":
        return 1 + drafts
    exports = _exports(layer, options) and options.version >= _CHECKPOINTS_SINCE
    return 2 + drafts + exports


def _exports(layer: StateLayer, options: EngineOptions) -> bool:
    """Return whether a prefill also fills a block with the state it passes."""
    if layer.kind == "mamba2":
        return True
    major = (options.device.capability or ASSUMED_CAPABILITY)[0]
    return layer.checkpointed and major in _KDA_MAJORS and options.dtype == "bfloat16"


def _ranks(layer: StateLayer, options: EngineOptions) -> int:
    return 1 if layer.replicated else options.tensor_parallel


def _conv_elements(layer: StateLayer, options: EngineOptions) -> int:
    ranks = _ranks(layer, options)
    if not layer.conv_channels:
        return 0
    groups = layer.groups
    if groups % ranks:
        # Groups are copied so that each rank has those of its heads.
        groups = ranks
    channels = layer.conv_channels + 2 * groups * layer.state_dim
    drafts = options.speculation.tokens if options.speculation else 0
    taps = layer.conv_kernel - 1 + (drafts if layer.kind != "mamba1" else 0)
    return channels // ranks * taps


def _conv_dtype(options: EngineOptions, dtype: str) -> str:
    return dtype if options.mamba_cache_dtype == "auto" else options.mamba_cache_dtype


def _recurrent_dtype(layer: StateLayer, options: EngineOptions, conv_dtype: str) -> str:
    if layer.kind == "linear_attention":
        return conv_dtype
    if options.mamba_ssm_cache_dtype != "auto":
        return options.mamba_ssm_cache_dtype
    return layer.recurrent_dtype or conv_dtype


def resident_states(options: EngineOptions) -> int:
    """Return the blocks of states a request holds while it decodes.

    In mode ``align`` a second one is held only for a step or two, when a block is completed.

    Source:
        Observed on vLLM 0.32 serving a gated-delta-net hybrid; ``make test-vllm`` checks it.
    """
    drafts = options.speculation.tokens if options.speculation else 0
    return 1 + drafts
