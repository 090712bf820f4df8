"""A page with Grafana's own libraries in headless Chromium, and what is seen on it."""

import html
import json
import re
import shutil
import subprocess
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.grafana.boards import JSON
from tests.grafana.node_parts import HERE, npm_part
from tests.parts.needs import require

WIDTH = 1400
_GRID_PIXELS = 38
_QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--force-color-profile=srgb",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SeenPanel:
    """One panel as it was drawn.

    Attributes:
        title: Its heading.
        left, top, right, bottom: Its box, in pixels.
        text: The words in it: values, legends, tables.
        axes: What its graphs' axes say.
        failed: Whether it shows an error.
    """

    title: str
    left: float
    top: float
    right: float
    bottom: float
    text: str
    axes: tuple[str, ...]
    failed: bool


@dataclass(frozen=True, slots=True)
class Seen:
    """A whole board as it was drawn, and its picture."""

    panels: tuple[SeenPanel, ...]
    errors: tuple[str, ...]
    picture: Path


def build_page(folder: Path) -> None:
    """Bundle the page and put the committed dashboards beside it."""
    built = subprocess.run(
        [
            npm_part(".bin/vite"), "build", "--config", HERE / "page" / "vite.config.js",
            "--outDir", folder,
        ],
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stdout + built.stderr
    shutil.copytree(JSON, folder / "json")


class _Silent(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@contextmanager
def serve_page(folder: Path) -> Iterator[str]:
    """Serve the built page on loopback."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Silent, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def look_at(page: str, question: Mapping[str, str], height: int, folder: Path) -> Seen:
    """Open one board, wait until it is drawn, and return what is on it."""
    browser = require("chromium")
    picture = folder / "picture.png"
    url = f"{page}/index.html?{urllib.parse.urlencode(question)}"
    opened = subprocess.run(
        [
            browser, *_QUIET, f"--user-data-dir={folder / 'profile'}",
            f"--window-size={WIDTH},{height}", "--virtual-time-budget=12000",
            f"--screenshot={picture}", "--dump-dom", url,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )  # fmt: skip
    found = re.search(r'<script[^>]*id="report"[^>]*>(.*?)</script>', opened.stdout, re.DOTALL)
    assert found, opened.stdout[-2000:] + opened.stderr[-2000:]
    report = json.loads(html.unescape(found[1]))
    return Seen(tuple(map(_panel, report["panels"])), tuple(report["errors"]), picture)


def _panel(raw: Mapping[str, Any]) -> SeenPanel:
    box = raw["box"]
    return SeenPanel(
        title=raw["title"],
        left=box["x"],
        top=box["y"],
        right=box["x"] + box["width"],
        bottom=box["y"] + box["height"],
        text=raw["text"],
        axes=tuple(raw["axes"]),
        failed=raw["error"],
    )


def pixels(grid_rows: int) -> int:
    """Return the height in pixels of a board of *grid_rows* rows, with its choices on top."""
    return grid_rows * _GRID_PIXELS + 64
