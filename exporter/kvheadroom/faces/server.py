"""Serve the application over HTTP or TLS, within limits that no client can stretch."""

import asyncio
import logging
import math
import resource
import socket
import threading
import time
from asyncio import sslproto
from collections.abc import Callable, Mapping
from typing import Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from kvheadroom.faces.asgi import Application, Served, refuse, serve_with, with_headers
from kvheadroom.faces.connections import Connection, ConnectionTable
from kvheadroom.faces.listeners import open_listeners
from kvheadroom.faces.tls import ServerCertificate
from kvheadroom.faces.web_options import WebOptions, check_web_options
from kvheadroom.units import KIB

_log = logging.getLogger(__name__)

_MAX_HEAD_BYTES: Final = 16 * KIB
_MAX_BODY_BYTES: Final = 64 * KIB
_MAX_PIPELINED: Final = 8
_MAX_TLS_CONNECTIONS: Final = 128

# Few at a time: a crowd at the door waits in the kernel, where it takes no file descriptors, and
# cannot push a newcomer out again before the event loop has read what that one sent.
_ACCEPT_BATCH: Final = 16
_KERNEL_QUEUE: Final = 1024

# File descriptors that stay free for sources, files and connections just being closed.
_RESERVED_DESCRIPTORS: Final = 128

_SHUTDOWN_GRACE_SECONDS: Final = 0.3
_TLS_SHUTDOWN_SECONDS: Final = 1


class WebServer:
    """The HTTP face: its ports are taken on creation, a thread serves between start and stop.

    Args:
        app: The ASGI application, made with *options*.
        options: Where to listen, and the limits.

    Raises:
        ConfigError: The options contradict each other, an address cannot be listened on, or
            the TLS files cannot be used.
    """

    def __init__(self, app: Application, options: WebOptions) -> None:
        check_web_options(options)
        certificate = ServerCertificate(options.tls) if options.tls else None
        self._listeners = open_listeners(options.listen)
        names = [listener.getsockname() for listener in self._listeners]
        self._addresses = tuple((str(name[0]), int(name[1])) for name in names)
        self._server = _Server(app, options, certificate)
        self._thread = threading.Thread(target=self._serve, name="web", daemon=True)

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """The ``(host, port)`` of every listener, with the port that was really taken."""
        return self._addresses

    @property
    def is_serving(self) -> bool:
        """Whether the thread runs; false after :meth:`stop`, or after a fault that ended it."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to serve; the first connection can be made when this returns."""
        self._thread.start()
        self._server.has_started.wait()

    def replace_app(self, app: Application, headers: Mapping[str, str]) -> None:
        """Answer every further request with *app*, on connections that are open already too.

        May be called from any thread. Listeners, TLS and limits stay as they were.

        Args:
            app: The ASGI application.
            headers: Added to every response.
        """
        self._server.served = serve_with(app, headers)

    def stop(self, timeout_seconds: float = 1.0) -> None:
        """Stop serving; what is still open is cut off after a moment."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)
        for listener in self._listeners:
            listener.close()

    def _serve(self) -> None:
        try:
            self._server.run(self._listeners)
        finally:
            self._server.has_started.set()


class _Server(uvicorn.Server):
    """uvicorn's server, with our own way to accept and our deadlines."""

    def __init__(
        self, app: Application, options: WebOptions, certificate: ServerCertificate | None
    ) -> None:
        super().__init__(_uvicorn_config(app, options))
        self.served = serve_with(app, options.headers)
        self.has_started = threading.Event()
        self._options = options
        self._certificate = certificate
        self._table = ConnectionTable(_connection_limit(options))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.servers = []
        for listener in sockets or []:
            served = await loop.create_server(self._accept, sock=listener, backlog=_ACCEPT_BATCH)
            listener.listen(_KERNEL_QUEUE)
            self.servers.append(served)
        self.started = True
        self.has_started.set()

    async def on_tick(self, counter: int) -> bool:
        self._table.abort_overdue(time.monotonic())
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(_SHUTDOWN_GRACE_SECONDS, self._table.abort_all)
        await super().shutdown(sockets)

    def _accept(self) -> asyncio.BaseProtocol:
        http = _HttpProtocol(
            self.config, self.server_state, self._options, self._table, lambda: self.served
        )
        if self._certificate is None:
            return http
        return _TlsProtocol(http, self._certificate, self._options.handshake_seconds)


class _HttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with a limit on everything a client can send or hold back."""

    def __init__(
        self,
        config: uvicorn.Config,
        state: ServerState,
        options: WebOptions,
        table: ConnectionTable,
        latest: Callable[[], Served],
    ) -> None:
        super().__init__(config, state, app_state={})
        self._options = options
        self._table = table
        self._connection: Connection | None = None
        self._latest = latest
        self._is_resting = False
        self._head_is_open = False
        self._unfinished_bytes = 0
        self._head_bytes = 0
        self._body_bytes = 0

    # --- a connection comes and goes --------------------------------------------------------

    def admit(self, transport: asyncio.Transport, seconds: float) -> None:
        """Enter the table; the connection has *seconds* to get on."""
        self._connection = self._table.admit(transport, time.monotonic() + seconds)

    def dismiss(self) -> None:
        """Leave the table."""
        if self._connection is not None:
            self._table.discard(self._connection)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Anything the kernel does not take at once counts as a stalled client.
        transport.set_write_buffer_limits(high=1, low=0)
        if self._connection is None:
            self.admit(transport, self._options.head_seconds)
        self._allow(self._options.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self.dismiss()
        super().connection_lost(exc)

    # --- a request comes in -----------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._is_resting:
            self._is_resting = False
            self._allow(self._options.head_seconds)
        super().data_received(data)
        if self._head_is_open:
            self._unfinished_bytes += len(data)
            if self._unfinished_bytes > _MAX_HEAD_BYTES:
                self.send_400_response("Request headers too large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_is_open = True
        self._unfinished_bytes = self._head_bytes = self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._head_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._head_bytes += len(name) + len(value) + len(": \r\n")

    def on_headers_complete(self) -> None:
        self._head_is_open = False
        if len(self.pipeline) >= _MAX_PIPELINED:
            raise _TooManyPipelinedError
        self._allow(self._options.response_seconds)
        self._note_activity()
        served = self._latest()
        self.app = with_headers(self._refusal() or served.app, served.headers)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        # No route reads a body. uvicorn would collect it; here it is dropped.
        self._body_bytes += len(body)
        if self._body_bytes > _MAX_BODY_BYTES:
            self.transport.close()

    # --- the response goes out --------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._connection is not None:
            self._table.stalled(self._connection)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._connection is not None:
            self._table.flowing(self._connection)
        if self.cycle is not None and self.cycle.response_complete:  # type: ignore[redundant-expr]
            self._rest()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.cycle.response_complete:
            self._allow(self._options.response_seconds)  # the next one of a pipeline
        elif not self.flow.write_paused and not self.transport.is_closing():
            self._rest()

    def _rest(self) -> None:
        # From here on uvicorn's keep-alive timer decides.
        self._is_resting = True
        self._allow(math.inf)
        self._note_activity()

    # --- helpers ----------------------------------------------------------------------------

    def _allow(self, seconds: float) -> None:
        if self._connection is not None:
            self._connection.deadline_monotonic_seconds = time.monotonic() + seconds

    def _note_activity(self) -> None:
        if self._connection is not None:
            self._table.spoke(self._connection)

    def _refusal(self) -> Application | None:
        if self._head_bytes > _MAX_HEAD_BYTES:
            return refuse(431, "Request headers too large\n")
        if any(
            name == b"content-length" and int(value) > _MAX_BODY_BYTES
            for name, value in self.headers
        ):
            return refuse(413, "Request body too large\n")
        # A probe that is refused gets the process killed, which helps nobody.
        is_probe = self.url.startswith(b"/-/")
        is_full = len(self.tasks) >= self._options.max_requests
        if is_full and not is_probe and not self._table.abort_longest_stalled():
            return refuse(503, "Too many requests in flight\n")
        return None


class _TooManyPipelinedError(Exception):
    """A client sends request upon request without reading; the parser stops on this."""


class _TlsProtocol(sslproto.SSLProtocol):
    """asyncio's TLS, entered in the table of connections before the handshake.

    Args:
        http: What speaks inside.
        certificate: Shown to this client.
        handshake_seconds: After which a client that has not finished is cut off.
    """

    max_size = 16 * KIB  # one TLS record; asyncio's 256 KiB would be held for each connection

    def __init__(
        self, http: _HttpProtocol, certificate: ServerCertificate, handshake_seconds: float
    ) -> None:
        super().__init__(
            asyncio.get_running_loop(),
            http,
            certificate.current_context(),
            # typeshed wants a future, which asyncio does without, and whole seconds.
            waiter=None,  # type: ignore[arg-type]
            server_side=True,
            ssl_handshake_timeout=handshake_seconds,  # type: ignore[arg-type]
            ssl_shutdown_timeout=_TLS_SHUTDOWN_SECONDS,
        )
        self._http = http
        self._handshake_seconds = handshake_seconds

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.set_write_buffer_limits(high=1, low=0)
        self._http.admit(transport, self._handshake_seconds)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._http.dismiss()
        super().connection_lost(exc)


def _uvicorn_config(app: Application, options: WebOptions) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="asyncio",
        http="httptools",
        ws="none",
        lifespan="off",
        interface="asgi3",
        workers=1,  # or uvicorn takes it from the environment
        log_config=None,
        log_level=logging.ERROR,  # a malformed request is no event of ours
        access_log=False,
        proxy_headers=False,  # would let any local process speak for another address
        server_header=False,
        timeout_keep_alive=options.idle_seconds,
        timeout_graceful_shutdown=1,
    )


def _connection_limit(options: WebOptions) -> int:
    wanted = options.max_connections
    if options.tls is not None:
        wanted = min(wanted, _MAX_TLS_CONNECTIONS)
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    possible = max(1, descriptors - _RESERVED_DESCRIPTORS)
    if possible < wanted:
        fields = {"wanted": wanted, "open_files_limit": descriptors}
        _log.warning("fewer web connections than wanted", extra={"fields": fields})
    return min(wanted, possible)
