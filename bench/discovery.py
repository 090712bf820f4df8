"""What a look at a node of 3,000 processes and two engines costs, once warm."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.figures import Figure
from kvheadroom.poll.discovery import Discovery
from kvheadroom.readings import GpuProcess, GpuReading

PROCESSES: Final = 3_000
WARM_LOOKS: Final = 5
LOOKS: Final = 60


def figures() -> Iterator[Figure]:
    """Yield the CPU of a look on a made tree, and of one on this machine's own processes."""
    with tempfile.TemporaryDirectory() as folder:
        gpus = _make_tree(Path(folder))
        first, warm = _measure(folder, gpus, servers=2)
    yield Figure(f"CPU of the first look at {PROCESSES:,} processes", first, "ms", at_most=500)
    yield Figure(f"CPU of a later look at {PROCESSES:,} processes", warm, "ms", at_most=10)
    here = sum(folder.name.isdecimal() for folder in Path("/proc").iterdir())
    _, warm = _measure("/proc", (), servers=0)
    yield Figure(f"CPU of a later look at this machine's {here} processes", warm, "ms", at_most=10)


def _measure(proc: str, gpus: tuple[GpuReading, ...], *, servers: int) -> tuple[float, float]:
    """Return CPU milliseconds of the first look and of one of those after it."""
    discovery = Discovery(proc=proc, read_yaml=lambda _: {}, start=lambda work: work())
    began = time.process_time()
    discovery.look(gpus)
    first = time.process_time() - began
    for _ in range(WARM_LOOKS):
        found = discovery.look(gpus)
    assert len(found.servers) >= servers
    began = time.process_time()
    for _ in range(LOOKS):
        discovery.look(gpus)
    return first * 1e3, (time.process_time() - began) / LOOKS * 1e3


def _make_tree(proc: Path) -> tuple[GpuReading, ...]:
    for pid in range(1, PROCESSES + 1):
        _make_process(proc, pid, 0 if pid == 1 else 1, "worker", "/usr/bin/python3", "-m", "worker")
    holders: list[GpuProcess] = []
    for server in (4_000, 5_000):
        words = ("/opt/bin/python", "/opt/bin/vllm", "serve", "m", "--port", str(server))
        _make_process(proc, server, 1, "vllm", *words)
        _make_process(proc, server + 1, server, "VLLM::EngineCor", "VLLM::EngineCore")
        holders.append(GpuProcess(server + 1, 1 << 34))
    strangers = tuple(GpuProcess(pid, 1 << 28) for pid in range(100, 114))
    return (GpuReading("0", "GPU-0", processes=(*holders, *strangers)),)


def _make_process(proc: Path, pid: int, parent: int, name: str, *argv: str) -> None:
    folder = proc / str(pid)
    folder.mkdir()
    fields = ["S", str(parent), *["0"] * 17, str(pid * 100), "0"]
    (folder / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
    (folder / "cmdline").write_text("\0".join(argv) + "\0")
    (folder / "status").write_text(f"Name:\t{name}\nNSpid:\t{pid}\n")
    (folder / "cgroup").write_text("0::/system.slice/ssh.service\n")
