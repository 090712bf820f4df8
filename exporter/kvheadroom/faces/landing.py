"""The landing page: what this is, where the metrics are, and which sources answer."""

import base64
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from kvheadroom.readings import SourceHealth

_STYLE: Final = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
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


def render(version: str, telemetry_path: str, sources: Sequence[SourceHealth]) -> str:
    """Return the page as HTML; every text from outside is escaped."""
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
{_sources(sources)}
</body>
</html>
"""


def _sources(sources: Sequence[SourceHealth]) -> str:
    if not sources:
        return "<p>No source has been polled yet.</p>"
    headings = ("Source", "Target", "State", "Reason", "Last data (UTC)")
    head = "".join(f'<th scope="col">{heading}</th>' for heading in headings)
    rows = "\n".join(_row(source) for source in sources)
    return (
        "<table>\n<caption>Sources</caption>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>"
    )


def _row(source: SourceHealth) -> str:
    state = "up" if source.up else "down"
    why = ": ".join(text for text in (source.reason, source.detail) if text)
    cells = (source.source, source.target, None, why, _moment(source.last_success_unix_seconds))
    return "<tr>{}</tr>".format(
        "".join(
            f'<td class="{state}">{state}</td>' if text is None else f"<td>{escape(text)}</td>"
            for text in cells
        )
    )


def _moment(unix_seconds: float | None) -> str:
    if unix_seconds is None:
        return "never"
    return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
