"""Lay a model's caches out in groups of layers that share blocks, and price a block."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import lcm
from typing import Final

from kvheadroom.engine.block_size import choose_block_size
from kvheadroom.engine.groups import LayerGroup, group_layers
from kvheadroom.engine.kernels import server_kernels
from kvheadroom.engine.layer_specs import Pool, specs_of
from kvheadroom.engine.options import EngineOptions
from kvheadroom.engine.pipeline import stage_of_layers
from kvheadroom.engine.ranks import check_ranks
from kvheadroom.engine.specs import CacheSpec, Placed, round_up
from kvheadroom.engine.versions import Version
from kvheadroom.model.layers import Block, Layer, ModelLayers, StateLayer

# Every version before kept the groups of a window apart from those of full attention.
HYBRID_SINCE: Final[Version] = (0, 9, 1)


@dataclass(frozen=True, slots=True)
class Layout:
    """What does not depend on the memory there is.

    Attributes:
        groups: Layers that share a block table, in vLLM's order.
        bytes_per_block: Bytes of one block id on a rank of each pipeline stage.
        block_size: Tokens of the smallest group's block.
    """

    groups: tuple[LayerGroup, ...]
    bytes_per_block: tuple[int, ...]
    block_size: int


def lay_out(
    layers: ModelLayers, options: EngineOptions, draft: ModelLayers | None, tokens: int
) -> Layout:
    """Return the groups and the price of a block.

    Args:
        layers: The model.
        options: Of the server.
        draft: The draft model, where speculation uses one.
        tokens: Longest request.

    Raises:
        ConfigError: vLLM cannot lay out the model with these settings.
    """
    lengthless = replace(options, max_model_len=None, auto_fit_ceiling=None)
    # Only the block of a state that is not shared is as long as the request.
    models = (layers, draft) if draft else (layers,)
    is_as_long = options.mamba_cache_mode == "none" and any(map(_has_states, models))
    return _lay_out(layers, lengthless, draft, tokens if is_as_long else 0)


@lru_cache(maxsize=1024)
def _has_states(layers: ModelLayers) -> bool:
    return any(isinstance(layer, StateLayer) for block in layers.blocks for layer in block)


@lru_cache(maxsize=4096)
def _lay_out(
    layers: ModelLayers, options: EngineOptions, draft: ModelLayers | None, tokens: int
) -> Layout:
    check_ranks(layers, options)
    server = server_kernels(layers, options)
    choice = choose_block_size((layers, draft) if draft else (layers,), options, server)
    pool = Pool(options, server, choice, tokens)
    placed = _placed(layers, pool, draft)
    groups = group_layers(
        placed,
        version=options.version,
        hybrid=options.hybrid_manager and options.version >= HYBRID_SINCE,
        block_outermost=layers.block_outermost,
    )
    return Layout(
        groups=groups,
        bytes_per_block=tuple(
            _bytes_per_block(groups, stage) for stage in range(options.pipeline_parallel)
        ),
        block_size=min((group.first.block_size for group in groups), default=choice.tokens),
    )


def _bytes_per_block(groups: Sequence[LayerGroup], stage: int) -> int:
    """Return what the widest group's layers on *stage* take for one block."""
    widest = max((group.stage_bytes(stage) for group in groups), default=0)
    strides = {spec.stride_bytes for group in groups for own, spec in group.members if own == stage}
    return round_up(widest, lcm(*strides))


def _placed(layers: ModelLayers, pool: Pool, draft: ModelLayers | None) -> list[Placed]:
    """Return every cache of every layer with its stage; drafts ride on the last."""
    stages = pool.options.pipeline_parallel
    blocks = (*layers.blocks, *own_drafts(layers, pool.options), *(draft.blocks if draft else ()))
    last = stages - 1
    stage_of = stage_of_layers(len(layers.blocks), stages)
    seen: dict[tuple[Layer, bool], tuple[CacheSpec, ...]] = {}
    placed: list[Placed] = []
    for index, block in enumerate(blocks):
        stage = stage_of[index] if index < len(stage_of) else last
        for layer in block:
            key = (layer, pool.server.skips(index, layer))
            if key not in seen:
                seen[key] = specs_of(layer, pool, skipped=key[1])
            placed += [(stage, spec) for spec in seen[key]]
    if layers.attention_first:
        placed.sort(key=lambda entry: entry[1].kind == "MambaSpec")
    return placed


def own_drafts(layers: ModelLayers, options: EngineOptions) -> tuple[Block, ...]:
    """Return what the model's own draft head adds when it speculates for itself."""
    speculation = options.speculation
    if speculation is None or not speculation.method.endswith("mtp") or speculation.model:
        return ()
    return layers.draft_blocks[: speculation.tokens]
