"""Frozen records of what was observed. Nothing here is computed; ``None`` means unknown."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal

from kvheadroom.errors import Reason

SourceKind = Literal["nvml", "vllm"]

_NOTHING: Final[Mapping[str, float]] = MappingProxyType({})


# --- GPUs -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """One process that holds memory on a GPU, as the driver lists it.

    Attributes:
        pid: Process id in the host's namespace.
        used_bytes: Bytes it holds, or ``None`` where the driver does not say (WSL, MIG without
            privilege).
    """

    pid: int
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU or one MIG device at one moment.

    Attributes:
        gpu: Index as NVML counts, ``"0"``; a MIG device is ``"0:2"`` (GPU : MIG index), the
            spelling of NVIDIA's container runtime.
        uuid: ``GPU-…`` or ``MIG-…``.
        name: Marketing name.
        mig_profile: ``"1g.10gb"`` for a MIG device, else ``None``.
        total_bytes: Memory of the device. Equals reserved + used + free.
        reserved_bytes: What driver and firmware keep; ``None`` where the driver only knows the
            version-1 call, whose ``used`` includes it.
        used_bytes: Allocated by processes.
        free_bytes: What an allocation can still get.
        utilization_ratio: Share of the last sample period in which a kernel ran, 0-1.
        temperature_celsius: Core temperature.
        power_watts: Board power draw.
        processes: Who holds memory, each pid once; ``None`` where the list cannot be read.
        unavailable: Reading name → reason, for every reading above that is ``None`` because the
            driver would not give it.
    """

    gpu: str
    uuid: str
    name: str | None = None
    mig_profile: str | None = None
    total_bytes: int | None = None
    reserved_bytes: int | None = None
    used_bytes: int | None = None
    free_bytes: int | None = None
    utilization_ratio: float | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    processes: tuple[GpuProcess, ...] | None = None
    unavailable: Mapping[str, Reason] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SourceFailure:
    """Why one part of a source could not be read, while the rest of it could.

    Attributes:
        target: The part, as the ``target`` label names it (a GPU index).
        reason: Bounded cause.
        detail: One line for a person.
    """

    target: str
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class NvmlReading:
    """All GPUs of a node at one moment.

    Attributes:
        driver_version: For example ``"590.48.01"``.
        gpus: Every GPU and MIG device that answered.
        failures: Every GPU that did not.
    """

    driver_version: str | None
    gpus: tuple[GpuReading, ...]
    failures: tuple[SourceFailure, ...] = ()


# --- vLLM -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HistogramReading:
    """One Prometheus histogram since the engine's start.

    Attributes:
        upper_bounds: Bucket bounds, increasing, the last one ``inf``; shape ``(n,)``.
        cumulative_counts: Observations at or below each bound; shape ``(n,)``.
        total: Sum of the observed values.
        count: Number of observations.
    """

    upper_bounds: tuple[float, ...]
    cumulative_counts: tuple[float, ...]
    total: float
    count: float


@dataclass(frozen=True, slots=True)
class EngineReading:
    """One vLLM engine (one data-parallel rank) as its server's page shows it.

    Attributes:
        rank: The page's ``engine`` label, ``"0"`` where a version has none; under Ray with several
            replicas on one page, ``replica:label``.
        replica: Ray's replica; ``None`` outside Ray. Each has a front end of its own.
        model_name: First ``--served-model-name``; ``None`` while no family carries it.
        requests_running: The scheduler's RUNNING list.
        requests_waiting: Waiting, deferred and preempted together.
        waiting_by_reason: ``capacity`` / ``deferred`` where the version tells (0.20 and later).
        kv_used_ratio: Blocks referenced by live requests ÷ usable blocks, 0-1.
        preemptions_total: vLLM's own counter, which lags (see README).
        prompt_tokens_total: Prompt tokens of admitted requests, counted once.
        generation_tokens_total: Generated tokens.
        finished_total: Finished requests by ``finished_reason``.
        prompt_tokens: Prompt lengths of finished requests.
        generation_tokens: Output lengths of finished requests.
        sleep_state: ``awake``, ``weights_offloaded`` or ``discard_all`` where the version tells.
        cache_config: Labels of ``cache_config_info`` as they stand, ``"None"`` included.
    """

    rank: str
    replica: str | None = None
    model_name: str | None = None
    requests_running: float | None = None
    requests_waiting: float | None = None
    waiting_by_reason: Mapping[str, float] = field(default_factory=lambda: _NOTHING)
    kv_used_ratio: float | None = None
    preemptions_total: float | None = None
    prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    finished_total: Mapping[str, float] = field(default_factory=lambda: _NOTHING)
    prompt_tokens: HistogramReading | None = None
    generation_tokens: HistogramReading | None = None
    sleep_state: str | None = None
    cache_config: Mapping[str, str] | None = None


SilentReason = Literal[
    "log_stats_disabled",  # --disable-log-stats: the page has no vllm family at all
    "before_first_traffic",  # several API servers: gauges appear with the first request
]


HealthAnswer = Literal[
    "ok",  # 200
    "dead",  # 503: the front end lives, an engine behind it died
    "hanging",  # connected, and no answer in time
]


@dataclass(frozen=True, slots=True)
class ServerReading:
    """One vLLM server's answers at one moment.

    Attributes:
        engines: One record per data-parallel rank, by rank; empty when the page tells nothing.
        silent: Why the page, though well-formed, lacks the engine's gauges; else ``None``.
        vllm_version: From ``/version``; ``None`` when that did not answer.
        max_model_len: From ``/v1/models``, tokens; ``None`` when that did not answer.
        model_root: Path or hub id of the model, from ``/v1/models``.
        endpoints: ``/version`` and ``/v1/models`` → answered or the reason why not.
        started_unix_seconds: The API server's start, where the page tells.
        health: What ``/health`` answers; ``None`` where there is none, or it could not be asked.
        paused: Whether its schedulers are paused, where it tells; asked only of engines that run
            requests and stand still.
    """

    engines: tuple[EngineReading, ...]
    silent: SilentReason | None = None
    vllm_version: str | None = None
    max_model_len: int | None = None
    model_root: str | None = None
    endpoints: Mapping[str, Reason | None] = field(default_factory=dict)
    started_unix_seconds: float | None = None
    health: HealthAnswer | None = None
    paused: bool | None = None


# --- health ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SourceHealth:
    """How one source fares: whether the last poll worked, and the count of those that did not.

    Attributes:
        source: Which kind.
        target: ``host:port`` of a server; ``driver`` or a GPU index for NVML.
        up: The last poll gave data.
        reason: Why it did not; ``None`` when up.
        detail: One line for a person, free of secrets; ``None`` when up.
        failures: Reason → polls that failed for it since our start; every known reason present.
        duration_seconds: How long the last finished poll took; ``None`` before the first.
        last_success_unix_seconds: When data last came; ``None`` before the first.
    """

    source: SourceKind
    target: str
    up: bool
    reason: Reason | None
    detail: str | None
    failures: Mapping[Reason, int]
    duration_seconds: float | None = None
    last_success_unix_seconds: float | None = None
