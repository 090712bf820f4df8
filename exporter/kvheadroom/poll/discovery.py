"""Find the vLLM servers of this node and whose each GPU process is, without being told."""

import threading
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from kvheadroom.live.found_servers import FoundServer, ServersPast, match_servers
from kvheadroom.live.process_tree import (
    Owner,
    Processes,
    Rank,
    Start,
    find_launchers,
    find_servers,
    find_titled,
    lineage,
    owners_of,
    parse_title,
    rank_of,
)
from kvheadroom.live.visible_devices import completed, rank_at, settled
from kvheadroom.node.processes import ProcessTable
from kvheadroom.poll.server_reader import ReadYaml, ServerReader, sizes_of
from kvheadroom.readings import GpuReading, ProcessReading

_LONGEST_NAME: Final = 32


@dataclass(frozen=True, slots=True)
class GpuOwner:
    """Whose a process on a GPU is.

    Attributes:
        owner: As the tree of processes tells.
        server_id: Of the server it belongs to, which an orphan's keeps after its end.
        pid: As our ``/proc`` counts; ``None`` where it is not there.
        namespace_pid: As it sees itself, inside its container.
        process_name: What to call it to a person, at most 32 printable characters.
        container_id: Of the container it runs in.
        pod_uid: Of its pod.
        pod_name: Of its pod.
    """

    owner: Owner
    server_id: str | None = None
    pid: int | None = None
    namespace_pid: int | None = None
    process_name: str | None = None
    container_id: str | None = None
    pod_uid: str | None = None
    pod_name: str | None = None


@dataclass(frozen=True, slots=True)
class Discovered:
    """What one look at the node found.

    Attributes:
        servers: Every vLLM server by its id, those included that are starting.
        owners: Every process that holds GPU memory, by pid.
    """

    servers: Mapping[str, FoundServer] = field(default_factory=lambda: MappingProxyType({}))
    owners: Mapping[int, GpuOwner] = field(default_factory=lambda: MappingProxyType({}))


class Discovery:
    """Looks at the node's processes, and remembers who was who.

    For one thread at a time. Nothing here waits for a disk but the kernel's own ``/proc``: model
    files are looked for apart, and are there at a later look.

    Args:
        read_yaml: Returns the mapping in a server's ``--config`` file, or raises ConfigError.
        proc: Where ``/proc`` is.
        pod_logs: ``/var/log/pods`` or where it is mounted, for the names of pods.
        start: Runs a function apart from the caller.

    Attributes:
        target: Where ``/proc`` is.
    """

    def __init__(
        self,
        *,
        read_yaml: ReadYaml,
        proc: str = "/proc",
        pod_logs: str | None = None,
        start: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self.target: Final = proc
        self._reader: Final = ServerReader(
            proc, read_yaml=read_yaml, pod_logs=pod_logs, start=start or _in_a_thread
        )
        self._table: Final[ProcessTable] = self._reader.table
        self._past = ServersPast()
        self._owners: Mapping[Start, Owner] = {}
        self._server_ids: Mapping[Start, str] = {}
        self._closely: frozenset[int] = frozenset()

    def look(self, gpus: Sequence[GpuReading]) -> Discovered:
        """Return the servers that are there now and the owners of what the *gpus* hold.

        Args:
            gpus: As NVML lists them now; empty where there are none or they cannot be read.

        Raises:
            OSError: There is no ``/proc``.
        """
        holds = _holdings(gpus)
        processes = self._table.look({*holds, *self._closely})
        own_pids = self._table.own_pids(holds, processes)
        titled = find_titled(processes)
        launchers = find_launchers(processes, titled)
        owners = owners_of(
            set(own_pids.values()),
            processes,
            launchers=[process.pid for process in launchers],
            earlier=self._owners,
        )
        found = self._find(processes, titled, launchers, gpus)
        by_pid = {server.pid: server for server in found}
        owners = {pid: _of_server(pid, owner, by_pid, processes) for pid, owner in owners.items()}
        devices = {own_pids[pid]: uuid for pid, uuid in holds.items()}
        engines = _engines(titled, by_pid, processes)
        ranked = [_with_ranks(server, owners, devices, engines, processes) for server in found]
        self._past = match_servers(self._past, ranked)
        self._closely = frozenset(pid for server in ranked for pid in (server.pid, *server.ranks))
        places = {pid: rank for server in ranked for pid, rank in server.ranks.items()}
        owners = {
            pid: replace(owner, rank=places.get(pid, owner.rank)) for pid, owner in owners.items()
        }
        named = self._named(owners, processes)
        return Discovered(
            self._past.living, MappingProxyType({pid: named[own_pids[pid]] for pid in holds})
        )

    def _find(
        self,
        processes: Processes,
        titled: Sequence[ProcessReading],
        launchers: Sequence[ProcessReading],
        gpus: Sequence[GpuReading],
    ) -> list[FoundServer]:
        self._reader.forget_all_but(processes)
        serving = find_servers(processes)
        roots = {process.pid for process in (*serving, *launchers)}
        families: dict[int, list[ProcessReading]] = {}
        for process in titled:
            root = _nearest(process.pid, roots, processes)
            if root is not None:
                families.setdefault(root, []).append(process)
        found: list[FoundServer] = []
        for process in serving:
            found += self._reader.servers(process, families.get(process.pid, ()), gpus)
        for process in launchers:
            servers = self._reader.servers(process, families.get(process.pid, ()), gpus)
            # What does not listen runs vLLM offline.
            found += [server for server in servers if server.address.is_listening]
        return found

    def _named(self, owners: Mapping[int, Owner], processes: Processes) -> dict[int, GpuOwner]:
        """Return *owners* by the ids of their servers, and remember them."""
        ids = {server.pid: server_id for server_id, server in self._past.living.items()}
        named: dict[int, GpuOwner] = {}
        now: dict[Start, Owner] = {}
        ids_now: dict[Start, str] = {}
        for pid, owner in owners.items():
            process = processes.get(pid)
            if process is None:
                named[pid] = GpuOwner(owner)
                continue
            start = (pid, process.started_ticks)
            server_id = ids.get(owner.server_pid or 0) if owner.kind == "engine" else None
            # The server has gone, and what it left on the GPU is still its own.
            server_id = server_id or self._server_ids.get(start)
            now[start] = owner
            if server_id is not None:
                ids_now[start] = server_id
            named[pid] = self._gpu_owner(owner, server_id, process)
        self._owners, self._server_ids = now, ids_now
        return named

    def _gpu_owner(self, owner: Owner, server_id: str | None, process: ProcessReading) -> GpuOwner:
        details = self._table.details(process)
        return GpuOwner(
            owner,
            server_id,
            pid=process.pid,
            namespace_pid=details.namespace_pids[-1] if details.namespace_pids else None,
            process_name=_printable(process.command_name),
            container_id=details.container_id,
            pod_uid=details.pod_uid,
            pod_name=self._reader.pod_name(details)[1],
        )


def _holdings(gpus: Sequence[GpuReading]) -> dict[int, str]:
    """Return every process on a GPU, and the uuid of the one where it holds most."""
    most: dict[int, tuple[int, str]] = {}
    for gpu in gpus:
        for process in gpu.processes or ():
            held = (process.used_bytes or 0, gpu.uuid)
            if process.pid not in most or held[0] > most[process.pid][0]:
                most[process.pid] = held
    return {pid: uuid for pid, (_, uuid) in most.items()}


def _nearest(pid: int, wanted: Container[int], processes: Processes) -> int | None:
    return next((one.pid for one in lineage(pid, processes) if one.pid in wanted), None)


def _of_server(
    pid: int, owner: Owner, servers: Mapping[int, FoundServer], processes: Processes
) -> Owner:
    """Return *owner* with the process that has a door of its own, where there is one."""
    if owner.kind not in ("engine", "offline"):
        return owner
    server_pid = _nearest(pid, servers, processes)
    return owner if server_pid is None else replace(owner, kind="engine", server_pid=server_pid)


def _engines(
    titled: Sequence[ProcessReading], servers: Container[int], processes: Processes
) -> Mapping[int, set[int]]:
    """Return the pids of the cores and workers of each of the *servers*, by its pid."""
    engines: dict[int, set[int]] = {}
    for process in titled:
        title = parse_title(process)
        if title is None or title.role not in ("EngineCore", "Worker"):
            continue
        server_pid = _nearest(process.pid, servers, processes)
        if server_pid is not None:
            engines.setdefault(server_pid, set()).add(process.pid)
    return engines


def _with_ranks(
    server: FoundServer,
    owners: Mapping[int, Owner],
    devices: Mapping[int, str],
    engines: Mapping[int, set[int]],
    processes: Processes,
) -> FoundServer:
    """Return *server* with the place of each of its engine's processes.

    Args:
        server: The server.
        owners: Owner of every process on a GPU.
        devices: The GPU of each of those, by uuid.
        engines: Cores and workers of every server.
        processes: All that can be seen.
    """
    on_gpu = {pid for pid, owner in owners.items() if owner.server_pid == server.pid}
    own = engines.get(server.pid, set())
    # A core that has workers is itself no rank, unless it holds memory.
    parents = {processes[pid].parent_pid for pid in own}
    ranks = {
        pid: _rank(pid, server, devices.get(pid), processes)
        for pid in sorted(on_gpu | (own - parents))
        if pid in processes
    }
    return replace(server, ranks=MappingProxyType(ranks))


def _rank(pid: int, server: FoundServer, uuid: str | None, processes: Processes) -> Rank:
    titled = rank_of(pid, processes)
    if server.command is None:
        return titled
    sizes = sizes_of(server.command)
    rank = settled(titled, sizes)
    if uuid is None or server.devices is None or uuid not in server.devices:
        return rank
    return completed(rank, rank_at(server.devices.index(uuid), sizes))


def _printable(name: str) -> str | None:
    kept = "".join(letter for letter in name if letter.isascii() and letter.isprintable())
    return kept[:_LONGEST_NAME] or None


def _in_a_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="model-files", daemon=True).start()
