"""The parts of each rank of an engine, from everything that is known of the engine."""

from collections.abc import Sequence

from kvheadroom.engine.options import EngineOptions
from kvheadroom.live.boot_figures import RankPlace, boot_of_rank
from kvheadroom.live.capacity import Capacity
from kvheadroom.live.rank_parts import RankParts, rank_parts
from kvheadroom.readings import BootReading


def parts_of_rank(
    place: RankPlace,
    *,
    options: EngineOptions | None,
    stage_weights_bytes: Sequence[int] | None,
    capacity: Capacity | None,
    boot: BootReading | None = None,
    is_asleep: bool = False,
) -> RankParts:
    """Return what the rank at *place* holds on its GPU.

    Args:
        place: The rank.
        options: Of its server; ``None`` while its command is not known.
        stage_weights_bytes: Weights of one rank of each pipeline stage, shape ``(stages,)``, as
            :func:`~kvheadroom.engine.rank_weights.rank_weights` returns them; ``None`` while the
            model is not known.
        capacity: The engine's pool; ``None`` while it has not reported one.
        boot: The start that runs now (:func:`~kvheadroom.live.boot_figures.is_boot_of`).
        is_asleep: The engine has given its weights and its pool away.
    """
    is_alone = place.stages * place.ranks_per_stage == 1
    return rank_parts(
        weights_bytes=_at(stage_weights_bytes, place),
        kv_blocks=capacity.blocks if capacity else None,
        block_bytes=_block_bytes(capacity, place),
        kv_configured_bytes=options.kv_cache_memory_bytes if options else None,
        caches_kv=capacity is None or capacity.layout != "none",
        captures_graphs=options is None or not options.enforce_eager,
        log=boot_of_rank(boot, place) if boot else None,
        log_states_pool=is_alone and options is not None and not options.num_gpu_blocks_override,
        is_asleep=is_asleep,
    )


def _block_bytes(capacity: Capacity | None, place: RankPlace) -> int | None:
    if capacity is None or capacity.pool is None:
        return None
    return _at(capacity.pool.allocation.bytes_per_block, place)


def _at(of_stages: Sequence[int] | None, place: RankPlace) -> int | None:
    # Figures for another number of stages than the rank is one of say nothing about it.
    if of_stages is None or len(of_stages) != place.stages:
        return None
    return of_stages[place.pp]
