"""A vLLM server on loopback whose routes answer as a test says."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

Respond = Callable[[BaseHTTPRequestHandler], None]


class _Quiet(ThreadingHTTPServer):
    """A client that hangs up is nothing to report."""

    def handle_error(self, *_: object) -> None:
        pass


class PageServer:
    """A loopback server whose routes answer as a test says; an unknown path is 404."""

    def __init__(self) -> None:
        self.routes: dict[str, Respond] = {}
        self.seen_headers: dict[str, dict[str, str]] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                outer._connections.add(self.connection)

            def finish(self) -> None:
                outer._connections.discard(self.connection)
                super().finish()

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                outer.seen_headers[path] = dict(self.headers)
                outer.routes.get(path, answer(b"no", status=404))(self)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self._connections: set[socket.socket] = set()
        self._server = _Quiet(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        self._thread.start()
        self.target = f"127.0.0.1:{self._server.server_port}"
        self.url = f"http://{self.target}"

    def page(self, body: bytes) -> Self:
        self.routes["/metrics"] = answer(body)
        return self

    def close(self) -> None:
        """End as a process does, whose connections end with it."""
        self._server.shutdown()
        self._server.server_close()
        for connection in tuple(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(2)


def answer(body: bytes, *, status: int = 200, content_type: str = "text/plain") -> Respond:
    def respond(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", content_type)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return respond


def hang(release: threading.Event) -> Respond:
    def respond(_: BaseHTTPRequestHandler) -> None:
        release.wait(30)

    return respond
