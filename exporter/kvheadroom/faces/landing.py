"""The landing page: what is left on each engine, the GPUs, and which sources answer."""

import base64
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from kvheadroom.live.engine_view import EngineView
from kvheadroom.live.snapshot import Snapshot
from kvheadroom.readings import GpuReading, SourceHealth
from kvheadroom.units import format_bytes

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
    tables = (_engines(snapshot.engines), _gpus(snapshot.gpus), _sources(snapshot.sources))
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
{"".join(tables)}
</body>
</html>
"""


def _engines(engines: Sequence[EngineView]) -> str:
    headings = ("Engine", "Model", "Running", "Waiting", "KV used", "Free tokens", "More requests")
    rows = [
        (
            _text(view.engine),
            _text(view.reading.model_name or ""),
            _count(view.reading.requests_running),
            _count(view.reading.requests_waiting),
            *_left(view),
        )
        for view in engines
    ]
    return _table("Engines", headings, rows) if rows else ""


def _left(view: EngineView) -> tuple[str, str, str]:
    if view.capacity is not None and view.capacity.layout == "none":
        return _text("no KV cache"), "", ""
    used, headroom = view.reading.kv_used_ratio, view.headroom
    if headroom is None:
        return _text("unknown" if used is None else f"{used:.1%}"), "", ""
    requests = (
        f"{count:,} of {headroom.context_tokens[context]:,} tokens"
        + ("" if context.isdecimal() else f" ({context})")
        for context, count in headroom.requests.items()
    )
    return _text(f"{used:.1%}"), _count(headroom.free_tokens), "<br>".join(map(_text, requests))


def _gpus(gpus: Sequence[GpuReading]) -> str:
    headings = ("GPU", "Name", "Memory", "Used", "Free", "Processes")
    rows = [
        (
            _text(gpu.gpu),
            _text(" ".join(filter(None, (gpu.name, gpu.mig_profile)))),
            *(_bytes(count) for count in (gpu.total_bytes, gpu.used_bytes, gpu.free_bytes)),
            _count(None if gpu.processes is None else len(gpu.processes)),
        )
        for gpu in gpus
    ]
    return _table("GPUs", headings, rows) if rows else ""


def _sources(sources: Sequence[SourceHealth]) -> str:
    if not sources:
        return "<p>No source has been polled yet.</p>"
    headings = ("Source", "Target", "State", "Reason", "Last data (UTC)")
    return _table("Sources", headings, [_source_row(source) for source in sources])


def _source_row(source: SourceHealth) -> tuple[str, ...]:
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


def _bytes(count: int | None) -> str:
    return "unknown" if count is None else format_bytes(count)


def _moment(unix_seconds: float | None) -> str:
    if unix_seconds is None:
        return "never"
    return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
