"""Tables of the kernel as proc(5) describes them, and this machine's own sockets."""

import os
import socket
from pathlib import Path

from kvheadroom.node.sockets import (
    is_same_network,
    listening_sockets,
    parse_socket_table,
    socket_inodes,
)

HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"


def row(address: str, state: str, inode: str = "77") -> str:
    return (
        f"   0: {address} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 "
        f"1000        0 {inode} 1 0000000000000000 100 0 0 10 0\n"
    )


def test_addresses_are_read_in_the_hosts_order() -> None:
    """127.0.0.1:8000, a wildcard of each kind, ::1 and an IPv4 address written as IPv6."""
    table = HEADER + "".join(
        row(address, "0A")
        for address in (
            "0100007F:1F40",
            "00000000:0050",
            "00000000000000000000000000000000:1F40",
            "00000000000000000000000001000000:1F40",
            "0000000000000000FFFF00000100007F:1F40",
        )
    )

    found = [(one.host, one.port) for one in parse_socket_table(table)]

    assert found == [
        ("127.0.0.1", 8000),
        ("0.0.0.0", 80),
        ("::", 8000),
        ("::1", 8000),
        ("127.0.0.1", 8000),
    ]


def test_only_listening_sockets_count() -> None:
    """A connection from the same port is none, and a damaged line costs no other."""
    table = HEADER + row("0100007F:1F40", "01") + "garbage\n" + row("zz:1", "0A")
    table += row("0100007F:1F41", "0A", "x") + row("0100007F:1F42", "0A", "5") + "   3: 0100"

    assert [(one.port, one.inode) for one in parse_socket_table(table)] == [(8002, 5)]


def test_a_real_socket_is_found_with_its_owner() -> None:
    """What this process listens on is in the kernel's table under its descriptors."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = {one.inode: one for one in listening_sockets("/proc", os.getpid()) or ()}
        held = socket_inodes("/proc", os.getpid())

    assert held is not None
    assert (("127.0.0.1", port)) in {
        (found[one].host, found[one].port) for one in held & set(found)
    }


def test_our_own_network_is_ours() -> None:
    """With the link of the namespace and without it."""
    link = os.readlink("/proc/self/ns/net")  # noqa: PTH115

    assert is_same_network("/proc", os.getpid(), link)
    assert is_same_network("/proc", os.getpid(), None)
    assert not is_same_network("/proc", os.getpid(), "net:[1]")


def test_without_a_table_the_sockets_are_unknown(tmp_path: Path) -> None:
    """No table is not the same as an empty one; one for all processes will do."""
    (tmp_path / "7").mkdir()
    assert listening_sockets(str(tmp_path), 7) is None

    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text(HEADER)
    assert listening_sockets(str(tmp_path), 7) == ()


def test_a_process_that_has_gone_holds_no_sockets_we_know() -> None:
    """Nothing is found of it, and nothing is raised."""
    assert socket_inodes("/proc", 2**22 + 1) is None


def test_descriptors_that_cannot_be_followed_are_unknown(tmp_path: Path) -> None:
    """Root without CAP_SYS_PTRACE lists a process's descriptors and reads none of them."""
    folder = tmp_path / "7" / "fd"
    folder.mkdir(parents=True)
    (folder / "3").write_text("no link")
    assert socket_inodes(str(tmp_path), 7) is None

    (folder / "4").symlink_to("socket:[77]")
    assert socket_inodes(str(tmp_path), 7) == frozenset({77})
