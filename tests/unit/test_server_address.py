"""Where a server is asked, from what it was told and what its sockets say."""

import pytest

from kvheadroom.engine.flags import parse_serve_command
from kvheadroom.live.server_address import Listening, server_address
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


def test_a_socket_corrects_the_flags() -> None:
    """A launcher may take the flags and listen elsewhere."""
    assert url("--port 8000", listening(("127.0.0.1", 9001))) == "http://127.0.0.1:9001"
    assert url("", listening(("::", 8000))) == "http://[::1]:8000"


def test_the_port_it_was_told_is_preferred() -> None:
    """Among several sockets the told one is the door; without it nothing is guessed."""
    sockets = ("0.0.0.0", 29500), ("0.0.0.0", 8000)

    assert url("", listening(*sockets)) == "http://127.0.0.1:8000"
    command = parse_serve_command("vllm serve m --port 8001")
    assert not server_address(command, listening(*sockets)).is_listening


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
