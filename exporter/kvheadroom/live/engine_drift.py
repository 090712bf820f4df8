"""An engine's capacity by its model and settings, held against what it reports."""

from kvheadroom.engine.capacity import Allocation
from kvheadroom.engine.versions import Version
from kvheadroom.live.boot_figures import RankPlace, boot_of_rank
from kvheadroom.live.capacity import Capacity
from kvheadroom.live.drift import (
    CapacityDrift,
    PartDrift,
    assumed_allocation,
    capacity_drift,
    computed_allocation,
    part_drifts,
)
from kvheadroom.live.engine_facts import EngineFacts
from kvheadroom.readings import EngineReading, ProcessBoot


def engine_drift(
    reading: EngineReading,
    capacity: Capacity | None,
    facts: EngineFacts,
    *,
    version: Version | None,
) -> CapacityDrift | None:
    """Return how far the engine's computed capacity is from the reported one.

    Args:
        reading: Its part of the page.
        capacity: Its pool; ``None`` while it has not reported one.
        facts: Its model, settings and startup log, as far as they are known.
        version: Of its server.

    Returns:
        The drift, or why there is none; ``None`` for an engine that has no pool to speak of.
    """
    if capacity is None or capacity.usable_blocks == 0 or reading.cache_config is None:
        return None
    log = _log_of(reading, facts)
    return capacity_drift(
        _computed(reading, capacity, facts, version),
        labels=reading.cache_config,
        log=log,
        parts=_parts(capacity, facts, log),
    )


def _computed(
    reading: EngineReading, capacity: Capacity, facts: EngineFacts, version: Version | None
) -> Allocation | str:
    options = facts.options
    if options is None:
        return assumed_allocation(
            facts.layers,
            reading.cache_config or {},
            version=version,
            blocks=capacity.blocks,
            block_tokens=capacity.label_block_tokens,
            max_model_len=capacity.max_model_len,
            tensor_parallel=facts.tensor_parallel,
        )
    if options.speculation is not None and options.speculation.model and facts.draft is None:
        return "the draft model's config.json is not known"
    return computed_allocation(
        facts.layers,
        options,
        blocks=capacity.blocks,
        max_model_len=capacity.max_model_len,
        block_tokens=capacity.label_block_tokens,
        draft=facts.draft,
    )


def _log_of(reading: EngineReading, facts: EngineFacts) -> ProcessBoot | None:
    if facts.boot is None or not reading.rank.isdecimal():
        return None
    options = facts.options
    return boot_of_rank(
        facts.boot,
        RankPlace(
            dp=int(reading.rank),
            engines=options.data_parallel if options else 1,
            stages=options.pipeline_parallel if options else 1,
            ranks_per_stage=facts.tensor_parallel,
        ),
    )


def _parts(
    capacity: Capacity, facts: EngineFacts, log: ProcessBoot | None
) -> tuple[PartDrift, ...]:
    options, weights = facts.options, facts.stage_weights_bytes
    if options is None or log is None:
        return ()
    is_alone = facts.tensor_parallel * options.pipeline_parallel == 1
    states_pool = is_alone and not options.num_gpu_blocks_override
    block_bytes = capacity.bytes_per_block if is_alone else None
    return part_drifts(
        weights_bytes=weights[0] if weights else None,
        kv_bytes=capacity.bytes if states_pool else None,
        block_bytes=block_bytes,
        log=log,
    )
