"""Real processes in real namespaces: whose memory it is, from outside and from inside."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.exporter import Exporter
from tests.parts.fake_nvml import FakeNvml, gpu
from tests.real_vllm.server import free_port
from tests.unit.real_tree import RealServer

pytestmark = pytest.mark.parts

TITLES = ("VLLM::EngineCore",)
HELD = 7_000_000_001
OWN = (sys.executable, "-m", "kvheadroom")
NEW_PIDS = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


@pytest.fixture
def node(tmp_path: Path, library: Path) -> FakeNvml:
    return FakeNvml(tmp_path / "nvml", library)


def needs_namespaces() -> None:
    try:
        subprocess.run([*NEW_PIDS, "true"], check=True, capture_output=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        pytest.skip("this machine lets us make no namespaces")


def server(folder: Path, *, around: tuple[str, ...] = ()) -> tuple[RealServer, str]:
    """A process like ``vllm serve`` that listens, and what its engine is called."""
    port = str(free_port())
    flags = ("--host", "127.0.0.1", "--port", port)
    return RealServer(folder, *flags, titles=TITLES, around=around), f"127.0.0.1:{port}/0"


def test_an_engine_in_a_container_is_charged_from_outside(tmp_path: Path, node: FakeNvml) -> None:
    """The driver counts pids as the host does; inside, the engine has another."""
    needs_namespaces()
    contained, engine = server(tmp_path, around=NEW_PIDS)
    with contained:
        core = contained.child(TITLES[0])
        assert core != contained.inner_pids[TITLES[0]]
        node.write(gpu(0, compute=f"{core}:{HELD}"), devices=1)
        with Exporter(
            "serve", "--poll.interval", "500ms", environment=node.environment()
        ) as exporter:
            exporter.wait_for("gpu_process_memory_bytes", HELD, owner=engine, seconds=15)


def test_a_containers_exporter_reads_the_hosts_processes(tmp_path: Path, node: FakeNvml) -> None:
    """In a pid namespace of its own, with the host's ``/proc`` mounted, it sees every engine."""
    needs_namespaces()
    host = tmp_path / "host-proc"
    host.mkdir()
    script = f'mount --rbind /proc {host} && exec {" ".join(NEW_PIDS)} "$0" "$@"'
    around = ("unshare", "--mount", "sh", "-c", script)
    try:
        subprocess.run([*around, "true"], check=True, capture_output=True, timeout=10)
    except subprocess.SubprocessError:
        pytest.skip("this machine lets us bind no /proc")
    running, engine = server(tmp_path)
    with running:
        core = running.child(TITLES[0])
        node.write(gpu(0, compute=f"{core}:{HELD}"), devices=1)
        with Exporter(
            "serve", "--poll.interval", "500ms", "--proc.root", str(host),
            environment=node.environment(), command=(*around, *OWN),
        ) as exporter:  # fmt: skip
            exporter.wait_for("gpu_process_memory_bytes", HELD, owner=engine, seconds=15)


def test_a_containers_exporter_without_them_blames_nobody(tmp_path: Path, node: FakeNvml) -> None:
    """Pids that are not in its own namespace are no engine's, and no intruder's either."""
    needs_namespaces()
    running, engine = server(tmp_path)
    with running:
        core = running.child(TITLES[0])
        node.write(gpu(0, compute=f"{core}:{HELD}"), devices=1)
        with Exporter(
            "serve",
            "--poll.interval",
            "500ms",
            environment=node.environment(),
            command=(*NEW_PIDS, *OWN),
        ) as exporter:
            exporter.wait_for("gpu_process_memory_bytes", HELD, owner="other", seconds=15)

            assert exporter.value("gpu_process_memory_bytes", owner=engine) is None
            assert exporter.value("gpu_intruder_memory_bytes") is None


def test_a_zombie_and_an_orphan_keep_their_engines_name(tmp_path: Path, node: FakeNvml) -> None:
    """A killed server's core holds on to its memory in its name; once dead, it is nobody's."""
    running, engine = server(tmp_path)
    with running:
        core = running.child(TITLES[0])
        node.write(gpu(0, compute=f"{core}:{HELD}"), devices=1)
        with Exporter(
            "serve", "--poll.interval", "500ms", environment=node.environment()
        ) as exporter:
            exporter.wait_for("gpu_process_memory_bytes", HELD, owner=engine, seconds=15)
            os.kill(running.pid, signal.SIGKILL)
            running.process.wait(10)
            try:
                exporter.wait_for("source_up", 0, target=engine.removesuffix("/0"))
                assert exporter.value("gpu_process_memory_bytes", owner=engine) == HELD
            finally:
                os.kill(core, signal.SIGKILL)
            exporter.wait_for("gpu_process_memory_bytes", HELD, owner="other")

            assert exporter.value("gpu_process_memory_bytes", owner=engine) is None
