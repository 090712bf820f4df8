"""Compare a scrape of this server with one of prometheus_client's own, on the same 1,000 series.

Each server is a process of its own and so is the client: ``wrk`` where it is installed, else a
plain keep-alive client.
"""

import contextlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, generate_latest, start_http_server
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from bench.figures import Figure
from kvheadroom.faces.negotiation import RenderedPage
from kvheadroom.faces.server import WebServer
from kvheadroom.faces.web import make_app
from kvheadroom.faces.web_options import WebOptions

SERIES: Final = 1000
SECONDS: Final = 3
CONNECTIONS: Final = 4
SILENT_CLIENTS: Final = 1000
SILENT_CLIENT_PAUSE_SECONDS: Final = 0.002
SCRAPES: Final = 200

# What Prometheus 2.53 sends.
PROMETHEUS_HEADERS: Final = {
    "Accept": "application/openmetrics-text;version=1.0.0;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
    "Accept-Encoding": "gzip",
}


@dataclass(frozen=True, slots=True)
class Measured:
    """One server's figures.

    Attributes:
        plain_per_second: Scrapes a second of plain text.
        prometheus_per_second: Scrapes a second with Prometheus' headers.
        quiet_p99_seconds: A scrape on a new connection, alone.
        crowded_p99_seconds: The same among 1,000 silent connections.
        rss_mib: Resident memory after all that.
    """

    plain_per_second: float
    prometheus_per_second: float
    quiet_p99_seconds: float
    crowded_p99_seconds: float
    rss_mib: float


def figures() -> Iterator[Figure]:
    """Measure both servers and yield each pair as a ratio."""
    ours, theirs = measure("ours"), measure("prometheus_client")
    rows: tuple[tuple[str, Callable[[Measured], float], str, float | None], ...] = (
        ("plain text", lambda each: each.plain_per_second, "/s", 60),
        ("as Prometheus asks", lambda each: each.prometheus_per_second, "/s", 60),
        ("new connection, p99", lambda each: each.quiet_p99_seconds * 1000, "ms", None),
        ("same, 1,000 silent clients", lambda each: each.crowded_p99_seconds * 1000, "ms", None),
        ("resident memory", lambda each: each.rss_mib, "MiB", None),
    )
    print(f"{SERIES} series, {CONNECTIONS} connections, client {client_name()}")
    for what, figure, unit, at_least in rows:
        mine, other = figure(ours), figure(theirs)
        yield Figure(what, mine, unit)
        yield Figure(f"{what}, prometheus_client", other, unit)
        yield Figure(f"{what}, ratio", mine / other, "x", at_least=at_least)


def measure(kind: str) -> Measured:
    """Start the server *kind* in a process and measure it from others."""
    with serving(kind) as (process, port):
        time_scrape(port)  # the first one renders
        plain = requests_per_second(port, {})
        prometheus = requests_per_second(port, PROMETHEUS_HEADERS)
        quiet = p99([time_scrape(port) for _ in range(SCRAPES)])
        with contextlib.ExitStack() as crowd:
            for _ in range(SILENT_CLIENTS):
                crowd.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
                # A server with a short queue drops the SYN of a burst, which costs a second each.
                time.sleep(SILENT_CLIENT_PAUSE_SECONDS)
            time_scrape(port)  # waits until the crowd has been let in
            crowded = p99([time_scrape(port) for _ in range(SCRAPES)])
        return Measured(plain, prometheus, quiet, crowded, rss_mib(process.pid))


@contextlib.contextmanager
def serving(kind: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server in a process of its own; ended by its pid."""
    command = [sys.executable, "-m", "bench.web", "serve", kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, int(process.stdout.readline())
        finally:
            process.terminate()


def serve(kind: str) -> None:
    """Be one of the two servers until SIGTERM; print the port."""
    registry = thousand_gauges()
    if kind == "prometheus_client":
        server, _ = start_http_server(0, "127.0.0.1", registry)
        port = server.server_address[1]
    else:
        page = RenderedPage(
            lambda: generate_latest(registry),
            lambda: generate_openmetrics(registry),  # type: ignore[no-untyped-call]
        )
        options = WebOptions(listen=(("127.0.0.1", 0),))
        app = make_app(latest=lambda: page, landing=str, ready=lambda: True, options=options)
        web_server = WebServer(app, options)
        web_server.start()
        port = web_server.addresses[0][1]
    print(port, flush=True)
    signal.pause()


def thousand_gauges() -> CollectorRegistry:
    """Return a registry like the exporter's own page: 10 families of 100 series."""
    registry = CollectorRegistry()
    for family in range(10):
        name = f"kvheadroom_bench_{family}_bytes"
        gauge = Gauge(name, "One of ten families.", ["gpu", "uuid"], registry=registry)
        for gpu in range(SERIES // 10):
            gauge.labels(str(gpu), f"GPU-{gpu:032x}").set(gpu * 1_000_003)
    return registry


def client_name() -> str:
    """Return which client makes the load."""
    return "wrk" if shutil.which("wrk") else "bench.web load"


def requests_per_second(port: int, headers: dict[str, str]) -> float:
    """Return the rate at which *port* answers CONNECTIONS kept connections."""
    lines = [f"{name}: {text}" for name, text in headers.items()]
    url = f"http://127.0.0.1:{port}/metrics"
    if wrk := shutil.which("wrk"):
        flags = [flag for line in lines for flag in ("-H", line)]
        command = [wrk, "-t1", f"-c{CONNECTIONS}", f"-d{SECONDS}", *flags, url]
    else:
        command = [sys.executable, "-m", "bench.web", "load", str(port), *lines]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r"Requests/sec:\s*([\d.]+)", done.stdout)
    assert found is not None, done.stdout
    return float(found[1])


def load(port: int, lines: list[str]) -> None:
    """Ask on kept connections in turn for a while; print the rate as wrk does."""
    head = "".join(f"{line}\r\n" for line in lines)
    request = f"GET /metrics HTTP/1.1\r\nHost: localhost\r\n{head}\r\n".encode()
    clients = [KeptConnection(port) for _ in range(CONNECTIONS)]
    start, count = time.monotonic(), 0
    while time.monotonic() - start < SECONDS:
        for client in clients:
            client.send(request)
        for client in clients:
            client.receive()
        count += len(clients)
    print(f"Requests/sec: {count / (time.monotonic() - start):.1f}")


class KeptConnection:
    """A connection that is opened again when the server has closed it."""

    def __init__(self, port: int) -> None:
        self._address = ("127.0.0.1", port)
        self._socket = socket.create_connection(self._address)
        self._is_open = True

    def send(self, request: bytes) -> None:
        """Send one request."""
        if not self._is_open:
            self._socket.close()
            self._socket = socket.create_connection(self._address)
        self._socket.sendall(request)

    def receive(self) -> None:
        """Read one response, by its length or to the end."""
        head, _, body = self._socket.recv(65536).partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        left = int(length[1]) - len(body) if length else sys.maxsize
        while left > 0:
            piece = self._socket.recv(262144)
            if not piece:
                break
            left -= len(piece)
        self._is_open = length is not None and head.startswith(b"HTTP/1.1")


def time_scrape(port: int) -> float:
    """Return the seconds of one scrape on a connection of its own, as Prometheus asks."""
    head = "".join(f"{name}: {text}\r\n" for name, text in PROMETHEUS_HEADERS.items())
    request = f"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{head}\r\n"
    start = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(request.encode())
        while client.recv(65536):
            pass
    return time.perf_counter() - start


def p99(seconds: list[float]) -> float:
    """Return the 99th percentile."""
    return sorted(seconds)[len(seconds) * 99 // 100]


def rss_mib(pid: int) -> float:
    """Return a process's resident memory in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s*(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", kind]:
            serve(kind)
        case ["load", port_text, *header_lines]:
            load(int(port_text), header_lines)
