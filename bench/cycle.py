"""What one poll cycle of 8 GPUs and 8 engines costs: CPU, memory, and memory over 20,000 polls."""

import gc
import gzip
import multiprocessing
import resource
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from kvheadroom.faces import exposition
from kvheadroom.live.engine_view import EngineFacts, ViewOptions
from kvheadroom.live.snapshot import Snapshot
from kvheadroom.node.vllm import EngineTarget, VllmSource
from kvheadroom.poll.gpu_watch import GpuSource
from kvheadroom.poll.node import NodeWatch, WatchedServer
from kvheadroom.readings import GpuProcess, GpuReading, NvmlReading

PAGE: Final = (
    Path(__file__).parent.parent
    / "tests/evidence/pages/real-0.32.0-preempting-counter-lags.prom.gz"
)
ENGINES: Final = 8
CYCLES: Final = 100
INTERVAL_SECONDS: Final = 0.1
GIB: Final = 1024**3


class _Gpus:
    """Eight cards; the cost of NVML itself is measured by its own tests."""

    def read(self) -> NvmlReading:
        cards = tuple(
            GpuReading(
                gpu=str(index),
                uuid=f"GPU-{index}",
                name="NVIDIA H200",
                total_bytes=141 * GIB,
                reserved_bytes=GIB,
                used_bytes=100 * GIB,
                free_bytes=40 * GIB,
                utilization_ratio=0.5,
                temperature_celsius=60.0,
                power_watts=500.0,
                processes=(GpuProcess(1000 + index, 99 * GIB),),
            )
            for index in range(8)
        )
        return NvmlReading("590.48.01", cards)

    def close(self) -> None:
        pass


def main() -> None:
    """Print the cost of a cycle and what happens to memory."""
    servers = [_serve_pages() for _ in range(ENGINES)]
    try:
        report = multiprocessing.get_context("spawn").Process(
            target=_measure, args=([url for url, _ in servers],)
        )
        report.start()
        report.join(600)
    finally:
        for _, process in servers:
            process.terminate()


def _measure(urls: list[str]) -> None:
    rendered = 0

    def publish(snapshot: Snapshot) -> None:
        nonlocal rendered
        exposition.render_text(snapshot)
        rendered += 1

    node = _node(urls, publish)
    node.start()
    time.sleep(10 * INTERVAL_SECONDS)
    started, before = time.process_time(), rendered
    time.sleep(CYCLES * INTERVAL_SECONDS)
    cycles = rendered - before
    cpu_ms = (time.process_time() - started) * 1e3
    print(f"one cycle, 8 GPUs and {ENGINES} engines: {cpu_ms / cycles:.1f} ms CPU (limit 20)")
    print(f"resident: {_resident_mib():.1f} MiB (limit 55)")
    node.stop()
    _poll_many_times(urls, publish)


def _node(urls: list[str], publish: Callable[[Snapshot], None]) -> NodeWatch:
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
    gpus: Callable[[], GpuSource] = _Gpus
    node.configure(
        gpus=gpus, servers=servers, options=ViewOptions(), interval_seconds=INTERVAL_SECONDS
    )
    return node


def _poll_many_times(urls: list[str], publish: Callable[[Snapshot], None]) -> None:
    """Poll without a schedule, as fast as it goes, and print what memory does."""
    node = _node(urls[:1], publish)
    # The schedule would take 20,000 intervals.
    (watch,) = node._servers.values()  # noqa: SLF001
    readings: list[float] = []
    for poll in range(20_001):
        watch.poll()
        if poll % 10 == 0:
            publish(node.snapshot())
        if poll % 5_000 == 0:
            gc.collect()
            readings.append(_resident_mib())
    shown = ", ".join(f"{mib:.1f}" for mib in readings)
    print(f"resident at every 5,000 of 20,000 polls: {shown} MiB")


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
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
