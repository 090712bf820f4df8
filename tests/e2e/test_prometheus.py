"""Scraped, stored and queried by real Prometheus servers."""

import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from tests.e2e.exporter import Exporter
from tests.e2e.page_server import PageServer, answer
from tests.parts.needs import fetch_debian, require
from tests.unit.evidence import page as recorded

from kvheadroom import defaults

pytestmark = pytest.mark.parts

HERE = Path(__file__).parent
NEWER = HERE.parents[1] / ".cache" / "prometheus-trixie"


class Prometheus:
    """One Prometheus that scrapes one target every second, ended by its pid."""

    def __init__(self, binary: Path, folder: Path, target: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        config = folder / "prometheus.yml"
        config.write_text(
            "global: {scrape_interval: 1s}\n"
            "scrape_configs:\n"
            f"  - {{job_name: kvheadroom, static_configs: [{{targets: ['{target}']}}]}}\n"
        )
        self.process = subprocess.Popen(
            [
                binary, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={self.address}", "--log.level=warn",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def query(self, expression: str) -> list[Any]:
        query = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(
            f"http://{self.address}/api/v1/query?{query}", timeout=5
        ) as response:
            return list(json.load(response)["data"]["result"])

    def wait_for(self, expression: str, *, seconds: float = 25) -> float:
        """The value of the one series that *expression* gives, waited for."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                found = self.query(expression)
            except OSError:
                found = []
            if found:
                assert len(found) == 1, found
                return float(found[0]["value"][1])
            time.sleep(0.2)
        raise AssertionError(f"{expression} never had a value")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(5)


def debian_prometheus() -> Path:
    require("prometheus")
    return Path(shutil.which("prometheus") or "")


def newer_prometheus() -> Path:
    binary = NEWER / "usr/bin/prometheus"
    if not binary.exists():
        fetch_debian(NEWER, "trixie", "main", "prometheus")
    return binary


@pytest.fixture
def exporter(servers: Callable[[], PageServer]) -> Iterator[Exporter]:
    """An exporter that watches the page of a preempting vLLM 0.32.0."""
    server = servers().page(recorded("pages/real-0.32.0-preempting-counter-lags"))
    server.routes["/version"] = answer(b'{"version": "0.32.0"}')
    with Exporter(
        "serve", "--no-nvml", "--poll.interval", "500ms", "--engine", server.url
    ) as running:
        yield running


@pytest.mark.parametrize("binary", [debian_prometheus, newer_prometheus], ids=["2.42", "2.53"])
def test_prometheus_stores_what_is_served(
    binary: Callable[[], Path], exporter: Exporter, tmp_path: Path
) -> None:
    """Values, labels and types come back from a real server's own query API."""
    with Prometheus(binary(), tmp_path, f"127.0.0.1:{exporter.port}") as prometheus:
        assert prometheus.wait_for("up") == 1
        assert prometheus.wait_for("kvheadroom_headroom_blocks") == 9
        assert prometheus.wait_for("kvheadroom_kv_capacity_tokens") == 25_600
        assert prometheus.wait_for("kvheadroom_engine_preemptions_total") == 43
        assert prometheus.wait_for('kvheadroom_headroom_requests{context="max"}') == 0
        # No sample was dropped: duplicates and samples out of order are, silently.
        scraped = prometheus.wait_for("scrape_samples_scraped")
        assert (
            prometheus.wait_for('count({job="kvheadroom", __name__=~"kvheadroom_.*|process_.*"})')
            == scraped
        )
        types = json.load(
            urllib.request.urlopen(f"http://{prometheus.address}/api/v1/metadata", timeout=5)
        )["data"]
        # OpenMetrics names a counter family without its ending.
        assert types["kvheadroom_engine_preemptions"][0]["type"] == "counter"


def test_promtool_finds_nothing_to_say(exporter: Exporter) -> None:
    """Names, units, types and help pass Prometheus' own linter."""
    require("promtool")
    page = exporter.get("/metrics", Accept="text/plain")[1]

    linted = subprocess.run(
        ["promtool", "check", "metrics"], input=page, capture_output=True, timeout=20, check=False
    )

    assert (linted.returncode, linted.stdout + linted.stderr) == (0, b"")


def test_the_scrape_example_is_valid_and_names_our_port() -> None:
    """What people copy from deploy/ passes promtool, and its port is the default one."""
    require("promtool")
    example = HERE.parents[1] / "deploy" / "prometheus" / "scrape-example.yml"

    checked = subprocess.run(
        ["promtool", "check", "config", example], capture_output=True, timeout=20, check=False
    )

    assert checked.returncode == 0, checked.stderr
    assert f":{defaults.PORT}" in example.read_text()
