"""What one poll cycle of 8 GPUs and 8 engines costs: CPU, memory, and memory over 20,000 polls."""

import contextlib
import gc
import gzip
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from tests.e2e.exporter import Exporter
from tests.parts.fake_nvml import FakeNvml, compile_library, gpu

from bench.figures import Figure
from kvheadroom.faces.exposition import Exposition
from kvheadroom.live.engine_facts import EngineFacts
from kvheadroom.live.engine_view import ViewOptions
from kvheadroom.live.snapshot import Snapshot
from kvheadroom.node.vllm import EngineTarget, VllmSource
from kvheadroom.poll.server_watch import ServerWatch

PAGE: Final = (
    Path(__file__).parent.parent
    / "tests/evidence/pages/real-0.32.0-preempting-counter-lags.prom.gz"
)
ENGINES: Final = 8
CYCLES: Final = 40
INTERVAL_SECONDS: Final = 0.5
POLLS: Final = 20_000
# By then every cache and history has been filled; what still grows is a leak.
WARM_POLLS: Final = 5_000
ROUNDS_PER_SCRAPE: Final = 3  # as at 5 s and Prometheus' 15 s
# What Prometheus 2.53 sends.
PROMETHEUS_ACCEPT: Final = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.1"


def figures() -> Iterator[Figure]:
    """Yield the cost of a cycle of the real command, and what many polls do to memory."""
    with _page_servers() as urls:
        with tempfile.TemporaryDirectory() as folder:
            yield from _measure_command(urls, _node_with_gpus(Path(folder)))
        yield _growth_over_polls(urls)


def _node_with_gpus(folder: Path) -> FakeNvml:
    """Return a node with eight GPUs of two processes each, read through the real pynvml."""
    node = FakeNvml(folder / "node", compile_library(folder / "library"))
    cards = (gpu(index, compute=f"{index + 100}:9000000 {index + 200}:1") for index in range(8))
    node.write(*cards, devices=8)
    return node


def _measure_command(urls: list[str], node: FakeNvml) -> Iterator[Figure]:
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
        cycle_ms = (_cpu_seconds(pid) - started) / CYCLES * 1e3
        series = exporter.get("/metrics")[1].count(b"\nkvheadroom_")
        what = f"CPU of a cycle: 8 GPUs, {ENGINES} engines, a scrape of {series} series"
        yield Figure(what, cycle_ms, "ms", at_most=20)
        yield Figure("resident memory after it", _resident_mib(pid), "MiB", at_most=55)


def _growth_over_polls(urls: list[str]) -> Figure:
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_poll_many_times, args=(urls, theirs))
    process.start()
    # Else the end of a child that died would never be seen on our side of the pipe.
    theirs.close()
    try:
        warm_mib, last_mib = ours.recv()
    finally:
        process.terminate()
        process.join()
    what = (
        f"memory grown from poll {WARM_POLLS:,} to {POLLS:,}, {len(urls)} engines in turn, no GPU"
    )
    return Figure(what, last_mib - warm_mib, "MiB", at_most=1)


def _poll_many_times(urls: list[str], port: Connection) -> None:
    """Poll the engines in turn, as fast as they answer; send memory in MiB when warm and last."""
    # Without the schedule, which would take as many intervals.
    watches = [_watch(url) for url in urls]
    exposition = Exposition()
    rounds = POLLS // len(watches)
    for number in range(1, rounds + 1):
        for watch in watches:
            watch.poll()
            assert watch.outcome.health.up, watch.outcome.health.detail
        if number % ROUNDS_PER_SCRAPE == 0:
            exposition.openmetrics(_snapshot(watches))
        if number == WARM_POLLS // len(watches):
            gc.collect()
            warm_mib = _resident_mib()
    gc.collect()
    port.send((warm_mib, _resident_mib()))


def _watch(url: str) -> ServerWatch:
    source = VllmSource(EngineTarget(url), deadline_seconds=5.0)
    return ServerWatch(source, facts=lambda _: EngineFacts(), options=ViewOptions())


def _snapshot(watches: list[ServerWatch]) -> Snapshot:
    outcomes = [watch.outcome for watch in watches]
    return Snapshot(
        sources=tuple(outcome.health for outcome in outcomes),
        servers=tuple(outcome.server for outcome in outcomes if outcome.server),
        engines=tuple(engine for outcome in outcomes for engine in outcome.engines),
    )


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_mib(pid: int | str = "self") -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1024**2


@contextlib.contextmanager
def _page_servers() -> Iterator[list[str]]:
    """Eight servers of a recorded page, each a process of its own; their URLs."""
    ports: multiprocessing.Queue[int] = multiprocessing.Queue()
    processes = [
        multiprocessing.Process(target=_serve_page, args=(ports,), daemon=True)
        for _ in range(ENGINES)
    ]
    for process in processes:
        process.start()
    try:
        yield [f"http://127.0.0.1:{ports.get(timeout=10)}" for _ in processes]
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _serve_page(ports: "multiprocessing.Queue[int]") -> None:
    page = gzip.decompress(PAGE.read_bytes())

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            body = page if self.path == "/metrics" else b"{}"
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(body)))
            # The exporter is ended with polls under way.
            with contextlib.suppress(ConnectionError):
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    ports.put(server.server_port)
    server.serve_forever()
