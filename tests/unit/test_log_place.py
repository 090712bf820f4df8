import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from kvheadroom.node.log_place import find_log

ID = "3f" * 32


@contextmanager
def running(output: int | IO[bytes], errors: int | IO[bytes] | None = None) -> Iterator[int]:
    waits = "import sys; sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", waits], stdin=subprocess.PIPE, stdout=output, stderr=errors
    ) as process:
        yield process.pid
        process.communicate()


def test_the_file_a_server_writes_to_is_found(tmp_path: Path) -> None:
    """``vllm serve … > vllm.log 2>&1``."""
    log = tmp_path / "vllm.log"
    with log.open("wb") as file, running(file, subprocess.STDOUT) as pid:
        assert find_log(pid) == str(log)


def test_a_file_that_was_renamed_is_not_taken_for_its_successor(tmp_path: Path) -> None:
    """The server goes on writing to the renamed one."""
    log = tmp_path / "vllm.log"
    with log.open("wb") as file, running(file, subprocess.STDOUT) as pid:
        log.rename(tmp_path / "vllm.log.1")
        log.write_bytes(b"")

        assert find_log(pid) == str(tmp_path / "vllm.log.1")


def test_neither_pipe_nor_device_is_a_log() -> None:
    """A terminal, a supervisor's pipe and ``/dev/null`` keep nothing."""
    with running(subprocess.DEVNULL, subprocess.PIPE) as pid:
        assert find_log(pid) is None


def test_a_process_that_has_gone_has_no_log() -> None:
    """It may end while it is looked at."""
    process = subprocess.Popen(["true"])
    process.wait()

    assert find_log(process.pid) is None


@pytest.mark.parametrize(
    "place",
    [
        f"var/lib/docker/containers/{ID}/{ID}-json.log",
        f"var/log/containers/vllm-0_prod_server-{ID}.log",
    ],
)
def test_a_containers_log_is_found_by_its_id(tmp_path: Path, place: str) -> None:
    """Where docker and kubelet put it; a short id will do."""
    log = tmp_path / place
    log.parent.mkdir(parents=True)
    log.write_bytes(b"")

    for container_id in (ID, ID[:12]):
        found = find_log(0, container_id=container_id, proc=tmp_path, host=tmp_path)
        assert found == str(log)
    assert find_log(0, container_id="a" * 64, proc=tmp_path, host=tmp_path) is None


def test_what_is_no_container_id_is_looked_for_nowhere(tmp_path: Path) -> None:
    """It comes from a file that any process may have written."""
    assert find_log(0, container_id="*/../..", proc=tmp_path, host=tmp_path) is None


def test_a_unit_is_read_through_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is a journalctl, and the unit is a service rather than a session."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_log(0, unit="vllm.service", proc=tmp_path) is None

    program = tmp_path / "journalctl"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)

    assert find_log(0, unit="vllm.service", proc=tmp_path) == "journald:vllm.service"
    assert find_log(0, unit="session-3.scope", proc=tmp_path) is None
