"""Trees as real servers make them (``ps`` of 0.10.2 to 0.32), in a made ``/proc``."""

from pathlib import Path

import pytest
from tests.unit.proc_tree import ProcTree, gpu, serve

from kvheadroom.poll.discovery import Discovery
from kvheadroom.readings import GpuReading
from kvheadroom.strict_yaml import load_mapping


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    return ProcTree(tmp_path)


def add_engine(tree: ProcTree, pid: int, port: int, *flags: str, core: int | None = None) -> int:
    """Make a server at *pid* that listens, and its engine's core; return the core's pid."""
    tree.add(pid, *serve("--host", "127.0.0.1", "--port", str(port), *flags))
    tree.listen(pid, "127.0.0.1", port)
    return tree.title(core or pid + 1, "VLLM::EngineCore", parent=pid)


def test_a_server_is_found_with_its_flags_and_its_rank(tree: ProcTree) -> None:
    """From the pid that NVML lists to the server, what it was told and where to ask it."""
    core = add_engine(tree, 100, 8402, "--max-model-len", "2048", "--max-num-seqs", "64")

    found = tree.look(gpu(0, core))

    server = found.servers["127.0.0.1:8402"]
    assert server.address.url == "http://127.0.0.1:8402"
    assert server.address.is_listening
    assert server.command is not None
    assert server.command.model == "org/m"
    assert server.command.options["max-num-seqs"] == 64
    assert found.owners[core].server_id == "127.0.0.1:8402"
    rank = server.ranks[core]
    assert (rank.data, rank.pipeline, rank.tensor) == (0, 0, 0)


def test_a_server_without_a_gpu_is_found_too(tree: ProcTree) -> None:
    """Where NVML lists no process (a CPU, WSL, no permission) the tree alone tells."""
    add_engine(tree, 100, 8000)

    assert set(tree.look().servers) == {"127.0.0.1:8000"}
    assert set(tree.look(GpuReading("0", "GPU-0", processes=None)).servers) == {"127.0.0.1:8000"}


def test_a_starting_server_is_there_before_it_listens(tree: ProcTree) -> None:
    """What it was told says where it will be, until a socket is seen."""
    tree.add(100, *serve("--port", "8123"))
    discovery = tree.discovery()
    starting = discovery.look(()).servers["127.0.0.1:8123"]

    tree.listen(100, "0.0.0.0", 8123)
    listening = discovery.look(()).servers["127.0.0.1:8123"]

    assert starting.address.is_listening is False
    assert listening.address.is_listening


def test_tensor_ranks_lie_on_their_gpus(tree: ProcTree) -> None:
    """With TP 2 each worker is a rank on the GPU that NVML lists it on."""
    tree.add(100, *serve("-tp", "2"))
    tree.title(101, "VLLM::EngineCore", parent=100)
    for rank in (0, 1):
        tree.title(102 + rank, f"VLLM::Worker_TP{rank}", parent=101, padding=" " * 60)

    found = tree.look(gpu(0, 102), gpu(1, 103))

    (server,) = found.servers.values()
    assert {pid: rank.tensor for pid, rank in server.ranks.items()} == {102: 0, 103: 1}
    assert {owner.server_id for owner in found.owners.values()} == set(found.servers)


def test_untitled_ranks_are_told_by_their_gpus(tree: ProcTree) -> None:
    """Before 0.10.1 workers have no title; ranks follow the order of the visible devices."""
    environment = {"CUDA_VISIBLE_DEVICES": "1,0"}
    tree.add(100, *serve("--tensor-parallel-size", "2"), environment=environment)
    for pid in (101, 102):
        tree.add(pid, "python", "-c", "from multiprocessing.spawn import spawn_main", parent=100)

    (server,) = tree.look(gpu(0, 101), gpu(1, 102)).servers.values()

    assert {pid: rank.tensor for pid, rank in server.ranks.items()} == {101: 1, 102: 0}
    owner = tree.look(gpu(0, 101), gpu(1, 102)).owners[101].owner
    assert owner.rank == server.ranks[101]


def test_two_engines_and_a_stranger_share_a_card(tree: ProcTree) -> None:
    """Each process on the card has its own owner; the stranger has none of ours."""
    cores = add_engine(tree, 100, 8000), add_engine(tree, 200, 8001)
    tree.add(300, "python", "train.py")

    found = tree.look(gpu(0, *cores, 300))

    owners = {pid: (owner.owner.kind, owner.server_id) for pid, owner in found.owners.items()}
    assert owners == {
        cores[0]: ("engine", "127.0.0.1:8000"),
        cores[1]: ("engine", "127.0.0.1:8001"),
        300: ("other", None),
    }
    assert found.owners[300].process_name == "python"


def test_several_api_servers_are_one_server(tree: ProcTree) -> None:
    """With --api-server-count they share the socket of their parent.

    Source: `ps` and sockets of a real 0.28.0 with --data-parallel-size 2.
    """
    tree.add(100, *serve("--port", "8299", "--data-parallel-size", "2"))
    for index in (0, 1):
        tree.title(110 + index, f"VLLM::APIServer_{index}", parent=100)
        tree.title(120 + index, f"VLLM::EngineCore_DP{index}", parent=100)
    tree.listen(100, "127.0.0.1", 8299, 110, 111)

    (server,) = tree.look(gpu(0, 120), gpu(1, 121)).servers.values()

    assert server.address.url == "http://127.0.0.1:8299"
    assert {pid: rank.data for pid, rank in server.ranks.items()} == {120: 0, 121: 1}


def test_a_supervisor_of_several_ports_is_several_servers(tree: ProcTree) -> None:
    """With one port a data-parallel rank, each rank's API server is asked for itself.

    Source: vLLM 0.32 gives local rank r the port --port + r and the title APIServer_DPr.
    """
    flags = ("--data-parallel-multi-port-external-lb", "--data-parallel-size-local", "2")
    tree.add(100, *serve("--port", "8100", "-dp", "2", *flags))
    tree.listen(100, "0.0.0.0", 9000)
    for rank in (0, 1):
        tree.title(110 + rank, f"VLLM::APIServer_DP{rank}", parent=100)
        tree.listen(110 + rank, "0.0.0.0", 8100 + rank)
        tree.title(120 + rank, f"VLLM::EngineCore_DP{rank}", parent=110 + rank)

    found = tree.look(gpu(0, 120), gpu(1, 121))

    assert set(found.servers) == {"127.0.0.1:8100", "127.0.0.1:8101"}
    assert found.owners[121].server_id == "127.0.0.1:8101"
    assert found.servers["127.0.0.1:8101"].ranks[121].data == 1


def test_a_launcher_that_listens_is_a_server(tree: ProcTree) -> None:
    """A script of one's own that runs vLLM's server is found by its child and its socket."""
    tree.add(100, "/usr/bin/python3", "/srv/launch.py", "--model", "org/m", "--max-num-seqs", "8")
    tree.title(101, "team::EngineCore", parent=100)
    tree.listen(100, "0.0.0.0", 9100)

    found = tree.look(gpu(0, 101))

    server = found.servers["127.0.0.1:9100"]
    assert server.command is not None
    assert (server.command.model, server.command.options["max-num-seqs"]) == ("org/m", 8)
    assert found.owners[101].owner.kind == "engine"


def test_offline_use_is_no_server(tree: ProcTree) -> None:
    """A script with an LLM object listens nowhere, and its memory is its own."""
    tree.add(100, "/usr/bin/python3", "/srv/batch.py")
    tree.title(101, "VLLM::EngineCore", parent=100)

    found = tree.look(gpu(0, 101))

    assert not found.servers
    assert found.owners[101].owner.kind == "offline"
    assert found.owners[101].server_id is None


def test_a_shell_that_becomes_a_server_is_seen_at_the_next_look(tree: ProcTree) -> None:
    """An entry point ends with exec, which keeps pid and start."""
    tree.add(100, "bash", "/entrypoint.sh", start=5000)
    discovery = tree.discovery()
    before = discovery.look(()).servers

    tree.add(100, *serve("--port", "8000"), start=5000, environment={"HOME": "/srv"})
    after = discovery.look(()).servers

    assert not before
    assert after["127.0.0.1:8000"].environment == {"HOME": "/srv"}


def test_an_engine_that_moves_keeps_its_id(tree: ProcTree) -> None:
    """Started again with the same words on another port, it is the same server at one look."""
    add_engine(tree, 100, 8000, "--max-num-seqs", "8")
    discovery = tree.discovery()
    discovery.look(())
    tree.end(100)
    add_engine(tree, 200, 8001, "--max-num-seqs", "8", core=301)

    found = discovery.look((gpu(0, 301),))

    assert set(found.servers) == {"127.0.0.1:8000"}
    assert found.servers["127.0.0.1:8000"].address.url == "http://127.0.0.1:8001"
    assert found.owners[301].server_id == "127.0.0.1:8000"


def test_what_a_dead_server_left_on_the_gpu_is_still_its_own(tree: ProcTree) -> None:
    """An engine that outlives its server is known by what was seen before."""
    core = add_engine(tree, 100, 8000)
    discovery = tree.discovery()
    discovery.look((gpu(0, core),))
    tree.end(100)

    for _ in range(2):
        found = discovery.look((gpu(0, core),))
        assert not found.servers
        assert found.owners[core].server_id == "127.0.0.1:8000"


def test_an_orphan_seen_for_the_first_time_is_unknown(tree: ProcTree) -> None:
    """Without a server and without a past nothing tells whose it is."""
    tree.title(101, "VLLM::EngineCore", parent=1)

    owner = tree.look(gpu(0, 101)).owners[101]

    assert (owner.owner.kind, owner.owner.reason) == ("unknown", "orphan")


def test_zombies_and_pids_out_of_sight_are_unknown(tree: ProcTree) -> None:
    """The driver may still list what has ended, or what only the host sees."""
    tree.add(101, parent=1, state="Z")

    owners = tree.look(gpu(0, 101, 999)).owners

    assert owners[101].owner.reason == "zombie"
    assert owners[999].owner.reason == "gone"


def test_garbage_costs_no_other_process(tree: ProcTree) -> None:
    """Entries that hold nonsense, nothing or a folder are passed over."""
    core = add_engine(tree, 100, 8000)
    for pid, stat in ((300, b""), (301, b"\xff\xfe"), (302, b"302 (x"), (303, b"303 (x) S one")):
        tree.add(pid, "x")
        (tree.root / str(pid) / "stat").write_bytes(stat)
    tree.add(304, "x")
    (tree.root / "304" / "stat").unlink()
    (tree.root / "304" / "stat").mkdir()
    tree.add(305, "\udcff::EngineCore".encode("utf-8", "surrogateescape").decode("latin-1"))

    found = tree.look(gpu(0, core, 300, 304))

    assert set(found.servers) == {"127.0.0.1:8000"}
    assert found.owners[300].owner.reason == "gone"


def test_a_pod_is_told_by_its_cgroup_and_its_log_folder(tree: ProcTree, tmp_path: Path) -> None:
    """Container and pod come from the cgroup, the pod's name from /var/log/pods."""
    uid, container = "0f1e2d3c-aaaa-bbbb-cccc-0123456789ab", "4" * 64
    cgroup = (
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"
        f"{uid.replace('-', '_')}.slice/cri-containerd-{container}.scope"
    )
    tree.add(100, *serve(), cgroup=cgroup, environment={"HOSTNAME": "renamed"})
    tree.title(101, "VLLM::EngineCore", parent=100)
    (tree.root / "101" / "cgroup").write_text(cgroup)
    logs = tmp_path / "pods"
    (logs / f"prod_llm-0_{uid}").mkdir(parents=True)

    found = tree.discovery(pod_logs=str(logs)).look((gpu(0, 101),))

    (server,) = found.servers.values()
    assert (server.container_id, server.pod_uid) == (container, uid)
    assert (server.pod_namespace, server.pod_name) == ("prod", "llm-0")
    assert found.owners[101].pod_name == "llm-0"
    (unmounted,) = tree.look().servers.values()
    assert (unmounted.pod_namespace, unmounted.pod_name) == (None, "renamed")


def test_a_container_of_its_own_network_is_asked_at_its_address(tree: ProcTree) -> None:
    """Where the server listens on every address of another namespace, its own one is used."""
    tree.add(100, *serve("--port", "8000"), network="net:[4026539999]")
    tree.listen(100, "0.0.0.0", 8000)
    tree.addresses(100, "127.0.0.1", "172.17.0.2")

    assert set(tree.look().servers) == {"172.17.0.2:8000"}


def test_a_loopback_of_another_network_cannot_be_asked(tree: ProcTree) -> None:
    """The server is known and its reason said, instead of asking our own loopback."""
    tree.add(100, *serve("--host", "127.0.0.1"), network="net:[4026539999]")
    tree.listen(100, "127.0.0.1", 8000)
    tree.addresses(100, "172.17.0.2")

    (server,) = tree.look().servers.values()

    assert server.address.url is None
    assert server.address.unreachable == "other_namespace"


def test_options_come_from_the_config_file_as_the_server_sees_it(
    tree: ProcTree, tmp_path: Path
) -> None:
    """--config is read where the server reads it: in its root, from its working directory."""
    root = tmp_path / "container"
    (root / "srv").mkdir(parents=True)
    (root / "srv" / "vllm.yaml").write_text("port: 8555\nmax-num-seqs: 7\nmodel: org/x\n")
    words = ("/bin/python3", "/bin/vllm", "serve", "--config", "vllm.yaml")
    tree.add(100, *words, root=root, working_directory="/srv", cgroup=f"0::/docker/{'a' * 64}")

    (server,) = tree.look().servers.values()

    assert server.command is not None
    assert (server.command.port, server.command.options["max-num-seqs"]) == (8555, 7)
    assert server.command.model == "org/x"


def test_a_config_file_that_cannot_be_read_leaves_the_command_unknown(tree: ProcTree) -> None:
    """Half of the options would be a guess; the socket still says where the server is."""
    tree.add(100, *serve("--config", "/nowhere.yaml", "--port", "8000"))
    tree.listen(100, "127.0.0.1", 8777)

    server = tree.look().servers["127.0.0.1:8777"]

    assert server.command is None
    tree.listen(100, "127.0.0.1", 8000)
    tree.listen(100, "127.0.0.1", 8778)
    assert "127.0.0.1:8000" in tree.look().servers
    assert "/nowhere.yaml" in (server.problem or "")


def test_a_unix_socket_and_a_headless_node_have_no_url(tree: ProcTree) -> None:
    """What has no HTTP port is known and said to be out of reach."""
    tree.add(100, *serve("--uds", "/run/vllm.sock"))
    tree.add(200, *serve("--headless", "--port", "8001"))

    reasons = {server.address.unreachable for server in tree.look().servers.values()}

    assert reasons == {"unix_socket", "headless"}


def test_there_is_an_error_where_there_is_no_proc(tmp_path: Path) -> None:
    """A root that is no /proc is said, not taken for an empty node."""
    tree = ProcTree(tmp_path)
    discovery = tree.discovery()
    tree.root.rename(tmp_path / "elsewhere")

    with pytest.raises(OSError, match="proc"):
        discovery.look(())


def test_another_users_server_is_found_as_far_as_it_may_be_seen(tree: ProcTree) -> None:
    """Without permission for its variables, folders and descriptors the words still tell."""
    tree.add(100, *serve("--port", "8005"))
    tree.listen(100, "0.0.0.0", 8005)
    for name in ("environ", "cwd", "ns/net"):
        (tree.root / "100" / name).unlink()
    (tree.root / "100" / "fd").rename(tree.root / "100" / "shut")

    server = tree.look(gpu(0)).servers["127.0.0.1:8005"]

    assert server.address.is_listening
    assert (server.environment, server.working_directory, server.devices) == (None, None, None)


def test_a_port_that_another_holds_is_not_the_servers(tree: ProcTree) -> None:
    """Who answers at the port of a server that could not take it is not that server."""
    add_engine(tree, 100, 8000)
    tree.add(200, *serve("--port", "8000", "--max-num-seqs", "3"))
    (tree.root / "200" / "net" / "tcp").write_text((tree.root / "100" / "net" / "tcp").read_text())

    found = tree.look().servers

    assert {server_id: one.address.is_listening for server_id, one in found.items()} == {
        "127.0.0.1:8000": True,
        "127.0.0.1:8000#2": False,
    }


def test_a_tree_without_stat_is_read_by_status(tree: ProcTree) -> None:
    """A copy of a /proc may hold only the files that people look at."""
    core = add_engine(tree, 100, 8000)
    for pid, parent in ((100, 1), (core, 100)):
        (tree.root / str(pid) / "stat").unlink()
        (tree.root / str(pid) / "status").write_text(
            f"Name:\tx\nState:\tS (sleeping)\nPPid:\t{parent}\nNSpid:\t{pid}\n"
        )

    assert tree.look(gpu(0, core)).owners[core].server_id == "127.0.0.1:8000"


def test_a_model_search_that_hangs_is_not_begun_again(tree: ProcTree) -> None:
    """A disk that does not answer holds one thread, however often the node is looked at."""
    begun: list[object] = []
    tree.add(100, *serve())
    discovery = Discovery(proc=str(tree.root), read_yaml=load_mapping, start=begun.append)

    for _ in range(40):
        discovery.look(())

    assert len(begun) == 1


def test_a_model_that_arrives_later_is_found_later(tree: ProcTree, tmp_path: Path) -> None:
    """A server downloads its model after it has started; it is looked for now and then."""
    folder = tmp_path / "m"
    tree.add(100, *serve(model=str(folder)))
    discovery = tree.discovery()
    before = discovery.look(()).servers["127.0.0.1:8000"].model
    folder.mkdir()
    (folder / "config.json").write_text("{}")

    looks = [discovery.look(()).servers["127.0.0.1:8000"].model for _ in range(12)]

    assert before is None
    assert looks[-1] is not None
    assert looks[-1].config.samefile(folder / "config.json")
