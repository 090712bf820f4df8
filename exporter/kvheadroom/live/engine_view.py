"""One engine: its reading joined with its configuration and its own past."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kvheadroom.continuity import counters_fell, started_anew
from kvheadroom.engine.versions import parse_version
from kvheadroom.live.capacity import Capacity, engine_capacity
from kvheadroom.live.counters import RunningTotal
from kvheadroom.live.headroom import Headroom, engine_headroom
from kvheadroom.live.traffic import TrafficLengths, TrafficWindow, lengths, observe
from kvheadroom.model.layers import ModelLayers
from kvheadroom.readings import EngineReading, ServerReading


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What is known of a server's engines without asking them.

    Attributes:
        name: Configured name; ``None`` names engines by address.
        layers: The model, where its config.json is known.
        tensor_parallel: Ranks of one engine.
    """

    name: str | None = None
    layers: ModelLayers | None = None
    tensor_parallel: int = 1


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """How engines are judged, the same for all.

    Attributes:
        context_tokens: Lengths that headroom is stated for.
        traffic_window_seconds: How far back the traffic's own lengths reach.
    """

    context_tokens: tuple[int, ...] = (8192,)
    traffic_window_seconds: float = 900.0


@dataclass(frozen=True, slots=True)
class EnginePast:
    """What is carried from one poll of an engine to the next."""

    traffic: TrafficWindow = field(default_factory=TrafficWindow)
    preemptions: RunningTotal = field(default_factory=RunningTotal)
    restarts: int = 0
    reading: EngineReading | None = None
    read_at_seconds: float = 0.0
    engines: int = 0
    started_unix_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class EngineView:
    """One engine as every face shows it.

    Attributes:
        engine: Stable id, the ``engine`` label.
        target: ``host:port`` of its server.
        reading: What its page said.
        vllm_version: As its server reports.
        capacity: Its KV pool; ``None`` while it has not reported one.
        headroom: What is left of the pool; ``None`` while its usage is unknown.
        traffic: How long its requests are; ``None`` before the first has finished.
        preemptions_total: As reported, carried over restarts; ``None`` before the first report.
        restarts: Restarts seen.
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
    past = _advance(past, reading, server, at_seconds, options.traffic_window_seconds)
    capacity = _capacity(reading, server, facts, past.engines)
    longest = capacity.max_model_len if capacity else server.max_model_len
    traffic = lengths(past.traffic, max_model_len=longest)
    view = EngineView(
        engine=engine_id(target, reading.rank, facts.name),
        target=target,
        reading=reading,
        vllm_version=server.vllm_version,
        capacity=capacity,
        headroom=_headroom(reading, server, capacity, traffic, options.context_tokens),
        traffic=traffic,
        preemptions_total=None if reading.preemptions_total is None else past.preemptions.total,
        restarts=past.restarts,
    )
    return view, past


def _advance(
    past: EnginePast,
    reading: EngineReading,
    server: ServerReading,
    at_seconds: float,
    window_seconds: float,
) -> EnginePast:
    if _restarted(past, reading, server):
        past = replace(
            past,
            restarts=past.restarts + 1,
            traffic=TrafficWindow(),
            preemptions=past.preemptions.restarted(),
            engines=0,
        )
    reported = reading.preemptions_total
    return replace(
        past,
        traffic=observe(
            past.traffic,
            at_seconds=at_seconds,
            window_seconds=window_seconds,
            prompt=reading.prompt_tokens,
            generation=reading.generation_tokens,
        ),
        preemptions=past.preemptions if reported is None else past.preemptions.advanced(reported),
        reading=reading,
        read_at_seconds=at_seconds,
        # The sum of blocks goes on counting an engine that is missing from the page.
        engines=max(past.engines, sum(peer.replica == reading.replica for peer in server.engines)),
        started_unix_seconds=server.started_unix_seconds or past.started_unix_seconds,
    )


def _restarted(past: EnginePast, reading: EngineReading, server: ServerReading) -> bool:
    if started_anew(past.started_unix_seconds, server.started_unix_seconds):
        return True
    return past.reading is not None and counters_fell(past.reading, reading)


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
    context_tokens: Sequence[int],
) -> Headroom | None:
    if capacity is None or capacity.usable_blocks == 0 or reading.kv_used_ratio is None:
        return None
    # A sleeping engine has given its pool away, and its gauge keeps the last value.
    if is_asleep(reading):
        return None
    return engine_headroom(
        capacity,
        used_ratio=reading.kv_used_ratio,
        version=parse_version(server.vllm_version),
        context_tokens=context_tokens,
        traffic=traffic,
    )
