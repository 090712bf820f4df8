"""The table of processes, on a made ``/proc`` and by the rules of proc(5)."""

from pathlib import Path

import pytest
from tests.unit.proc_tree import ProcTree

from kvheadroom.node.processes import ProcessTable, parse_process


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    return ProcTree(tmp_path)


def table(tree: ProcTree, *names: str) -> ProcessTable:
    return ProcessTable(str(tree.root), environment_names=frozenset(names))


def stat(name: str) -> bytes:
    return f"7 ({name}) R 3 {'0 ' * 17}9123 0 0".encode()


@pytest.mark.parametrize("name", ["vllm", "a b", "a) R (b", ")", "", "VLLM::EngineCor", "é"])
def test_a_name_may_hold_anything(name: str) -> None:
    """Brackets and spaces in a name do not shift the fields behind it."""
    found = parse_process(7, stat(name), b"x\0")

    assert found is not None
    assert (found.command_name, found.state) == (name, "R")
    assert (found.parent_pid, found.started_ticks) == (3, 9123)


@pytest.mark.parametrize(
    ("cmdline", "argv"),
    [
        (b"python\0-m\0x\0", ("python", "-m", "x")),
        (b"python\0--flag\0\0value\0", ("python", "--flag", "", "value")),
        (b"VLLM::EngineCore" + b"\0" * 90, ("VLLM::EngineCore",)),
        (b"VLLM::Worker_TP0" + b" " * 90, ("VLLM::Worker_TP0",)),
        (b"VLLM::Worker_TP0" + b" " * 9 + b"\0" * 9, ("VLLM::Worker_TP0",)),
        (b"", ()),
        (b"\0\0\0", ()),
        (b"\xff\xfe\0x\0", ("\ufffd\ufffd", "x")),
    ],
)
def test_a_title_is_what_stands_before_its_padding(cmdline: bytes, argv: tuple[str, ...]) -> None:
    """Words end in NUL; a title fills what it does not need with NULs or spaces."""
    found = parse_process(7, stat("x"), cmdline)

    assert found is not None
    assert found.argv == argv


@pytest.mark.parametrize("content", [b"", b"7", b"7 (x) R", b"7 (x) R a", b"\0" * 99])
def test_what_is_no_stat_is_no_process(content: bytes) -> None:
    """A damaged file gives nothing, and no error."""
    assert parse_process(7, content, b"x\0") is None


def test_only_the_variables_asked_for_are_kept(tree: ProcTree) -> None:
    """Whatever else an environment holds is never in a record; the key is kept apart, unseen."""
    variables = {"HOME": "/h", "TOKEN": "planted", "VLLM_API_KEY": "planted-2"}
    tree.add(10, "x", environment=variables)
    processes = table(tree, "HOME", "LANG")

    details = processes.details(processes.look()[10])

    assert details.environment == {"HOME": "/h"}
    assert details.api_key is not None
    assert details.api_key.reveal() == "planted-2"
    assert "planted" not in repr(details)


def test_a_pid_used_again_is_another_process(tree: ProcTree) -> None:
    """Who is looked at closely is told from the one before by its start."""
    tree.add(10, "x", start=100, environment={"HOME": "/old"})
    processes = table(tree, "HOME")
    before = processes.look([10])[10]
    processes.details(before)

    tree.add(10, "x", start=200, environment={"HOME": "/new"})
    after = processes.look([10])[10]

    assert (before.started_ticks, after.started_ticks) == (100, 200)
    assert processes.details(after).environment == {"HOME": "/new"}


def test_ancestors_of_who_matters_are_read_anew(tree: ProcTree) -> None:
    """A shell of long ago that became a server is seen through the child that holds a GPU."""
    for pid in range(10, 400):
        tree.add(pid, "filler", start=pid * 1000)
    tree.add(5, "bash", start=1)
    tree.add(6, "core", parent=5, start=2)
    processes = table(tree)
    for _ in range(3):
        processes.look([6])

    tree.add(5, "server", start=1)

    assert processes.look([6])[5].argv == ("server",)


def test_every_process_is_looked_at_again_in_its_turn(tree: ProcTree) -> None:
    """An old process that becomes another program is seen before long, wherever it stands."""
    for pid in range(10, 500):
        tree.add(pid, "filler", start=pid)
    processes = table(tree)
    processes.look()
    for pid in (10, 250):
        tree.add(pid, "server", start=pid)

    looks = [processes.look() for _ in range(10)]

    assert {looks[-1][pid].argv for pid in (10, 250)} == {("server",)}


def test_who_left_is_gone(tree: ProcTree) -> None:
    """An ended process is in no later look."""
    tree.add(10, "x")
    processes = table(tree)
    assert 10 in processes.look()

    tree.end(10)

    assert 10 not in processes.look([10])
