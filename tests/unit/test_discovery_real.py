"""Discovery of real processes on this machine: titles, namespaces, orphans, zombies."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.unit.proc_tree import gpu
from tests.unit.real_tree import RealServer, look_until, real_discovery

from kvheadroom.poll.discovery import Discovered
from kvheadroom.readings import GpuReading


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def look(*gpus: GpuReading) -> Discovered:
    return real_discovery().look(gpus)


def needs_namespaces(*kinds: str) -> None:
    command = ["unshare", *kinds, "--fork", "true"]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        pytest.skip("this machine lets us make no namespaces")


def test_a_real_tree_is_found_whole(tmp_path: Path) -> None:
    """Flags, socket, model, titles that were written over the words, and ranks."""
    port, titles = str(free_port()), ("VLLM::EngineCore", "VLLM::Worker_TP0", "VLLM::Worker_TP1")
    flags = ("--host", "127.0.0.1", "--port", port, "-tp", "2", "--max-num-seqs", "9")
    with RealServer(tmp_path, *flags, titles=titles) as server:
        workers = [server.child(f"VLLM::Worker_TP{rank}") for rank in (0, 1)]

        found = look(gpu(0, workers[0]), gpu(1, workers[1]))

        one = found.servers[f"127.0.0.1:{port}"]
        assert one.pid == server.pid
        assert one.address.url == f"http://127.0.0.1:{port}"
        assert one.address.is_listening
        assert one.command is not None
        assert one.command.options["max-num-seqs"] == 9
        assert one.working_directory == str(tmp_path)
        assert [one.ranks[pid].tensor for pid in workers] == [0, 1]
        assert {owner.server_id for owner in found.owners.values()} == {f"127.0.0.1:{port}"}


def test_a_moved_and_a_stopped_server_are_followed(tmp_path: Path) -> None:
    """Restarted on another port it keeps its id at the next look; stopped it is gone at once."""
    discovery, ports = real_discovery(), [str(free_port()), str(free_port())]
    for port in ports:
        with RealServer(tmp_path, "--host", "127.0.0.1", "--port", port):
            found = discovery.look(())

            assert found.servers[f"127.0.0.1:{ports[0]}"].address.name == f"127.0.0.1:{port}"

    assert f"127.0.0.1:{ports[0]}" not in discovery.look(()).servers


def test_a_pid_namespace_is_seen_through(tmp_path: Path) -> None:
    """In a container the pids are others; from outside, the driver's are the host's."""
    needs_namespaces("--pid", "--mount-proc")
    port = str(free_port())
    around = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    with RealServer(tmp_path, "--host", "127.0.0.1", "--port", port, around=around) as server:
        core = server.child("VLLM::EngineCore")

        found = look(gpu(0, core))

        assert core != server.inner_pids["VLLM::EngineCore"]
        assert found.owners[core].server_id == f"127.0.0.1:{port}"
        assert found.servers[f"127.0.0.1:{port}"].pid == server.pid


def test_the_hosts_proc_is_read_from_within_a_pid_namespace(tmp_path: Path) -> None:
    """The driver counts pids as we do; under the host's /proc they are translated."""
    needs_namespaces("--pid", "--mount-proc")
    program = """
import os, sys
from tests.unit.proc_tree import gpu
from tests.unit.real_tree import RealServer
from pathlib import Path
from kvheadroom.poll.discovery import Discovery
with RealServer(Path(sys.argv[1]), "--host", "127.0.0.1", "--port", sys.argv[2]) as server:
    core = server.inner_pids["VLLM::EngineCore"]
    discovery = Discovery(proc=sys.argv[3], read_yaml=lambda _: {}, start=lambda work: work())
    print("FOUND", discovery.look((gpu(0, core),)).owners[core].server_id)
"""
    port = str(free_port())
    host = tmp_path / "host-proc"
    host.mkdir()
    script = f'mount --rbind /proc {host} && exec unshare --pid --fork --mount-proc "$0" "$@"'
    arguments = (sys.executable, "-c", program, str(tmp_path), port, str(host))
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    if "mount" in done.stderr and "FOUND" not in done.stdout:
        pytest.skip("this machine lets us bind no /proc")

    assert f"FOUND 127.0.0.1:{port}" in done.stdout, done.stderr


def test_a_network_namespace_is_not_taken_for_ours(tmp_path: Path) -> None:
    """A server on every address of a network without any cannot be asked, and that is said."""
    needs_namespaces("--net")
    around = ("unshare", "--net")
    with RealServer(tmp_path, "--host", "0.0.0.0", "--port", "8000", around=around) as server:
        found = look()

        one = next(one for one in found.servers.values() if one.pid == server.pid)
        assert (one.address.url, one.address.unreachable) == (None, "other_namespace")


def test_an_orphans_server_is_remembered(tmp_path: Path) -> None:
    """Killed, a server leaves its engine to whoever adopts it, and the memory stays its own."""
    discovery, port = real_discovery(), str(free_port())
    with RealServer(tmp_path, "--host", "127.0.0.1", "--port", port) as server:
        core = server.child("VLLM::EngineCore")
        discovery.look((gpu(0, core),))
        os.kill(server.pid, signal.SIGKILL)
        server.process.wait(10)
        try:
            found = discovery.look((gpu(0, core),))
            stranger = look(gpu(0, core))
        finally:
            os.kill(core, signal.SIGKILL)

    assert not any(one.pid == server.process.pid for one in found.servers.values())
    assert found.owners[core].server_id == f"127.0.0.1:{port}"
    assert stranger.owners[core].owner.reason == "orphan"


def test_a_zombie_holds_nothing(tmp_path: Path) -> None:
    """A child that ended and was not waited for is said to be one."""
    port = str(free_port())
    with RealServer(tmp_path, "--host", "127.0.0.1", "--port", port) as server:
        core = server.child("VLLM::EngineCore")
        os.kill(core, signal.SIGKILL)

        found = look_until(
            lambda: look(gpu(0, core)),
            lambda found: found.owners[core].owner.reason == "zombie",
        )

        assert found.servers[f"127.0.0.1:{port}"].ranks == {}


def test_an_exec_is_followed(tmp_path: Path) -> None:
    """A shell that ends with exec is the server from the next look on."""
    port, discovery = str(free_port()), real_discovery()
    go = tmp_path / "go"
    wait = f'while [ ! -e {go} ]; do sleep 0.02; done; exec "$0" "$@"'
    script = tmp_path / "bin" / "vllm"
    script.parent.mkdir()
    script.write_text("import time; time.sleep(60)")
    words = ("sh", "-c", wait, sys.executable, str(script), "serve", "m", "--port", port)
    with subprocess.Popen(words) as process:
        try:
            before = discovery.look(())
            go.touch()
            after = look_until(
                lambda: discovery.look(()), lambda found: f"127.0.0.1:{port}" in found.servers
            )
        finally:
            process.kill()

    assert f"127.0.0.1:{port}" not in before.servers
    assert after.servers[f"127.0.0.1:{port}"].pid == process.pid


def test_a_config_file_that_changed_since_is_not_believed(tmp_path: Path) -> None:
    """What is in the file now is for the next start; what the server was told is unknown."""
    port, file = str(free_port()), tmp_path / "vllm.yaml"
    file.write_text("max-num-seqs: 7\n")
    flags = ("--host", "127.0.0.1", "--port", port, "--config", "vllm.yaml")
    with RealServer(tmp_path, *flags) as server:
        told = look().servers[f"127.0.0.1:{port}"].command
        later = time.time() + 60
        os.utime(file, (later, later))
        changed = next(one for one in look().servers.values() if one.pid == server.pid)

    assert told is not None
    assert told.options["max-num-seqs"] == 7
    assert changed.command is None
    assert "vllm.yaml" in (changed.problem or "")
    assert changed.address.url == f"http://127.0.0.1:{port}"
