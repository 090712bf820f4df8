"""Frozen records of what was observed. Nothing here is computed; ``None`` means unknown."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

from kvheadroom.errors import Reason
from kvheadroom.redaction import Secret

SourceKind = Literal["nvml", "vllm", "proc"]

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
        compute_capability: CUDA's, ``(9, 0)``.
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
    compute_capability: tuple[int, int] | None = None
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


# --- processes ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """One process as ``/proc`` shows it.

    Attributes:
        pid: Process id in the namespace of the ``/proc`` that was read.
        parent_pid: Who started it, or who took it over; 0 where that is outside the namespace.
        started_ticks: Clock ticks from boot to its start: with the pid, who it is.
        state: One letter; ``Z`` is a zombie, which holds nothing.
        command_name: The kernel's name of it, at most 15 characters.
        argv: Its words, or its title alone where it gave itself one; empty for a zombie. May hold
            secrets, so it is never shown.
    """

    pid: int
    parent_pid: int
    started_ticks: int
    state: str
    command_name: str
    argv: tuple[str, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class ProcessDetails:
    """What is read of the few processes that matter; ``None`` where nothing tells.

    Attributes:
        environment: The variables asked for, and no other; ``None`` where we may not look.
        api_key: ``VLLM_API_KEY`` of its environment.
        working_directory: As the process itself would write it.
        namespace_pids: Its pid in each namespace, from the outermost that is visible inwards.
        container_id: 64 hexadecimal digits, or a runtime's own spelling.
        pod_uid: Kubernetes' id of its pod.
        systemd_unit: The service it belongs to.
        network_namespace: What the kernel calls its network namespace, ``net:[4026531840]``.
    """

    environment: Mapping[str, str] | None = None
    api_key: Secret | None = None
    working_directory: str | None = None
    namespace_pids: tuple[int, ...] = ()
    container_id: str | None = None
    pod_uid: str | None = None
    systemd_unit: str | None = None
    network_namespace: str | None = None


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Files of the model that a server was told to serve, as paths that we can open.

    Attributes:
        folder: Where they are, as the server itself would write it.
        config: Its config.json, or Mistral's params.json.
        weights: Its checkpoint files, by name.
        index: ``model.safetensors.index.json``, where there is one.
    """

    folder: str
    config: Path
    weights: tuple[Path, ...] = ()
    index: Path | None = None


@dataclass(frozen=True, slots=True)
class ListeningSocket:
    """A TCP socket that takes connections.

    Attributes:
        host: Address it is bound to; ``0.0.0.0`` and ``::`` are every one.
        port: Port.
        inode: The kernel's number of it, by which its owners are known.
    """

    host: str
    port: int
    inode: int


# --- health ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SourceHealth:
    """How one source fares: whether the last poll worked, and the count of those that did not.

    Attributes:
        source: Which kind.
        target: ``host:port`` of a server; ``driver`` or a GPU index for NVML; the folder of proc.
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


# --- startup logs ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProcessBoot:
    """What one process of a vLLM server printed of its memory at its start.

    Bytes are as precise as they were printed: GiB to two places, 5 MiB to either side.

    Attributes:
        process: Name in vLLM's prefix, ``EngineCore_DP1`` or ``Worker_PP0_TP1``; ``None`` without.
        pid: In the same prefix: as the process itself sees it, inside its container.
        rank: Global rank, where the log tells.
        weights_bytes: Weights on this rank.
        non_torch_bytes: Memory that grew outside the tensor library.
        activation_bytes: Peak of the profiling pass, without what is set aside for graphs.
        graph_bytes: What the captured graphs took.
        graph_estimate_bytes: What was set aside for them.
        kv_bytes: The KV pool on this rank.
        total_bytes: Memory of its GPU.
        requested_bytes: The share of it that the server manages.
        utilization_ratio: The same as a ratio, 0-1.
        kv_tokens: "KV cache size" of its engine, tokens.
        max_concurrency: "Maximum concurrency" of its engine, to two places.
    """

    process: str | None = None
    pid: int | None = None
    rank: int | None = None
    weights_bytes: int | None = None
    non_torch_bytes: int | None = None
    activation_bytes: int | None = None
    graph_bytes: int | None = None
    graph_estimate_bytes: int | None = None
    kv_bytes: int | None = None
    total_bytes: int | None = None
    requested_bytes: int | None = None
    utilization_ratio: float | None = None
    kv_tokens: int | None = None
    max_concurrency: float | None = None


@dataclass(frozen=True, slots=True)
class BootReading:
    """One start of a vLLM server, as its log tells it.

    Attributes:
        version: vLLM's version.
        model: Path or hub id of the model.
        max_model_len: Longest request, tokens, as fitted to the memory.
        asked_max_model_len: The same before it was fitted; front ends of 0.14 to 0.19 keep it.
        max_num_batched_tokens: Tokens of one step.
        is_ready: The server said that it accepts requests.
        failure: Bounded name of what went wrong last; ``None`` when nothing did.
        failure_text: The message, one line, free of secrets.
        clock: ``MM-DD HH:MM:SS`` of its first dated line; vLLM writes neither year nor zone.
        source: The service, pod or unit, where the log holds several.
        processes: Every process that printed a figure, by first appearance.
    """

    version: str | None = None
    model: str | None = None
    max_model_len: int | None = None
    asked_max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    is_ready: bool = False
    failure: str | None = None
    failure_text: str | None = None
    clock: str | None = None
    source: str | None = None
    processes: tuple[ProcessBoot, ...] = ()
