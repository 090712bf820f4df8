"""The vLLM servers under watch: those that are configured, and those that are found."""

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from kvheadroom.engine.options import Device
from kvheadroom.live.engine_facts import EngineFacts
from kvheadroom.live.engine_view import ViewOptions
from kvheadroom.live.found_servers import FoundServer
from kvheadroom.node.target_lists import ListedServer
from kvheadroom.poll.discovery import Discovered
from kvheadroom.poll.facts import ServerSurroundings
from kvheadroom.poll.log_watch import LogWatch
from kvheadroom.poll.server_watch import ServerSource, ServerWatch
from kvheadroom.readings import GpuReading, ServerReading


def _ignore(_surroundings: ServerSurroundings) -> None:
    """Take no notice."""


@dataclass(frozen=True, slots=True)
class WatchedServer:
    """One vLLM server to watch.

    Attributes:
        key: What makes it the same server after a reload, so that its history is kept: its
            ``host:port`` and path, or the id of a found one.
        connection: How it is reached; while it is the same, the source in use is kept.
        source: The server, nothing sent to it yet.
        facts: What is known of its engines, given its latest answer; ``None`` before the first.
        notice: Takes what a look at the node found of it.
        log: Its startup log; ``None`` without one.
        made_of: What it was made of: while it is the same, what was learned of the server is
            kept; ``None`` learns it anew.
    """

    key: str
    connection: Hashable
    source: ServerSource
    facts: Callable[[ServerReading | None], EngineFacts]
    notice: Callable[[ServerSurroundings], None] = _ignore
    log: LogWatch | None = None
    made_of: Hashable = None


MakeServer = Callable[[str, FoundServer], WatchedServer]
"""Of a found server's id and what was found, how to watch it."""

ListServer = Callable[[ListedServer], WatchedServer]
"""Of a server on a list, how to watch it."""


@dataclass(slots=True)
class _Found:
    """A found server under watch, and when it was last there (monotonic seconds)."""

    server: FoundServer
    watched: WatchedServer
    seen_seconds: float
    is_there: bool = True


@dataclass(frozen=True, slots=True)
class _Listed:
    """A server on a list, under watch."""

    server: ListedServer
    watched: WatchedServer


class ServerSet:
    """Watches of servers by key; changed by one thread at a time, read by any.

    Attributes:
        watches: Key → watch of every server.
        logs: Key → its startup log, where it has one.
        found: Key → what was found of it, for those that are there.
    """

    def __init__(self) -> None:
        self.watches: Mapping[str, ServerWatch] = MappingProxyType({})
        self.logs: Mapping[str, LogWatch] = MappingProxyType({})
        self.found: Mapping[str, FoundServer] = MappingProxyType({})
        self._configured: tuple[WatchedServer, ...] = ()
        self._listed: dict[tuple[str, str], _Listed] = {}
        self._make: MakeServer | None = None
        self._options = ViewOptions()
        self._found: dict[str, _Found] = {}
        self._connections: dict[str, Hashable] = {}

    def configure(
        self,
        servers: Sequence[WatchedServer],
        make: MakeServer | None,
        options: ViewOptions,
        list_one: ListServer | None = None,
    ) -> None:
        """Watch exactly *servers*, those found and those on lists.

        Args:
            servers: By unique key.
            make: How to watch those that are found; ``None`` finds none.
            options: How engines are judged.
            list_one: How to watch those on the lists, which stay until the lists are read again;
                ``None`` where there are none.
        """
        before = {server.key: server for server in self._configured}
        self._configured = tuple(_kept(before.get(server.key), server) for server in servers)
        self._make, self._options = make, options
        if make is None:
            self._found.clear()
            self.found = MappingProxyType({})
        else:
            for server_id, one in self._found.items():
                name = self._free_name(server_id)
                one.watched = _kept(one.watched, make(name, one.server))
        if list_one is None:
            self._listed.clear()
        else:
            self._take_list(
                [one.server for one in self._listed.values()],
                lambda server: _kept(self._listed[_listed_key(server)].watched, list_one(server)),
            )
        self._apply()

    def take_list(self, listed: Sequence[ListedServer], make: ListServer) -> None:
        """Watch the servers on the lists too, those that are configured aside."""
        known = self._listed

        def watched(server: ListedServer) -> WatchedServer:
            one = known.get(_listed_key(server))
            return one.watched if one is not None else make(server)

        self._take_list(listed, watched)
        self._apply()

    def notice(self, discovered: Discovered, gpus: Sequence[GpuReading]) -> None:
        """Take over what a look found.

        A found server is watched once its socket is seen, and after its end for as long as the
        traffic window: one that crashed is down, and not gone without a word.
        """
        taken = self._notice_configured(discovered.servers, gpus)
        if self._make is not None:
            self._notice_found(discovered.servers, taken, gpus)
        self._apply()

    def close(self) -> None:
        """Close every source."""
        for watch in self.watches.values():
            watch.close()
        for log in self.logs.values():
            log.close()

    def _take_list(self, listed: Sequence[ListedServer], make: ListServer) -> None:
        configured = {server.key for server in self._configured}
        self._listed = {
            _listed_key(server): _Listed(server, make(server))
            for server in listed
            if server.address not in configured
        }

    def _given(self) -> tuple[WatchedServer, ...]:
        """Return those that are listed or configured."""
        return (*(one.watched for one in self._listed.values()), *self._configured)

    def _notice_configured(
        self, servers: Mapping[str, FoundServer], gpus: Sequence[GpuReading]
    ) -> Mapping[str, str]:
        """Return the found servers that are configured ones: id → key."""
        taken: dict[str, str] = {}
        found: dict[str, FoundServer] = {}
        for server in self._given():
            match = next(
                (key for key, one in servers.items() if one.address.is_behind(server.key)),
                None,
            )
            one = servers[match] if match is not None else None
            if match is not None and one is not None:
                taken[match] = server.key
                found[server.key] = one
            server.notice(ServerSurroundings(one, _device(one, gpus)))
        self.found = MappingProxyType(found)
        return taken

    def _notice_found(
        self,
        servers: Mapping[str, FoundServer],
        taken: Mapping[str, str],
        gpus: Sequence[GpuReading],
    ) -> None:
        now = time.monotonic()
        for server_id, server in servers.items():
            if server_id in taken or server.address.url is None or self._make is None:
                self._found.pop(server_id, None)
                continue
            known = self._found.get(server_id)
            # A stranger on that port would be sent its key.
            if known is None and server.address.is_listening is False:
                continue
            name = self._free_name(server_id)
            if known is None or _moved(known.server, server) or known.watched.key != name:
                watched = self._make(name, server)
                self._found[server_id] = known = _Found(server, watched, now)
            known.server, known.seen_seconds, known.is_there = server, now, True
            known.watched.notice(ServerSurroundings(server, _device(server, gpus)))
        for server_id, known in tuple(self._found.items()):
            if server_id in servers:
                continue
            known.is_there = False
            if now - known.seen_seconds > self._options.traffic_window_seconds:
                del self._found[server_id]
        there = {one.watched.key: one.server for one in self._found.values() if one.is_there}
        self.found = MappingProxyType({**self.found, **there})

    def _free_name(self, server_id: str) -> str:
        """Return the id of a found server, or another where one that is given is called so.

        It has moved from the address that the given one now has.
        """
        taken = {server.key for server in self._given()}
        name, number = server_id, 1
        while name in taken or (number > 1 and name in self._found):
            number += 1
            name = f"{server_id}#{number}"
        return name

    def _apply(self) -> None:
        """Make the watches those of the servers; what stays keeps its history."""
        self._forget_those_before()
        found = (one.watched for one in self._found.values())
        servers = {server.key: server for server in (*found, *self._given())}
        kept = {key: self._watch(server) for key, server in servers.items()}
        # One reference, swapped whole: a snapshot taken meanwhile sees the old or the new.
        gone, self.watches = self.watches, MappingProxyType(kept)
        for key in gone.keys() - kept.keys():
            gone[key].close()
            self._connections.pop(key, None)
        logs = {key: server.log for key, server in servers.items() if server.log is not None}
        before, self.logs = self.logs, MappingProxyType(logs)
        for key, log in before.items():
            if logs.get(key) is not log:
                log.close()

    def _forget_those_before(self) -> None:
        """Forget who left its address to another: behind one there is one server, the last."""
        doors: dict[str, str | None] = {server.source.target: None for server in self._given()}
        by_age = sorted(
            self._found.items(),
            key=lambda item: (item[1].is_there, item[1].server.started_ticks),
            reverse=True,
        )
        for server_id, one in by_age:
            if doors.setdefault(one.watched.source.target, server_id) != server_id:
                del self._found[server_id]

    def _watch(self, server: WatchedServer) -> ServerWatch:
        watch = self.watches.get(server.key)
        if watch is None:
            watch = ServerWatch(server.source, facts=server.facts, options=self._options)
        elif watch.source is not server.source:
            if self._connections[server.key] == server.connection:
                server.source.close()
            else:
                watch.source.close()
                watch.source = server.source
        self._connections[server.key] = server.connection
        watch.facts, watch.options = server.facts, self._options
        return watch


def _listed_key(server: ListedServer) -> tuple[str, str]:
    # Another user or password is another way in.
    return server.address, server.url


def _kept(before: WatchedServer | None, made: WatchedServer) -> WatchedServer:
    """Return the one *before* where *made* is the same, so that nothing need be learned again."""
    if before is None or before.made_of is None or before.made_of != made.made_of:
        return made
    made.source.close()
    if made.log is not None:
        made.log.close()
    return before


def _moved(before: FoundServer, now: FoundServer) -> bool:
    """Return whether the server is another process, or asked otherwise, than before."""
    return _door(before) != _door(now)


def _door(server: FoundServer) -> Hashable:
    return server.pid, server.started_ticks, server.address.url, server.api_key


def _device(server: FoundServer | None, gpus: Sequence[GpuReading]) -> Device:
    """Return the GPU of the first of the server's ranks, as far as it is known."""
    first = server.devices[0] if server is not None and server.devices else None
    gpu = next((gpu for gpu in gpus if gpu.uuid == first), None)
    if gpu is None:
        return Device()
    return Device(gpu.total_bytes, gpu.compute_capability, gpu.name)
