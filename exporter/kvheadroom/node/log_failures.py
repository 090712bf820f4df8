"""Tell why a vLLM server did not start, or stopped, from the messages it leaves."""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from kvheadroom.node.boot_record import FailureKind
from kvheadroom.units import GIB, MIB

_N: Final = r"-?[\d,]{0,18}\.?\d{1,18}"


class _Sign(NamedTuple):
    """One wording of one cause. ``needle`` is a lower-case part every such message has."""

    kind: FailureKind
    needle: str
    pattern: re.Pattern[str]


def _sign(kind: FailureKind, needle: str, pattern: str = "") -> _Sign:
    spelled = re.sub(
        r"(?<!P)<(\w+)>", lambda name: rf"(?P<{name[1]}>{_N})", pattern or re.escape(needle)
    )
    return _Sign(kind, needle, re.compile(spelled, re.IGNORECASE))


_OOM: Final = (
    r"out of memory.{0,40}?Tried to allocate <tried> (?P<tried_unit>[KMG])iB"
    r"(?:.{0,40}?total capacity (?:of )?<total> (?P<total_unit>[KMG])iB of which "
    r"<free> (?P<free_unit>[KMG])iB is free"
    r"|.{0,20}?; <oldtotal> (?P<oldtotal_unit>[KMG])iB total capacity.{0,60}?"
    r"<oldfree> (?P<oldfree_unit>[KMG])iB free)?"
)
# The most telling first: a message takes the first kind it fits.
_SIGNS: Final = (
    _sign(
        "free_memory",
        "is less than desired gpu memory utilization",
        r"\(<free_g>/<total_g> GiB\) on startup is less than desired GPU memory utilization "
        r"\(<utilization_ratio>, <requested_g> GiB\)",
    ),
    _sign(
        "external_weights",
        "exceed the desired gpu memory utilization",
        r"Externally held weights on device",
    ),
    _sign("external_weights", "budget after excluding external process"),
    _sign("no_kv_memory", "no available memory for the cache blocks"),
    _sign(
        "request_too_long",
        "kv cache is needed",
        r"max seq len \(<refused_tokens>\), \(?<needed_g> Gi?B KV cache is needed, which is larger "
        r"than the available KV cache memory \(<available_g> Gi?B\)"
        r"(?:.{0,120}?maximum model length is <estimated_max_tokens>)?",
    ),
    _sign(
        "request_too_long",
        "that can be stored in kv cache",
        r"max seq len \(<refused_tokens>\) is larger than the maximum number of tokens that can be "
        r"stored in KV cache \(<estimated_max_tokens>\)",
    ),
    _sign("request_too_long", "kv cache is needed"),
    _sign("auto_fit_impossible", "cannot auto-fit max_model_len"),
    _sign(
        "profiling_disturbed",
        "error in memory profiling",
        r"Error in memory profiling\.(?: Initial free memory <initial_free_g> GiB, current free "
        r"memory <free_g> GiB)?",
    ),
    _sign(
        "too_few_state_blocks",
        "exceeds available mamba cache blocks",
        r"max_num_seqs \(<max_num_seqs>\) exceeds available Mamba cache blocks \(<mamba_blocks>\)",
    ),
    _sign(
        "length_above_model",
        "is greater than the derived max_model_len",
        r"max_model_len \(<refused_tokens>\) is greater than the derived max_model_len "
        r"\((?:[\w.]{1,60}=)?<estimated_max_tokens>",
    ),
    _sign("gpu_out_of_memory", "out of memory", _OOM),
    _sign("gpu_out_of_memory", "cuda out of memory"),
    _sign("gpu_out_of_memory", "cuda failure 'out of memory'"),
    _sign("gpu_out_of_memory", "cublas_status_alloc_failed"),
    _sign("gpu_out_of_memory", "error: out of memory", r"CUDA (?:driver )?error: out of memory"),
    _sign(
        "nccl", "nccl", r"NCCL error|NCCL failure|ncclUnhandled|ncclSystemError|ncclInternalError"
    ),
    _sign("nccl", "watchdog caught collective operation timeout"),
    _sign("driver", "nvidia driver on your system is too old"),
    _sign("driver", "found no nvidia driver"),
    _sign("driver", "no cuda gpus are available"),
    _sign("driver", "cuda driver version is insufficient"),
    _sign("driver", "system not yet initialized"),
    _sign("driver", "failed to infer device type"),
    _sign("driver", "driver/library version mismatch"),
    _sign("driver", "cuda error: unknown error"),
    _sign("gpu_too_old", "no kernel image is available"),
    _sign("gpu_too_old", "only supported on gpus with compute capability"),
    _sign("gpu_too_old", "is not compatible with the current pytorch installation"),
    _sign("gpu_fault", "an illegal memory access"),
    _sign("gpu_fault", "uncorrectable ecc error"),
    _sign("gpu_fault", "fallen off the bus"),
    _sign("gpu_fault", "cuda error: unspecified launch failure"),
    _sign("gpu_fault", "cuda error: device-side assert"),
    _sign("kv_dtype_unsupported", "kv_cache_dtype not supported"),
    _sign("kv_dtype_unsupported", "kv cache", r"FP8 KV cache (?:is not supported|requires|only)"),
    _sign(
        "kv_dtype_unsupported", "kv cache dtype", r"KV cache dtype .{0,60}(?:not supported|only)"
    ),
    _sign("kv_dtype_unsupported", "kv-cache-dtype", r"kv-cache-dtype.{0,80}not (?:yet )?supported"),
    _sign("kv_dtype_unsupported", "fp8e4nv not supported"),
    _sign("backend_unsupported", "no valid attention backend"),
    _sign(
        "backend_unsupported",
        "is not valid for this configuration",
        r"backend \S{1,80} is not valid for this configuration",
    ),
    _sign("backend_unsupported", "invalid attention backend"),
    _sign("parallel_unsupported", "must be divisible by tensor parallel size"),
    _sign("parallel_unsupported", "is not divisible by", r"\w is not divisible by \d"),
    _sign("parallel_unsupported", "larger than the number of available gpus"),
    _sign("parallel_unsupported", "is larger than", r"world size \(\d{1,6}\) is larger than"),
    _sign("port_in_use", "address already in use", r"address already in use(?!\. Retrying)"),
    _sign("port_in_use", "error while attempting to bind on address"),
    _sign("model_forbidden", "gated repo"),
    _sign("model_forbidden", "gatedrepoerror"),
    _sign("model_forbidden", "401 client error"),
    _sign("model_missing", "is not a valid model identifier"),
    _sign("model_missing", "repository not found"),
    _sign("model_missing", "repositorynotfounderror"),
    _sign("model_missing", "invalid repository id or local directory"),
    _sign("model_missing", "repo id must"),
    _sign("model_missing", "can't load the configuration of"),
    _sign("model_missing", "does not appear to have a file named config.json"),
    _sign("model_missing", "cannot find any model weights"),
    _sign(
        "model_unsupported", "are not supported", r"Model architectures .{1,200} are not supported"
    ),
    _sign("model_unsupported", "does not recognize this architecture"),
    _sign("bad_argument", "error: unrecognized arguments"),
    _sign("bad_argument", "error: argument"),
    _sign(
        "bad_argument", ": error: ", r"vllm(?:\.py)?(?: serve)?: error: |api_server\.py: error: "
    ),
    _sign("disk_full", "no space left on device"),
    _sign("killed", "exit code: -", r"exit code: -<signal>"),
    _sign("killed", "signal 9", r"(?:killed|died|terminated).{0,40}signal 9\b"),
    _sign("killed", "oomkilled"),
    _sign("killed", "killed", r"^(?:.{1,80}: line \d{1,6}: *\d{1,10} )?Killed\b(?! by| sub| proc)"),
    _sign("killed", "segmentation fault"),
)
# Without a cause of their own: what fails is named elsewhere, or by the last exception.
_OUTCOMES: Final = (
    _sign("engine_dead", "enginedeaderror"),
    _sign("engine_dead", "encountered an issue. see stack trace"),
    _sign("engine_dead", "encountered a fatal error"),
    _sign("engine_dead", "engine core proc", r"Engine core proc \S{1,80} died unexpectedly"),
    _sign("engine_dead", "asyncenginedeaderror"),
    _sign("engine_dead", "background loop has errored"),
    _sign("engine_dead", "engine loop is not running"),
    _sign("engine_dead", "background task failed"),
    _sign("engine_start", "error executing method"),
    _sign("engine_start", "workerproc hit an exception"),
    _sign("engine_start", "enginecore hit an exception"),
    _sign("engine_start", "enginecore failed to start"),
    _sign("engine_start", "engine core initialization failed"),
    _sign("engine_start", "engine process failed to start"),
    _sign("engine_start", "workerproc failed to start"),
    _sign("engine_start", "workerproc initialization failed"),
    _sign("engine_start", "worker proc", r"Worker proc \S{1,80} died unexpectedly"),
    _sign("engine_start", "workerwrapper", r"Worker ?Wrapper.{0,60}died"),
)
_EXCEPTION: Final = re.compile(
    r"^(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception)\b(?=:|$)"
)
_SCALE: Final = {"K": 1024, "M": MIB, "G": GIB}


class FoundFailure(NamedTuple):
    """A cause in a message, with its numbers in bytes, tokens and ratios."""

    kind: FailureKind
    numbers: Mapping[str, float]


def cause_in(text: str) -> FoundFailure | None:
    """Return the cause *text* names, or ``None``."""
    return _first(_SIGNS, text)


def outcome_in(text: str) -> FailureKind | None:
    """Return what *text* says has ended, without naming a cause, or ``None``."""
    found = _first(_OUTCOMES, text)
    return found.kind if found else None


def is_exception(text: str) -> bool:
    """Return whether *text* is the last line of a traceback, ``ValueError: …``."""
    # An exception group draws a frame around its members.
    return _EXCEPTION.match(text.lstrip(" |+-")) is not None


def _first(signs: tuple[_Sign, ...], text: str) -> FoundFailure | None:
    lowered = text.lower()
    for sign in signs:
        if sign.needle in lowered and (match := sign.pattern.search(text)):
            return FoundFailure(sign.kind, _numbers(match.groupdict()))
    return None


def _numbers(groups: Mapping[str, str | None]) -> Mapping[str, float]:
    """Return the numbers of a message by name; ``tried`` with ``tried_unit`` is ``tried_bytes``."""
    found: dict[str, float] = {}
    for group, printed in groups.items():
        if printed is None or group.endswith("_unit"):
            continue
        value = float(printed.replace(",", ""))
        unit = groups.get(f"{group}_unit")
        name = group.removeprefix("old")
        if unit:
            found[f"{name}_bytes"] = round(value * _SCALE[unit.upper()])
        elif name.endswith("_g"):
            found[f"{name[:-2]}_bytes"] = round(value * GIB)
        else:
            found[name] = int(value) if value.is_integer() else value
    return found
