"""Open the sockets to listen on, all of them or none."""

import socket
from collections.abc import Sequence

from kvheadroom.errors import ConfigError
from kvheadroom.faces.web_options import format_address


def open_listeners(addresses: Sequence[tuple[str, int]]) -> list[socket.socket]:
    """Return a listening socket for each ``(host, port)``.

    Host ``""`` is every interface, over IPv6 and IPv4 where the machine has both. A name with
    several addresses is listened on at one of them, an IPv4 one if it has any.

    Raises:
        ConfigError: One address cannot be listened on; those opened before it are closed again.
    """
    opened: list[socket.socket] = []
    for host, port in addresses:
        try:
            listener = _open(host, port)
        except OSError as error:
            for earlier in opened:
                earlier.close()
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigError(f"cannot listen on {format_address(host, port)}: {reason}") from error
        # Inherited by every connection. asyncio sets it only on sockets that say they are TCP,
        # which these do not; without it a response in two writes waits 40 ms for the client.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.append(listener)
    return opened


def _open(host: str, port: int) -> socket.socket:
    if not host:
        return _open_everywhere(port)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return socket.create_server(address, family=family)


def _open_everywhere(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("0.0.0.0", port))  # noqa: S104 (what an empty host asks for)
