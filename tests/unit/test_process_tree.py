"""Who is whose, after ``ps`` of real servers and the titles that vLLM 0.10.1 to 0.32 sets."""

import pytest

from kvheadroom.live.process_tree import (
    Owner,
    find_launchers,
    find_servers,
    find_titled,
    is_server_command,
    owners_of,
    parse_title,
    rank_of,
)
from kvheadroom.readings import ProcessReading

SERVE = ("/opt/venv/bin/python", "/opt/venv/bin/vllm", "serve", "m", "--port", "8299")
TRACKER = ("/opt/venv/bin/python", "-B", "-c", "from multiprocessing.resource_tracker import main")
SPAWNED = (
    "/opt/venv/bin/python",
    "-c",
    "from multiprocessing.spawn import spawn_main; spawn_main()",
)


def process(pid: int, parent: int, *argv: str, state: str = "S", start: int = 0) -> ProcessReading:
    return ProcessReading(pid, parent, start or pid, state, "name", argv)


def tree(*processes: ProcessReading) -> dict[int, ProcessReading]:
    return {one.pid: one for one in (process(1, 0, "/sbin/init"), *processes)}


def owner(pid: int, processes: dict[int, ProcessReading]) -> Owner:
    titled = find_titled(processes)
    launchers = [one.pid for one in find_launchers(processes, titled)]
    return owners_of([pid], processes, launchers=launchers)[pid]


@pytest.mark.parametrize(
    "argv",
    [
        SERVE,
        ("vllm", "serve", "m"),
        ("/usr/bin/python3.12", "-u", "-X", "dev", "/usr/local/bin/vllm", "serve"),
        ("python", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"),
        ("python3", "-m", "vllm.entrypoints.cli.main", "serve", "m"),
        ("python3", "-mvllm.entrypoints.openai.api_server"),
        ("python", "/site-packages/vllm/entrypoints/openai/api_server.py", "--model", "m"),
        ("python", "-m", "debugpy", "--listen", "5678", "/opt/bin/vllm", "serve", "m"),
        ("python", "-m", "coverage", "run", "-m", "vllm.entrypoints.openai.api_server"),
    ],
)
def test_a_server_is_known_by_its_words(argv: tuple[str, ...]) -> None:
    """Every way to start vLLM's server makes a process that is known as one."""
    assert is_server_command(argv)


@pytest.mark.parametrize(
    "argv",
    [
        ("bash", "-c", "vllm serve m --port 8000"),
        ("docker", "run", "vllm/vllm-openai", "vllm", "serve", "m"),
        ("sudo", "-u", "llm", "/opt/bin/vllm", "serve", "m"),
        ("tini", "--", "vllm", "serve", "m"),
        ("grep", "-r", "vllm", "serve"),
        ("vim", "/srv/vllm/entrypoints/openai/api_server.py"),
        ("python", "-c", "import vllm", "serve"),
        ("python", "-m", "kvheadroom", "serve"),
        ("/opt/bin/python", "/opt/bin/vllm", "bench", "serve"),
        ("/opt/bin/python", "/opt/bin/vllm", "chat"),
        ("python", "-m"),
        ("python",),
        (),
    ],
)
def test_what_only_starts_or_names_a_server_is_none(argv: tuple[str, ...]) -> None:
    """A shell, a container's client or an editor is not the server it speaks of."""
    assert not is_server_command(argv)


@pytest.mark.parametrize(
    ("title", "role", "ranks"),
    [
        ("VLLM::EngineCore", "EngineCore", {}),
        ("VLLM::EngineCore_DP1", "EngineCore", {"DP": 1}),
        ("VLLM::DPEngineCore_0", "EngineCore", {"DP": 0}),
        ("VLLM::Worker", "Worker", {}),
        ("VLLM::Worker_TP3", "Worker", {"TP": 3}),
        ("VLLM::Worker_DP0_PP1_PCP0_TP2_DCP1_EP10", "Worker",
         {"DP": 0, "PP": 1, "PCP": 0, "TP": 2, "DCP": 1, "EP": 10}),
        ("chat team::Worker_TP1", "Worker", {"TP": 1}),
        ("a::b::EngineCore", "EngineCore", {}),
        ("VLLM::APIServer_1", "APIServer", {"index": 1}),
        ("VLLM::APIServer_DP1", "APIServer", {"DP": 1}),
        ("VLLM::DPCoordinator", "DPCoordinator", {}),
    ],
)  # fmt: skip
def test_a_title_tells_role_and_ranks(title: str, role: str, ranks: dict[str, int]) -> None:
    """A title is read whatever its prefix and however many dimensions it names."""
    found = parse_title(process(9, 1, title))

    assert found is not None
    assert (found.role, found.ranks) == (role, ranks)


@pytest.mark.parametrize("title", ["sglang::scheduler_TP0", "ray::IDLE", "VLLM::Other", "Worker"])
def test_another_title_is_none_of_ours(title: str) -> None:
    """Other programs title their processes alike, and are not vLLM."""
    assert parse_title(process(9, 1, title)) is None


def test_ranks_of_two_engines_come_from_their_cores() -> None:
    """A worker whose title names no data-parallel rank takes that of the core it belongs to.

    Source: `ps` of a real 0.28.0 with --data-parallel-size 2.
    """
    processes = tree(
        process(6882, 1, *SERVE, "--data-parallel-size", "2"),
        process(7112, 6882, *TRACKER),
        process(7113, 6882, "VLLM::DPCoordinator"),
        process(7310, 6882, "VLLM::EngineCore_DP0"),
        process(7573, 7310, "VLLM::Worker"),
        process(7311, 6882, "VLLM::EngineCore_DP1"),
        process(7568, 7311, "VLLM::Worker"),
        process(7312, 6882, "VLLM::APIServer_0"),
    )

    assert {pid: rank_of(pid, processes).data for pid in (7573, 7568)} == {7573: 0, 7568: 1}
    assert {owner(pid, processes).server_pid for pid in (7573, 7568)} == {6882}
    assert [server.pid for server in find_servers(processes)] == [6882]


def test_children_without_a_title_belong_to_their_server() -> None:
    """Versions before 0.10.1 start children by multiprocessing and give them no title."""
    processes = tree(process(10, 1, *SERVE), process(11, 10, *SPAWNED), process(12, 11, *SPAWNED))

    assert owner(12, processes).server_pid == 10
    assert owner(12, processes).kind == "engine"


def test_a_forked_copy_is_not_a_second_server() -> None:
    """A child that was forked carries its parent's words; the parent is the server."""
    processes = tree(process(10, 1, *SERVE), process(11, 10, *SERVE), process(12, 11, *SERVE))

    assert owner(12, processes).server_pid == 10
    assert [server.pid for server in find_servers(processes)] == [10]


def test_a_shell_around_the_server_is_passed_over() -> None:
    """The nearest process that is a server counts, not what started it."""
    processes = tree(
        process(5, 1, "bash", "-c", "vllm serve m"),
        process(10, 5, *SERVE),
        process(11, 10, "VLLM::EngineCore"),
    )

    assert owner(11, processes).server_pid == 10


def test_a_server_in_one_process_holds_the_gpu_itself() -> None:
    """V0, and V1 without multiprocessing, run the engine where the server is."""
    assert owner(10, tree(process(10, 1, *SERVE))).server_pid == 10


def test_an_engine_without_a_server_is_offline_use() -> None:
    """A script that makes an LLM object owns the engine below it."""
    processes = tree(
        process(10, 1, "python", "batch.py"),
        process(11, 10, "VLLM::EngineCore"),
        process(12, 11, "VLLM::Worker_TP1"),
    )

    found = owner(12, processes)
    assert (found.kind, found.server_pid) == ("offline", 10)
    assert found.rank is not None
    assert found.rank.tensor == 1


def test_a_program_in_another_language_may_embed_it() -> None:
    """What has an engine for a child uses it, unless it is one who adopts the orphaned."""
    program = process(10, 1, "/opt/bin/gateway", "--fast")
    processes = tree(program, process(11, 10, "VLLM::EngineCore"))
    assert owner(11, processes).kind == "offline"

    shim = ProcessReading(20, 1, 20, "S", "containerd-shim", ("/usr/bin/containerd-shim-runc-v2",))
    assert owner(21, tree(shim, process(21, 20, "VLLM::EngineCore"))).reason == "orphan"


def test_an_orphan_is_unknown() -> None:
    """An engine whose server died hangs below init, and nothing tells whose it was."""
    found = owner(11, tree(process(11, 1, "VLLM::EngineCore")))

    assert (found.kind, found.reason) == ("unknown", "orphan")


def test_an_orphan_that_was_known_keeps_its_server() -> None:
    """What an earlier poll saw of the same process still holds when its server is gone."""
    orphan = process(11, 1, "VLLM::EngineCore", start=77)
    before = Owner("engine", 10)

    found = owners_of([11], tree(orphan), earlier={(11, 77): before})

    assert found[11] == before
    reused = owners_of([11], tree(orphan), earlier={(11, 76): before})
    assert reused[11].reason == "orphan"


def test_rays_workers_are_said_to_be_unknown() -> None:
    """Ray starts GPU workers below its own daemon, from where no server is reached."""
    raylet = process(20, 1, "/site-packages/ray/core/src/ray/raylet/raylet", "--x")
    processes = tree(
        raylet,
        process(21, 20, "ray::RayWorkerWrapper.execute_method"),
        process(22, 20, "VLLM::Worker_TP0"),
    )

    for pid in (21, 22):
        assert owner(pid, processes).reason == "ray"


def test_a_zombie_and_a_process_out_of_sight_are_unknown() -> None:
    """Neither an ended process nor one of another namespace is guessed at."""
    processes = tree(process(10, 1, *SERVE), process(11, 10, state="Z"))

    assert owner(11, processes).reason == "zombie"
    assert owner(999, processes).reason == "gone"


def test_what_is_no_vllm_is_other() -> None:
    """Training under torchrun, another engine and a desktop are none of ours."""
    processes = tree(
        process(30, 1, "python", "-m", "torch.distributed.run", "train.py"),
        process(31, 30, "python", "train.py"),
        process(40, 1, "python", "-m", "sglang.launch_server"),
        process(41, 40, "sglang::scheduler"),
        process(50, 1, "/usr/lib/xorg/Xorg"),
    )

    assert {owner(pid, processes).kind for pid in (31, 41, 50)} == {"other"}


def test_a_circle_of_parents_ends() -> None:
    """Readings taken while pids change hands may contradict each other; that is no hang."""
    processes = tree(process(10, 11, "a"), process(11, 10, "b"), process(12, 12, "c"))

    assert {owner(pid, processes).kind for pid in (10, 11, 12)} == {"other"}
