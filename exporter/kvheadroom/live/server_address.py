"""Decide at which address a server that was found can be asked."""

from collections.abc import Mapping, Sequence
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

_NO_HTTP: Final[Mapping[str, UnreachableReason]] = {"headless": "headless", "grpc": "grpc"}
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
        host_names: What its host is called.
    """

    owned: tuple[ListeningSocket, ...] | None = None
    others: tuple[ListeningSocket, ...] | None = None
    is_our_network: bool = True
    addresses: tuple[str, ...] = ()
    host_names: tuple[str, ...] = ()


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
        hosts: Other names of its host that lead to it, where it listens on all addresses.
    """

    name: str
    url: str | None
    unreachable: UnreachableReason | None = None
    is_listening: bool | None = None
    hosts: tuple[str, ...] = ()

    def is_behind(self, name: str) -> bool:
        """Tell whether *name*, ``host:port`` as an operator wrote it, leads to this server."""
        _, port = _split(self.name)
        names = (self.name, *(_netloc(host, int(port)) for host in self.hosts if port.isdecimal()))
        return any(is_same_door(one, name) for one in names)


def server_address(
    command: ServeCommand | None, listening: Listening, *, may_be_elsewhere: bool = False
) -> ServerAddress:
    """Return where the server can be asked.

    Args:
        command: What it was told; ``None`` if that could not be read.
        listening: What is known of its sockets.
        may_be_elsewhere: A program of somebody's own decides, or a file that cannot be read.
    """
    options = command.options if command is not None else {}
    path = options.get("uds")
    if isinstance(path, str):
        return ServerAddress(f"unix:{path}", None, "unix_socket")
    told = command.port if command is not None else DEFAULT_PORT
    # Port 0 leaves it to the kernel.
    socket = _http_socket(listening, told, or_other=may_be_elsewhere or told == 0)
    is_listening = None if listening.others is None else socket is not None
    bound = socket.host if socket else str(options.get("host") or "0.0.0.0")  # noqa: S104
    port = socket.port if socket else told
    host = _host(bound, listening)
    name = _netloc(host or bound, port)
    for option, reason in _NO_HTTP.items():
        if options.get(option) is True:
            return ServerAddress(name, None, reason)
    if host is None:
        return ServerAddress(name, None, "other_namespace", is_listening)
    scheme = "https" if {"ssl-keyfile", "ssl-certfile"} & options.keys() else "http"
    others = (*listening.addresses, *listening.host_names) if bound in _ANY else ()
    return ServerAddress(name, f"{scheme}://{name}", None, is_listening, others)


def is_same_door(one: str, other: str) -> bool:
    """Tell whether two names ``host:port`` lead to one server: loopback has many names.

    Args:
        one: Such as a server that was found is called.
        other: Such as an operator wrote; a path after it does not count.
    """
    (host, port), (other_host, other_port) = _split(one), _split(other)
    is_same_host = host == other_host or (_is_loopback(host) and _is_loopback(other_host))
    return port == other_port and is_same_host


def _split(name: str) -> tuple[str, str]:
    host, _, port = name.partition("/")[0].rpartition(":")
    return host.strip("[]").lower(), port


def _http_socket(listening: Listening, port: int, *, or_other: bool) -> ListeningSocket | None:
    """Return the socket at *port*, or else the only one if any may be it.

    A server has further sockets, through which its ranks find one another.
    """
    owned = listening.owned
    among = (listening.others or ()) if owned is None else owned
    told = next((socket for socket in among if socket.port == port), None)
    if told is not None or not or_other or not owned:
        return told
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
