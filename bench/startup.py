"""What starting costs: ``--help`` beside a bare interpreter, and start to first full scrape."""

import http.client
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

from bench.figures import Figure

RUNS = 9


def figures() -> Iterator[Figure]:
    """Yield both as medians."""
    bare = statistics.median(_seconds([sys.executable, "-c", "pass"]) for _ in range(RUNS))
    asked = statistics.median(
        _seconds([sys.executable, "-m", "kvheadroom", "--help"]) for _ in range(RUNS)
    )
    yield Figure("--help, beyond python -c pass", (asked - bare) * 1e3, "ms", at_most=150)
    first = statistics.median(_seconds_to_first_scrape() for _ in range(3))
    yield Figure("demo, from start to the first complete scrape", first, "s", at_most=1.5)


def _seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def _seconds_to_first_scrape() -> float:
    command = [sys.executable, "-m", "kvheadroom", "demo", "--web.listen-address", "127.0.0.1:0"]
    started = time.perf_counter()
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            port = next(
                int(m[1]) for line in process.stderr if (m := re.search(r"url=http\S+:(\d+)", line))
            )
            # Complete: every source up, three engines with their headroom or their layout.
            while _get(port).count(b"\nkvheadroom_engine_info{") < 3:
                time.sleep(0.005)
            return time.perf_counter() - started
        finally:
            process.terminate()


def _get(port: int) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("GET", "/metrics")
    return connection.getresponse().read()
