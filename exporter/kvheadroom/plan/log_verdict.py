"""Judge one start of a vLLM server: did it start, why not, and what to change."""

from dataclasses import dataclass
from typing import Final, Literal

from kvheadroom.node.boot_record import BootRecord, Failure, FailureKind, Figure
from kvheadroom.plan.log_remedies import KILLED_FROM_OUTSIDE, remedies
from kvheadroom.units import format_bytes

State = Literal[
    "started",  # sized, or serving, to the end of the log
    "stopped",  # told to stop
    "failed",  # ended before it served
    "died",  # ended while serving
    "unfinished",  # the log ends before either
]

# The cause of an outcome stands beside it; alone, an outcome is all that is known.
_OUTCOMES: Final = ("engine_start", "engine_dead")
# Another process can be behind these, and what this one says after them is an echo.
_ECHOES: Final = ("nccl", "killed", "port_in_use")

_REASONS: Final[dict[FailureKind, str]] = {
    "free_memory": "less GPU memory is free than it asks for",
    "no_kv_memory": "nothing is left for the KV cache",
    "request_too_long": "the KV cache does not hold one request of max-model-len",
    "auto_fit_impossible": "the KV cache does not hold a single token",
    "profiling_disturbed": "another process freed GPU memory while this one measured",
    "external_weights": "weights held by another process leave too little of its budget",
    "too_few_state_blocks": "max-num-seqs needs more state blocks than there are",
    "length_above_model": "max-model-len is above what the model allows",
    "gpu_out_of_memory": "the GPU ran out of memory",
    "gpu_fault": "the GPU, or a kernel on it, failed",
    "nccl": "GPUs could not talk to each other (NCCL)",
    "driver": "the NVIDIA driver is missing, too old or sees no GPU",
    "gpu_too_old": "the GPU lacks what this build or dtype needs",
    "kv_dtype_unsupported": "the KV cache dtype is not supported here",
    "backend_unsupported": "no attention backend supports this configuration",
    "parallel_unsupported": "the model does not divide over the GPUs as asked",
    "port_in_use": "the port is taken",
    "model_missing": "the model was not found",
    "model_forbidden": "the model may not be downloaded without permission",
    "model_unsupported": "this version does not know the model's architecture",
    "bad_argument": "an argument is not understood",
    "disk_full": "the disk is full",
    "killed": "a process was killed by a signal",
    "engine_start": "the engine failed to start",
    "engine_dead": "the engine process ended",
}
_STAGES: Final = {
    None: "before the weights were loaded",
    "weights": "after loading the weights, in the profile run",
    "profile": "after the profile run, while the KV cache was laid out",
    "blocks": "after the KV cache was allocated",
    "graphs": "after CUDA graphs were captured",
    "sized": "after sizing had ended",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one start.

    Attributes:
        state: Bounded outcome.
        headline: One sentence for a person.
        cause: Why it ended; ``None`` when it did not.
        actions: What to change, the most promising first.
    """

    state: State
    headline: str
    cause: Failure | None = None
    actions: tuple[str, ...] = ()


def judge(record: BootRecord) -> Verdict:
    """Return the verdict on *record*."""
    serving = record.ready_line is not None or record.load is not None
    cause = _cause(record, serving=serving)
    if cause is None:
        return _without_failure(record, serving=serving)
    state: State = "died" if serving else "failed"
    when = "Died under load" if serving else f"Failed to start, {_STAGES[cause.stage]}"
    return Verdict(
        state,
        f"{when}: {_reason(cause)} (line {cause.line}).{_load_at_death(record, state)}",
        cause,
        remedies(record, cause),
    )


def _cause(record: BootRecord, *, serving: bool) -> Failure | None:
    """Return the failure that ended *record*: the first that names a cause, else the outcome."""
    failures = [failure for failure in record.failures if failure.serving == serving]
    named = [failure for failure in failures if failure.kind not in _OUTCOMES]
    own = [failure for failure in named if failure.kind not in _ECHOES]
    return next(iter(own or named or failures), None)


def _without_failure(record: BootRecord, *, serving: bool) -> Verdict:
    if record.shutdown_line is not None:
        return _stopped(record.shutdown_line, serving=serving)
    if not record.is_latest:
        return Verdict(
            "died" if serving else "failed",
            f"Ended without a word after line {record.last_line}, and was started again: killed "
            "from outside.",
            actions=KILLED_FROM_OUTSIDE,
        )
    if record.ready_line is not None:
        return Verdict("started", f"Started and accepts requests (line {record.ready_line}).")
    if record.load is not None:
        return Verdict(
            "started", f"Serving (line {record.load.line}); its first lines are not in this log."
        )
    if made := record.sized_line or _line_of(record.last("kv_tokens", "gpu_blocks")):
        return Verdict(
            "started", f"The KV cache is made (line {made}); the log ends before it serves."
        )
    return Verdict(
        "unfinished",
        f"The log ends after line {record.last_line}, before the KV cache is made, and names no "
        "error.",
    )


def _stopped(line: int, *, serving: bool) -> Verdict:
    if serving:
        return Verdict("stopped", f"Started, served and was shut down (line {line}).")
    return Verdict(
        "stopped",
        f"Was told to stop (line {line}) before it served.",
        actions=("If a startup probe did it, let it wait longer: weights take their time.",),
    )


def _line_of(figure: Figure | None) -> int | None:
    return figure.line if figure else None


def _reason(cause: Failure) -> str:
    said = _REASONS[cause.kind]
    numbers = cause.numbers
    match cause.kind:
        case "free_memory" if "requested_bytes" in numbers:
            return (
                f"{said}: {format_bytes(numbers['free_bytes'])} of "
                f"{format_bytes(numbers['total_bytes'])} free, "
                f"{format_bytes(numbers['requested_bytes'])} wanted"
            )
        # Printed to two places, a very small pool and what it lacks look alike.
        case "request_too_long" if numbers.get("needed_bytes", 0) > numbers.get(
            "available_bytes", 0
        ):
            needed, there = numbers["needed_bytes"], numbers["available_bytes"]
            return (
                f"{said}: {numbers['refused_tokens']:,.0f} tokens need {format_bytes(needed)}, "
                f"{format_bytes(there)} is there"
            )
        case "request_too_long" if "estimated_max_tokens" in numbers:
            return (
                f"{said}: {numbers['refused_tokens']:,.0f} tokens asked, the pool holds "
                f"{numbers['estimated_max_tokens']:,.0f}"
            )
        case "gpu_out_of_memory" if "tried_bytes" in numbers:
            return f"{said} allocating {format_bytes(numbers['tried_bytes'])}"
        case _:
            return said


def _load_at_death(record: BootRecord, state: State) -> str:
    load = record.load
    if state != "died" or load is None:
        return ""
    return (
        f" Its last report (line {load.line}): {load.running} running, {load.waiting} waiting, "
        f"KV cache {load.kv_used_ratio:.0%} used."
    )
