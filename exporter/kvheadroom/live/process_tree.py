"""Tell from the tree of processes who serves, and which rank of whose engine a process is."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Final, Literal

from kvheadroom.readings import ProcessReading

Processes = Mapping[int, ProcessReading]
# Pid and start: no two processes share both.
Start = tuple[int, int]

OwnerKind = Literal[
    "engine",  # a rank of a server's engine
    "offline",  # vLLM without a server
    "other",  # no vLLM at all
    "unknown",  # vLLM perhaps; the reason says why it cannot be told
]
UnknownReason = Literal[
    "gone",  # no such process here: it ended, or it lives in a pid namespace we do not see
    "zombie",  # ended, and holds nothing
    "orphan",  # its server is gone, and no earlier poll knew whose it was
    "ray",  # Ray starts its workers elsewhere in the tree than the server
]

Role = Literal["EngineCore", "Worker", "APIServer", "DPCoordinator"]

_ROLES: Final[Mapping[str, Role]] = {
    "EngineCore": "EngineCore",
    "DPEngineCore": "EngineCore",
    "Worker": "Worker",
    "APIServer": "APIServer",
    "DPCoordinator": "DPCoordinator",
}
_INTERPRETER: Final = re.compile(r"(?:.*/)?(?:python|pypy)[\d.]*t?d?|(?:.*/)?python3?-[\w.-]+")
_VALUED_SWITCHES: Final = frozenset({"-W", "-X", "--check-hash-based-pycs"})
_SERVER_MODULE: Final = re.compile(
    r"vllm\.entrypoints\.(?:\w+\.)*api_server(?:\.entry)?|(?:.*/)?api_server\.py"
)
_CLI_MODULE: Final = re.compile(r"vllm|vllm\.entrypoints\.cli(?:\.main)?|vllm\.scripts")
# Modules that run another program in their own process, whose words follow theirs.
_RUNNERS: Final = frozenset({"coverage", "debugpy", "cProfile", "viztracer", "scalene", "pdb"})
# Any prefix: VLLM_PROCESS_NAME_PREFIX sets it.
_TITLE: Final = re.compile(rf"(?s:.*)::(?P<role>{'|'.join(_ROLES)})(?P<ranks>(?:_[A-Z]*\d+)*)")
_RANK: Final = re.compile(r"_([A-Z]*)(\d+)")
_RAY_TITLE: Final = re.compile(r"ray::")
_RAY_PARENT: Final = re.compile(r"(?:.*/)?raylet")
# Who takes over the children of the dead, by the kernel's name of it.
_ADOPTER: Final = re.compile(
    r"systemd|init|tini|dumb-init|docker-init|catatonit|conmon|crun|s6-.*|runsv|containerd-shim.*"
)
_DEEPEST: Final = 64


@dataclass(frozen=True, slots=True)
class Title:
    """What vLLM calls one of its processes.

    Attributes:
        role: What it does.
        ranks: By dimension: ``DP``, ``PP``, ``PCP``, ``TP``, ``DCP``, ``EP``; of an API server
            also its ``index``.
    """

    role: Role
    ranks: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Rank:
    """Place of one process in its server's ranks; ``None`` where neither title nor tree tells.

    Attributes:
        data: Data-parallel rank: which engine of the server's it belongs to.
        pipeline: Pipeline stage.
        tensor: Tensor-parallel rank.
        others: Of further dimensions, by their name in the title (``PCP``, ``DCP``, ``EP``).
    """

    data: int | None = None
    pipeline: int | None = None
    tensor: int | None = None
    others: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose a process is.

    Attributes:
        kind: What it belongs to.
        server_pid: The server's process, or that of the program which runs vLLM offline.
        rank: Its place in an engine; ``None`` for what is no rank of one.
        reason: Why it is unknown.
    """

    kind: OwnerKind
    server_pid: int | None = None
    rank: Rank | None = None
    reason: UnknownReason | None = None


def parse_title(process: ProcessReading) -> Title | None:
    """Return what vLLM titled *process*; ``None`` for a process without such a title.

    Source:
        vLLM 0.10.1 to 0.32. The first of them wrote ``DPEngineCore_0`` for ``EngineCore_DP0``.
    """
    argv = process.argv
    return _parse_title(argv[0]) if argv and "::" in argv[0] else None


@lru_cache(maxsize=4096)
def _parse_title(text: str) -> Title | None:
    match = _TITLE.fullmatch(text)
    if match is None:
        return None
    role = _ROLES[match["role"]]
    unnamed = "DP" if role == "EngineCore" else "index"
    ranks = {name or unnamed: int(rank) for name, rank in _RANK.findall(match["ranks"])}
    return Title(role, MappingProxyType(ranks))


@lru_cache(maxsize=16_384)
def is_server_command(argv: tuple[str, ...]) -> bool:
    """Tell whether *argv* is a vLLM server's own process, and no shell or tool that starts one."""
    words = _program(argv)
    if not words:
        return False
    if words[0] == "-m":
        return bool(_SERVER_MODULE.fullmatch(words[1])) or (
            _CLI_MODULE.fullmatch(words[1]) is not None and words[2:3] == ("serve",)
        )
    script = words[0]
    if script.rpartition("/")[2] == "vllm" and words[1:2] == ("serve",):
        return True
    return "vllm" in script and _SERVER_MODULE.fullmatch(script) is not None


def launcher_arguments(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return what a Python program that is no ``vllm serve`` was told."""
    words = _program(argv)
    return words[2:] if words[:1] == ("-m",) else words[1:]


def _program(argv: tuple[str, ...], depth: int = 0) -> tuple[str, ...]:
    """Return the words from the program on: a script, or ``-m`` and a module; else none."""
    if not argv:
        return ()
    if not _INTERPRETER.fullmatch(argv[0]):
        return argv
    at = 1
    while at < len(argv) and argv[at].startswith("-") and not argv[at].startswith("-m"):
        if argv[at] == "-c":
            return ()
        at += 2 if argv[at] in _VALUED_SWITCHES else 1
    words = argv[at:]
    if words and words[0].startswith("-m") and words[0] != "-m":
        words = ("-m", words[0][2:], *words[1:])
    if words[:1] == ("-m",) and len(words) < 2:  # noqa: PLR2004
        return ()
    if words[:1] == ("-m",) and words[1] in _RUNNERS and not depth:
        return _run_by(words[2:])
    return words


def _run_by(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the program among the *words* given to a module that runs one."""
    for at, word in enumerate(words):
        if word == "-m" or word.rpartition("/")[2] == "vllm":
            return _program(("python", *words[at:]), depth=1)
    return ()


def server_of(pid: int, processes: Processes) -> ProcessReading | None:
    """Return the vLLM server that process *pid* is or descends from; ``None`` without one."""
    found: ProcessReading | None = None
    for process in lineage(pid, processes):
        if found is None:
            found = process if is_server_command(process.argv) else None
        elif process.argv == found.argv:
            # A child that was forked and not renamed carries its parent's words.
            found = process
        else:
            break
    return found


def lineage(pid: int, processes: Processes) -> Iterator[ProcessReading]:
    """Yield process *pid* and its ancestors, nearest first, as far as they are known."""
    for _ in range(_DEEPEST):
        process = processes.get(pid)
        if process is None:
            return
        yield process
        if process.parent_pid == pid:
            return
        pid = process.parent_pid


def find_servers(processes: Processes) -> tuple[ProcessReading, ...]:
    """Return every vLLM server among *processes*, whether it listens yet or not, by pid."""
    pids = {
        server.pid
        for pid, process in processes.items()
        if process.state != "Z" and is_server_command(process.argv)
        if (server := server_of(pid, processes)) is not None and server.state != "Z"
    }
    return tuple(processes[pid] for pid in sorted(pids))


def find_titled(processes: Processes) -> tuple[ProcessReading, ...]:
    """Return the living processes that vLLM gave a title."""
    return tuple(
        process
        for process in processes.values()
        if process.argv and "::" in process.argv[0] and process.state != "Z"
        if parse_title(process)
    )


def find_launchers(
    processes: Processes, titled: Iterable[ProcessReading]
) -> tuple[ProcessReading, ...]:
    """Return the programs that are no ``vllm serve`` but have an engine's core for a child.

    One that listens is a server with a launcher of its own; one that does not runs vLLM offline.

    Args:
        processes: All that can be seen.
        titled: Those of them with a title.
    """
    pids: set[int] = set()
    for process in titled:
        title = parse_title(process)
        if title is None or title.role not in ("EngineCore", "APIServer"):
            continue
        if server_of(process.pid, processes) is None:
            root = _untitled(process.pid, processes)
            pids |= set() if root is None else {root.pid}
    return tuple(processes[pid] for pid in sorted(pids))


def _untitled(pid: int, processes: Processes) -> ProcessReading | None:
    """Return the nearest living ancestor that is no vLLM child; ``None`` where it is gone."""
    for process in lineage(pid, processes):
        if parse_title(process) is None:
            return process if _could_launch(process) else None
    return None


def _could_launch(process: ProcessReading) -> bool:
    """Tell whether *process* may be a program that uses vLLM, and not who adopts the orphaned."""
    if not process.argv:
        return False
    adopts = process.pid == 1 or _ADOPTER.fullmatch(process.command_name) is not None
    return not adopts or _INTERPRETER.fullmatch(process.argv[0]) is not None


def owners_of(
    pids: Iterable[int],
    processes: Processes,
    *,
    launchers: Iterable[int] = (),
    earlier: Mapping[Start, Owner] | None = None,
) -> Mapping[int, Owner]:
    """Return whose each of *pids* is.

    Args:
        pids: Processes that hold GPU memory.
        processes: All that can be seen.
        launchers: Programs that use vLLM, as `find_launchers` knows them.
        earlier: What was found before: an orphan's server is known from then.

    Returns:
        The owners; a rank has what its title and its parents' titles tell.
    """
    known = frozenset(launchers)
    return MappingProxyType({pid: _owner_of(pid, processes, known, earlier or {}) for pid in pids})


def _owner_of(
    pid: int, processes: Processes, launchers: frozenset[int], earlier: Mapping[Start, Owner]
) -> Owner:
    process = processes.get(pid)
    if process is None or process.state == "Z":
        return Owner("unknown", reason="gone" if process is None else "zombie")
    server = server_of(pid, processes)
    if server is not None:
        return Owner("engine", server.pid, rank_of(pid, processes))
    before = earlier.get((pid, process.started_ticks))
    if before is not None and before.server_pid is not None:
        # Whose it was it stays, whoever adopts it.
        return before
    launcher = next((one.pid for one in lineage(pid, processes) if one.pid in launchers), None)
    if _is_rays(pid, processes):
        return Owner("unknown", reason="ray")
    if launcher is not None:
        return Owner("offline", launcher, rank_of(pid, processes))
    is_vllm = parse_title(process) is not None
    return Owner("unknown", reason="orphan") if is_vllm else Owner("other")


def _is_rays(pid: int, processes: Processes) -> bool:
    return any(
        _RAY_TITLE.match(one.argv[0]) or _RAY_PARENT.fullmatch(one.argv[0])
        for one in lineage(pid, processes)
        if one.argv
    )


def rank_of(pid: int, processes: Processes) -> Rank:
    """Return the place of process *pid*, by its own title first and its parents' for the rest."""
    ranks: dict[str, int] = {}
    for process in lineage(pid, processes):
        title = parse_title(process)
        if title is None and process.pid != pid:
            break
        for name, rank in (title.ranks if title else {}).items():
            ranks.setdefault(name, rank)
    ranks.pop("index", None)
    others = {name: rank for name, rank in ranks.items() if name not in ("DP", "PP", "TP")}
    return Rank(ranks.get("DP"), ranks.get("PP"), ranks.get("TP"), MappingProxyType(others))
