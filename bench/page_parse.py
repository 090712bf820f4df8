"""What reading a vLLM page costs: against the client library, a bare scan, and per poll."""

import functools
import gzip
import http.server
import multiprocessing
import random
import socketserver
import time
import timeit
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from bench.figures import Figure
from kvheadroom.node.page_reader import PageReader
from kvheadroom.node.vllm import EngineTarget, VllmSource
from kvheadroom.node.vllm_names import MEANING_OF
from kvheadroom.node.vllm_page import read_server_page

EVIDENCE: Final = Path(__file__).parent.parent / "tests" / "evidence"
ENGINES: Final = 3
PAGES: Final = 20
POLLS: Final = 200


class _SeveralEngines(Collector):
    """The families of one recorded server with every engine's samples repeated per rank."""

    def __init__(self, page: bytes, seed: int) -> None:
        self._page = page
        self._values = random.Random(seed)

    def collect(self) -> Iterator[Metric]:
        for family in text_string_to_metric_families(self._page.decode()):
            copies = []
            for sample in family.samples:
                ranks = range(ENGINES) if "engine" in sample.labels else [None]
                for rank in ranks:
                    labels = sample.labels | ({} if rank is None else {"engine": str(rank)})
                    copies.append(sample._replace(labels=labels, value=self._value(sample.value)))
            family.samples = copies
            yield family

    def _value(self, value: float) -> float:
        return value if 0 < value < 1 else value + self._values.randrange(1000)


def _pages(page: bytes) -> list[bytes]:
    """Return pages of several engines that differ in every number."""
    made = []
    for seed in range(PAGES):
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_SeveralEngines(page, seed))
        made.append(generate_latest(registry))
    return made


def _microseconds(work: Callable[[bytes], object], pages: list[bytes], repeat: int) -> float:
    """Return the fastest of *repeat* rounds over *pages*, per page."""
    rounds = timeit.repeat(lambda: [work(page) for page in pages], number=1, repeat=repeat)
    return min(rounds) / len(pages) * 1e6


def _serve(page: bytes, port: Connection) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(page), page)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        port.send(server.server_address[1])
        server.serve_forever()


def _poll_cpu_milliseconds(page: bytes) -> float:
    """Return our CPU for one poll of a server in another process: fetch, read, understand."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(page, theirs))
    process.start()
    source = VllmSource(EngineTarget(f"http://127.0.0.1:{ours.recv()}"), deadline_seconds=5)
    try:
        for _ in range(20):
            source.read()
        before = time.process_time()
        for _ in range(POLLS):
            source.read()
        return (time.process_time() - before) / POLLS * 1e3
    finally:
        source.close()
        process.terminate()
        process.join()


def figures() -> Iterator[Figure]:
    """Yield the costs in microseconds, and the two ratios that are held to a limit."""
    recorded = gzip.decompress((EVIDENCE / "real-servers/0.32.0-gemma3/after.prom.gz").read_bytes())
    pages = _pages(recorded)
    reader = PageReader(MEANING_OF)
    for page in pages:
        reader.read(page)

    scan = _microseconds(lambda page: page.find(b"vllm:absent_name"), pages, repeat=100)
    ours = _microseconds(reader.read, pages, repeat=30)
    whole = _microseconds(functools.partial(read_server_page, reader=reader), pages, repeat=30)
    library = _microseconds(
        lambda page: list(text_string_to_metric_families(page.decode())), pages[:4], repeat=3
    )

    kilobytes = len(pages[0]) / 1000
    print(f"page of {ENGINES} engines, {kilobytes:.0f} kB, every number new on every page")
    yield Figure("one find() over the page", scan, "us")
    yield Figure("reading the wanted samples", ours, "us")
    yield Figure("reading and understanding them", whole, "us")
    yield Figure("prometheus_client's parser", library, "us")
    yield Figure("reading, as a multiple of find()", ours / scan, "x", at_most=8)
    yield Figure("faster than prometheus_client's parser", library / ours, "x", at_least=60)
    cpu = _poll_cpu_milliseconds(recorded)
    yield Figure(f"CPU of one poll of {len(recorded) / 1000:.0f} kB, HTTP included", cpu, "ms")
