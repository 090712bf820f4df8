"""Read where a process listens, and how its network namespace can be reached."""

import os
import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from kvheadroom.node.proc_files import read_proc_file, read_proc_link, read_proc_text
from kvheadroom.readings import ListeningSocket

_LISTENING: Final = "0A"
# A busy node has tens of thousands of connections, a line of 150 bytes each.
_MOST_TABLE_BYTES: Final = 32 * 1024 * 1024
_MOST_DESCRIPTORS: Final = 65_536
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")
_LOCAL_ADDRESS: Final = re.compile(r"\|-- (\S+)\n\s+/32 host LOCAL")
_GLOBAL_SCOPE: Final = "00"


def listening_sockets(root: str, pid: int) -> tuple[ListeningSocket, ...] | None:
    """Return every listening TCP socket in the network namespace of process *pid*.

    Args:
        root: Where ``/proc`` is.
        pid: A process in that namespace.

    Returns:
        ``None`` where the namespace's sockets cannot be read.
    """
    tables = [_table(root, pid, table) for table in ("tcp", "tcp6")]
    if tables == [None, None]:
        return None
    texts = (table.decode(errors="replace") for table in tables if table is not None)
    return tuple(socket for text in texts for socket in parse_socket_table(text))


def _table(root: str, pid: int, name: str) -> bytes | None:
    table = read_proc_file(f"{root}/{pid}/net/{name}", _MOST_TABLE_BYTES)
    # A copy of a /proc may have the table once only.
    return table if table is not None else read_proc_file(f"{root}/net/{name}", _MOST_TABLE_BYTES)


def parse_socket_table(text: str) -> list[ListeningSocket]:
    """Return the listening sockets in the text of ``/proc/net/tcp`` or ``tcp6``.

    Source:
        proc(5): the address is hexadecimal, each group of four bytes in the host's order.
    """
    found: list[ListeningSocket] = []
    # A line that may be one: a busy table is long, and few of it listen.
    for line in (line for line in text.splitlines() if f" {_LISTENING} " in line):
        fields = line.split(None, 10)
        if len(fields) < 10 or fields[3] != _LISTENING:  # noqa: PLR2004
            continue
        address, _, port = fields[1].partition(":")
        try:
            host = _address(bytes.fromhex(address))
            found.append(ListeningSocket(host, int(port, 16), int(fields[9])))
        except ValueError:
            continue
    return found


def socket_inodes(root: str, pid: int) -> frozenset[int] | None:
    """Return the sockets that process *pid* holds open; ``None`` where we may not look."""
    folder = f"{root}/{pid}/fd"
    try:
        names = os.listdir(folder)[:_MOST_DESCRIPTORS]  # noqa: PTH208
    except OSError:
        return None
    read = (read_proc_link(f"{folder}/{name}") for name in names)
    targets = [target for target in read if target is not None]
    if names and not targets:
        # Root in a container may list what it may not follow.
        return None
    matches = (_SOCKET.fullmatch(target) for target in targets)
    return frozenset(int(match[1]) for match in matches if match)


def namespace_addresses(root: str, pid: int) -> tuple[str, ...]:
    """Return the addresses, beside loopback, of the network namespace of process *pid*."""
    trie = read_proc_text(f"{root}/{pid}/net/fib_trie", 1024 * 1024)
    fours = (found[1] for found in _LOCAL_ADDRESS.finditer(trie))
    sixes = _six_addresses(read_proc_text(f"{root}/{pid}/net/if_inet6"))
    reachable = (text for text in (*fours, *sixes) if _is_reachable(text))
    return tuple(dict.fromkeys(reachable))


def is_same_network(root: str, pid: int, namespace: str | None) -> bool:
    """Tell whether process *pid*, whose namespace link reads *namespace*, is in our network.

    Where the link may not be read, addresses in common tell.
    """
    ours = read_proc_link("/proc/self/ns/net")
    if namespace is not None and ours is not None:
        return namespace == ours
    if read_proc_file(f"{root}/{pid}/net/fib_trie", 1) is None:
        return True
    return namespace_addresses(root, pid) == namespace_addresses("/proc", os.getpid())


def _six_addresses(text: str) -> list[str]:
    rows = (line.split() for line in text.splitlines())
    return [
        str(IPv6Address(bytes.fromhex(row[0])))
        for row in rows
        if len(row) > 3 and row[3] == _GLOBAL_SCOPE and len(row[0]) == 32  # noqa: PLR2004
    ]


def _is_reachable(text: str) -> bool:
    try:
        address = ip_address(text)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_link_local or address.is_unspecified)


def _address(packed: bytes) -> str:
    # Every supported machine is little-endian, as is everything NVIDIA's driver runs on.
    words = b"".join(packed[at : at + 4][::-1] for at in range(0, len(packed), 4))
    if len(words) == 4:  # noqa: PLR2004
        return str(IPv4Address(words))
    six = IPv6Address(words)
    return str(six.ipv4_mapped or six)
