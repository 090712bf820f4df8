"""The terminal view of one node: each GPU's ledger as a bar, each engine's headroom as a row."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvheadroom.faces.document import (
    EngineDocument,
    FitDocument,
    GpuDocument,
    NodeDocument,
    ShareDocument,
)
from kvheadroom.faces.notes import Note, Weight, notes, source_notes
from kvheadroom.units import format_bytes, format_duration

NARROWEST_COLUMNS: Final = 80

# Component → glyph and color. Glyphs differ, since a script, a log and some eyes see no color.
_SHADES: Final[dict[str, tuple[str, str]]] = {
    "weights": ("█", "blue"),
    "kv_used": ("▓", "magenta"),
    "kv_free": ("░", "green"),
    "activation": ("▒", "cyan"),
    "cuda_graph": ("▒", "cyan"),
    "non_torch": ("▒", "cyan"),
    "context": ("▒", "cyan"),
    "process": ("#", "yellow"),
    "unexplained": ("?", "red"),
    "reserved": ("-", "bright_black"),
    "free": (" ", "default"),
}
_OTHER_SHADE: Final = ("#", "yellow")
_RUNTIME: Final = frozenset({"activation", "cuda_graph", "non_torch", "context"})
_FULL_RATIO: Final = 0.9
# What the table of engines needs beside their names.
_OTHER_COLUMNS: Final = 70
_SHORTEST_NAME: Final = 10


def render(node: NodeDocument, columns: int, rows: int | None = None) -> RenderableType:
    """Return *node* for a terminal.

    Args:
        node: What to show.
        columns: Width of the terminal; narrower than 80 is treated as 80.
        rows: Its height; where not all fits, engines and what needs a person come first, and GPUs
            without what their bars are made of. ``None`` shows all.
    """
    columns = max(columns, NARROWEST_COLUMNS)
    headline = _headline(node)
    gpus = [tuple(_gpu(gpu, columns)) for gpu in node.gpus]
    engines: list[RenderableType] = [Text(), _engines(node.engines, columns)]
    if not node.engines:
        engines.clear()
    sentences = [_sentence(note) for note in (*notes(node), *source_notes(node))]
    if sentences:
        sentences.insert(0, Text())
    taken = 1 + sum(map(len, gpus)) + (len(node.engines) + 2 if engines else 0)
    taken += sum(1 + text.cell_len // columns for text in sentences)
    if rows is None or taken <= rows:
        return Group(headline, *chain.from_iterable(gpus), *engines, *sentences)
    # A blank line, the title and the bar or why there is none.
    short = chain.from_iterable(lines[1:3] for lines in gpus)
    return Group(headline, *engines, *sentences, Text(), *short)


def _headline(node: NodeDocument) -> Text:
    up = sum(source.up for source in node.sources)
    line = Text.assemble(
        ("kvheadroom", "bold"),
        f" {node.version}  {len(node.gpus)} GPUs  {len(node.engines)} engines  ",
        (f"{up} of {len(node.sources)} sources up", "red" if up < len(node.sources) else "green"),
    )
    if not node.complete:
        line.append("  (not everything has been read yet)")
    return line


# --- GPUs -----------------------------------------------------------------------------------


def _gpu(gpu: GpuDocument, columns: int) -> Iterable[Text]:
    yield Text()
    title = Text.assemble((f"GPU {gpu.gpu}", "bold"), "  ")
    name = (gpu.name or "").removeprefix("NVIDIA ").removeprefix("GeForce ")
    facts = [" ".join(filter(None, (name, gpu.mig_profile)))]
    if gpu.total_bytes is not None:
        facts.append(f"{_size(gpu.used_bytes)} of {_size(gpu.total_bytes)} used")
    if gpu.utilization_ratio is not None:
        facts.append(f"busy {gpu.utilization_ratio:.0%}")
    if gpu.claimed_utilization_ratio is not None:
        facts.append(f"claimed {gpu.claimed_utilization_ratio:.0%}")
    title.append("  ".join(filter(None, facts)))
    title.truncate(columns, overflow="ellipsis")
    yield title
    if gpu.ledger and gpu.total_bytes:
        yield _bar(gpu.ledger, gpu.total_bytes, columns - 2)
        yield from _legend(gpu.ledger, columns)
    elif gpu.ledger_absent:
        yield Text(f"  ledger unknown: {gpu.ledger_absent}", style="yellow")


def _bar(ledger: Sequence[ShareDocument], total_bytes: int, cells: int) -> Text:
    bar = Text("[")
    drawn = passed = 0
    for share in ledger:
        passed += max(0, share.bytes)
        # Rounded at the running sum, so that the segments fill the bar exactly.
        edge = min(cells, round(cells * passed / total_bytes))
        glyph, color = _SHADES.get(share.component, _OTHER_SHADE)
        bar.append(glyph * (edge - drawn), style=color)
        drawn = max(drawn, edge)
    bar.append(" " * (cells - drawn))
    return bar.append("]")


def _legend(ledger: Sequence[ShareDocument], columns: int) -> Iterable[Text]:
    """Yield what the bar's segments are: one entry an owner and kind, wrapped at *columns*."""
    line = Text(" ")
    for (owner, kind), count in _summed(ledger).items():
        if not count:
            continue
        glyph, color = _SHADES.get(kind, _OTHER_SHADE)
        label = " ".join(filter(None, (owner, _WORDS.get(kind, kind), _size(count))))
        entry = Text.assemble(" ", (glyph if glyph != " " else "·", color), " ", label, " ")
        if line.cell_len > 1 and line.cell_len + entry.cell_len > columns:
            yield line
            line = Text(" ")
        line.append_text(entry)
    line.truncate(columns, overflow="ellipsis")
    yield line


_WORDS: Final = {
    "kv_used": "KV in use",
    "kv_free": "KV free",
    "activation": "runtime",
    "process": "",
}


def _summed(ledger: Sequence[ShareDocument]) -> dict[tuple[str, str], int]:
    sums: dict[tuple[str, str], int] = {}
    for share in ledger:
        kind = "activation" if share.component in _RUNTIME else share.component
        key = (share.owner or "", kind)
        sums[key] = sums.get(key, 0) + share.bytes
    return sums


# --- engines --------------------------------------------------------------------------------


def _engines(engines: Sequence[EngineDocument], columns: int) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), expand=True)
    table.add_column("ENGINE", overflow="ellipsis", no_wrap=True, ratio=1, min_width=_SHORTEST_NAME)
    for heading in ("RUN", "WAIT", "LOST"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("KV USED", no_wrap=True)
    table.add_column("MORE REQUESTS", no_wrap=True, overflow="ellipsis", min_width=22)
    table.add_column("LIMIT", no_wrap=True)
    table.add_column("FULL IN", justify="right", no_wrap=True)
    for engine in engines:
        table.add_row(*_engine(engine, max(_SHORTEST_NAME, columns - _OTHER_COLUMNS)))
    return table


def _engine(engine: EngineDocument, name_columns: int) -> tuple[RenderableType, ...]:
    slots = "" if engine.max_num_seqs is None else f"/{engine.max_num_seqs}"
    # Many are called by an address, which differs at its end.
    called = engine.engine.removeprefix("127.0.0.1")
    if len(called) > name_columns:
        called = f"…{called[1 - name_columns :]}"
    name = Text(called, style="bold red" if engine.stalled else "bold")
    return (
        name,
        f"{_count(engine.requests_running)}{slots}",
        _count(engine.requests_waiting),
        _count(engine.requests_preempted),
        _usage(engine),
        ", ".join(_fits(engine.headroom)),
        _LIMITS.get(engine.limit or "none", "?"),
        "-" if engine.exhaustion_seconds is None else format_duration(engine.exhaustion_seconds),
    )


def _usage(engine: EngineDocument) -> Text:
    if engine.asleep:
        return Text("asleep")
    if engine.stalled:
        return Text("stalled", style="red")
    cache = engine.cache
    if cache is not None and cache.layout == "none":
        return Text("no KV cache")
    ratio = None if cache is None else cache.used_ratio
    if ratio is None:
        return Text("unknown")
    filled = round(8 * min(1.0, ratio))
    color = "red" if ratio >= _FULL_RATIO else "green"
    return Text.assemble(("▓" * filled + "░" * (8 - filled), color), f" {ratio:4.0%}")


def _fits(headroom: Sequence[FitDocument]) -> Iterable[str]:
    for fit in headroom:
        if fit.context.isdecimal():
            yield f"{fit.requests} of {_tokens(fit.context_tokens)}"
        elif fit.context in _SHORT:
            yield f"{fit.requests} {_SHORT[fit.context]}"


_LIMITS: Final[dict[str, str]] = {
    "kv": "KV",
    "max_num_seqs": "seqs",
    "token_budget": "tokens",
    "deferred": "deferred",
    "none": "-",
}
_SHORT: Final = {"observed": "seen", "max": "max"}


_COLORS: Final[dict[Weight, str]] = {"fault": "red", "warning": "yellow", "advice": "cyan"}


def _sentence(note: Note) -> Text:
    return Text.assemble((f"{note.subject}  ", "bold"), (note.text, _COLORS[note.weight]))


def _size(count: int | None) -> str:
    return "?" if count is None else format_bytes(count)


def _count(number: float | None) -> str:
    return "?" if number is None else f"{number:,.0f}"


def _tokens(count: int) -> str:
    return f"{count // 1024}K" if count % 1024 == 0 else f"{count:,}"
