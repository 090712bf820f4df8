"""Know the processes of this node, at a cost per poll that does not grow with their number."""

import os
from collections.abc import Iterable, Mapping
from heapq import nlargest
from itertools import islice
from operator import attrgetter
from types import MappingProxyType
from typing import Final

from kvheadroom.node.cgroups import placement_of
from kvheadroom.node.proc_files import read_proc_file, read_proc_link, read_proc_text
from kvheadroom.readings import ProcessDetails, ProcessReading
from kvheadroom.redaction import Secret

# A shell becomes a server, and a child gives itself its title, within moments of their start. So
# the youngest processes are read anew at every poll, of all of them as many in turn.
_REREAD: Final = 64
# Linux itself allows no more ancestors than pids; what is deeper than this is no tree of ours.
_DEEPEST: Final = 64
_MOST_COMMAND_BYTES: Final = 256 * 1024
_MOST_ENVIRONMENT_BYTES: Final = 1024 * 1024
_MOST_MOUNT_BYTES: Final = 256 * 1024
# Of a machine with thousands of interrupts.
_MOST_STAT_BYTES: Final = 1024 * 1024
_KEY_VARIABLE: Final = "VLLM_API_KEY"
_START_FIELD: Final = 19  # of those after the name, which may hold anything

# Who a process is and what it runs: an environment is as old as the latest exec.
_Program = tuple[int, int, tuple[str, ...]]


class ProcessTable:
    """The processes under one ``/proc``, read again only where something may have changed.

    For one thread at a time.

    Args:
        root: Where ``/proc`` is; the host's may be mounted elsewhere in a container.
        environment_names: Variables that may be read. No other value is ever kept.
    """

    def __init__(self, root: str, *, environment_names: frozenset[str]) -> None:
        self._root: Final = root
        self._environment_names: Final = environment_names
        # An entry that cannot be read is kept as such, or it would cost a try at every poll.
        self._seen: dict[str, ProcessReading | None] = {}
        self._details: dict[_Program, ProcessDetails] = {}
        self._chains: dict[tuple[int, int], tuple[int, ...]] = {}
        self._turn = 0

    def look(self, closely: Iterable[int] = ()) -> Mapping[int, ProcessReading]:
        """Return every process that can be read, by pid.

        Args:
            closely: Processes that are read anew with all their ancestors, whatever their age.

        Raises:
            OSError: There is no ``/proc`` at the root.
        """
        names = {name for name in os.listdir(self._root) if name.isdecimal()}  # noqa: PTH208
        for name in self._seen.keys() - names:
            del self._seen[name]
        fresh = names - self._seen.keys()
        for name in fresh:
            self._read(name)
        for name in self._due() - fresh:
            self._read_if_changed(name)
        self._read_ancestry(closely, done=fresh)
        processes = {process.pid: process for process in self._seen.values() if process}
        for program in [one for one in self._details if one != _program(processes.get(one[0]))]:
            del self._details[program]
        if self._chains:
            present = {(process.pid, process.started_ticks) for process in processes.values()}
            for start in self._chains.keys() - present:
                del self._chains[start]
        return MappingProxyType(processes)

    def details(self, process: ProcessReading) -> ProcessDetails:
        """Return what else there is to know of *process*; read once as long as it runs that."""
        program = (process.pid, process.started_ticks, process.argv)
        known = self._details.get(program)
        if known is None:
            known = self._details[program] = self._read_details(process.pid)
        return known

    def start_unix_seconds(self, process: ProcessReading) -> float | None:
        """Return when *process* started; ``None`` where the machine's boot is not told."""
        for line in read_proc_text(f"{self._root}/stat", _MOST_STAT_BYTES).splitlines():
            name, _, seconds = line.partition(" ")
            if name == "btime" and seconds.isdecimal():
                return int(seconds) + process.started_ticks / os.sysconf("SC_CLK_TCK")
        return None

    def own_pids(
        self, pids: Iterable[int], processes: Mapping[int, ProcessReading]
    ) -> Mapping[int, int]:
        """Return, for each of the driver's *pids*, the pid under this root.

        The driver counts as we do. Where the root is the host's and we are in a pid namespace of
        our own, those are other numbers; a pid that is not found stays as it is.

        Args:
            pids: As the driver lists them.
            processes: All that can be seen.
        """
        depth = len(_namespace_pids(read_proc_text(f"{self._root}/self/status")))
        if depth <= 1:
            return {pid: pid for pid in pids}
        ours = read_proc_link("/proc/self/ns/pid")
        alike: dict[int, list[int]] = {}
        for process in processes.values():
            chain = self._chain(process)
            if len(chain) >= depth and self._is_inside(process, chain, depth, ours):
                alike.setdefault(chain[depth - 1], []).append(process.pid)
        return {pid: alike[pid][0] if len(alike.get(pid, ())) == 1 else pid for pid in pids}

    def _chain(self, process: ProcessReading) -> tuple[int, ...]:
        start = (process.pid, process.started_ticks)
        chain = self._chains.get(start)
        if chain is None:
            status = read_proc_text(f"{self._root}/{process.pid}/status")
            chain = self._chains[start] = _namespace_pids(status)
        return chain

    def _is_inside(
        self, process: ProcessReading, chain: tuple[int, ...], depth: int, namespace: str | None
    ) -> bool:
        """Tell whether the pid at *depth* of the *chain* may be one of the pid *namespace*."""
        if len(chain) > depth:
            return True
        return read_proc_link(f"{self._root}/{process.pid}/ns/pid") in (namespace, None)

    def _due(self) -> set[str]:
        """Return the names of the youngest processes, and of all those whose turn it is."""
        begin = self._turn
        self._turn = begin + _REREAD if begin + _REREAD < len(self._seen) else 0
        known = (process for process in self._seen.values() if process)
        youngest = nlargest(_REREAD, known, key=attrgetter("started_ticks"))
        return {
            *(str(process.pid) for process in youngest),
            *islice(self._seen, begin, begin + _REREAD),
        }

    def _read_ancestry(self, pids: Iterable[int], *, done: set[str]) -> None:
        done = set(done)
        for pid in pids:
            name, depth = str(pid), 0
            while name != "0" and name not in done and depth < _DEEPEST:
                done.add(name)
                self._read(name)
                process = self._seen.get(name)
                if process is None:
                    break
                name, depth = str(process.parent_pid), depth + 1

    def _read_if_changed(self, name: str) -> None:
        known = self._seen[name]
        words = read_proc_file(f"{self._root}/{name}/cmdline", _MOST_COMMAND_BYTES)
        if known is None or words is None or _argv(words) != known.argv:
            self._read(name)

    def _read(self, name: str) -> None:
        folder = f"{self._root}/{name}"
        stat = read_proc_file(f"{folder}/stat", 4096)
        if stat is None and not os.path.isdir(folder):  # noqa: PTH112
            self._seen.pop(name, None)
            return
        words = read_proc_file(f"{folder}/cmdline", _MOST_COMMAND_BYTES) or b""
        found = parse_process(int(name), stat or b"", words)
        if found is None:
            status = read_proc_text(f"{folder}/status")
            found = _process_of_status(int(name), status, words)
        self._seen[name] = found

    def _read_details(self, pid: int) -> ProcessDetails:
        folder = f"{self._root}/{pid}"
        environ = read_proc_file(f"{folder}/environ", _MOST_ENVIRONMENT_BYTES)
        variables = _variables(environ or b"")
        cgroup = read_proc_text(f"{folder}/cgroup")
        placement = placement_of(cgroup)
        if placement.container_id is None:
            mounts = read_proc_text(f"{folder}/mountinfo", _MOST_MOUNT_BYTES)
            placement = placement_of(cgroup, mounts)
        asked = {name: variables[name] for name in self._environment_names & variables.keys()}
        key = variables.get(_KEY_VARIABLE)
        directory = read_proc_link(f"{folder}/cwd")
        return ProcessDetails(
            environment=None if environ is None else MappingProxyType(asked),
            api_key=Secret(key) if key else None,
            working_directory=directory.removesuffix(" (deleted)") if directory else None,
            namespace_pids=_namespace_pids(read_proc_text(f"{folder}/status")),
            container_id=placement.container_id,
            pod_uid=placement.pod_uid,
            systemd_unit=placement.systemd_unit,
            network_namespace=read_proc_link(f"{folder}/ns/net"),
        )


def parse_process(pid: int, stat: bytes, cmdline: bytes) -> ProcessReading | None:
    """Return the process that ``stat`` and ``cmdline`` describe; ``None`` where they cannot.

    Source:
        proc(5). The name stands in brackets and may hold brackets itself.
    """
    text = stat.decode(errors="replace")
    name = text[text.find("(") + 1 : text.rfind(")")]
    fields = text[text.rfind(")") + 1 :].split()
    try:
        parent_pid, started_ticks = int(fields[1]), int(fields[_START_FIELD])
    except (IndexError, ValueError):
        return None
    return ProcessReading(
        pid=pid,
        parent_pid=parent_pid,
        started_ticks=started_ticks,
        state=fields[0],
        command_name=name,
        argv=_argv(cmdline),
    )


def _process_of_status(pid: int, status: str, cmdline: bytes) -> ProcessReading | None:
    """Return the process that ``status`` describes, for want of ``stat``; it has no start."""
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    parent = fields.get("PPid", "").strip()
    if not parent.isdecimal():
        return None
    state = fields.get("State", "?").strip()[:1]
    return ProcessReading(
        pid, int(parent), 0, state, fields.get("Name", "").strip(), _argv(cmdline)
    )


def _program(process: ProcessReading | None) -> _Program | None:
    return (process.pid, process.started_ticks, process.argv) if process else None


def _argv(cmdline: bytes) -> tuple[str, ...]:
    # Who gives itself a title writes it over its words and fills the rest with NULs or spaces.
    text = cmdline.decode(errors="replace").rstrip("\0 ")
    return tuple(text.split("\0")) if text else ()


def _variables(environ: bytes) -> dict[str, str]:
    pairs = (entry.partition("=") for entry in environ.decode(errors="replace").split("\0"))
    return {name: value for name, equals, value in pairs if equals}


def _namespace_pids(status: str) -> tuple[int, ...]:
    for line in status.splitlines():
        if line.startswith("NSpid:"):
            return tuple(int(word) for word in line.split()[1:] if word.isdecimal())
    return ()
