"""Explain a startup log: the verdict first, then every figure with the line it stands on."""

import dataclasses
import gzip
import json
import sys
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from kvheadroom.errors import ConfigError
from kvheadroom.node.boot_record import BootRecord, Figure
from kvheadroom.node.log_figures import UNIT_OF
from kvheadroom.node.model_files import require_regular_file
from kvheadroom.node.startup_log import read_boots
from kvheadroom.plan.log_balance import balance
from kvheadroom.plan.log_findings import changes, red_flags
from kvheadroom.plan.log_verdict import Verdict, judge
from kvheadroom.units import GIB, format_bytes

# A server in a crash loop may start a thousand times; the last starts tell the story.
_MOST_BOOTS: Final = 50
_MOST_RANKS_SHOWN: Final = 8
_GZIP_MAGIC: Final = b"\x1f\x8b"

_FACT_LABELS: Final = {
    "version": "vLLM",
    "model": "model",
    "architecture": "architecture",
    "dtype": "dtype",
    "quantization": "quantization",
    "kv_cache_dtype": "KV cache dtype",
    "attention_backend": "attention backend",
    "kv_layout": "KV layout",
    "kv_group_tokens": "tokens per block, by group",
    "tensor_parallel_size": "tensor parallel",
    "pipeline_parallel_size": "pipeline parallel",
    "data_parallel_size": "data parallel",
}
_FIGURE_LABELS: Final = {
    "total_bytes": "GPU memory",
    "free_bytes": "free at start",
    "utilization_ratio": "gpu-memory-utilization",
    "requested_bytes": "managed by vLLM",
    "weights_bytes": "weights",
    "profiled_weights_bytes": "weights, in the profile",
    "consumed_bytes": "weights + non-torch",
    "non_torch_bytes": "non-torch",
    "activation_bytes": "peak activation",
    "peak_torch_bytes": "peak of torch",
    "non_kv_bytes": "all but KV cache",
    "graph_estimate_bytes": "CUDA graphs, estimated",
    "graph_bytes": "CUDA graphs, captured",
    "available_kv_bytes": "available for KV cache",
    "reserved_kv_bytes": "KV cache, given in bytes",
    "kv_in_use_bytes": "KV cache in use",
    "fitting_kv_bytes": "KV cache that fits the share",
    "fullest_kv_bytes": "KV cache that fills the GPU",
    "host_kv_bytes": "KV cache in host memory",
    "startup_plan_kv_bytes": "KV cache of a saved plan",
    "utilization_without_graphs_ratio": "utilization, graphs aside",
    "utilization_for_same_kv_ratio": "utilization for the old KV",
    "max_model_len_tokens": "max-model-len",
    "max_num_batched_tokens": "max-num-batched-tokens",
    "block_tokens": "tokens per block",
    "kernel_block_tokens": "tokens per kernel block",
    "profiled_blocks": "blocks, profiled",
    "override_blocks": "blocks, overridden",
    "gpu_blocks": "blocks",
    "cpu_blocks": "CPU blocks",
    "mamba_blocks": "state blocks",
    "padding_layers": "padding layers",
    "auto_fit_tokens": "max-model-len, fitted",
    "kv_tokens": "KV cache size",
    "concurrency_tokens": "for requests of",
    "concurrency": "maximum concurrency",
    "needed_kv_bytes": "needed for one request",
    "refused_tokens": "of this length",
    "estimated_max_tokens": "longest that fits",
    "preemptions": "preemptions",
    "init_seconds": "engine start took",
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """A log, understood.

    Attributes:
        boots: Its last starts, in its order.
        starts: How many starts it holds, those beyond the last 50 included.
    """

    boots: tuple[BootRecord, ...]
    starts: int


def explain_file(path: str) -> Explanation:
    """Return what the log at *path* holds; ``-`` is standard input, gzip is unpacked.

    Raises:
        ConfigError: It cannot be read, or holds no vLLM log.
    """
    kept: deque[BootRecord] = deque(maxlen=_MOST_BOOTS)
    starts = 0
    name = "standard input" if path == "-" else path
    try:
        with _opened(path) as stream:
            for record in read_boots(stream):
                kept.append(record)
                starts += 1
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{name}: cannot be read: {reason}") from error
    if not kept:
        raise ConfigError(f"{name}: no vLLM log in it")
    return Explanation(tuple(kept), starts)


def as_text(explanation: Explanation) -> str:
    """Return *explanation* for a terminal: the latest start of each service, others compared."""
    parts = []
    for boots in _by_source(explanation):
        latest = boots[-1]
        parts += [_heading(latest), _verdict_text(latest), _balance_text(latest)]
        parts.append(_ledger_text(latest))
        if flags := red_flags(latest):
            parts.append("\n".join(["Red flags", *_bullets(flags)]))
        if len(boots) > 1:
            parts.append(_comparison_text(boots))
    if explanation.starts > len(explanation.boots):
        parts.append(
            f"The log holds {explanation.starts} starts; the last {_MOST_BOOTS} were read."
        )
    return "\n\n".join(part for part in parts if part) + "\n"


def as_json(explanation: Explanation) -> str:
    """Return *explanation* as one JSON object, bytes and tokens as numbers."""
    shown = [
        {**_boot_object(record), "changes": list(changes(before, record)) if before else []}
        for boots in _by_source(explanation)
        for before, record in zip([None, *boots], boots, strict=False)
    ]
    return json.dumps({"starts": explanation.starts, "boots": shown}, indent=2) + "\n"


def _by_source(explanation: Explanation) -> list[list[BootRecord]]:
    """Return the starts of each service, in the log's order."""
    found: dict[str | None, list[BootRecord]] = {}
    for record in explanation.boots:
        found.setdefault(record.source, []).append(record)
    return list(found.values())


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    if path == "-":
        yield sys.stdin.buffer
        return
    require_regular_file(Path(path))
    with Path(path).open("rb") as raw:
        is_packed = raw.peek(2)[:2] == _GZIP_MAGIC
        if not is_packed:
            yield raw
            return
        with gzip.open(raw, "rb") as unpacked:
            yield unpacked  # type: ignore[misc]


def _heading(record: BootRecord) -> str:
    version, model = record.fact("version"), record.fact("model")
    named = [record.source, model, f"vLLM {version}" if version else "vLLM"]
    started = f", started {record.clock}" if record.clock else ""
    told = ", ".join(name for name in named if name)
    return f"{told} (lines {record.first_line}-{record.last_line}{started})"


def _verdict_text(record: BootRecord) -> str:
    verdict = judge(record)
    lines = [verdict.headline]
    if verdict.cause is not None:
        lines.append(f"  {verdict.cause.text}")
    if verdict.actions:
        lines += ["", "What to do", *_bullets(verdict.actions)]
    elif capacity := _capacity(record):
        lines.append(capacity)
    return "\n".join(lines)


def _capacity(record: BootRecord) -> str | None:
    tokens, concurrency = record.least("kv_tokens"), record.least("concurrency")
    length = record.last("concurrency_tokens")
    if not tokens:
        if record.sized_line is not None and not record.last("gpu_blocks", "available_kv_bytes"):
            return "It keeps no KV cache: an encoder, whose requests leave nothing behind."
        return None
    engines = record.by_process("kv_tokens")
    each = f" in each of {len(engines)} engines" if len(engines) > 1 else ""
    held = f"The KV cache holds {tokens.value:,.0f} tokens{each}"
    if concurrency and length:
        held += f": {concurrency.printed} requests of {length.value:,.0f} tokens"
    return f"{held}."


def _ledger_text(record: BootRecord) -> str:
    rows = [*_fact_rows(record), *_argument_rows(record), *_figure_rows(record)]
    if not rows:
        return ""
    wide = max(len(label) for label, _, _ in rows)
    value_wide = min(60, max(len(value) for _, value, _ in rows))
    lines = [
        f"  {label:<{wide}}  {value:<{value_wide}}  line {line}".rstrip()
        for label, value, line in rows
    ]
    return "\n".join(["Ledger", *lines])


def _fact_rows(record: BootRecord) -> Iterator[tuple[str, str, int]]:
    for name, label in _FACT_LABELS.items():
        fact = record.facts.get(name)
        if fact and not (name.endswith("parallel_size") and fact.value == "1"):
            yield label, fact.value, fact.line


def _argument_rows(record: BootRecord) -> Iterator[tuple[str, str, int]]:
    # A Namespace prints every argument there is; only what was asked for is worth a row.
    if record.arguments_line is None or len(record.arguments) > 40:  # noqa: PLR2004
        return
    for name, value in record.arguments.items():
        if name == "model_tag":
            continue
        yield f"--{name.replace('_', '-')}", str(value), record.arguments_line


def _figure_rows(record: BootRecord) -> Iterator[tuple[str, str, int]]:
    for name, label in _FIGURE_LABELS.items():
        figures = record.by_process(name)
        if len({figure.value for figure in figures}) <= 1:
            figures = figures[:1]
        for figure in figures[:_MOST_RANKS_SHOWN]:
            who = _who(figure) if len(figures) > 1 else ""
            yield f"{label}{who}", _shown(figure), figure.line
        if len(figures) > _MOST_RANKS_SHOWN:
            least = min(figures, key=lambda figure: figure.value)
            yield f"{label}, least of {len(figures)}", _shown(least), least.line


def _shown(figure: Figure) -> str:
    unit = UNIT_OF[figure.name]
    if unit == "bytes":
        return figure.printed if "iB" in figure.printed else format_bytes(figure.value)
    if unit == "requests":
        return f"{figure.printed}x"
    if unit == "seconds":
        return f"{figure.printed} s"
    if unit == "ratio":
        return figure.printed
    return f"{figure.value:,.0f} {unit}"


def _who(figure: Figure) -> str:
    if figure.rank is not None:
        return f", rank {figure.rank}"
    return f", {figure.process}" if figure.process else ""


def _comparison_text(boots: Sequence[BootRecord]) -> str:
    lines = ["Starts in this log"]
    for position, record in enumerate(boots):
        verdict = judge(record)
        mark = ", latest" if record.is_latest else ""
        lines.append(f"  line {record.first_line}{mark}: {verdict.headline}")
        if position:
            lines += [f"    {change}" for change in changes(boots[position - 1], record)]
    return "\n".join(lines)


def _balance_text(record: BootRecord) -> str:
    sums = balance(record)
    if sums is None:
        return ""
    rows = (
        ("managed by vLLM", sums.managed_bytes),
        ("- weights and non-torch", sums.held_bytes),
        ("- peak activation", sums.activation_bytes),
        ("- CUDA graphs, estimated", sums.graph_bytes),
        ("- KV cache", sums.kv_bytes),
        ("= unexplained", sums.rest_bytes),
    )
    lines = [
        f"  {label:<24}  {size / GIB:8.2f} GiB" for label, size in rows if size or label[0] == "="
    ]
    return "\n".join(["Budget", *lines])


def _bullets(texts: Sequence[str]) -> list[str]:
    return [f"  - {text}" for text in texts]


def _boot_object(record: BootRecord) -> dict[str, object]:
    verdict: Verdict = judge(record)
    shown = dataclasses.asdict(record)
    shown["figures"] = [
        {**dataclasses.asdict(figure), "unit": UNIT_OF[figure.name]} for figure in record.figures
    ]
    sums = balance(record)
    return {
        "state": verdict.state,
        "headline": verdict.headline,
        "cause": dataclasses.asdict(verdict.cause) if verdict.cause else None,
        "actions": list(verdict.actions),
        "red_flags": list(red_flags(record)),
        "budget": {**dataclasses.asdict(sums), "rest_bytes": sums.rest_bytes} if sums else None,
        **shown,
    }
