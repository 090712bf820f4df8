"""Say which knob to turn, and how far, for each way a vLLM server fails."""

import math
from collections.abc import Mapping
from typing import Final

from kvheadroom.node.boot_record import BootRecord, Failure, FailureKind
from kvheadroom.units import GIB, format_bytes

# Above this no room is left for the driver and for what is allocated after profiling.
HIGHEST_UTILIZATION: Final = 0.97
KILLED_FROM_OUTSIDE: Final = (
    "Look for the kernel's OOM killer: dmesg, kubectl describe pod.",
    "Raise the host memory limit: loading passes the weights through host memory.",
)
# vLLM keeps 150 MiB in its own suggestions; a kernel's first run may take more.
_MARGIN_BYTES: Final = GIB // 4
_DEFAULT_UTILIZATION: Final = 0.92
_DEFAULT_UTILIZATION_BEFORE_0_20: Final = 0.9


def remedies(record: BootRecord, failure: Failure) -> tuple[str, ...]:
    """Return what to do about *failure*, the most promising first."""
    numbers = failure.numbers
    match failure.kind:
        case "free_memory":
            advice = _too_little_free(numbers)
        case "no_kv_memory" | "auto_fit_impossible":
            advice = _nothing_left(record)
        case "request_too_long":
            advice = _request_too_long(record, failure)
        case "length_above_model":
            advice = (_length_above_model(numbers.get("estimated_max_tokens")),)
        case "too_few_state_blocks":
            advice = _too_few_states(numbers.get("mamba_blocks"))
        case "gpu_out_of_memory":
            advice = _gpu_out_of_memory(record, failure)
        case "killed":
            advice = _killed(failure)
        case _:
            advice = _ADVICE[failure.kind]
    return advice


def utilization(record: BootRecord) -> float | None:
    """Return ``gpu_memory_utilization`` of this start: printed, given, or the version's default."""
    printed = record.last("utilization_ratio")
    if printed:
        return printed.value
    given = record.arguments.get("gpu_memory_utilization")
    if isinstance(given, int | float):
        return float(given)
    version = minor_version(record)
    if version is None:
        return None
    return _DEFAULT_UTILIZATION if version >= (0, 20) else _DEFAULT_UTILIZATION_BEFORE_0_20


def minor_version(record: BootRecord) -> tuple[int, int] | None:
    """Return major and minor version, ``None`` where the log does not say."""
    parts = (record.fact("version") or "").split(".")
    if len(parts) < 2 or not (parts[0].isdecimal() and parts[1].isdecimal()):  # noqa: PLR2004
        return None
    return int(parts[0]), int(parts[1])


def _too_little_free(numbers: Mapping[str, float]) -> tuple[str, ...]:
    free, total, asked = (numbers.get(f"{name}_bytes") for name in ("free", "total", "requested"))
    if free is None or not total or asked is None:
        return ("Free the GPU of other processes or lower --gpu-memory-utilization.",)
    held, highest = format_bytes(total - free), math.floor(free / total * 100) / 100
    missing = format_bytes(asked - free)
    advice = [f"Free at least {missing}: other processes hold {held} (see nvidia-smi)."]
    if highest > 0:
        advice.append(
            f"Or share the card: --gpu-memory-utilization {highest:.2f} is the most it gives now."
        )
    return tuple(advice)


def _nothing_left(record: BootRecord) -> tuple[str, ...]:
    available = record.least("available_kv_bytes")
    weights = record.last("weights_bytes", "profiled_weights_bytes", "consumed_bytes")
    size = f" ({weights.printed} per GPU)" if weights else ""
    return (
        _raise_utilization(record, GIB - available.value, "for a first GiB of KV cache")
        if available
        else "Raise --gpu-memory-utilization, if other processes leave room.",
        f"Make the weights{size} smaller: quantized, or --tensor-parallel-size over more GPUs.",
        "Lower --max-num-batched-tokens: what the profile run peaks at is lost to the KV cache.",
    )


def _request_too_long(record: BootRecord, failure: Failure) -> tuple[str, ...]:
    numbers = failure.numbers
    refused, fits = numbers.get("refused_tokens"), numbers.get("estimated_max_tokens")
    needed, available = numbers.get("needed_bytes"), numbers.get("available_bytes")
    override, profiled = record.last("override_blocks"), record.last("profiled_blocks")
    advice = []
    if override and profiled and override.value < profiled.value:
        advice.append(
            f"Drop --num-gpu-blocks-override {override.printed}: profiling found room for "
            f"{profiled.value:,.0f} blocks."
        )
    if fits:
        advice.append(f"--max-model-len {fits:.0f} is the longest that fits.")
    elif refused and needed and available:
        advice.append(
            f"--max-model-len of about {refused * available / needed:.0f} fits, if the cache grows "
            "evenly with length."
        )
    if needed and available is not None and needed > available:
        advice.append(
            _raise_utilization(record, needed - available, f"for {refused or 0:,.0f} tokens")
        )
        if needed / 2 <= available and record.fact("kv_cache_dtype") in {None, "auto"}:
            advice.append(
                f"--kv-cache-dtype fp8 needs about {format_bytes(needed / 2)} instead of "
                f"{format_bytes(needed)}, where model and GPU allow it."
            )
    return tuple(advice) or ("Lower --max-model-len or raise --gpu-memory-utilization.",)


def _length_above_model(limit_tokens: float | None) -> str:
    known = f"--max-model-len {limit_tokens:.0f}" if limit_tokens else "A lower --max-model-len"
    return f"{known} is what the model's config.json allows; more needs RoPE scaling."


def _too_few_states(blocks: float | None) -> tuple[str, ...]:
    limit = f"--max-num-seqs {blocks:.0f} or less" if blocks else "Lower --max-num-seqs"
    return (
        f"{limit}: each running request holds one state block.",
        "Or raise --gpu-memory-utilization: the same pool holds states and attention.",
    )


def _killed(failure: Failure) -> tuple[str, ...]:
    if "fault" in failure.text or failure.numbers.get("signal", 9) != 9:  # noqa: PLR2004
        return ("A crash in native code: look for a core dump, or try another version.",)
    return KILLED_FROM_OUTSIDE


def _gpu_out_of_memory(record: BootRecord, failure: Failure) -> tuple[str, ...]:
    if failure.serving:
        return _out_of_memory_under_load(record, failure)
    if failure.stage is None:
        return (
            "The weights do not fit: a quantized or smaller model, or --tensor-parallel-size.",
            "Look for other processes on the card (nvidia-smi).",
        )
    if failure.stage == "weights":
        return (
            _lower("--max-num-batched-tokens", record, "max_num_batched_tokens", "the profile run"),
            _lower("--max-num-seqs", record, "max_num_seqs", "the sampler's share of it"),
            "Or make the weights smaller: a quantized model, more GPUs.",
        )
    return (
        _lower_utilization(record, failure),
        _lower("--max-num-seqs", record, "max_num_seqs", "the sampler and CUDA graphs"),
        "--enforce-eager does without CUDA graphs, at the price of slower decoding.",
    )


def _out_of_memory_under_load(record: BootRecord, failure: Failure) -> tuple[str, ...]:
    return (
        _lower("--max-model-len", record, "max_model_len", "the longest request"),
        _lower_utilization(record, failure),
        _lower("--max-num-seqs", record, "max_num_seqs", "how many run at once"),
        "Or a smaller model: the pool is taken at start, so what grew is beside it.",
    )


def _lower_utilization(record: BootRecord, failure: Failure) -> str:
    now = utilization(record)
    tried, free = failure.numbers.get("tried_bytes"), failure.numbers.get("free_bytes")
    figure = record.last("total_bytes")
    total = failure.numbers.get("total_bytes") or (figure.value if figure else None)
    if now is None or tried is None or not total:
        start = f" (now {now:g})" if now is not None else ""
        return (
            f"Lower --gpu-memory-utilization{start} by 0.05: the pool leaves too little beside it."
        )
    lacking = max(0.0, tried - (free or 0.0)) + _MARGIN_BYTES
    lower = math.floor((now - lacking / total) * 100) / 100
    return (
        f"--gpu-memory-utilization {lower:.2f} (now {now:g}) leaves {format_bytes(lacking)} more "
        f"for the {format_bytes(tried)} it tried to allocate."
        if lower > 0
        else "Lower --gpu-memory-utilization; no value leaves enough beside these weights."
    )


def _lower(flag: str, record: BootRecord, name: str, what: str) -> str:
    given = record.arguments.get(name)
    figure = record.last(f"{name}_tokens", name)
    now = given if isinstance(given, int) and given > 0 else figure.value if figure else None
    return (
        f"Lower {flag} (now {now:.0f}, try {now // 2:.0f}): {what}."
        if now
        else (f"Lower {flag}: {what}.")
    )


def _raise_utilization(record: BootRecord, missing_bytes: float, purpose: str) -> str:
    now, total = utilization(record), record.last("total_bytes")
    if now is None or total is None or not total.value:
        return (
            f"Raise --gpu-memory-utilization by {format_bytes(missing_bytes)} ÷ the card's memory, "
            f"{purpose}."
        )
    raised = math.ceil((now + missing_bytes / total.value) * 100) / 100
    if raised > HIGHEST_UTILIZATION:
        return (
            f"--gpu-memory-utilization cannot give it: {purpose} it would have to be {raised:.2f} "
            f"(now {now:g})."
        )
    return f"--gpu-memory-utilization {raised:.2f} (now {now:g}) makes room {purpose}."


_ADVICE: Final[Mapping[FailureKind, tuple[str, ...]]] = {
    "external_weights": (
        "Raise --gpu-memory-utilization: weights held by another process count against it.",
    ),
    "profiling_disturbed": (
        "Start again once no other process on the card is starting or stopping.",
        "Or give the pool in bytes, --kv-cache-memory-bytes, which does not measure.",
    ),
    "gpu_fault": (
        "Look for Xid messages (dmesg) and ECC errors (nvidia-smi -q); reset or replace the GPU.",
        "Without either it is a kernel's fault: try another attention backend or version.",
    ),
    "nccl": (
        "Start again with NCCL_DEBUG=INFO, which names the failing step.",
        "Check the interface (NCCL_SOCKET_IFNAME) and /dev/shm (--ipc=host or --shm-size).",
    ),
    "driver": (
        "nvidia-smi must work in the same container and CUDA_VISIBLE_DEVICES name a GPU.",
        "The driver must be as new as the CUDA version of this build.",
    ),
    "gpu_too_old": ("--dtype half where bfloat16 is missing; else a build for this GPU.",),
    "kv_dtype_unsupported": (
        "--kv-cache-dtype auto works everywhere; fp8 needs a backend and a GPU that have it.",
    ),
    "backend_unsupported": (
        "Leave the choice to vLLM: drop --attention-backend and VLLM_ATTENTION_BACKEND.",
    ),
    "parallel_unsupported": (
        "Choose a --tensor-parallel-size that divides the heads, at most the GPUs present.",
    ),
    "port_in_use": ("Stop the server that holds the port, or choose another --port.",),
    "model_missing": (
        "Check the path or hub id; with HF_HUB_OFFLINE it must be in the local cache.",
    ),
    "model_forbidden": ("Accept the model's terms on the hub and give its token in HF_TOKEN.",),
    "model_unsupported": ("Use a vLLM (or transformers) version that knows this architecture.",),
    "bad_argument": ("Correct the argument; flags come and go between versions.",),
    "disk_full": ("Free the disk that holds the model cache and the compile cache.",),
    "engine_start": ("Read the traceback at this line: the exception it ends in is the cause.",),
    "engine_dead": (
        "Read the engine's traceback at this line.",
        "Without one it was killed from outside (dmesg: OOM killer, Xid).",
    ),
}
