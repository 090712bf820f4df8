"""What one poll cycle of 8 GPUs and 8 engines costs: CPU, memory, and memory over 20,000 polls."""

import gc
import gzip
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from tests.e2e.exporter import Exporter
from tests.parts.fake_nvml import FakeNvml, compile_library, gpu

from kvheadroom.faces.exposition import Exposition
from kvheadroom.live.engine_view import EngineFacts, ViewOptions
from kvheadroom.live.snapshot import Snapshot
from kvheadroom.node.vllm import EngineTarget, VllmSource
from kvheadroom.poll.node import NodeWatch, WatchedServer

PAGE: Final = (
    Path(__file__).parent.parent
    / "tests/evidence/pages/real-0.32.0-preempting-counter-lags.prom.gz"
)
ENGINES: Final = 8
CYCLES: Final = 40
INTERVAL_SECONDS: Final = 0.5
# What Prometheus 2.53 sends.
PROMETHEUS_ACCEPT: Final = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.1"


def main() -> None:
    """Print the cost of a cycle of the real command, and what 20,000 polls do to memory."""
    servers = [_serve_pages() for _ in range(ENGINES)]
    urls = [url for url, _ in servers]
    try:
        with tempfile.TemporaryDirectory() as folder:
            _measure_command(urls, _node_with_gpus(Path(folder)))
        polls = multiprocessing.get_context("spawn").Process(target=_poll_many_times, args=(urls,))
        polls.start()
        polls.join(900)
    finally:
        for _, process in servers:
            process.terminate()


def _node_with_gpus(folder: Path) -> FakeNvml:
    """Return a node with eight GPUs of two processes each, read through the real pynvml."""
    node = FakeNvml(folder / "node", compile_library(folder / "library"))
    cards = (gpu(index, compute=f"{index + 100}:9000000 {index + 200}:1") for index in range(8))
    node.write(*cards, devices=8)
    return node


def _measure_command(urls: list[str], node: FakeNvml) -> None:
    engines = [argument for url in urls for argument in ("--engine", url)]
    interval = f"{INTERVAL_SECONDS * 1000:.0f}ms"
    with Exporter(
        "serve", "--poll.interval", interval, *engines, environment=node.environment()
    ) as exporter:
        pid = exporter.process.pid
        exporter.wait_for("source_up", 1, target="7")
        started = _cpu_seconds(pid)
        for _ in range(CYCLES):
            time.sleep(INTERVAL_SECONDS)
            exporter.get("/metrics", Accept=PROMETHEUS_ACCEPT)
        cpu_ms = (_cpu_seconds(pid) - started) * 1e3
        series = exporter.get("/metrics")[1].count(b"\nkvheadroom_")
        print(
            f"8 GPUs and {ENGINES} engines, {series} series: {cpu_ms / CYCLES:.1f} ms CPU a cycle, "
            "scrape included (limit 20)"
        )
        print(f"resident: {_resident_mib(pid):.1f} MiB (limit 55)")


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _node(urls: list[str], publish: Callable[[Snapshot], object]) -> NodeWatch:
    node = NodeWatch(publish)
    servers = tuple(
        WatchedServer(
            key=url,
            connection=url,
            source=lambda url=url: VllmSource(EngineTarget(url), deadline_seconds=1.0),  # type: ignore[misc]
            facts=lambda _: EngineFacts(),
        )
        for url in urls
    )
    node.configure(
        gpus=None, servers=servers, options=ViewOptions(), interval_seconds=INTERVAL_SECONDS
    )
    return node


def _poll_many_times(urls: list[str]) -> None:
    """Poll without a schedule, as fast as it goes, and print what memory does."""
    exposition = Exposition()
    node = _node(urls[:1], exposition.text)
    # The schedule would take 20,000 intervals.
    (watch,) = node._servers.values()  # noqa: SLF001
    readings: list[float] = []
    for poll in range(20_001):
        watch.poll()
        if poll % 10 == 0:
            exposition.text(node.snapshot())
        if poll % 5_000 == 0:
            gc.collect()
            readings.append(_resident_mib())
    shown = ", ".join(f"{mib:.1f}" for mib in readings)
    print(f"resident at every 5,000 of 20,000 polls: {shown} MiB")


def _resident_mib(pid: int | str = "self") -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1024**2


def _serve_pages() -> tuple[str, multiprocessing.Process]:
    ports: multiprocessing.Queue[int] = multiprocessing.Queue()
    process = multiprocessing.Process(target=_page_server, args=(ports,), daemon=True)
    process.start()
    return f"http://127.0.0.1:{ports.get(timeout=10)}", process


def _page_server(ports: "multiprocessing.Queue[int]") -> None:
    page = gzip.decompress(PAGE.read_bytes())

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            body = page if self.path == "/metrics" else b"{}"
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    ports.put(server.server_port)
    server.serve_forever()


if __name__ == "__main__":
    main()
