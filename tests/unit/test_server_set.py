"""Which servers are watched, as they start, end, move and are listed, and over a reload."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from kvheadroom.errors import SourceError
from kvheadroom.live.engine_facts import EngineFacts
from kvheadroom.live.engine_view import ViewOptions
from kvheadroom.live.found_servers import FoundServer
from kvheadroom.live.server_address import ServerAddress
from kvheadroom.node.target_lists import ListedServer
from kvheadroom.poll.discovery import Discovered
from kvheadroom.poll.node import ListedServers, NodeWatch
from kvheadroom.poll.server_set import ServerSet, WatchedServer
from kvheadroom.readings import EngineReading, ServerReading


@dataclass
class Door:
    """A server source that answers as long as it is open."""

    target: str
    is_closed: bool = field(default=False, init=False)

    def read(self) -> ServerReading:
        assert not self.is_closed
        return ServerReading(engines=(EngineReading(rank="0"),))

    def close(self) -> None:
        self.is_closed = True


@dataclass
class Lists:
    """A list of targets as the last answer had it."""

    listed: tuple[str, ...] = ()
    is_closed: bool = field(default=False, init=False)

    def servers(self) -> tuple[ListedServer, ...]:
        return tuple(ListedServer(f"http://{one}", one) for one in self.listed)

    def close(self) -> None:
        self.is_closed = True


def server(pid: int, door: str, *, listens: bool = True) -> FoundServer:
    address = ServerAddress(door, f"http://{door}", None, listens)
    return FoundServer(pid, pid, address, fingerprint=str(pid))


def watched(key: str, door: str, made_of: object = None) -> WatchedServer:
    return WatchedServer(
        key=key,
        connection=door,
        source=Door(door),
        facts=lambda _: EngineFacts(name=None, server=key),
        made_of=made_of,
    )


def make(server_id: str, found: FoundServer) -> WatchedServer:
    return watched(server_id, found.address.name, found.pid)


def list_one(listed: ListedServer) -> WatchedServer:
    return watched(listed.address, listed.address, listed.url)


def servers_of(**found: FoundServer) -> Discovered:
    return Discovered({name.replace("_", ":"): one for name, one in found.items()})


@pytest.fixture
def servers() -> ServerSet:
    one = ServerSet()
    one.configure((), make, ViewOptions())
    return one


def targets(servers: ServerSet) -> Sequence[str]:
    """The targets that faces show, each of which may be there once."""
    return sorted(one.outcome_unless_stuck(0).health.target for one in servers.watches.values())


def test_a_server_that_moves_is_shown_where_it_is(servers: ServerSet) -> None:
    """At its new address, and what it said at the old one is not served any more."""
    servers.notice(servers_of(h_1=server(10, "h:1")), ())
    servers.watches["h:1"].poll()

    servers.notice(servers_of(h_1=server(11, "h:2")), ())

    moved = servers.watches["h:1"].outcome_unless_stuck(0)
    assert (moved.health.target, moved.health.up, moved.engines) == ("h:2", False, ())
    servers.watches["h:1"].poll()
    assert servers.watches["h:1"].outcome.health.target == "h:2"
    assert servers.watches["h:1"].outcome.health.up


def test_a_server_at_the_old_address_of_another_is_shown_beside_it(servers: ServerSet) -> None:
    """No two sources have one target: a scrape with a series twice is refused whole."""
    servers.notice(servers_of(h_1=server(10, "h:1")), ())
    servers.watches["h:1"].poll()

    servers.notice(Discovered({"h:1": server(11, "h:2"), "h:1#2": server(12, "h:1")}), ())

    assert targets(servers) == ["h:1", "h:2"]


@pytest.mark.parametrize("order", [(10, 20), (20, 10)])
def test_of_two_servers_at_one_address_the_last_to_start_is_asked(
    servers: ServerSet, order: tuple[int, int]
) -> None:
    """One that closes its door slowly, or whose network cannot be told from another's."""
    first, second = order
    servers.notice(Discovered({"h:1": server(first, "h:1"), "h:1#2": server(second, "h:1")}), ())

    assert targets(servers) == ["h:1"]
    (one,) = servers.watches
    assert one == ("h:1" if first > second else "h:1#2")


def test_who_has_ended_leaves_its_address_to_the_next(servers: ServerSet) -> None:
    """It is said to be down for a while, but not beside another at the same address."""
    servers.notice(servers_of(h_1=server(10, "h:2")), ())
    servers.notice(servers_of(), ())
    assert targets(servers) == ["h:2"]

    servers.notice(servers_of(h_2=server(11, "h:2")), ())

    assert list(servers.watches) == ["h:2"]


def test_a_reload_learns_nothing_again(servers: ServerSet) -> None:
    """What is known of a server is kept where nothing of it has changed."""
    facts = [servers.watches[key].facts for key in _configured(servers, "same")]

    again = [servers.watches[key].facts for key in _configured(servers, "same")]
    changed = [servers.watches[key].facts for key in _configured(servers, "another")]

    assert again == facts
    assert changed[0] is not facts[0]
    assert changed[1:] == facts[1:]
    for one in servers.watches.values():
        one.source.read()


def _configured(servers: ServerSet, made_of: str) -> Sequence[str]:
    servers.configure((watched("c:1", "c:1", made_of),), make, ViewOptions(), list_one)
    servers.take_list(Lists(("l:1",)).servers(), list_one)
    servers.notice(servers_of(h_1=server(10, "h:1")), ())
    return ("c:1", "l:1", "h:1")


def test_a_reload_does_not_lose_what_is_listed(servers: ServerSet) -> None:
    """Its watch goes on, so that its counters do, until the lists are read again."""
    _configured(servers, "same")
    watch = servers.watches["l:1"]

    servers.configure((), make, ViewOptions(), list_one)
    assert servers.watches["l:1"] is watch

    servers.configure((), make, ViewOptions())
    assert "l:1" not in servers.watches


def test_lists_that_stay_the_same_are_not_asked_anew() -> None:
    """One that does not answer just then would lose its servers."""
    node = NodeWatch(lambda _: None)
    first, second, third = Lists(), Lists(), Lists()
    for lists, made_of in ((first, "a"), (second, "a"), (third, "b")):
        node.configure(
            gpus=None,
            servers=(),
            options=ViewOptions(),
            interval_seconds=1,
            listed=ListedServers((lists,), list_one, made_of),
        )
        if lists is second:
            assert (first.is_closed, second.is_closed) == (False, True)

    assert (first.is_closed, third.is_closed) == (True, False)


def test_servers_that_are_no_longer_looked_for_are_nowhere(servers: ServerSet) -> None:
    """Switched off by a reload, what was found before says nothing of a configured server."""
    configured = watched("h:1", "h:1")
    servers.configure((configured,), make, ViewOptions())
    servers.notice(servers_of(h_1=server(10, "h:1")), ())
    assert set(servers.found) == {"h:1"}

    servers.configure((configured,), None, ViewOptions())

    assert not servers.found


def test_a_socket_that_is_seen_later_changes_nothing(servers: ServerSet) -> None:
    """Whether its sockets can be read is no move: what was learned of it is kept."""
    unseen = server(10, "h:1")
    unseen = replace(unseen, address=replace(unseen.address, is_listening=None))
    servers.notice(servers_of(h_1=unseen), ())
    facts = servers.watches["h:1"].facts

    servers.notice(servers_of(h_1=server(10, "h:1")), ())

    assert servers.watches["h:1"].facts is facts


@pytest.mark.parametrize(
    "name", ["127.0.0.1:8000", "localhost:8000", "10.0.0.5:8000", "[fd00::5]:8000", "node1:8000"]
)
def test_a_configured_server_is_found_by_every_name_of_its_host(
    servers: ServerSet, name: str
) -> None:
    """One that listens on all addresses is not watched a second time as one that was found."""
    everywhere = replace(
        server(10, "127.0.0.1:8000"),
        address=ServerAddress(
            "127.0.0.1:8000", "http://127.0.0.1:8000", None, True, ("10.0.0.5", "fd00::5", "node1")
        ),
    )
    servers.configure((watched(name, name),), make, ViewOptions())

    servers.notice(Discovered({"127.0.0.1:8000": everywhere}), ())

    assert set(servers.watches) == set(servers.found) == {name}


def test_a_poll_that_a_change_breaks_off_says_nothing(
    servers: ServerSet, caplog: pytest.LogCaptureFixture
) -> None:
    """Its source is closed under it when the server moves or goes: that is no failure."""
    servers.notice(servers_of(h_1=server(10, "h:1")), ())
    watch = servers.watches["h:1"]
    watch.poll()
    caplog.clear()

    @dataclass
    class Changing(Door):
        def read(self) -> ServerReading:
            servers.configure((), None, ViewOptions())
            raise SourceError("reset", "closed")

    watch.source = Changing("h:1")
    watch.poll()

    assert watch.outcome.health.failures["reset"] == 0
    assert not caplog.records


def test_a_server_that_moved_is_not_taken_for_the_one_at_its_old_address(
    servers: ServerSet,
) -> None:
    """A configured server is called by its address, which is another's id by now."""
    servers.notice(servers_of(h_1=server(10, "h:1")), ())
    there = Discovered({"h:1": server(11, "h:2"), "h:1#2": server(12, "h:1")})

    servers.configure((watched("h:1", "h:1"),), make, ViewOptions())
    servers.notice(there, ())
    servers.notice(there, ())

    assert {key: one.pid for key, one in servers.found.items()} == {"h:1": 12, "h:1#2": 11}
    assert targets(servers) == ["h:1", "h:2"]
