"""The landing page: what is left on each engine, the GPUs, and which sources answer."""

import base64
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from kvheadroom.faces.document import EngineDocument, GpuDocument, NodeDocument, SourceDocument
from kvheadroom.faces.node_document import node_document
from kvheadroom.faces.notes import notes
from kvheadroom.live.snapshot import Snapshot
from kvheadroom.units import format_bytes, format_duration

_STYLE: Final = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: 2rem 0; }
caption { text-align: left; font-weight: 600; padding-bottom: .5rem; }
th, td { text-align: left; vertical-align: top; padding: .4rem 1rem .4rem 0;
  border-top: 1px solid color-mix(in srgb, currentColor 25%, transparent); }
td { overflow-wrap: anywhere; }
.up::before { content: "● "; color: #2e9e5b; }
.down::before { content: "▲ "; color: #d64545; }
"""
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()

# Nothing may load or run but this page's one style sheet.
CONTENT_SECURITY_POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def render(version: str, telemetry_path: str, snapshot: Snapshot) -> str:
    """Return the page as HTML; every text from outside is escaped."""
    node = node_document(version, snapshot)
    parts = (
        _engines(node.engines),
        _notes(node),
        _gpus(node.gpus),
        _holders(node.gpus),
        _sources(node.sources),
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>kvheadroom</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>kvheadroom</h1>
<p>How much KV cache is left on this node. Version {escape(version)}.</p>
<p><a href="{escape(telemetry_path)}">Metrics</a> for Prometheus</p>
{"".join(parts)}
</body>
</html>
"""


# --- engines --------------------------------------------------------------------------------


def _engines(engines: Sequence[EngineDocument]) -> str:
    headings = (
        *("Engine", "Model", "Running", "Waiting", "KV used", "Free tokens", "More requests"),
        *("Limit", "Full in"),
    )
    rows = [
        (
            _text(engine.engine),
            _text(engine.model or ""),
            _running(engine),
            _waiting(engine),
            *_left(engine),
            _text(engine.limit or ""),
            _text(_span(engine.exhaustion_seconds)),
        )
        for engine in engines
    ]
    return _table("Engines", headings, rows) if rows else ""


def _running(engine: EngineDocument) -> str:
    places = "" if engine.max_num_seqs is None else f" of {engine.max_num_seqs:,}"
    return _count(engine.requests_running) + places


def _waiting(engine: EngineDocument) -> str:
    lost = engine.requests_preempted
    return _count(engine.requests_waiting) + (f", {lost} preempted" if lost else "")


def _left(engine: EngineDocument) -> tuple[str, str, str]:
    cache = engine.cache
    if cache is not None and cache.layout == "none":
        return _text("no KV cache"), "", ""
    used = None if cache is None else cache.used_ratio
    if engine.stalled:
        return _text("stalled"), "", ""
    if cache is None or cache.free_blocks is None:
        return _text("unknown" if used is None else f"{used:.1%}"), "", ""
    requests = (
        f"{fit.requests:,} of {fit.context_tokens:,} tokens"
        + ("" if fit.context.isdecimal() else f" ({fit.context})")
        for fit in engine.headroom
    )
    shown = "unknown" if used is None else f"{used:.1%}"
    return _text(shown), _count(cache.free_tokens), "<br>".join(map(_text, requests))


def _span(seconds: float | None) -> str:
    return "" if seconds is None else format_duration(seconds)


def _notes(node: NodeDocument) -> str:
    rows = [(_text(note.subject), _text(note.text)) for note in notes(node)]
    return _table("Needs attention", ("What", "Why"), rows) if rows else ""


# --- GPUs -----------------------------------------------------------------------------------


def _gpus(gpus: Sequence[GpuDocument]) -> str:
    headings = ("GPU", "Name", "Memory", "Used", "Free", "Claimed", "Processes")
    rows = [
        (
            _text(gpu.gpu),
            _text(" ".join(filter(None, (gpu.name, gpu.mig_profile)))),
            *(_bytes(count) for count in (gpu.total_bytes, gpu.used_bytes, gpu.free_bytes)),
            _share(gpu.claimed_utilization_ratio),
            _count(gpu.processes),
        )
        for gpu in gpus
    ]
    return _table("GPUs", headings, rows) if rows else ""


def _holders(gpus: Sequence[GpuDocument]) -> str:
    """Return who holds each GPU's memory; a GPU's lines add up to its total."""
    headings = ("GPU", "Owner", "For", "Bytes", "Known from")
    rows = [
        (
            _text(gpu.gpu),
            _text(share.owner or ""),
            _text(share.component.replace("_", " ")),
            _bytes(share.bytes),
            _text(share.source),
        )
        for gpu in gpus
        for share in gpu.ledger
        if share.bytes
    ]
    return _table("Who holds the memory", headings, rows) if rows else ""


# --- sources --------------------------------------------------------------------------------


def _sources(sources: Sequence[SourceDocument]) -> str:
    if not sources:
        return "<p>No source has been polled yet.</p>"
    headings = ("Source", "Target", "State", "Reason", "Last data (UTC)")
    return _table("Sources", headings, [_source_row(source) for source in sources])


def _source_row(source: SourceDocument) -> tuple[str, ...]:
    state = "up" if source.up else "down"
    why = ": ".join(text for text in (source.reason, source.detail) if text)
    return (
        _text(source.source),
        _text(source.target),
        f'<span class="{state}">{state}</span>',
        _text(why),
        _text(_moment(source.last_success_unix_seconds)),
    )


def _table(caption: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; the cells are HTML already, made by the functions below."""
    head = "".join(f'<th scope="col">{heading}</th>' for heading in headings)
    body = "\n".join(
        "<tr>{}</tr>".format("".join(f"<td>{cell}</td>" for cell in row)) for row in rows
    )
    return (
        f"<table>\n<caption>{caption}</caption>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n"
    )


def _text(text: str) -> str:
    return escape(text)


def _count(number: float | None) -> str:
    return "unknown" if number is None else f"{number:,.0f}"


def _share(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.0%}"


def _bytes(count: int | None) -> str:
    return "unknown" if count is None else format_bytes(count)


def _moment(unix_seconds: float | None) -> str:
    if unix_seconds is None:
        return "never"
    return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
