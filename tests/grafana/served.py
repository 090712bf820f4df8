"""A real Prometheus on recorded samples, and every promtool that this machine can have."""

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from tests.parts.needs import fetch_debian, require

NEWER = Path(__file__).parents[2] / ".cache" / "prometheus-trixie"


class StoredPrometheus:
    """A Prometheus that scrapes nothing and answers from blocks made of an OpenMetrics file."""

    def __init__(self, samples: Path, folder: Path, *, lookback: str) -> None:
        require("prometheus")
        require("promtool")
        folder.mkdir()
        data, config = folder / "data", folder / "prometheus.yml"
        config.write_text("scrape_configs: []\n")
        made = subprocess.run(
            [
                "promtool",
                "tsdb",
                "create-blocks-from",
                "--max-block-duration=720h",
                "openmetrics",
                samples,
                data,
            ],
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert made.returncode == 0, made.stderr
        self.url = f"http://127.0.0.1:{_free_port()}"
        self._process = subprocess.Popen(
            [
                "prometheus", f"--config.file={config}", f"--storage.tsdb.path={data}",
                f"--web.listen-address={self.url.removeprefix('http://')}", "--log.level=warn",
                "--storage.tsdb.retention.time=90d", f"--query.lookback-delta={lookback}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"{self.url}/-/ready", timeout=2).close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise AssertionError("Prometheus never became ready")

    def series(self, expression: str, *, start: float, end: float, step: float) -> list[Any]:
        """Return what a range query gives; an error is raised with Prometheus' own words."""
        query = urllib.parse.urlencode(
            {"query": expression, "start": start, "end": end, "step": step}
        )
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/query_range?{query}", timeout=30) as r:
                return list(json.load(r)["data"]["result"])
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(5)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def debian_promtool() -> Path:
    require("promtool")
    return Path(shutil.which("promtool") or "")


def newer_promtool() -> Path:
    binary = NEWER / "usr/bin/promtool"
    if not binary.exists():
        fetch_debian(NEWER, "trixie", "main", "promtool")
    return binary


PROMTOOLS: dict[str, Callable[[], Path]] = {"2.42": debian_promtool, "2.53": newer_promtool}
