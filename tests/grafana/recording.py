"""Hours of two simulated nodes as Prometheus would have stored them, recorded in seconds."""

import re
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.exporter import Exporter

SPEED = 20
PAGES = 150
PAGE_SECONDS = 5.0
DAYS = 15
DAY_SECONDS = 86_400
VLLM_EVERY = 5  # pages

COMMAND = (sys.executable, Path(__file__).with_name("fast_demo.py"))
NODES = {"workstation:10420": "card", "rack-1:10420": "rack"}

_SAMPLE = re.compile(r"^(\w[\w:]*)(?:\{(.*)\})? (\S+)$")
_OF_PLANNING = re.compile(
    r"kvheadroom_(build_info|engine_info|engine_gpu_info|engine_requests_.*|kv_capacity_.*"
    r"|kv_used_.*|headroom_(requests|context_tokens))$"
)
_OF_VLLM = re.compile(r"vllm:(time_to_first_token|inter_token_latency|e2e_request_latency)_seconds")


@dataclass(frozen=True, slots=True)
class Sample:
    name: str
    labels: str
    value: float


@dataclass(frozen=True, slots=True)
class Recording:
    """OpenMetrics files for ``promtool tsdb create-blocks-from``, and the time they end at."""

    live: Path
    planning: Path
    ends_unix_seconds: float


def record(folder: Path) -> Recording:
    """Run both demos, 20 times as fast as life, and write down what was scraped.

    The live file has a page every five seconds of the simulation, with vLLM's own histograms and
    what dcgm-exporter would say of the same GPUs. The planning file has the same pages drawn out
    over fifteen days.
    """
    ends = float(round(time.time()))
    begins = ends - PAGES * PAGE_SECONDS
    pages: list[tuple[float, list[str]]] = []
    with (
        Exporter(*_demo("card"), command=COMMAND) as card,
        Exporter(*_demo("rack"), command=COMMAND) as rack,
    ):
        exporters = dict(zip(NODES, (card, rack), strict=True))
        time.sleep(1.0)
        started = time.monotonic()
        for number in range(PAGES):
            due = started + number * PAGE_SECONDS / SPEED
            time.sleep(max(0.0, due - time.monotonic()))
            at = begins + (time.monotonic() - started) * SPEED
            lines: list[str] = []
            for instance, exporter in exporters.items():
                served = exporter.get("/metrics", Accept="text/plain")[1]
                # Both demos number their GPUs alike; no two cards in the world share a UUID.
                own = f'uuid="GPU-{NODES[instance]}-'.encode()
                page = list(_parse(served.replace(b'uuid="GPU-', own)))
                lines += _lines(instance, _in_simulated_time(page, at))
                lines += _as_dcgm(instance, page)
                if number % VLLM_EVERY == 0:
                    lines += _of_servers(page)
            pages.append((at, lines))
    live, planning = folder / "live.txt", folder / "planning.txt"
    _write(live, pages)
    span = DAYS * DAY_SECONDS / len(pages)
    first = pages[-1][0] - DAYS * DAY_SECONDS
    _write(
        planning,
        (
            # Each page is held for its hours: Prometheus looks back three hours here.
            (first + number * span + hour * 3600, [x for x in lines if _is_planning(x)])
            for number, (_, lines) in enumerate(pages)
            for hour in range(max(1, round(span / 3600)))
        ),
    )
    return Recording(live, planning, pages[-1][0])


def _demo(profile: str) -> tuple[str, ...]:
    poll = f"{PAGE_SECONDS / SPEED * 1000:.0f}ms"
    return ("demo", "--profile", profile, "--speed", str(SPEED), "--poll.interval", poll)


def _parse(page: bytes) -> Iterator[Sample]:
    for line in page.decode().splitlines():
        if match := _SAMPLE.match(line):
            yield Sample(match[1], match[2] or "", float(match[3]))


def _in_simulated_time(page: Iterable[Sample], at: float) -> Iterator[Sample]:
    """Carry what the exporter says in the machine's time over to the simulation's."""
    now = time.time()
    for sample in page:
        if sample.name.endswith(("_timestamp_seconds", "process_start_time_seconds")):
            value = at + (sample.value - now) * SPEED
            yield Sample(sample.name, sample.labels, value)
        else:
            yield sample


def _lines(instance: str, page: Iterable[Sample]) -> Iterator[str]:
    for sample in page:
        labels = f'job="kvheadroom",instance="{instance}"'
        yield f"{sample.name}{{{','.join(filter(None, (labels, sample.labels)))}}} {sample.value!r}"


_DCGM: dict[str, tuple[str, Callable[[float], float]]] = {
    "kvheadroom_gpu_memory_used_bytes": ("DCGM_FI_DEV_FB_USED", lambda value: value / 1024**2),
    "kvheadroom_gpu_utilization_ratio": ("DCGM_FI_DEV_GPU_UTIL", lambda value: value * 100),
}


def _as_dcgm(instance: str, page: Iterable[Sample]) -> Iterator[str]:
    host = instance.partition(":")[0]
    for sample in page:
        if sample.name in _DCGM:
            name, convert = _DCGM[sample.name]
            labels = re.sub(r'\buuid="', 'UUID="', sample.labels)
            where = f'job="dcgm-exporter",instance="{host}:9400",{labels}'
            yield f"{name}{{{where}}} {convert(sample.value)!r}"
            if name == "DCGM_FI_DEV_GPU_UTIL":
                yield f"DCGM_FI_DEV_MEM_COPY_UTIL{{{where}}} {sample.value * 60!r}"


def _of_servers(page: Iterable[Sample]) -> Iterator[str]:
    targets = {
        match[1]
        for sample in page
        if sample.name == "kvheadroom_engine_info"
        and (match := re.search(r'target="([^"]+)"', sample.labels))
    }
    for target in sorted(targets):
        for sample in _parse(_get(target)):
            if _OF_VLLM.match(sample.name):
                where = f'job="vllm",instance="{target}",{sample.labels}'
                yield f"{sample.name}{{{where}}} {sample.value!r}"


def _get(target: str) -> bytes:
    with urllib.request.urlopen(f"http://{target}/metrics", timeout=5) as response:
        return bytes(response.read())


def _is_planning(line: str) -> bool:
    return bool(_OF_PLANNING.match(line.partition("{")[0]))


def _write(path: Path, pages: Iterable[tuple[float, list[str]]]) -> None:
    with path.open("w") as file:
        for at, lines in pages:
            file.writelines(f"{line} {at:.3f}\n" for line in lines)
        file.write("# EOF\n")
