"""Real processes that look as vLLM's do: a server, its socket, and children with titles."""

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from kvheadroom.poll.discovery import Discovered, Discovery
from kvheadroom.strict_yaml import load_mapping

# The kernel tells where the words of a process are; writing there is how a title is set.
_RETITLE = """
import ctypes, time
def retitle(title):
    fields = open("/proc/self/stat").read().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    ctypes.memmove(start, title.encode()[: end - start - 1].ljust(end - start, b"\\0"), end - start)
"""
_SERVER = (
    _RETITLE
    + """
import os, socket, sys
arguments = sys.argv[1:]
host = arguments[arguments.index("--host") + 1]
server = socket.create_server((host, int(arguments[arguments.index("--port") + 1])))
for title in os.environ["TITLES"].split(","):
    if os.fork() == 0:
        retitle(title)
        print(title, os.readlink("/proc/self"), flush=True)
        time.sleep(60)
        os._exit(0)
print("serving", os.getpid(), flush=True)
time.sleep(60)
"""
)


class RealServer:
    """A process like ``vllm serve``, its children with *titles*; ended by its own pids."""

    def __init__(
        self,
        folder: Path,
        *flags: str,
        titles: Sequence[str] = ("VLLM::EngineCore",),
        around: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        script = folder / "bin" / "vllm"
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(_SERVER)
        self.words = [sys.executable, str(script), "serve", "/models/m", *flags]
        self.process = subprocess.Popen(
            [*around, *self.words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={"PATH": "/usr/bin:/bin", "TITLES": ",".join(titles), **(environment or {})},
        )
        assert self.process.stdout is not None
        #: By title, and ``serving``: pid in the innermost namespace.
        self.inner_pids: dict[str, int] = {}
        for _ in range(len(titles) + 1):
            name, _, pid = self.process.stdout.readline().rpartition(" ")
            self.inner_pids[name] = int(pid)

    @property
    def pid(self) -> int:
        """The server's pid in our namespace."""
        return next(pid for pid in self.family() if _words(pid)[:2] == self.words[:2])

    def child(self, title: str) -> int:
        """The pid in our namespace of the child with that title."""
        return next(pid for pid in self.family() if _words(pid) == [title])

    def family(self) -> list[int]:
        """The process we started and everything below it."""
        found = [self.process.pid]
        for pid in found:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            found += [int(child) for child in children]
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        family = self.family() if self.process.poll() is None else []
        self.process.kill()
        subprocess.run(["kill", "-9", *map(str, family)], check=False, stderr=subprocess.DEVNULL)
        self.process.communicate()


def _words(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")


def real_discovery() -> Discovery:
    """A discovery of this machine that does everything in the caller's thread."""
    return Discovery(read_yaml=load_mapping, start=lambda work: work())


def look_until(
    look: Callable[[], Discovered], is_there: Callable[[Discovered], bool]
) -> Discovered:
    """The first look that shows what is waited for; fails after ten seconds."""
    deadline = time.monotonic() + 10
    while True:
        found = look()
        if is_there(found):
            return found
        assert time.monotonic() < deadline, f"never seen: {found}"
        time.sleep(0.05)
