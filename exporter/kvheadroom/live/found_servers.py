"""What is known of a vLLM server that was found, and which of them it was at the poll before."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from kvheadroom.engine.api_keys import without_api_keys
from kvheadroom.engine.flags import ServeCommand
from kvheadroom.live.process_tree import Rank
from kvheadroom.live.server_address import ServerAddress
from kvheadroom.readings import ModelFiles
from kvheadroom.redaction import Secret

# A server may be away for as long as it takes to pull an image; names are short.
_MOST_DEPARTED: Final = 256


@dataclass(frozen=True, slots=True)
class FoundServer:
    """One vLLM server on this node.

    Attributes:
        pid: Of the process that serves, as this ``/proc`` counts.
        started_ticks: Its start, clock ticks from boot.
        address: Where it can be asked.
        fingerprint: Same for the same server started again, on whatever port.
        command: What it was told; ``None`` where it cannot be read (see *problem*).
        problem: Why a part of the above is unknown, in one line free of secrets.
        api_key: What opens its ``/v1/models``.
        environment: Its variables that change sizing or say where its files are; ``None`` where we
            may not look.
        working_directory: Where its relative paths begin.
        devices: Its GPUs in its own order, by uuid; ``None`` if that cannot be told.
        ranks: Its engine's processes and the place of each.
        model: Its model's files; ``None`` while they are looked for or not on this machine.
        container_id: Of the container it runs in.
        pod_uid: Of its pod.
        pod_namespace: Kubernetes namespace of the pod.
        pod_name: Of its pod.
        systemd_unit: The service it belongs to.
    """

    pid: int
    started_ticks: int
    address: ServerAddress
    fingerprint: str = field(repr=False)
    command: ServeCommand | None = None
    problem: str | None = None
    api_key: Secret | None = field(default=None, repr=False)
    environment: Mapping[str, str] | None = None
    working_directory: str | None = None
    devices: tuple[str, ...] | None = None
    ranks: Mapping[int, Rank] = field(default_factory=lambda: MappingProxyType({}))
    model: ModelFiles | None = None
    container_id: str | None = None
    pod_uid: str | None = None
    pod_namespace: str | None = None
    pod_name: str | None = None
    systemd_unit: str | None = None


@dataclass(frozen=True, slots=True)
class ServersPast:
    """The servers by the id that each was given when it was first seen.

    Attributes:
        living: Those that are there now.
        departed: Those that were, the latest to go last.
    """

    living: Mapping[str, FoundServer] = field(default_factory=lambda: MappingProxyType({}))
    departed: Mapping[str, FoundServer] = field(default_factory=lambda: MappingProxyType({}))


def match_servers(past: ServersPast, found: Sequence[FoundServer]) -> ServersPast:
    """Return *found* by id: an old one for each that was there before, started again or not.

    A server that is told the same in the same place, after the process that was told so has gone,
    is that server again, even on another port. A new one is called by its address.

    Args:
        past: The outcome of the poll before.
        found: The servers that are there now, no process twice.
    """
    processes = {(server.pid, server.started_ticks): server for server in found}
    living = {
        server_id: processes.pop(process)
        for server_id, before in past.living.items()
        if (process := (before.pid, before.started_ticks)) in processes
    }
    gone = {
        **past.departed,
        **{name: server for name, server in past.living.items() if name not in living},
    }
    unnamed = list(processes.values())
    # The surest first: of two alike that both restart, each keeps its own port.
    for is_same in (_same_address, _same_container, _same_order):
        for server in tuple(unnamed):
            server_id = _returned(server, gone, is_same)
            if server_id is not None:
                living[server_id] = server
                del gone[server_id]
                unnamed.remove(server)
    for server in unnamed:
        server_id = _new_id(server.address.name, living)
        living[server_id] = server
        gone.pop(server_id, None)
    kept = dict(list(gone.items())[-_MOST_DEPARTED:])
    return ServersPast(MappingProxyType(living), MappingProxyType(kept))


def _returned(
    server: FoundServer,
    gone: Mapping[str, FoundServer],
    is_same: Callable[[FoundServer, FoundServer], bool],
) -> str | None:
    """Return the id of the one of *gone* that *server* is; of several the latest to go."""
    alike = [
        server_id
        for server_id, before in gone.items()
        if before.fingerprint == server.fingerprint and is_same(before, server)
    ]
    return alike[-1] if alike else None


def _same_address(one: FoundServer, other: FoundServer) -> bool:
    return one.address.name == other.address.name


def _same_container(one: FoundServer, other: FoundServer) -> bool:
    return one.pod_uid == other.pod_uid and one.container_id == other.container_id


def _same_order(_one: FoundServer, _other: FoundServer) -> bool:
    return True


def _new_id(name: str, taken: Iterable[str]) -> str:
    """Return *name*, numbered if a server that has moved elsewhere is still called so."""
    server_id, number = name, 1
    while server_id in taken:
        number += 1
        server_id = f"{name}#{number}"
    return server_id


def fingerprint(
    argv: Sequence[str],
    *,
    working_directory: str | None,
    devices: str | None,
    member: str = "",
) -> str:
    """Return what stays the same when a server is started again.

    Args:
        argv: Its words; the port and the keys among them do not count.
        working_directory: Where it runs.
        devices: ``CUDA_VISIBLE_DEVICES`` as it was set.
        member: Which of the servers that one command starts.
    """
    words: list[str] = []
    is_port = False
    for word in without_api_keys(argv):
        name, is_attached, _ = word.partition("=")
        if name == "--port":
            is_port = not is_attached
        elif is_port:
            is_port = False
        else:
            words.append(word)
    parts = (*words, working_directory or "", devices or "", member)
    return hashlib.sha256("\0".join(parts).encode(errors="replace")).hexdigest()[:16]
