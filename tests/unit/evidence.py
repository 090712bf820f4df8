"""The recorded pages and answers of real servers."""

import gzip
import json
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent.parent / "evidence"
_SUFFIX = ".prom.gz"

# "pages/made-modern-97pct", "real-servers/0.18.1/busy" and so on.
PAGE_NAMES = tuple(
    sorted(
        str(path.relative_to(_FOLDER)).removesuffix(_SUFFIX)
        for path in _FOLDER.rglob(f"*{_SUFFIX}")
    )
)
NO_PAGES = frozenset({"pages/made-html-502-body", "real-servers/0.10.2/after"})


def page(name: str) -> bytes:
    return gzip.decompress((_FOLDER / f"{name}{_SUFFIX}").read_bytes())


def endpoint_body(server: str, path: str) -> bytes:
    """Return what a recorded server answered to GET *path*."""
    answers: dict[str, Any] = json.loads(
        (_FOLDER / "real-servers" / server / "endpoints.json").read_text()
    )
    return json.dumps(answers[f"GET {path}"]["body"]).encode()
