"""Turn what a startup log says into a reading: each process' memory, by name and unit."""

from collections.abc import Sequence
from typing import Final

from kvheadroom.node.boot_record import BootRecord, Figure
from kvheadroom.readings import BootReading, ProcessBoot
from kvheadroom.units import GIB

# Five printed figures, each off by up to half a hundredth of a GiB.
_CLOSES_WITHIN_BYTES: Final = 5 * GIB // 200

_Names = tuple[str, ...]
# Of each figure, its names in the log: the first that is there is the best.
_WEIGHTS: Final[_Names] = ("weights_bytes", "profiled_weights_bytes")
_KV: Final[_Names] = ("kv_in_use_bytes", "available_kv_bytes", "reserved_kv_bytes")
_LENGTH: Final[_Names] = ("auto_fit_tokens", "concurrency_tokens", "max_model_len_tokens")


def boot_reading(record: BootRecord) -> BootReading:
    """Return *record* as a reading."""
    longest, asked = record.last(*_LENGTH), record.last("max_model_len_tokens")
    step = record.last("max_num_batched_tokens")
    failure = record.failures[-1] if record.failures else None
    return BootReading(
        version=record.fact("version"),
        model=record.fact("model"),
        max_model_len=int(longest.value) if longest else None,
        asked_max_model_len=int(asked.value) if asked else None,
        max_num_batched_tokens=int(step.value) if step else None,
        is_ready=record.ready_line is not None,
        failure=failure.kind if failure else None,
        failure_text=failure.text if failure else None,
        clock=record.clock,
        source=record.source,
        processes=tuple(
            _process(figures, counts_graphs="graphs_counted" in record.notes)
            for figures in _by_process(record.figures)
        ),
    )


def _by_process(figures: Sequence[Figure]) -> Sequence[Sequence[Figure]]:
    found: dict[tuple[str | None, int | None], list[Figure]] = {}
    for figure in figures:
        found.setdefault((figure.process, figure.pid), []).append(figure)
    return tuple(found.values())


def _process(figures: Sequence[Figure], *, counts_graphs: bool) -> ProcessBoot:
    last = {figure.name: figure.value for figure in figures}

    def count(*names: str) -> int | None:
        return next((round(last[name]) for name in names if name in last), None)

    weights, consumed = count(*_WEIGHTS), count("consumed_bytes")
    non_torch = count("non_torch_bytes")
    if non_torch is None and weights is not None and consumed is not None:
        non_torch = consumed - weights
    activation = count("activation_bytes")
    if activation is not None and counts_graphs:
        activation -= _graphs_inside(last)
    return ProcessBoot(
        process=figures[0].process,
        pid=figures[0].pid,
        rank=next((figure.rank for figure in figures if figure.rank is not None), None),
        weights_bytes=weights,
        non_torch_bytes=non_torch,
        activation_bytes=activation,
        graph_bytes=count("graph_bytes"),
        graph_estimate_bytes=count("graph_estimate_bytes"),
        kv_bytes=count(*_KV),
        total_bytes=count("total_bytes"),
        requested_bytes=count("requested_bytes"),
        utilization_ratio=last.get("utilization_ratio"),
        kv_tokens=count("kv_tokens"),
        max_concurrency=last.get("concurrency"),
    )


def _graphs_inside(last: dict[str, float]) -> int:
    """Return the graphs' estimate where the printed activation peak holds it, else 0.

    Source:
        Since vLLM 0.20 the estimate is part of what is subtracted from the share, and the line
        that lists what is held prints it with the peak: the sum that closes tells.
    """
    held = last.get("consumed_bytes")
    if held is None and {"profiled_weights_bytes", "non_torch_bytes"} <= last.keys():
        held = last["profiled_weights_bytes"] + last["non_torch_bytes"]
    needed = ("requested_bytes", "activation_bytes", "graph_estimate_bytes", "available_kv_bytes")
    if held is None or not last.keys() >= set(needed):
        return 0
    requested, activation, estimate, kv = (last[name] for name in needed)
    rest = requested - held - activation - kv
    return round(min(estimate, activation)) if abs(rest) <= _CLOSES_WITHIN_BYTES else 0
