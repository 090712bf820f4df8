"""A real server on a free loopback port, and clients that behave well or badly."""

import http.client
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from email.message import Message
from pathlib import Path

import trustme

from kvheadroom.faces.negotiation import RenderedPage
from kvheadroom.faces.server import WebServer
from kvheadroom.faces.web import Handler, make_app
from kvheadroom.faces.web_options import ClientAuth, TlsOptions, WebOptions

TEXT = b"# TYPE kvheadroom_kv_used_ratio gauge\nkvheadroom_kv_used_ratio 0.5\n"
OPENMETRICS = TEXT + b"# EOF\n"
PAGE = RenderedPage(lambda: TEXT, lambda: OPENMETRICS)

LOOPBACK = WebOptions(listen=(("127.0.0.1", 0),))
# Long enough for a busy machine to answer in, short enough to wait for.
IMPATIENT = replace(LOOPBACK, handshake_seconds=0.5, head_seconds=0.5, response_seconds=0.5)

# More than the kernel's buffers of both ends of a loopback connection take.
HUGE = b"x" * 24_000_000


@dataclass(frozen=True, slots=True)
class Reply:
    """One response, read whole."""

    status: int
    headers: Message
    body: bytes


@contextmanager
def serving(
    options: WebOptions = LOOPBACK,
    *,
    latest: Callable[[], RenderedPage] = lambda: PAGE,
    landing: Callable[[], str] = lambda: "<!doctype html><title>landing</title>",
    ready: Callable[[], bool] = lambda: True,
    api: Mapping[str, Handler] | None = None,
) -> Iterator[WebServer]:
    """A started server, stopped at the end."""
    app = make_app(latest=latest, landing=landing, ready=ready, options=options, api=api or {})
    server = WebServer(app, options)
    server.start()
    try:
        yield server
    finally:
        server.stop(5)


def port_of(server: WebServer) -> int:
    return server.addresses[0][1]


def ask(
    server: WebServer,
    path: str = "/metrics",
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    tls: ssl.SSLContext | None = None,
) -> Reply:
    """One request on a connection of its own."""
    address = ("localhost", port_of(server))
    connection = (
        http.client.HTTPConnection(*address, timeout=5)
        if tls is None
        else http.client.HTTPSConnection(*address, timeout=5, context=tls)
    )
    try:
        connection.request(method, path, body=body, headers=dict(headers or {}))
        response = connection.getresponse()
        return Reply(response.status, response.headers, response.read())
    finally:
        connection.close()


@contextmanager
def crowd(server: WebServer, count: int) -> Iterator[list[socket.socket]]:
    """Connections that have said nothing yet."""
    clients: list[socket.socket] = []
    try:
        clients.extend(connect(server) for _ in range(count))
        yield clients
    finally:
        for client in clients:
            client.close()


def connect(server: WebServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port_of(server)), timeout=5)


def answer_to(client: socket.socket, request: bytes) -> Reply:
    """Send *request*, whole or not, and read one response; the connection stays open."""
    client.sendall(request)
    response = http.client.HTTPResponse(client)
    response.begin()
    return Reply(response.status, response.headers, response.read())


def read_until_closed(client: socket.socket) -> bytes:
    """What the server sends until it ends the connection, in whatever way."""
    received = b""
    try:
        while piece := client.recv(65536):
            received += piece
    except ConnectionResetError:
        pass
    return received


def send_until_refused(client: socket.socket, pieces: Iterable[bytes], pause: float) -> bool:
    """Send one piece after the other; whether the server ended the connection before the last."""
    try:
        for piece in pieces:
            client.sendall(piece)
            time.sleep(pause)
    except OSError:
        return True
    return False


def status_of(raw: bytes) -> int:
    return int(raw.split(b" ", 2)[1])


def seconds_until_closed(client: socket.socket) -> float:
    start = time.monotonic()
    read_until_closed(client)
    return time.monotonic() - start


class Authority:
    """A certificate authority of the test's own, with a server certificate in files."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ca = trustme.CA()
        self.ca_file = directory / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.ca_file))
        self.cert_file = directory / "server.pem"
        self.key_file = directory / "server.key"
        self.issue()

    def issue(self) -> int:
        """Write a new server certificate over the old; return its serial number."""
        issued = self._ca.issue_cert("localhost", "127.0.0.1")
        issued.private_key_pem.write_to_path(str(self.key_file))
        issued.cert_chain_pems[0].write_to_path(str(self.cert_file))
        return serial_of(issued.cert_chain_pems[0].bytes().decode())

    def options(self, client_auth_type: ClientAuth = "NoClientCert") -> TlsOptions:
        return TlsOptions(
            self.cert_file,
            self.key_file,
            client_ca_file=None if client_auth_type == "NoClientCert" else self.ca_file,
            client_auth_type=client_auth_type,
        )

    def client(self, *, with_certificate: bool = False) -> ssl.SSLContext:
        """What a client needs that trusts this authority."""
        context = ssl.create_default_context(cafile=str(self.ca_file))
        if with_certificate:
            self._ca.issue_cert("scraper.example").configure_cert(context)
        return context


def serial_of(certificate_pem: str) -> int:
    from cryptography.x509 import load_pem_x509_certificate  # noqa: PLC0415 (slow to import)

    return load_pem_x509_certificate(certificate_pem.encode()).serial_number
