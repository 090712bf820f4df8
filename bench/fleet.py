"""What 1,000 nodes cost a Prometheus: series, memory, processor and disk, all of them scraped."""

import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import yaml

from bench.figures import Figure

NODES = 1000
PROFILE = "rack"
SCRAPE_SECONDS = 15
ROUNDS = 6
PAGES = 60

_CPU = "process_cpu_seconds_total"
_DEPLOY = Path(__file__).parents[1] / "deploy" / "prometheus"


def figures() -> Iterator[Figure]:
    """Yield what was measured on the installed Prometheus with the shipped rules; 4 minutes."""
    prometheus, promtool = shutil.which("prometheus"), shutil.which("promtool")
    if prometheus is None or promtool is None:
        sys.exit("bench fleet needs prometheus and promtool")
    pages = _record_pages()
    series = sum(1 for line in pages[-1].splitlines() if line and not line.startswith(b"#"))
    yield Figure(f"series of one node ({PROFILE}: 8 GPUs, 8 engines)", series, "")
    with tempfile.TemporaryDirectory() as folder:
        bytes_per_sample = _bytes_per_sample(promtool, pages, Path(folder))
    yield Figure("disk, in a compacted block with its index", bytes_per_sample, "B/sample")
    with tempfile.TemporaryDirectory() as folder:
        yield from _load(prometheus, pages, Path(folder))
    a_day = bytes_per_sample * series * NODES * 86_400 / SCRAPE_SECONDS
    yield Figure(f"disk a day for {NODES:,} nodes every {SCRAPE_SECONDS} s", a_day / 2**30, "GiB")


def _record_pages() -> list[bytes]:
    """Return the demo's pages, 15 simulated seconds apart."""
    # Polls keep their pace on a busy machine: a page without an engine would be too cheap.
    speed = 15
    command = [sys.executable, "-m", "kvheadroom", "demo", "--profile", PROFILE]
    command += ["--speed", str(speed), "--poll.interval", f"{1000 * SCRAPE_SECONDS // speed}ms"]
    command += ["--web.listen-address", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stderr is not None
        try:
            url = next(m[0] for line in demo.stderr if (m := re.search(r"http://\S+:\d+", line)))
            threading.Thread(target=demo.stderr.read, daemon=True).start()
            # What traffic and forecasts need to be known.
            time.sleep(10)
            pages = []
            for _ in range(PAGES):
                time.sleep(SCRAPE_SECONDS / speed)
                pages.append(_get(f"{url}/metrics"))
            return pages
        finally:
            demo.terminate()


def _bytes_per_sample(promtool: str, pages: list[bytes], folder: Path) -> float:
    """Return what a block of these pages takes on disk for each sample."""
    start_seconds = 1_796_000_400  # a multiple of two hours: one block
    samples = [
        f"{line.decode()} {start_seconds + number * SCRAPE_SECONDS}"
        for number, page in enumerate(pages)
        for line in page.splitlines()
        if line and not line.startswith(b"#")
    ]
    source, blocks = folder / "samples.om", folder / "blocks"
    source.write_text("\n".join([*samples, "# EOF", ""]))
    command = [promtool, "tsdb", "create-blocks-from", "openmetrics", str(source), str(blocks)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return sum(file.stat().st_size for file in blocks.rglob("*") if file.is_file()) / len(samples)


def _load(prometheus: str, pages: list[bytes], folder: Path) -> Iterator[Figure]:
    server = _Nodes(pages)
    config = {
        "global": {
            "scrape_interval": f"{SCRAPE_SECONDS}s",
            "evaluation_interval": f"{SCRAPE_SECONDS}s",
        },
        "rule_files": [str(_DEPLOY / f"kvheadroom.{kind}.yml") for kind in ("rules", "alerts")],
        "scrape_configs": [
            {
                "job_name": "kvheadroom",
                "static_configs": [
                    {
                        "targets": [server.address],
                        "labels": {"instance": f"node-{node}", "__metrics_path__": f"/{node}"},
                    }
                    for node in range(NODES)
                ],
            }
        ],
    }
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    address = _free_address()
    command = [prometheus, f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}"]
    command += [f"--web.listen-address={address}", "--log.level=error"]
    with subprocess.Popen(command) as process:
        try:
            # The first rounds create the series and are dearer than any that follow.
            time.sleep(SCRAPE_SECONDS * ROUNDS / 2)
            before = _get(f"http://{address}/metrics").decode()
            started = time.monotonic()
            time.sleep(SCRAPE_SECONDS * ROUNDS / 2)
            own = _get(f"http://{address}/metrics").decode()
            took_seconds = time.monotonic() - started
            yield Figure("series in Prometheus", _value(own, "prometheus_tsdb_head_series"), "")
            memory = _value(own, "process_resident_memory_bytes")
            yield Figure("its resident memory", memory / 2**30, "GiB")
            cpu_seconds = _value(own, _CPU) - _value(before, _CPU)
            yield Figure("its processor use, rules included", cpu_seconds / took_seconds, "cores")
            yield Figure("scrapes of each node", server.served / NODES, "")
        finally:
            process.terminate()
            server.close()


class _Nodes:
    """Serves every node's page: one of the recorded ones, under that node's own GPU ids."""

    def __init__(self, pages: list[bytes]) -> None:
        self.served = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                node = int(self.path.strip("/"))
                # Nodes are not in step.
                page = pages[(node * 7 + int(time.time() / SCRAPE_SECONDS)) % len(pages)]
                page = page.replace(b'uuid="GPU-', b'uuid="GPU-%04x' % node)
                outer.served += 1
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(page)))
                self.end_headers()
                self.wfile.write(page)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_client: object) -> None:
                """Stay silent: at the end Prometheus hangs up in the middle of pages."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _free_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:
        page: bytes = answer.read()
        return page


def _value(page: str, name: str) -> float:
    match = re.search(rf"^{name} (\S+)$", page, re.MULTILINE)
    assert match, name
    return float(match[1])
