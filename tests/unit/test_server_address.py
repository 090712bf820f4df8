"""Where a server is asked, from what it was told and what its sockets say."""

import pytest

from kvheadroom.engine.flags import parse_serve_command
from kvheadroom.live.server_address import Listening, is_same_door, server_address
from kvheadroom.readings import ListeningSocket


def listening(*sockets: tuple[str, int], **more: object) -> Listening:
    owned = tuple(ListeningSocket(host, port, port) for host, port in sockets)
    return Listening(owned, owned, **more)  # type: ignore[arg-type]


def url(flags: str, around: Listening | None = None) -> str | None:
    command = parse_serve_command(f"vllm serve m {flags}")
    return server_address(command, around or Listening(())).url


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", "http://127.0.0.1:8000"),
        ("--port 8402 --host 127.0.0.1", "http://127.0.0.1:8402"),
        ("--host 0.0.0.0", "http://127.0.0.1:8000"),
        ("--host ::", "http://[::1]:8000"),
        ("--host 10.0.0.5", "http://10.0.0.5:8000"),
        ("--host fd00::5", "http://[fd00::5]:8000"),
        ("--host localhost", "http://localhost:8000"),
        ("--ssl-keyfile k --ssl-certfile c", "https://127.0.0.1:8000"),
        ("--root-path /api/v2", "http://127.0.0.1:8000"),
    ],
)
def test_flags_tell_where_it_will_be(flags: str, expected: str) -> None:
    """Before it listens, what it was told counts. A root path is a proxy's, not the server's."""
    assert url(flags) == expected


def test_the_told_port_is_the_door() -> None:
    """A server that starts has sockets of its ranks before its own; they are not the door.

    Source: a real 0.32.0 with --data-parallel-size 2 listens on ::1 half a minute before its port.
    """
    starting = listening(("::1", 36841))

    address = server_address(parse_serve_command("vllm serve m"), starting)
    assert (address.url, address.is_listening) == ("http://127.0.0.1:8000", False)
    assert url("", listening(("::1", 36841), ("::", 8000))) == "http://[::1]:8000"


@pytest.mark.parametrize("port", [0, 8000])
def test_a_port_that_was_not_told_is_the_only_one(port: int) -> None:
    """Port 0 leaves it to the kernel, a launcher to itself; among several nothing is guessed."""
    command = parse_serve_command(f"vllm serve m --port {port}")

    one = server_address(command, listening(("127.0.0.1", 9001)), may_be_elsewhere=port > 0)
    two = server_address(
        command, listening(("127.0.0.1", 9001), ("127.0.0.1", 9002)), may_be_elsewhere=port > 0
    )

    assert one.url == "http://127.0.0.1:9001"
    assert two.is_listening is False


def test_without_permission_the_namespaces_sockets_tell() -> None:
    """Where a process's descriptors may not be listed, the told port among all sockets does."""
    around = Listening(None, (ListeningSocket("10.0.0.9", 8000, 5), ListeningSocket("::", 22, 6)))

    address = server_address(parse_serve_command("vllm serve m"), around)

    assert (address.url, address.is_listening) == ("http://10.0.0.9:8000", True)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("0.0.0.0", "http://172.17.0.2:8000"),
        ("::", "http://172.17.0.2:8000"),
        ("172.17.0.3", "http://172.17.0.3:8000"),
        ("127.0.0.1", None),
        ("::1", None),
    ],
)
def test_another_network_is_asked_at_its_address(host: str, expected: str | None) -> None:
    """Our loopback is not a container's; its own address is asked, or it is out of reach."""
    around = listening((host, 8000), is_our_network=False, addresses=("fd00::2", "172.17.0.2"))

    assert url("", around) == expected


def test_a_network_without_addresses_is_out_of_reach() -> None:
    """A namespace that has loopback only cannot be asked from outside."""
    address = server_address(
        parse_serve_command("vllm serve m"), listening(("0.0.0.0", 8000), is_our_network=False)
    )

    assert (address.url, address.unreachable) == (None, "other_namespace")


@pytest.mark.parametrize(
    ("flags", "reason"),
    [("--uds /run/v.sock", "unix_socket"), ("--headless", "headless"), ("--grpc", "grpc")],
)
def test_what_speaks_no_http_on_a_port_has_no_url(flags: str, reason: str) -> None:
    """It is known, and why it cannot be asked."""
    address = server_address(parse_serve_command(f"vllm serve m {flags}"), Listening(()))

    assert (address.url, address.unreachable) == (None, reason)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("127.0.0.1:8000", "localhost:8000", True),
        ("127.0.0.1:8000", "[::1]:8000", True),
        ("127.0.0.1:8000", "127.0.0.1:8001", False),
        ("10.0.0.5:8000", "10.0.0.5:8000/base", True),
        ("10.0.0.5:8000", "localhost:8000", False),
    ],
)
def test_a_configured_server_is_recognized(one: str, other: str, *, same: bool) -> None:
    """What an operator named by another of loopback's names is not watched twice."""
    assert is_same_door(one, other) is same


def test_a_server_on_all_addresses_is_behind_every_name_of_its_host() -> None:
    """One that is bound to a single address is behind that one only, and the port must agree."""
    around = listening(("0.0.0.0", 8000), addresses=("10.0.0.5",), host_names=("node1",))
    everywhere = server_address(parse_serve_command("vllm serve m"), around)
    bound = listening(("10.0.0.5", 8000), addresses=("10.0.0.5",), host_names=("node1",))
    somewhere = server_address(parse_serve_command("vllm serve m --host 10.0.0.5"), bound)

    names = ("localhost:8000", "10.0.0.5:8000", "node1:8000/v1", "node1:8001", "10.0.0.6:8000")
    assert [everywhere.is_behind(name) for name in names] == [True, True, True, False, False]
    assert [somewhere.is_behind(name) for name in names] == [False, True, False, False, False]
