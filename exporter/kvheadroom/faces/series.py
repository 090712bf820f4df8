"""Turn one snapshot into the series of every metric family; unknown values make no series."""

import platform
from collections.abc import Iterator
from typing import get_args

from kvheadroom import __version__
from kvheadroom.faces import catalogue as c
from kvheadroom.faces.catalogue import MetricSpec
from kvheadroom.live.engine_view import EngineView, is_asleep
from kvheadroom.live.snapshot import ServerView, Snapshot
from kvheadroom.readings import GpuReading, SilentReason, SourceHealth

#: One series: its family, its label values in the family's order, its value.
Series = tuple[MetricSpec, tuple[str, ...], float]

_SILENT_REASONS: tuple[SilentReason, ...] = get_args(SilentReason)


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
    partitioned = {gpu.gpu.split(":")[0] for gpu in snapshot.gpus if ":" in gpu.gpu}
    for gpu in snapshot.gpus:
        yield from _gpu(gpu, snapshot.driver_version, partitioned=gpu.gpu in partitioned)
    for engine in snapshot.engines:
        yield from _engine(engine)


def _known(spec: MetricSpec, labels: tuple[str, ...], value: float | None) -> Iterator[Series]:
    if value is not None:
        yield spec, labels, value


def _exporter(snapshot: Snapshot) -> Iterator[Series]:
    yield c.BUILD_INFO, (__version__, platform.python_version()), 1
    yield c.POLL_MISSED_TOTAL, (), snapshot.polls_missed
    yield c.POLL_SKIPPED_TOTAL, (), snapshot.polls_skipped
    yield c.CONFIG_LAST_RELOAD_SUCCESSFUL, (), float(snapshot.config_reloaded)
    yield from _known(
        c.CONFIG_LAST_RELOAD_SUCCESS_TIMESTAMP_SECONDS, (), snapshot.config_read_unix_seconds
    )


def _source(health: SourceHealth) -> Iterator[Series]:
    at = (health.source, health.target)
    yield c.SOURCE_UP, at, float(health.up)
    yield from _known(c.POLL_DURATION_SECONDS, at, health.duration_seconds)
    yield from _known(c.POLL_LAST_SUCCESS_TIMESTAMP_SECONDS, at, health.last_success_unix_seconds)
    for reason, count in health.failures.items():
        yield c.POLL_FAILURES_TOTAL, (*at, reason), count


def _server(server: ServerView) -> Iterator[Series]:
    for reason in _SILENT_REASONS:
        yield c.SOURCE_SILENT, ("vllm", server.target, reason), float(server.silent == reason)
    for endpoint, failure in server.endpoints.items():
        yield c.ENDPOINT_UP, (server.target, endpoint), float(failure is None)


def _gpu(gpu: GpuReading, driver_version: str | None, *, partitioned: bool) -> Iterator[Series]:
    at = (gpu.gpu, gpu.uuid)
    identity = (gpu.name or "", driver_version or "", gpu.mig_profile or "")
    yield c.GPU_INFO, (*at, *identity), 1
    # The same bytes are told by its MIG devices, and a sum over devices must not count them twice.
    if not partitioned:
        yield from _gpu_memory(gpu)
    yield from _known(c.GPU_UTILIZATION_RATIO, at, gpu.utilization_ratio)
    yield from _known(c.GPU_TEMPERATURE_CELSIUS, at, gpu.temperature_celsius)
    yield from _known(c.GPU_POWER_WATTS, at, gpu.power_watts)
    for reading, reason in gpu.unavailable.items():
        yield c.GPU_READING_UNAVAILABLE, (*at, reading, reason), 1


def _gpu_memory(gpu: GpuReading) -> Iterator[Series]:
    at = (gpu.gpu, gpu.uuid)
    yield from _known(c.GPU_MEMORY_TOTAL_BYTES, at, gpu.total_bytes)
    yield from _known(c.GPU_MEMORY_RESERVED_BYTES, at, gpu.reserved_bytes)
    yield from _known(c.GPU_MEMORY_USED_BYTES, at, gpu.used_bytes)
    yield from _known(c.GPU_MEMORY_FREE_BYTES, at, gpu.free_bytes)
    if gpu.processes is not None:
        yield c.GPU_PROCESSES, at, len(gpu.processes)
        held = [process.used_bytes for process in gpu.processes if process.used_bytes is not None]
        # A sum over processes of which one is unknown would read as the whole.
        if len(held) == len(gpu.processes):
            yield c.GPU_PROCESS_MEMORY_BYTES, (*at, "other"), sum(held)


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
        ),
        1,
    )
    yield from _known(c.ENGINE_REQUESTS_RUNNING, at, reading.requests_running)
    if reading.waiting_by_reason:
        for reason, count in reading.waiting_by_reason.items():
            yield c.ENGINE_REQUESTS_WAITING, (view.engine, reason), count
    else:
        yield from _known(
            c.ENGINE_REQUESTS_WAITING, (view.engine, "unknown"), reading.requests_waiting
        )
    yield from _known(c.ENGINE_PREEMPTIONS_TOTAL, at, view.preemptions_total)
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
        yield from _known(c.KV_CAPACITY_TOKENS, (view.engine, source), capacity.tokens)
    yield from _known(c.KV_CAPACITY_BYTES, at, capacity.bytes)
    yield from _known(c.KV_BYTES_PER_BLOCK, at, capacity.bytes_per_block)


def _headroom(view: EngineView) -> Iterator[Series]:
    at, headroom = (view.engine,), view.headroom
    # Without a pool to measure against (an encoder), a usage of 0 would read as all free.
    encoder = view.capacity is not None and view.capacity.layout == "none"
    if not encoder and not is_asleep(view.reading):
        yield from _known(c.KV_USED_RATIO, at, view.reading.kv_used_ratio)
    if headroom is None:
        return
    yield from _known(c.KV_USED_BYTES, at, headroom.used_bytes)
    yield c.HEADROOM_BLOCKS, at, headroom.free_blocks
    yield from _known(c.HEADROOM_TOKENS, at, headroom.free_tokens)
    yield from _known(c.HEADROOM_BYTES, at, headroom.free_bytes)
    for context, requests in headroom.requests.items():
        yield c.HEADROOM_REQUESTS, (view.engine, context), requests
    for context, tokens in headroom.context_tokens.items():
        yield c.HEADROOM_CONTEXT_TOKENS, (view.engine, context), tokens
