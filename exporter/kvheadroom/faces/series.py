"""Turn one snapshot into the series of every metric family; unknown values make no series."""

import platform
from collections.abc import Iterator
from typing import get_args

from kvheadroom import __version__
from kvheadroom.faces import catalogue as c
from kvheadroom.faces.catalogue import Series
from kvheadroom.faces.gpu_series import card_series, known
from kvheadroom.live.engine_view import EngineView, is_asleep
from kvheadroom.live.pressure import Limit
from kvheadroom.live.snapshot import ServerView, Snapshot
from kvheadroom.readings import SilentReason, SourceHealth

_SILENT_REASONS: tuple[SilentReason, ...] = get_args(SilentReason)
_LIMITS: tuple[Limit, ...] = get_args(Limit)


def snapshot_series(snapshot: Snapshot) -> Iterator[Series]:
    """Yield every series of *snapshot*, in no order a reader may rely on.

    A value that is ``None`` yields nothing. Label sets are unique as long as targets, GPUs and
    engine ids are.
    """
    yield from _exporter(snapshot)
    for source in snapshot.sources:
        yield from _source(source)
    for server in snapshot.servers:
        yield from _server(server)
    for card in snapshot.cards:
        yield from card_series(card, snapshot.driver_version)
    for engine in snapshot.engines:
        yield from _engine(engine)


def _exporter(snapshot: Snapshot) -> Iterator[Series]:
    yield c.BUILD_INFO, (__version__, platform.python_version()), 1
    yield c.POLL_MISSED_TOTAL, (), snapshot.polls_missed
    yield c.POLL_SKIPPED_TOTAL, (), snapshot.polls_skipped
    yield c.CONFIG_LAST_RELOAD_SUCCESSFUL, (), float(snapshot.config_reloaded)
    yield from known(
        c.CONFIG_LAST_RELOAD_SUCCESS_TIMESTAMP_SECONDS, (), snapshot.config_read_unix_seconds
    )


def _source(health: SourceHealth) -> Iterator[Series]:
    at = (health.source, health.target)
    yield c.SOURCE_UP, at, float(health.up)
    yield from known(c.POLL_DURATION_SECONDS, at, health.duration_seconds)
    yield from known(c.POLL_LAST_SUCCESS_TIMESTAMP_SECONDS, at, health.last_success_unix_seconds)
    for reason, count in health.failures.items():
        yield c.POLL_FAILURES_TOTAL, (*at, reason), count


def _server(server: ServerView) -> Iterator[Series]:
    for reason in _SILENT_REASONS:
        yield c.SOURCE_SILENT, ("vllm", server.target, reason), float(server.silent == reason)
    for endpoint, failure in server.endpoints.items():
        yield c.ENDPOINT_UP, (server.target, endpoint), float(failure is None)


def _engine(view: EngineView) -> Iterator[Series]:
    at = (view.engine,)
    reading, capacity = view.reading, view.capacity
    yield (
        c.ENGINE_INFO,
        (
            view.engine,
            view.target,
            reading.model_name or "",
            view.vllm_version or "",
            (reading.cache_config or {}).get("cache_dtype", ""),
            capacity.layout if capacity else "unknown",
            str(view.facts.tensor_parallel),
            budget_source(view),
        ),
        1,
    )
    yield from known(c.ENGINE_REQUESTS_RUNNING, at, reading.requests_running)
    if reading.waiting_by_reason:
        for reason, count in reading.waiting_by_reason.items():
            yield c.ENGINE_REQUESTS_WAITING, (view.engine, reason), count
    else:
        yield from known(
            c.ENGINE_REQUESTS_WAITING, (view.engine, "unknown"), reading.requests_waiting
        )
    yield from known(c.ENGINE_REQUESTS_PREEMPTED, at, view.requests_preempted)
    yield from known(c.ENGINE_MAX_NUM_SEQS, at, view.facts.rules.max_num_seqs)
    yield from known(c.ENGINE_PREEMPTIONS_TOTAL, at, view.preemptions_total)
    yield from known(c.ENGINE_PREEMPTIONS_INFERRED_TOTAL, at, view.preemptions_inferred_total)
    yield from known(c.ENGINE_STALLED, at, view.stalled)
    yield c.ENGINE_RESTARTS_TOTAL, at, view.restarts
    if reading.sleep_state is not None:
        yield c.ENGINE_ASLEEP, at, float(is_asleep(reading))
    yield from _capacity(view)
    yield from _headroom(view)


def _capacity(view: EngineView) -> Iterator[Series]:
    at, capacity = (view.engine,), view.capacity
    if capacity is None or capacity.usable_blocks == 0:
        return
    yield c.KV_CAPACITY_BLOCKS, at, capacity.blocks
    source = capacity.tokens_source
    if source is not None:
        yield from known(c.KV_CAPACITY_TOKENS, (view.engine, source), capacity.tokens)
    yield from known(c.KV_CAPACITY_BYTES, at, capacity.bytes)
    yield from known(c.KV_BYTES_PER_BLOCK, at, capacity.bytes_per_block)
    yield from known(c.KV_CAPACITY_DRIFT_RATIO, at, view.drift.ratio if view.drift else None)
    change = view.boot_change
    if change is not None:
        versions = (change.before_version or "", change.now_version or "")
        yield c.KV_CAPACITY_BOOT_CHANGE_RATIO, (view.engine, *versions), change.ratio


def _headroom(view: EngineView) -> Iterator[Series]:
    at, headroom = (view.engine,), view.headroom
    # Without a pool to measure against (an encoder), a usage of 0 would read as all free.
    encoder = view.capacity is not None and view.capacity.layout == "none"
    if not encoder and not is_asleep(view.reading):
        yield from known(c.KV_USED_RATIO, at, view.reading.kv_used_ratio)
    binding = view.pressure.binding if view.pressure else None
    if binding is not None:
        for limit in _LIMITS:
            yield c.HEADROOM_LIMIT, (view.engine, limit), float(limit == binding)
    if headroom is None:
        return
    yield from known(c.HEADROOM_EXHAUSTION_SECONDS, at, view.exhaustion_seconds)
    yield from known(c.KV_USED_BYTES, at, headroom.used_bytes)
    yield c.HEADROOM_BLOCKS, at, headroom.free_blocks
    yield from known(c.HEADROOM_TOKENS, at, headroom.free_tokens)
    yield from known(c.HEADROOM_BYTES, at, headroom.free_bytes)
    for context, requests in headroom.requests.items():
        yield c.HEADROOM_REQUESTS, (view.engine, context), requests
    for context, tokens in headroom.context_tokens.items():
        yield c.HEADROOM_CONTEXT_TOKENS, (view.engine, context), tokens


def budget_source(view: EngineView) -> str:
    """Return how much of the engine's memory can be computed, or what is missing for it."""
    facts = view.facts
    if facts.layers is None:
        return "model"
    if facts.options is None:
        return "command"
    return "full" if facts.stage_weights_bytes is not None else "weights"
