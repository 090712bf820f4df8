"""Decide at which address a server that was found can be asked."""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final, Literal

from kvheadroom.engine.flags import DEFAULT_PORT, ServeCommand
from kvheadroom.readings import ListeningSocket

UnreachableReason = Literal[
    "headless",  # this node of a larger server has no front end
    "grpc",  # it speaks no HTTP
    "unix_socket",  # it listens on a path; the address has it
    "other_namespace",  # it listens on the loopback of a network that is not ours
]

_ANY: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104  (read, not bound)


@dataclass(frozen=True, slots=True)
class Listening:
    """What is known of the sockets around one server.

    Attributes:
        owned: Listening sockets of the server and its API processes; ``None`` where we may not
            look.
        others: Every listening socket of its network namespace; ``None`` where they cannot be read.
        is_our_network: That namespace is ours.
        addresses: Its addresses beside loopback.
    """

    owned: tuple[ListeningSocket, ...] | None = None
    others: tuple[ListeningSocket, ...] | None = None
    is_our_network: bool = True
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server can be asked.

    Attributes:
        name: ``host:port``, or ``unix:PATH``.
        url: Base URL; ``None`` where it cannot be reached.
        unreachable: Why not.
        is_listening: A socket of its own was seen there; ``False`` while it starts, or where
            another holds its port: whoever answers there then is not this server. ``None`` where
            no sockets can be read.
    """

    name: str
    url: str | None
    unreachable: UnreachableReason | None = None
    is_listening: bool | None = None


def server_address(command: ServeCommand | None, listening: Listening) -> ServerAddress:
    """Return where the server can be asked.

    What it was told counts as long as its sockets do not say otherwise: a launcher may have put
    it elsewhere.

    Args:
        command: What it was told; ``None`` if that could not be read.
        listening: What is known of its sockets.
    """
    options = command.options if command is not None else {}
    port = command.port if command is not None else DEFAULT_PORT
    path = options.get("uds")
    if isinstance(path, str):
        return ServerAddress(f"unix:{path}", None, "unix_socket")
    socket = _http_socket(listening, port)
    is_listening = None if listening.others is None else socket is not None
    bound = socket.host if socket else str(options.get("host") or "0.0.0.0")  # noqa: S104
    port = socket.port if socket else port
    for option in ("headless", "grpc"):
        if options.get(option) is True:
            reason: UnreachableReason = "headless" if option == "headless" else "grpc"
            return ServerAddress(_netloc(_host(bound, listening) or bound, port), None, reason)
    host = _host(bound, listening)
    if host is None:
        return ServerAddress(_netloc(bound, port), None, "other_namespace", is_listening)
    scheme = "https" if {"ssl-keyfile", "ssl-certfile"} & options.keys() else "http"
    name = _netloc(host, port)
    return ServerAddress(name, f"{scheme}://{name}", None, is_listening)


def _http_socket(listening: Listening, port: int) -> ListeningSocket | None:
    owned = listening.owned
    if owned is None:
        others = listening.others or ()
        return next((socket for socket in others if socket.port == port), None)
    told = [socket for socket in owned if socket.port == port]
    if told:
        return told[0]
    # One port on several addresses is one door.
    return owned[0] if len({socket.port for socket in owned}) == 1 else None


def _host(bound: str, listening: Listening) -> str | None:
    """Return the host by which to reach what is bound to *bound*; ``None`` if there is none."""
    if listening.is_our_network:
        if bound in _ANY:
            return "::1" if bound == "::" else "127.0.0.1"
        return bound
    if bound in _ANY:
        return _first_of(listening.addresses)
    return None if _is_loopback(bound) else bound


def _first_of(addresses: Sequence[str]) -> str | None:
    return next((one for one in addresses if ":" not in one), next(iter(addresses), None))


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _netloc(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
