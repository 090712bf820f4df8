"""The catalogue as a document for people and as the surface that tests freeze."""

from kvheadroom.faces.catalogue import ALL_METRICS


def markdown() -> str:
    """Return the metrics as a Markdown table."""
    rows = [
        f"| `{spec.name}` | {spec.kind} | {', '.join(spec.labels) or '-'} | {spec.help} |"
        for spec in ALL_METRICS
    ]
    return "\n".join(("| metric | type | labels | meaning |", "|---|---|---|---|", *rows, ""))


def surface() -> str:
    """Return one line a metric: name, kind, labels. A change of it breaks somebody's queries."""
    return "".join(
        f"{spec.name} {spec.kind} {','.join(spec.labels)}".rstrip() + "\n" for spec in ALL_METRICS
    )
