"""A node's NVML for tests: the real pynvml over a library whose answers a test writes."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from tests.parts.needs import give_up, require

SOURCE: Final = Path(__file__).with_name("fake_nvml.c")
READER: Final = Path(__file__).with_name("nvml_reader.py")
SONAME: Final = "libnvidia-ml.so.1"
ANSWER_TIMEOUT_SECONDS: Final = 20.0
EXIT_TIMEOUT_SECONDS: Final = 10.0


def nvml_include_directory() -> Path:
    """Return where the nvidia-nvml-dev wheel put nvml.h, or give the test up."""
    try:
        files = metadata.files("nvidia-nvml-dev") or []
    except metadata.PackageNotFoundError:
        files = []
    headers = [Path(str(file.locate())) for file in files if file.name == "nvml.h"]
    if not headers:
        give_up("nvidia-nvml-dev, which has nvml.h, is not installed")
    return headers[0].parent


def compile_library(directory: Path, *, old_driver: bool = False) -> Path:
    """Compile the test library into *directory* and return its path.

    Args:
        directory: Where it goes; made if need be.
        old_driver: Leave out the functions that drivers of 2021 do not have.
    """
    directory.mkdir(parents=True, exist_ok=True)
    library = directory / SONAME
    flags = ["-std=gnu11", "-O1", "-Wall", "-Werror", "-fPIC", "-shared", f"-Wl,-soname,{SONAME}"]
    include = f"-I{nvml_include_directory()}"
    era = ["-DOLD_DRIVER"] if old_driver else []
    command = [require("gcc"), *flags, *era, include, "-o", str(library), str(SOURCE), "-lpthread"]
    subprocess.run(command, check=True, timeout=60)
    return library


class FakeNvml:
    """One node's driver: a library for LD_LIBRARY_PATH and the state it answers from.

    Attributes:
        directory: Holds the library, once installed, and the state file.
    """

    def __init__(self, directory: Path, library: Path | None = None) -> None:
        """Make a node in *directory*, with *library* (see ``compile_library``) as its driver."""
        self.directory = directory
        self._state_path = directory / "state.txt"
        directory.mkdir(parents=True, exist_ok=True)
        if library is not None:
            self.install(library)
        self.write(devices=0)

    def install(self, library: Path) -> None:
        """Put a driver in place, or another one in its place, as a package manager does."""
        fresh = self.directory / "library.new"
        shutil.copy(library, fresh)
        fresh.replace(self.directory / SONAME)

    def write(self, *parts: Mapping[str, object], **state: object) -> None:
        """Replace the whole state, in one step; the keys are explained in fake_nvml.c."""
        merged: dict[str, object] = {"driver": "590.48.01"}
        for part in (*parts, state):
            merged |= part
        fresh = self._state_path.with_suffix(".new")
        text = "".join(f"{key}={value}\n" for key, value in merged.items())
        fresh.write_text(text, encoding="utf-8", errors="surrogateescape")
        fresh.replace(self._state_path)

    def environment(self) -> dict[str, str]:
        """Return the environment in which a process finds this node's driver."""
        return os.environ | {
            "LD_LIBRARY_PATH": str(self.directory),
            "FAKE_NVML_STATE": str(self._state_path),
        }

    @contextmanager
    def reader(self, *, deadline_seconds: float = 10.0) -> Iterator["Reader"]:
        """Start a process that reads this node through ``NvmlSource``; end it afterwards."""
        with start_reader(self.environment(), deadline_seconds=deadline_seconds) as reader:
            yield reader


def gpu(index: int, **values: object) -> dict[str, object]:
    """Return the state of one healthy GPU, with *values* in place of the usual ones.

    A key ``fail_nvmlX`` or ``hang_any`` stands for ``fail.nvmlX`` or ``hang.*``; ``None`` removes.
    """
    usual: dict[str, object] = {
        "uuid": f"GPU-{index:08d}",
        "name": "NVIDIA H200",
        "total": 150_754_820_096,
        "reserved": 643_825_664,
        "free": 100_000_000_000,
        "utilization": 97,
        "temperature": 61,
        "power": 650_500,
    }
    return _prefixed(f"{index}.", usual | values)


def mig(index: int, mig_index: int, **values: object) -> dict[str, object]:
    """Return the state of one MIG device, with *values* in place of the usual ones."""
    usual: dict[str, object] = {
        "uuid": f"MIG-{index:04d}-{mig_index:04d}",
        "name": "NVIDIA H200 MIG 1g.18gb",
        "total": 18_000_000_000,
        "reserved": 100_000_000,
        "free": 17_000_000_000,
    }
    return _prefixed(f"{index}.mig.{mig_index}.", usual | values)


def _prefixed(prefix: str, values: Mapping[str, object]) -> dict[str, object]:
    state = {}
    for name, value in values.items():
        kind, _, function = name.partition("_")
        fault = f"{kind}.{'*' if function == 'any' else function}"
        if value is not None:
            state[prefix + (fault if kind in ("fail", "hang") else name)] = value
    return state


class Reader:
    """A process with one ``NvmlSource``, asked over a pipe."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def read(self) -> dict[str, Any]:
        """Return one reading as JSON shows it, or ``{"error": reason, "detail": text}``."""
        return self.ask("read")

    def ask(self, command: str) -> dict[str, Any]:
        """Return the answer to a command of nvml_reader.py."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        watchdog = threading.Timer(ANSWER_TIMEOUT_SECONDS, self.process.kill)
        watchdog.start()
        try:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        finally:
            watchdog.cancel()
        assert line, f"the reader ended, or was stopped, when told to {command}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> int:
        """Let the process run out of commands and return its exit status."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(EXIT_TIMEOUT_SECONDS)


@contextmanager
def start_reader(environment: Mapping[str, str], *, deadline_seconds: float) -> Iterator[Reader]:
    """Start a process that reads NVML in *environment*; end it afterwards."""
    command = [sys.executable, str(READER), str(deadline_seconds)]
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    reader = Reader(process)
    with process:
        try:
            yield reader
            reader.end()
        finally:
            process.kill()
