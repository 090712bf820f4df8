"""Every metric kvheadroom exports: the only place where a metric name is spelled."""

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["gauge", "counter", "info"]

PREFIX: Final = "kvheadroom_"

#: One series: its family, its label values in the family's order, its value.
Series = tuple["MetricSpec", tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric family.

    Attributes:
        name: Exposition name, with ``_total`` for a counter and ``_info`` for an info family.
        kind: What it is.
        help: Where the value comes from and how to read it.
        labels: Label names, in order.
        grafana_unit: Grafana's unit id for a panel of it.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    grafana_unit: str = "short"


_SPECS: Final[dict[str, MetricSpec]] = {}

_GPU: Final = ("gpu", "uuid")
_ENGINE: Final = ("engine",)
_SOURCE: Final = ("source", "target")


def _metric(
    name: str, kind: Kind, help_text: str, labels: tuple[str, ...] = (), unit: str = "short"
) -> MetricSpec:
    spec = MetricSpec(PREFIX + name, kind, help_text, labels, unit)
    _SPECS[spec.name] = spec
    return spec


# --- the exporter itself --------------------------------------------------------------------

BUILD_INFO = _metric(
    "build_info", "info", "Version of this exporter; always 1.", ("version", "python_version")
)
SOURCE_UP = _metric(
    "source_up",
    "gauge",
    "1 if the last poll of this source gave data, else 0. The target is host:port of a vLLM "
    "server, the word driver for NVML as a whole, or a GPU index.",
    _SOURCE,
    "bool_yes_no",
)
SOURCE_SILENT = _metric(
    "source_silent",
    "gauge",
    "1 while a vLLM server answers but tells nothing of its engines, for the reason in the label: "
    "log_stats_disabled (it runs with --disable-log-stats) or before_first_traffic (several API "
    "servers, no request yet).",
    ("source", "target", "reason"),
    "bool_yes_no",
)
ENDPOINT_UP = _metric(
    "endpoint_up",
    "gauge",
    "1 if this endpoint of a vLLM server answered when last asked, else 0. /v1/models needs the "
    "API key where the server has one.",
    ("target", "endpoint"),
    "bool_yes_no",
)
POLL_DURATION_SECONDS = _metric(
    "poll_duration_seconds",
    "gauge",
    "How long the last finished poll of this source took.",
    _SOURCE,
    "s",
)
POLL_FAILURES_TOTAL = _metric(
    "poll_failures_total",
    "counter",
    "Polls of this source that gave no data, by reason.",
    (*_SOURCE, "reason"),
)
POLL_LAST_SUCCESS_TIMESTAMP_SECONDS = _metric(
    "poll_last_success_timestamp_seconds",
    "gauge",
    "When this source last gave data; absent before the first time.",
    _SOURCE,
    "dateTimeFromNow",
)
POLL_MISSED_TOTAL = _metric(
    "poll_missed_total",
    "counter",
    "Polls that were due and never ran: the machine slept or was too busy. A poll that runs late "
    "is not one.",
)
POLL_SKIPPED_TOTAL = _metric(
    "poll_skipped_total", "counter", "Polls not begun because the one before was still running."
)
CONFIG_LAST_RELOAD_SUCCESSFUL = _metric(
    "config_last_reload_successful",
    "gauge",
    "1 if the configuration in force is the one on disk, 0 if the last reload was refused and "
    "the older one is kept.",
    (),
    "bool_yes_no",
)
CONFIG_LAST_RELOAD_SUCCESS_TIMESTAMP_SECONDS = _metric(
    "config_last_reload_success_timestamp_seconds",
    "gauge",
    "When the configuration in force was read.",
    (),
    "dateTimeFromNow",
)

_INSTEAD_OF_MIG: Final = (
    "Absent on a GPU that is divided into MIG devices: theirs are given instead, so that a sum "
    "counts no byte twice."
)

# --- GPUs -----------------------------------------------------------------------------------

GPU_INFO = _metric(
    "gpu_info",
    "info",
    "Identity of a GPU or MIG device (NVML); always 1.",
    (*_GPU, "name", "driver_version", "mig_profile"),
)
GPU_MEMORY_TOTAL_BYTES = _metric(
    "gpu_memory_total_bytes",
    "gauge",
    "Memory of the device (NVML memory info v2): reserved + used + free. " + _INSTEAD_OF_MIG,
    _GPU,
    "bytes",
)
GPU_MEMORY_RESERVED_BYTES = _metric(
    "gpu_memory_reserved_bytes",
    "gauge",
    "Memory that driver and firmware keep (NVML memory info v2); absent on drivers that only "
    "have v1, whose used includes it. " + _INSTEAD_OF_MIG,
    _GPU,
    "bytes",
)
GPU_MEMORY_USED_BYTES = _metric(
    "gpu_memory_used_bytes",
    "gauge",
    "Memory allocated on the device (NVML memory info). " + _INSTEAD_OF_MIG,
    _GPU,
    "bytes",
)
GPU_MEMORY_FREE_BYTES = _metric(
    "gpu_memory_free_bytes",
    "gauge",
    "Memory an allocation can still get (NVML memory info). " + _INSTEAD_OF_MIG,
    _GPU,
    "bytes",
)
GPU_UTILIZATION_RATIO = _metric(
    "gpu_utilization_ratio",
    "gauge",
    "Share of the last sample period in which a kernel ran, 0-1 (NVML utilization rates).",
    _GPU,
    "percentunit",
)
GPU_TEMPERATURE_CELSIUS = _metric(
    "gpu_temperature_celsius", "gauge", "Core temperature (NVML).", _GPU, "celsius"
)
GPU_POWER_WATTS = _metric("gpu_power_watts", "gauge", "Board power draw (NVML).", _GPU, "watt")
GPU_PROCESSES = _metric(
    "gpu_processes",
    "gauge",
    "Processes that hold memory on the device (NVML). " + _INSTEAD_OF_MIG,
    _GPU,
)
GPU_PROCESS_MEMORY_BYTES = _metric(
    "gpu_process_memory_bytes",
    "gauge",
    "Memory held by processes on the device (NVML), by owner; absent while any of them does not "
    "tell its memory. The owner is an engine, or the word other for every process that is not "
    "traced to one. " + _INSTEAD_OF_MIG,
    (*_GPU, "owner"),
    "bytes",
)
GPU_LEDGER_BYTES = _metric(
    "gpu_ledger_bytes",
    "gauge",
    "Who holds the device's memory and for what; the parts of a device add up to its total. owner "
    "is an engine, a program, or empty for what belongs to the device (reserved, free). A KV pool "
    "is told as kv_used and kv_free while its usage is known. source says where the figure came "
    "from: measured (NVML), engine, log, computed, configured or estimated. " + _INSTEAD_OF_MIG,
    (*_GPU, "owner", "component", "source"),
    "bytes",
)
GPU_MEMORY_UNEXPLAINED_BYTES = _metric(
    "gpu_memory_unexplained_bytes",
    "gauge",
    "Memory in use that no part of the ledger accounts for; negative where the parts claim more "
    "than is in use. Absent while the ledger is. " + _INSTEAD_OF_MIG,
    _GPU,
    "bytes",
)
GPU_UTILIZATION_CLAIMED_RATIO = _metric(
    "gpu_utilization_claimed_ratio",
    "gauge",
    "Sum of gpu_memory_utilization over the engines on the device, or the same share of what they "
    "were given in bytes.",
    _GPU,
    "percentunit",
)
GPU_MEMORY_CLAIMED_BYTES = _metric(
    "gpu_memory_claimed_bytes",
    "gauge",
    "What the engines on the device claim: the managed share of each and its CUDA context outside "
    "of it. Above the total, not all of them can start.",
    _GPU,
    "bytes",
)
GPU_INTRUDER_MEMORY_BYTES = _metric(
    "gpu_intruder_memory_bytes",
    "gauge",
    "Memory held by processes that are no engine, on a device where an engine runs; 0 when there "
    "are none, absent while the processes or their memory are unknown.",
    _GPU,
    "bytes",
)
GPU_READING_UNAVAILABLE = _metric(
    "gpu_reading_unavailable",
    "gauge",
    "1 for a reading that this device or driver does not give, with the reason.",
    (*_GPU, "reading", "reason"),
    "bool_yes_no",
)

# --- engines --------------------------------------------------------------------------------

ENGINE_INFO = _metric(
    "engine_info",
    "info",
    "Identity of a vLLM engine; always 1. kv_layout says how blocks relate to tokens: uniform, "
    "hybrid, assumed_uniform, none (an encoder) or unknown. budget says how much of its memory is "
    "computed: full, or what is not known of it: command, model or weights.",
    (
        *_ENGINE,
        *("target", "model", "vllm_version", "kv_cache_dtype", "kv_layout"),
        *("tensor_parallel", "budget"),
    ),
)
ENGINE_REQUESTS_RUNNING = _metric(
    "engine_requests_running", "gauge", "Requests being run (vllm:num_requests_running).", _ENGINE
)
ENGINE_REQUESTS_WAITING = _metric(
    "engine_requests_waiting",
    "gauge",
    "Requests waiting (vllm:num_requests_waiting_by_reason); reason is the word unknown on "
    "versions before 0.20, which do not tell.",
    (*_ENGINE, "reason"),
)
ENGINE_PREEMPTIONS_TOTAL = _metric(
    "engine_preemptions_total",
    "counter",
    "Preemptions as vLLM reports them (vllm:num_preemptions_total), carried over its restarts. "
    "vLLM counts one only when the preempted request produces output again.",
    _ENGINE,
)
ENGINE_PREEMPTIONS_INFERRED_TOTAL = _metric(
    "engine_preemptions_inferred_total",
    "counter",
    "Preemptions inferred from running, waiting, finished and usage between polls, since this "
    "exporter first saw the engine. Known at the next poll, where vLLM's own counter waits until "
    "the preempted request produces output again.",
    _ENGINE,
)
ENGINE_REQUESTS_PREEMPTED = _metric(
    "engine_requests_preempted",
    "gauge",
    "Requests that were preempted and wait to be run again, as inferred.",
    _ENGINE,
)
ENGINE_STALLED = _metric(
    "engine_stalled",
    "gauge",
    "1 while requests run and nothing of the engine moves, or its /health says it is dead, though "
    "its page answers; else 0.",
    _ENGINE,
    "bool_yes_no",
)
ENGINE_MAX_NUM_SEQS = _metric(
    "engine_max_num_seqs",
    "gauge",
    "Most requests the engine runs at once: its --max-num-seqs or vLLM's default, where the "
    "command line is known.",
    _ENGINE,
)
SERVER_RESTART_BLOCKED = _metric(
    "server_restart_blocked",
    "gauge",
    "1 if the vLLM server would be refused for lack of free memory on this device if it were "
    "restarted now, else 0; absent while its claim or the free memory is unknown.",
    ("server", *_GPU),
    "bool_yes_no",
)
ENGINE_GPU_INFO = _metric(
    "engine_gpu_info",
    "info",
    "Devices an engine runs on, for joins with exporters that label by UUID; always 1.",
    (*_ENGINE, *_GPU),
)
ENGINE_RESTARTS_TOTAL = _metric(
    "engine_restarts_total",
    "counter",
    "Restarts of the engine seen since this exporter started: its server began at another time, "
    "or its counters fell.",
    _ENGINE,
)
ENGINE_ASLEEP = _metric(
    "engine_asleep",
    "gauge",
    "1 while the engine sleeps (vllm:engine_sleep_state) and admits nothing, its usage and "
    "headroom then absent; 0 while awake; absent on versions that do not tell.",
    _ENGINE,
    "bool_yes_no",
)

# --- budget ---------------------------------------------------------------------------------

BUDGET_BYTES = _metric(
    "budget_bytes",
    "gauge",
    "What an engine's memory on a device is meant for, before it is measured. component is "
    "weights, activation, non_torch, cuda_graph, kv, context or margin (what these leave of its "
    "share; the context lies outside of it); source is log, computed, engine, configured or "
    "estimated.",
    (*_GPU, "engine", "component", "source"),
    "bytes",
)

# --- capacity -------------------------------------------------------------------------------

KV_CAPACITY_BLOCKS = _metric(
    "kv_capacity_blocks",
    "gauge",
    "KV blocks of the engine (num_gpu_blocks of vllm:cache_config_info, per engine). One of them "
    "is vLLM's null block, which no request can hold.",
    _ENGINE,
)
KV_CAPACITY_TOKENS = _metric(
    "kv_capacity_tokens",
    "gauge",
    "KV capacity in tokens, as vLLM counts at start. source is engine (kv_cache_size_tokens), "
    "computed (blocks x block size of a model known to be uniform) or assumed_uniform (the same, "
    "while nothing is known of the model).",
    (*_ENGINE, "source"),
)
KV_CAPACITY_BYTES = _metric(
    "kv_capacity_bytes",
    "gauge",
    "KV capacity in bytes over all ranks of the engine; needs the model's config.json.",
    _ENGINE,
    "bytes",
)
KV_BYTES_PER_BLOCK = _metric(
    "kv_bytes_per_block",
    "gauge",
    "Bytes of one KV block over all ranks of the engine; needs the model's config.json.",
    _ENGINE,
    "bytes",
)
KV_USED_RATIO = _metric(
    "kv_used_ratio",
    "gauge",
    "Share of the KV blocks that live requests hold, 0-1 (vllm:kv_cache_usage_perc).",
    _ENGINE,
    "percentunit",
)
KV_USED_BYTES = _metric(
    "kv_used_bytes",
    "gauge",
    "KV blocks that live requests hold, in bytes over all ranks.",
    _ENGINE,
    "bytes",
)

KV_CAPACITY_DRIFT_RATIO = _metric(
    "kv_capacity_drift_ratio",
    "gauge",
    "Computed capacity over reported capacity, less 1; 0 when vLLM's own rules, applied to the "
    "model's config.json and the engine's settings, give what the engine reports.",
    _ENGINE,
    "percentunit",
)
KV_CAPACITY_BOOT_CHANGE_RATIO = _metric(
    "kv_capacity_boot_change_ratio",
    "gauge",
    "Capacity in tokens of this boot over that of the boot before, less 1; absent until a second "
    "boot has been seen.",
    (*_ENGINE, "previous_version", "version"),
    "percentunit",
)

# --- headroom -------------------------------------------------------------------------------

HEADROOM_BLOCKS = _metric(
    "headroom_blocks",
    "gauge",
    "KV blocks free now; prefix-cached blocks that no request uses are free.",
    _ENGINE,
)
HEADROOM_TOKENS = _metric(
    "headroom_tokens", "gauge", "The free share of the KV capacity in tokens.", _ENGINE
)
HEADROOM_BYTES = _metric(
    "headroom_bytes", "gauge", "Free KV blocks in bytes over all ranks.", _ENGINE, "bytes"
)
HEADROOM_REQUESTS = _metric(
    "headroom_requests",
    "gauge",
    "How many more requests of this length fit into the free KV blocks now. context is a number "
    "of tokens, max (max_model_len), observed (mean length of the engine's own traffic) or "
    "observed_p95.",
    (*_ENGINE, "context"),
)
HEADROOM_CONTEXT_TOKENS = _metric(
    "headroom_context_tokens",
    "gauge",
    "The tokens that a context of kvheadroom_headroom_requests stands for.",
    (*_ENGINE, "context"),
)

HEADROOM_LIMIT = _metric(
    "headroom_limit",
    "gauge",
    "1 for what keeps requests waiting: kv, max_num_seqs, token_budget, deferred, or none while "
    "nothing does.",
    (*_ENGINE, "limit"),
    "bool_yes_no",
)
HEADROOM_EXHAUSTION_SECONDS = _metric(
    "headroom_exhaustion_seconds",
    "gauge",
    "Forecast of the time until the free KV blocks run out, from their recent trend; absent while "
    "the pool is not filling or the trend is lost in noise.",
    _ENGINE,
    "s",
)

ALL_METRICS: Final[tuple[MetricSpec, ...]] = tuple(_SPECS.values())
