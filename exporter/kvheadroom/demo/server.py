"""A simulated vLLM server: real HTTP on loopback in front of simulated engines."""

import json
import logging
import socket
import sys
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from threading import Lock, Thread
from typing import Final

from kvheadroom.demo.engine import Engine
from kvheadroom.demo.page import PageFacts, render_page

VLLM_VERSION: Final = "0.32.0"

_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_JSON: Final = "application/json"
_POLL_SHUTDOWN_SECONDS: Final = 0.05

_log = logging.getLogger(__name__)


class SimulatedServer:
    """Answers as ``vllm serve`` does; its engines move only when somebody looks.

    Attributes:
        url: Base URL, on a free port of the loopback address.
    """

    def __init__(
        self,
        facts: PageFacts,
        engines: Sequence[Engine],
        *,
        model: str,
        clock: Callable[[], float],
    ) -> None:
        """Bind the port; nothing is answered before `start`.

        Args:
            facts: What the page says whatever happens.
            engines: One per data-parallel rank.
            model: Hub id, the ``root`` of ``/v1/models``.
            clock: Seconds on the virtual clock of the engines.
        """
        self._facts = facts
        self._engines = engines
        self._model = model
        self._clock = clock
        self._lock = Lock()
        self._http = _HttpServer(self.answer)
        self._thread = Thread(
            target=self._http.serve_forever,
            args=(_POLL_SHUTDOWN_SECONDS,),
            name=f"demo-{facts.model_name}",
            daemon=True,
        )
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def start(self) -> None:
        """Answer requests from now on."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering, hang up on every client and free the port."""
        if self._thread.is_alive():
            self._http.shutdown()
            self._thread.join()
        self._http.hang_up()
        self._http.server_close()

    def answer(self, path: str) -> tuple[HTTPStatus, str, str]:
        """Return status, content type and body for a GET of *path*."""
        match path.partition("?")[0]:
            case "/metrics":
                return HTTPStatus.OK, _TEXT, self.page()
            case "/version":
                return HTTPStatus.OK, _JSON, json.dumps({"version": VLLM_VERSION})
            case "/v1/models":
                return HTTPStatus.OK, _JSON, json.dumps(self._models())
            case "/health" | "/ping":
                return HTTPStatus.OK, _JSON, ""
            case _:
                return HTTPStatus.NOT_FOUND, _JSON, json.dumps({"detail": "Not Found"})

    def page(self) -> str:
        """Bring the engines to the present and return ``/metrics``."""
        with self._lock:
            now_seconds = self._clock()
            for engine in self._engines:
                engine.advance(now_seconds)
            return render_page(self._facts, [engine.stats for engine in self._engines])

    def busy_seconds(self, rank: int) -> float:
        """Bring one engine to the present and return the virtual time it has spent in steps."""
        with self._lock:
            now_seconds = self._clock()
            self._engines[rank].advance(now_seconds)
            return self._engines[rank].busy_seconds(now_seconds)

    def _models(self) -> dict[str, object]:
        card = {
            "id": self._facts.model_name,
            "object": "model",
            "created": int(self._facts.started_unix_seconds),
            "owned_by": "vllm",
            "root": self._model,
            "parent": None,
            "max_model_len": self._engines[0].limits.max_model_len,
        }
        return {"object": "list", "data": [card]}


class _HttpServer(ThreadingHTTPServer):
    """Keeps the open connections, so that closing need not wait for the clients to leave."""

    daemon_threads = True

    def __init__(self, answer: Callable[[str], tuple[HTTPStatus, str, str]]) -> None:
        self.answer = answer
        self.connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def server_bind(self) -> None:
        # HTTPServer's own asks the resolver for a host name, which nobody needs here.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "localhost", self.server_address[1]

    def handle_error(self, *_client: object) -> None:
        # A client that gives up in the middle of a page is its own affair.
        if not isinstance(sys.exception(), ConnectionError):
            _log.exception("simulated server failed url=http://127.0.0.1:%d", self.server_port)

    def hang_up(self) -> None:
        for connection in tuple(self.connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:  # the client was faster
                continue


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body in one packet
    server: _HttpServer

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)

    def finish(self) -> None:
        self.server.connections.discard(self.connection)
        super().finish()

    def do_GET(self) -> None:
        status, content_type, text = self.server.answer(self.path)
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "uvicorn"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (inherited name)
        """Stay silent: the node's log is about the exporter."""
