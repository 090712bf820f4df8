"""What a model's own layers say of its engine's pool, held against what the engine reports."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from kvheadroom.engine.capacity import Allocation, allocate, steady_blocks
from kvheadroom.engine.options import Device, EngineOptions
from kvheadroom.engine.versions import Version
from kvheadroom.errors import KvHeadroomError
from kvheadroom.model.layers import ModelLayers

# A version that does not say is read as the newest that was compared with the real thing.
_ASSUMED_VERSION: Final[Version] = (0, 32, 0)

# Tokens in flight decide what a sliding window reserves, and no page tells them. These are what
# vLLM's own defaults come to, step size times steps in flight; the engine's figures choose.
_IN_FLIGHT_TOKENS: Final = (16_384, 8_192, 4_096, 2_048, 32_768, 24_576, 65_536)


_LAYER: Final = re.compile(r"[\w.]{1,64}")


@dataclass(frozen=True, slots=True)
class ModelPool:
    """An engine's pool by its model's layers.

    Attributes:
        allocation: What vLLM's rules make of the model and the engine's labels.
        bytes_per_block: Bytes of one block id over all ranks.
        is_uniform: All layers cache every token, in one group.
        options: The settings it was reckoned with: what the labels tell, and what they leave open
            as it best agrees with them.
    """

    allocation: Allocation
    bytes_per_block: int
    is_uniform: bool
    options: EngineOptions

    @property
    def reserved_blocks(self) -> int:
        """Blocks vLLM reckons with for one request of the full length."""
        concurrency = self.allocation.max_concurrency or 1.0
        return round(self.allocation.num_blocks / concurrency)

    def blocks_for(self, context_tokens: int) -> int:
        """Return the blocks a decoding request of *context_tokens* holds."""
        return steady_blocks(self.allocation, context_tokens)


def model_pool(
    layers: ModelLayers,
    labels: Mapping[str, str],
    *,
    version: Version | None,
    blocks: int,
    block_tokens: int | None,
    max_model_len: int | None,
    full_request_blocks: int | None,
    tensor_parallel: int,
) -> ModelPool | None:
    """Return the pool that *layers* make with the settings in *labels*.

    Args:
        layers: The model.
        labels: The engine's ``cache_config_info``.
        version: The server's version.
        blocks: Blocks of this engine.
        block_tokens: The block size it reports, where that is to be trusted.
        max_model_len: Its longest request, tokens; a block costs the same whatever it is.
        full_request_blocks: Blocks it reserves for one, where it tells.
        tensor_parallel: Ranks of the engine.

    Returns:
        The pool, or ``None`` where the rules do not reproduce what the engine reports: then the
        model, a setting or a rule is not what it seems, and only the engine's figures hold.
    """
    for found in pool_candidates(
        layers,
        labels,
        version=version,
        blocks=blocks,
        block_tokens=block_tokens,
        max_model_len=max_model_len,
        tensor_parallel=tensor_parallel,
    ):
        if full_request_blocks is None or found.reserved_blocks == full_request_blocks:
            return found
    return None


def pool_candidates(
    layers: ModelLayers,
    labels: Mapping[str, str],
    *,
    version: Version | None,
    blocks: int,
    block_tokens: int | None,
    max_model_len: int | None,
    tensor_parallel: int,
) -> Iterator[ModelPool]:
    """Yield the pools that *layers* make with what *labels* leave open, likeliest first.

    Args:
        layers: The model.
        labels: The engine's ``cache_config_info``.
        version: The server's version.
        blocks: Blocks of this engine.
        block_tokens: The block size it reports, where that is to be trusted.
        max_model_len: Its longest request, tokens.
        tensor_parallel: Ranks of the engine.
    """
    skipped = _skipped_layers(labels)
    if blocks < 1 or skipped is None:
        return
    for in_flight_tokens in _IN_FLIGHT_TOKENS:
        found = _pool(
            layers,
            EngineOptions(
                version=version or _ASSUMED_VERSION,
                device=Device(),
                max_model_len=max_model_len or 1,
                max_num_batched_tokens=in_flight_tokens,
                max_num_seqs=1,
                tensor_parallel=tensor_parallel,
                kv_cache_dtype=labels.get("cache_dtype", "auto"),
                kv_cache_dtype_skip_layers=skipped,
                dtype=layers.dtype or "bfloat16",
                block_size=block_tokens,
                prefix_caching=labels.get("enable_prefix_caching") == "True",
                mamba_cache_mode=_cache_mode(labels),
                mamba_cache_dtype=labels.get("mamba_cache_dtype", "auto"),
                mamba_ssm_cache_dtype=labels.get("mamba_ssm_cache_dtype", "auto"),
                num_gpu_blocks_override=blocks,
            ),
        )
        if found is None:
            return
        yield found


@lru_cache(maxsize=512)
def _pool(layers: ModelLayers, options: EngineOptions) -> ModelPool | None:
    try:
        found = allocate(layers, options, 0)
    except (KvHeadroomError, ValueError):
        return None
    if not isinstance(found, Allocation) or not found.groups:
        return None
    return ModelPool(
        allocation=found,
        bytes_per_block=sum(found.bytes_per_block) * options.tensor_parallel,
        is_uniform=len(found.groups) == 1 and found.groups[0].kind in _WHOLE_CONTEXT_KINDS,
        options=options,
    )


_WHOLE_CONTEXT_KINDS: Final = frozenset(
    {"FullAttentionSpec", "MLAAttentionSpec", "UniformTypeKVCacheSpecs"}
)


def _skipped_layers(labels: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the layers left out of the cache dtype; ``None`` where the label cannot be read."""
    text = labels.get("kv_cache_dtype_skip_layers", "[]")
    if text == "None":
        return ()
    inner = text.strip().removeprefix("[").removesuffix("]")
    names = tuple(name.strip().strip("'\"") for name in inner.split(",") if name.strip())
    return names if text.startswith("[") and all(map(_LAYER.fullmatch, names)) else None


def _cache_mode(labels: Mapping[str, str]) -> Literal["none", "align", "all"]:
    mode = labels.get("mamba_cache_mode", "none")
    if mode == "align":
        return "align"
    return "all" if mode == "all" else "none"
