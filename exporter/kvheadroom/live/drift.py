"""Computed capacity against what the engine reports, in all and part by part."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal

from kvheadroom.engine.capacity import Allocation, allocate
from kvheadroom.engine.options import EngineOptions
from kvheadroom.engine.versions import Version
from kvheadroom.errors import KvHeadroomError
from kvheadroom.live.model_pool import ModelPool, pool_candidates
from kvheadroom.live.rank_parts import LOG_ROUNDING_BYTES
from kvheadroom.model.layers import ModelLayers
from kvheadroom.readings import ProcessBoot

ReportedBy = Literal["engine", "log"]

# How precise a report is: a log prints requests to two places, a label all of them, and both cut
# tokens to whole ones.
_LOGGED_REQUESTS: Final = 0.005 + 1e-9
_LABELED_REQUESTS: Final = 1e-6
_WHOLE_TOKENS: Final = 1
# Beyond any real pool; a page may hold any number.
_LARGEST: Final = 1e15


@dataclass(frozen=True, slots=True)
class PartDrift:
    """One part of a rank's memory, computed and as its log prints it.

    Attributes:
        component: ``weights`` or ``kv``.
        computed_bytes: By model and settings.
        logged_bytes: As printed, to two places of a GiB.
        ratio: Computed ÷ logged - 1.
        is_beyond_print: The two are further apart than the printed places explain.
    """

    component: Literal["weights", "kv"]
    computed_bytes: int
    logged_bytes: int
    ratio: float
    is_beyond_print: bool


@dataclass(frozen=True, slots=True)
class CapacityDrift:
    """An engine's capacity, computed and as it reports it.

    Attributes:
        ratio: Computed ÷ reported - 1; 0 where both agree as far as the report is precise;
            ``None`` where either is missing.
        computed_tokens: "KV cache size" by model, settings and the engine's blocks.
        reported_tokens: The same as the engine, or its log, has it.
        reported_by: Who reported the figure that *ratio* is about.
        reason: Why there is no ratio, one line; ``None`` where there is.
        parts: Each part that both sides have.
    """

    ratio: float | None = None
    computed_tokens: int | None = None
    reported_tokens: int | None = None
    reported_by: ReportedBy | None = None
    reason: str | None = None
    parts: tuple[PartDrift, ...] = ()


def computed_allocation(
    layers: ModelLayers | None,
    options: EngineOptions | None,
    *,
    blocks: int | None,
    max_model_len: int | None,
    block_tokens: int | None = None,
    step_tokens: int | None = None,
    draft: ModelLayers | None = None,
) -> Allocation | str:
    """Return what the rules make of the engine's own number of blocks, or why they cannot.

    Args:
        layers: The model; ``None`` while it is not known.
        options: Of its server; ``None`` while its command is not known.
        blocks: Blocks of this engine, the null block included, as it reports them.
        max_model_len: Its longest request, tokens, as it reports it.
        block_tokens: The block size it reports, where that is to be trusted: which one a backend
            takes depends on the hardware.
        step_tokens: ``max_num_batched_tokens`` as its log tells it, for the same reason.
        draft: The draft model, where speculation uses one.
    """
    if layers is None:
        return "the model's configuration is not known"
    if options is None:
        return "the server's command is not known"
    if not blocks:
        return "the engine reports no blocks"
    settled = replace(
        options,
        num_gpu_blocks_override=blocks,
        max_model_len=max_model_len or options.max_model_len,
        block_size=options.block_size or block_tokens,
        max_num_batched_tokens=step_tokens or options.max_num_batched_tokens,
    )
    return _allocation(layers, settled, draft)


@lru_cache(maxsize=128)
def _allocation(
    layers: ModelLayers, options: EngineOptions, draft: ModelLayers | None
) -> Allocation | str:
    try:
        found = allocate(layers, options, 0, draft=draft)
    except (KvHeadroomError, ValueError) as error:
        return f"the rules do not cover it: {error}"
    if not isinstance(found, Allocation):
        return f"by the rules it would not have started: {found.message}"
    return found if found.groups else "the model has no KV cache"


def assumed_allocation(
    layers: ModelLayers | None,
    labels: Mapping[str, str],
    *,
    version: Version | None,
    blocks: int | None,
    block_tokens: int | None,
    max_model_len: int | None,
    tensor_parallel: int = 1,
) -> Allocation | str:
    """Return the same where the command is not known: what comes closest to the engine's report.

    Args:
        layers: The model; ``None`` while it is not known.
        labels: The engine's ``cache_config_info``.
        version: The server's version.
        blocks: Blocks of this engine, the null block included, as it reports them.
        block_tokens: The block size it reports, where that is to be trusted.
        max_model_len: Its longest request, tokens, as it reports it.
        tensor_parallel: Ranks of the engine.
    """
    if layers is None:
        return "the model's configuration is not known"
    if not blocks:
        return "the engine reports no blocks"
    pools = pool_candidates(
        layers,
        labels,
        version=version,
        blocks=blocks,
        block_tokens=block_tokens,
        max_model_len=max_model_len,
        tensor_parallel=tensor_parallel,
    )
    concurrency = _number(labels.get("kv_cache_max_concurrency"))

    def distance(pool: ModelPool) -> float:
        return 0.0 if concurrency is None else abs(pool.reserved_blocks - blocks / concurrency)

    closest = min(pools, key=distance, default=None)
    return closest.allocation if closest else "the rules do not cover it"


def capacity_drift(
    computed: Allocation | str,
    *,
    labels: Mapping[str, str],
    log: ProcessBoot | None = None,
    parts: tuple[PartDrift, ...] = (),
) -> CapacityDrift:
    """Return how far *computed* is from what the engine reports.

    The engine's own figures are taken where its version has them (0.24 and later), its log's
    otherwise. Of tokens and requests, whichever is further apart is told.

    Args:
        computed: As :func:`computed_allocation` or :func:`assumed_allocation` returns it.
        labels: The engine's ``cache_config_info``.
        log: What its startup log says, of the start that runs now.
        parts: As :func:`part_drifts` returns them.

    Source:
        Blocks a full request needs x maximum concurrency = blocks.
    """
    if isinstance(computed, str):
        return CapacityDrift(reason=computed, parts=parts)
    by, tokens, concurrency = _reported(labels, log)
    rounding = _LOGGED_REQUESTS if by == "log" else _LABELED_REQUESTS
    ratios = (
        _ratio(computed.tokens, tokens, _WHOLE_TOKENS),
        _ratio(computed.max_concurrency, concurrency, rounding),
    )
    known = [ratio for ratio in ratios if ratio is not None]
    if not known:
        reason = "the engine reports neither tokens nor requests, and there is no startup log"
        return CapacityDrift(None, computed.tokens, None, None, reason, parts)
    reported = None if tokens is None else int(tokens)
    return CapacityDrift(max(known, key=abs), computed.tokens, reported, by, None, parts)


def part_drifts(
    *,
    weights_bytes: int | None,
    kv_bytes: int | None,
    block_bytes: int | None,
    log: ProcessBoot | None,
) -> tuple[PartDrift, ...]:
    """Return each part of one rank that is both computed and logged.

    Args:
        weights_bytes: Weights of the rank, by its model.
        kv_bytes: Its pool, by its engine's blocks; ``None`` also where the log tells not the pool
            but what was there for it (several ranks, ``--num-gpu-blocks-override``).
        block_bytes: Bytes of one block on the rank.
        log: What its startup log says, of the start that runs now.
    """
    return tuple(_parts(weights_bytes, kv_bytes, block_bytes or 0, log or ProcessBoot()))


def _parts(
    weights_bytes: int | None, kv_bytes: int | None, block_bytes: int, log: ProcessBoot
) -> Iterator[PartDrift]:
    if weights_bytes is not None and log.weights_bytes:
        apart = abs(weights_bytes - log.weights_bytes)
        yield _part("weights", weights_bytes, log.weights_bytes, apart > LOG_ROUNDING_BYTES)
    if kv_bytes is not None and log.kv_bytes:
        # What is left over when memory is cut into blocks is less than one of them.
        over = log.kv_bytes - kv_bytes
        agrees = -LOG_ROUNDING_BYTES <= over < block_bytes + LOG_ROUNDING_BYTES
        yield _part("kv", kv_bytes, log.kv_bytes, not agrees)


def _part(
    component: Literal["weights", "kv"], computed: int, logged: int, is_beyond_print: bool
) -> PartDrift:
    return PartDrift(component, computed, logged, computed / logged - 1, is_beyond_print)


def _reported(
    labels: Mapping[str, str], log: ProcessBoot | None
) -> tuple[ReportedBy | None, float | None, float | None]:
    tokens = _number(labels.get("kv_cache_size_tokens"))
    concurrency = _number(labels.get("kv_cache_max_concurrency"))
    if tokens is not None or concurrency is not None:
        return "engine", tokens, concurrency
    if log is not None and (log.kv_tokens is not None or log.max_concurrency is not None):
        return "log", log.kv_tokens, log.max_concurrency
    return None, None, None


def _number(label: str | None) -> float | None:
    try:
        value = float(label or "None")
    except ValueError:
        return None
    return value if 0 < value < _LARGEST else None


def _ratio(computed: float | None, reported: float | None, rounding: float) -> float | None:
    if computed is None or not reported:
        return None
    return 0.0 if abs(computed - reported) <= rounding else computed / reported - 1
