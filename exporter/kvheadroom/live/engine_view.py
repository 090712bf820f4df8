"""One engine: its reading joined with what is known of it and with its own past."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kvheadroom.continuity import counters_fell, started_anew
from kvheadroom.engine.versions import parse_version
from kvheadroom.live.boot_change import BootCapacity, BootChange, capacity_of_boot
from kvheadroom.live.capacity import Capacity, engine_capacity
from kvheadroom.live.counters import RunningTotal
from kvheadroom.live.drift import CapacityDrift
from kvheadroom.live.engine_drift import engine_drift
from kvheadroom.live.engine_facts import EngineFacts
from kvheadroom.live.forecast import ForecastPast, observe_usage
from kvheadroom.live.headroom import Headroom, engine_headroom
from kvheadroom.live.preemption import PreemptionPast, observe_preemptions
from kvheadroom.live.pressure import Pressure, PressurePast, observe_pressure
from kvheadroom.live.process_tree import Start
from kvheadroom.live.stall import StallPast, observe_stall
from kvheadroom.live.traffic import TrafficLengths, TrafficWindow, lengths, observe
from kvheadroom.readings import EngineReading, ServerReading


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """How engines are judged, the same for all.

    Attributes:
        context_tokens: Lengths that headroom is stated for.
        traffic_window_seconds: How far back the traffic's own lengths reach.
        poll_interval_seconds: From one poll to the next.
    """

    context_tokens: tuple[int, ...] = (8192,)
    traffic_window_seconds: float = 900.0
    poll_interval_seconds: float = 5.0


@dataclass(frozen=True, slots=True)
class EnginePast:
    """What is carried from one poll of an engine to the next.

    Of the attributes that no other module explains:

    Attributes:
        reading: The last one.
        read_at_seconds: When it was read, monotonic clock.
        engines: Most engines of its replica that a page had.
        started_unix_seconds: Start of its server, where pages tell it.
        process: Its server's process, as it was found last.
        process_is_stale: The page showed a restart before the processes were looked at again.
    """

    traffic: TrafficWindow = field(default_factory=TrafficWindow)
    preemptions: RunningTotal = field(default_factory=RunningTotal)
    inferred: PreemptionPast = field(default_factory=PreemptionPast)
    stall: StallPast = field(default_factory=StallPast)
    pressure: PressurePast = field(default_factory=PressurePast)
    forecast: ForecastPast = field(default_factory=ForecastPast)
    restarts: int = 0
    reading: EngineReading | None = None
    read_at_seconds: float = 0.0
    engines: int = 0
    started_unix_seconds: float | None = None
    process: Start | None = None
    process_is_stale: bool = False


@dataclass(frozen=True, slots=True)
class EngineView:
    """One engine as every face shows it.

    Attributes:
        engine: Stable id, the ``engine`` label.
        target: ``host:port`` of its server.
        reading: What its page said.
        vllm_version: As its server reports.
        capacity: Its KV pool; ``None`` while it has not reported one.
        headroom: What is left of the pool; ``None`` while its usage is unknown, or it is stalled.
        traffic: How long its requests are; ``None`` before the first has finished.
        preemptions_total: As reported, carried over restarts; ``None`` before the first report.
        restarts: Restarts seen.
        facts: What is known of it without asking it.
        requests_preempted: Preempted requests that wait, as inferred; ``None`` while unknown.
        preemptions_inferred_total: Preemptions inferred since the first poll; ``None`` while its
            pages lack what is needed.
        stalled: Whether it stands still behind a front end that answers; ``None`` while unknown.
        stall_evidence: What was seen, one line; ``None`` unless stalled.
        pressure: Why requests wait; ``None`` while it is stalled.
        exhaustion_seconds: Until the free blocks run out, by their trend; ``None`` while the pool
            is not filling, or cannot be told to be.
        drift: Its capacity as computed and as reported; ``None`` for an engine without a pool.
        boot_change: What its last start changed; ``None`` before a second one was seen.
    """

    engine: str
    target: str
    reading: EngineReading
    vllm_version: str | None
    capacity: Capacity | None
    headroom: Headroom | None
    traffic: TrafficLengths | None
    preemptions_total: float | None
    restarts: int
    facts: EngineFacts = field(default_factory=EngineFacts)
    requests_preempted: int | None = None
    preemptions_inferred_total: int | None = None
    stalled: bool | None = None
    stall_evidence: str | None = None
    pressure: Pressure | None = None
    exhaustion_seconds: float | None = None
    drift: CapacityDrift | None = None
    boot_change: BootChange | None = None


def engine_id(target: str, rank: str, name: str | None) -> str:
    """Return the ``engine`` label: ``host:port/rank``, or the configured name.

    A named server's further data-parallel ranks are ``name/1``, ``name/2``: the name of the first
    one then stays the same whether or not the others have been seen yet.
    """
    if name is None:
        return f"{target}/{rank}"
    return name if rank == "0" else f"{name}/{rank}"


def is_asleep(reading: EngineReading) -> bool:
    """Return whether the engine sleeps, so that it admits nothing until it is woken."""
    return reading.sleep_state not in {None, "awake"}


def view_engine(
    reading: EngineReading,
    server: ServerReading,
    *,
    target: str,
    facts: EngineFacts,
    past: EnginePast,
    options: ViewOptions,
    at_seconds: float,
) -> tuple[EngineView, EnginePast]:
    """Return what *reading* means, and the past to hand in at the next poll.

    Args:
        reading: The engine's part of its server's page.
        server: The whole answer.
        target: ``host:port`` of the server.
        facts: What is configured or was found on disk.
        past: What the last call returned.
        options: How to judge.
        at_seconds: When the page was read, monotonic clock.
    """
    restarted = _restarted(past, reading, server, facts)
    past = _advance(past, reading, server, facts, at_seconds, options, restarted=restarted)
    capacity = _capacity(reading, server, facts, past.engines)
    longest = capacity.max_model_len if capacity else server.max_model_len
    traffic = lengths(past.traffic, max_model_len=longest)
    headroom = _headroom(reading, server, capacity, traffic, facts, options.context_tokens)
    past = _judge(
        past,
        reading,
        server,
        capacity=capacity,
        traffic=traffic,
        headroom=headroom,
        facts=facts,
        options=options,
        restarted=restarted,
    )
    if past.stall.stalled:
        # What a dead engine's gauges last said is left of nothing that could be admitted.
        headroom = None
    view = EngineView(
        engine=engine_id(facts.server or target, reading.rank, facts.name),
        target=target,
        reading=reading,
        vllm_version=server.vllm_version,
        capacity=capacity,
        headroom=headroom,
        traffic=traffic,
        preemptions_total=None if reading.preemptions_total is None else past.preemptions.total,
        restarts=past.restarts,
        facts=facts,
        requests_preempted=past.inferred.preempted_now,
        preemptions_inferred_total=past.inferred.inferred_total,
        stalled=past.stall.stalled,
        stall_evidence=past.stall.evidence,
        pressure=None if past.stall.stalled else past.pressure.pressure,
        exhaustion_seconds=past.forecast.exhaustion_seconds if headroom else None,
        drift=engine_drift(reading, capacity, facts, version=parse_version(server.vllm_version)),
    )
    return view, past


def boot_capacity(view: EngineView) -> BootCapacity | None:
    """Return the budget of the start that runs now, to be compared with other starts."""
    capacity = view.capacity
    if capacity is None or capacity.usable_blocks == 0:
        return None
    settings = view.facts.options
    return BootCapacity(
        version=view.vllm_version,
        tokens=capacity.tokens,
        bytes=capacity.first_stage_bytes,
        blocks=capacity.blocks,
        max_model_len=capacity.max_model_len,
        utilization=settings.gpu_memory_utilization if settings else None,
        kv_cache_dtype=settings.kv_cache_dtype if settings else None,
    )


def earlier_capacity(view: EngineView) -> BootCapacity | None:
    """Return what the startup log says of the start before; ``None`` where it has none."""
    earlier = view.facts.earlier_boot
    rank = view.reading.rank
    if earlier is None or not rank.isdecimal():
        return None
    engines = view.facts.options.data_parallel if view.facts.options else 1
    return capacity_of_boot(earlier, dp=int(rank), engines=engines)


def _advance(
    past: EnginePast,
    reading: EngineReading,
    server: ServerReading,
    facts: EngineFacts,
    at_seconds: float,
    options: ViewOptions,
    *,
    restarted: bool,
) -> EnginePast:
    is_same_process = not _differs(past.process, facts.process)
    if restarted:
        past = replace(
            past,
            restarts=past.restarts + 1,
            traffic=TrafficWindow(),
            preemptions=past.preemptions.restarted(),
            stall=StallPast(),
            pressure=PressurePast(),
            forecast=ForecastPast(),
            engines=0,
        )
    reported = reading.preemptions_total
    return replace(
        past,
        traffic=observe(
            past.traffic,
            at_seconds=at_seconds,
            window_seconds=options.traffic_window_seconds,
            prompt=reading.prompt_tokens,
            generation=reading.generation_tokens,
        ),
        preemptions=past.preemptions if reported is None else past.preemptions.advanced(reported),
        reading=reading,
        read_at_seconds=at_seconds,
        # The sum of blocks goes on counting an engine that is missing from the page.
        engines=max(past.engines, sum(peer.replica == reading.replica for peer in server.engines)),
        started_unix_seconds=server.started_unix_seconds or past.started_unix_seconds,
        process=facts.process or past.process,
        process_is_stale=is_same_process and (restarted or past.process_is_stale),
    )


def _judge(
    past: EnginePast,
    reading: EngineReading,
    server: ServerReading,
    *,
    capacity: Capacity | None,
    traffic: TrafficLengths | None,
    headroom: Headroom | None,
    facts: EngineFacts,
    options: ViewOptions,
    restarted: bool,
) -> EnginePast:
    at_seconds = past.read_at_seconds
    inferred = observe_preemptions(
        past.inferred,
        reading,
        at_seconds=at_seconds,
        max_num_seqs=facts.rules.max_num_seqs,
        restarted=restarted,
    )
    rules = facts.rules
    if rules.version is None:
        rules = replace(rules, version=parse_version(server.vllm_version))
    pressure = observe_pressure(
        past.pressure,
        reading,
        capacity=capacity,
        traffic=traffic,
        rules=rules,
        preempted_now=inferred.preempted_now,
        paused=server.paused,
        at_seconds=at_seconds,
        poll_interval_seconds=options.poll_interval_seconds,
    )
    stall = observe_stall(
        past.stall,
        reading,
        health=server.health,
        paused=server.paused,
        at_seconds=at_seconds,
        poll_interval_seconds=options.poll_interval_seconds,
    )
    forecast = past.forecast
    if capacity is not None and headroom is not None:
        forecast = observe_usage(
            forecast,
            used_blocks=headroom.used_blocks,
            usable_blocks=capacity.usable_blocks,
            at_seconds=at_seconds,
            is_full=pressure.pressure.binding == "kv",
        )
    else:
        forecast = ForecastPast()
    return replace(past, inferred=inferred, pressure=pressure, stall=stall, forecast=forecast)


def _restarted(
    past: EnginePast, reading: EngineReading, server: ServerReading, facts: EngineFacts
) -> bool:
    if started_anew(past.started_unix_seconds, server.started_unix_seconds):
        return True
    if past.reading is not None and counters_fell(past.reading, reading):
        return True
    # Several API servers tell no start, and counters at zero cannot fall.
    is_untold = past.reading is not None and server.started_unix_seconds is None
    return is_untold and not past.process_is_stale and _differs(past.process, facts.process)


def _differs(before: Start | None, now: Start | None) -> bool:
    return before is not None and now is not None and before != now


def _capacity(
    reading: EngineReading, server: ServerReading, facts: EngineFacts, engines: int
) -> Capacity | None:
    if reading.cache_config is None:
        return None
    return engine_capacity(
        reading.cache_config,
        engines=engines,
        version=parse_version(server.vllm_version),
        max_model_len=server.max_model_len,
        layers=facts.layers,
        tensor_parallel=facts.tensor_parallel,
    )


def _headroom(
    reading: EngineReading,
    server: ServerReading,
    capacity: Capacity | None,
    traffic: TrafficLengths | None,
    facts: EngineFacts,
    context_tokens: Sequence[int],
) -> Headroom | None:
    if capacity is None or capacity.usable_blocks == 0 or reading.kv_used_ratio is None:
        return None
    # A sleeping engine has given its pool away, and its gauge keeps the last value.
    if is_asleep(reading):
        return None
    places = facts.rules.max_num_seqs
    running = reading.requests_running
    return engine_headroom(
        capacity,
        used_ratio=reading.kv_used_ratio,
        version=parse_version(server.vllm_version),
        context_tokens=context_tokens,
        traffic=traffic,
        free_places=None if places is None or running is None else max(0, places - int(running)),
    )
