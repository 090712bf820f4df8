"""A loopback server that treats each connection exactly as badly as a test says."""

import itertools
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

_PATIENCE_SECONDS = 10.0


@dataclass
class Peer:
    """One accepted connection, seen from the server.

    Attributes:
        connection: Its socket.
        number: 0 for the first connection of the server, and so on.
        stopping: Set when the test is over; waits that outlast it must end.
        requests: Every request head the server received, on any connection.
    """

    connection: socket.socket
    number: int
    stopping: threading.Event
    requests: list[str]
    _unread: bytes = field(default=b"", repr=False)

    def next_request(self) -> str:
        """Return the next request head, or raise OSError when the client is gone."""
        while b"\r\n\r\n" not in self._unread:
            received = self.connection.recv(65536)
            if not received:
                raise ConnectionError
            self._unread += received
        head, _, self._unread = self._unread.partition(b"\r\n\r\n")
        self.requests.append(head.decode())
        return self.requests[-1]

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)

    def answer(self, body: bytes, *, status: str = "200 OK", headers: str = "") -> None:
        """Answer whole; *headers* are lines that each end in CRLF."""
        head = f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
        self.send(head.encode() + body)

    def drip(self, data: bytes, *, every_seconds: float = 0.02) -> None:
        """Send *data* byte by byte, each well within any limit on a single read."""
        for byte in data[: int(_PATIENCE_SECONDS / every_seconds)]:
            if self.stopping.wait(every_seconds):
                return
            self.send(bytes([byte]))

    def stay_silent(self) -> None:
        self.stopping.wait(_PATIENCE_SECONDS)

    def reset(self) -> None:
        """Close so that the client gets a reset, not an orderly end."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()


Behave = Callable[[Peer], None]


@dataclass
class HostileServer:
    """What the test needs to know of the server that runs."""

    port: int
    requests: list[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def paths(self) -> list[str]:
        return [request.split(" ")[1] for request in self.requests]


@contextmanager
def hostile_server(behave: Behave, *, tls: ssl.SSLContext | None = None) -> Iterator[HostileServer]:
    """Run *behave* in a thread for each connection, until the block ends."""
    stopping = threading.Event()
    requests: list[str] = []
    threads: list[threading.Thread] = []
    connections: list[socket.socket] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve_one(connection: socket.socket, number: int) -> None:
        with suppress(OSError):
            secured = tls.wrap_socket(connection, server_side=True) if tls else connection
            with secured:
                behave(Peer(secured, number, stopping, requests))

    def accept() -> None:
        for number in itertools.count():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.settimeout(_PATIENCE_SECONDS)
            connections.append(connection)
            thread = threading.Thread(target=serve_one, args=(connection, number), name="hostile")
            threads.append(thread)
            thread.start()

    acceptor = threading.Thread(target=accept, name="hostile")
    acceptor.start()
    try:
        yield HostileServer(listener.getsockname()[1], requests)
    finally:
        stopping.set()
        # shutdown, since close alone does not wake a thread that waits in accept or recv.
        for each in (listener, *connections):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        listener.close()
        acceptor.join()
        for thread in threads:
            thread.join()


def each_request(respond: Callable[[Peer, str], None]) -> Behave:
    """Keep the connection alive and let *respond* answer each request's path."""

    def behave(peer: Peer) -> None:
        while True:
            path = peer.next_request().split(" ")[1]
            respond(peer, path)

    return behave
