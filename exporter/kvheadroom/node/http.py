"""Ask one server over HTTP, within one deadline and a number of bytes, whatever it does."""

import errno
import http.client
import queue
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urljoin, urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter
from requests.utils import DEFAULT_CA_BUNDLE_PATH

from kvheadroom import __version__
from kvheadroom.errors import SourceError
from kvheadroom.node.engine_url import DEFAULT_PORT, EngineUrl
from kvheadroom.node.http_failures import describe_failure

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_MAX_REDIRECTS: Final = 3
_SHOWN_CHARACTERS: Final = 100
_PIECE_BYTES: Final = 256 * 1024
_GZIP_WINDOW_BITS: Final = 31
_UNAUTHORIZED: Final = (401, 403)
_FAILURES: Final = (
    requests.RequestException,
    urllib3.exceptions.HTTPError,
    http.client.HTTPException,
    OSError,
)

# What makes two requests the same: path, media type asked for, bearer token.
_Question = tuple[str, str, str | None]

# When the exchange under way in this thread must have ended, by time.monotonic(). The sockets of
# urllib3 are made and read far below the caller, where no argument of ours reaches.
_deadline: ContextVar[float] = ContextVar("_deadline")


class EngineHttp:
    """The kept-alive connection to one server; for one thread at a time."""

    def __init__(self, url: EngineUrl, *, ca_file: str | None = None) -> None:
        """Prepare to talk to *url*; nothing is sent yet.

        Args:
            url: The server.
            ca_file: PEM file to trust instead of the usual authorities.

        Raises:
            OSError: *ca_file* cannot be read as certificates.
        """
        self._url: Final = url
        self._tls: Final = _tls_context(ca_file) if url.scheme == "https" else None
        self._adapter: Final = _Adapter(self._tls)
        # A poll asks the same few questions each time, so each request is made once.
        self._requests: Final[dict[_Question, requests.PreparedRequest]] = {}
        self._has_connection = False
        self._is_closed = False

    def get(
        self,
        path: str,
        *,
        accept: str,
        deadline_monotonic_seconds: float,
        max_bytes: int,
        bearer: str | None = None,
    ) -> bytes:
        """Return the decoded body of the answer to ``GET`` *path*.

        Args:
            path: Below the server's base URL, with a leading slash.
            accept: Media type asked for.
            deadline_monotonic_seconds: When to give up, by ``time.monotonic()``.
            max_bytes: Largest body that is accepted, before and after decoding.
            bearer: Token to authenticate with, instead of the URL's credentials.

        Raises:
            SourceError: Any outcome but a whole body with status 200.
        """
        token = _deadline.set(deadline_monotonic_seconds)
        try:
            return self._follow(self._prepared(path, accept, bearer), max_bytes)
        except SourceError as error:
            raise SourceError(error.reason, f"{self.shown(path)}: {error}") from error
        except Exception as error:
            # Closed by another thread, urllib3 stumbles over a connection that has gone.
            if not self._is_closed:
                raise
            raise SourceError("reset", f"{self.shown(path)}: closed meanwhile") from error
        finally:
            _deadline.reset(token)

    def open_connection(self, *, deadline_monotonic_seconds: float) -> socket.socket:
        """Return a connection of the caller's own to the server, TLS included.

        Args:
            deadline_monotonic_seconds: When to give up, by ``time.monotonic()``; what is read
                from the connection later needs a limit of its own.

        Raises:
            SourceError: No connection could be made in time.
        """
        token = _deadline.set(deadline_monotonic_seconds)
        try:
            sock = _connected(self._url.host, self._url.port)
            if self._tls is None:
                return sock
            return self._tls.wrap_socket(sock, server_hostname=self._url.host)
        except OSError as error:
            raise SourceError(*describe_failure(error)) from error
        finally:
            _deadline.reset(token)

    def head(self, path: str) -> bytes:
        """Return the head of a ``GET`` for *path*, for a connection of the caller's own."""
        request = self._prepared(path, "*/*", None)
        lines = [f"GET {request.path_url} HTTP/1.1", f"Host: {self._url.netloc}"]
        lines += [f"{name}: {value}" for name, value in request.headers.items()]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    def shown(self, path: str) -> str:
        """Return how a request is named in errors: without credentials."""
        return f"GET {self._url.origin}{self._url.path}{path}"

    def close(self) -> None:
        """Close the connection; a question under way fails."""
        self._is_closed = True
        self._adapter.close()

    def _prepared(self, path: str, accept: str, bearer: str | None) -> requests.PreparedRequest:
        question = (path, accept, bearer)
        if question not in self._requests:
            self._requests[question] = self._request(path, accept, bearer)
        return self._requests[question]

    def _request(self, path: str, accept: str, bearer: str | None) -> requests.PreparedRequest:
        headers = {
            "Accept": accept,
            # On this machine compressing costs more than copying.
            "Accept-Encoding": "identity" if self._url.is_loopback else "gzip",
            "User-Agent": f"kvheadroom/{__version__}",
        }
        auth = self._url.user and (self._url.user[0].encode(), self._url.user[1].encode())
        if bearer is not None:
            headers["Authorization"] = f"Bearer {bearer}"
            auth = None
        url = f"{self._url.origin}{self._url.path}{path}"
        return requests.Request("GET", url, headers=headers, auth=auth).prepare()

    def _follow(self, request: requests.PreparedRequest, max_bytes: int) -> bytes:
        for _ in range(_MAX_REDIRECTS + 1):
            may_be_stale, self._has_connection = self._has_connection, False
            response = self._send(request, may_be_stale=may_be_stale)
            try:
                if not response.is_redirect:
                    body = _body(response, max_bytes)
                    self._has_connection = True
                    return body
            finally:
                response.close()
            request = self._redirected(request, response.headers["Location"])
        raise SourceError("redirect", f"redirected more than {_MAX_REDIRECTS} times")

    def _send(self, request: requests.PreparedRequest, *, may_be_stale: bool) -> requests.Response:
        try:
            # Not Session.send: it would read the body of a redirect whole, whatever its size.
            timeout_seconds = _remaining_seconds()
            return self._adapter.send(request, stream=True, timeout=timeout_seconds)
        except _FAILURES as error:
            reason, text = describe_failure(error)
            if reason != "reset" or not may_be_stale:
                raise SourceError(reason, text) from error
        # A server that restarted closed the connection we kept; that is no failure yet.
        return self._send(request, may_be_stale=False)

    def _redirected(
        self, request: requests.PreparedRequest, location: str
    ) -> requests.PreparedRequest:
        try:
            target = urljoin(request.url or "", location)
            parts = urlsplit(target)
            port = parts.port or DEFAULT_PORT.get(parts.scheme)
            redirected = request.copy()
            redirected.prepare_url(target, None)
        except (ValueError, requests.RequestException) as error:
            raise SourceError("redirect", "redirected to no readable address") from error
        if (parts.scheme, parts.hostname, port) != (
            self._url.scheme,
            self._url.host,
            self._url.port,
        ):
            shown = _shown_origin(parts.scheme, parts.hostname or "", port)
            raise SourceError("redirect", f"redirected to another server, {shown}")
        return redirected


def _shown_origin(scheme: str, host: str, port: int | None) -> str:
    """Return ``scheme://host:port`` in printable ASCII, of bounded length."""
    netloc = f"[{host}]" if ":" in host else host
    origin = f"{scheme}://{netloc}" + (f":{port}" if port is not None else "")
    return ascii(origin[:_SHOWN_CHARACTERS])[1:-1]


def _body(response: requests.Response, max_bytes: int) -> bytes:
    if response.status_code in _UNAUTHORIZED:
        raise SourceError("unauthorized", f"HTTP {response.status_code}")
    if response.status_code != requests.codes.ok:
        raise SourceError("http_error", f"HTTP {response.status_code}")
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    body = _received(response, max_bytes)
    if encoding in ("gzip", "x-gzip"):
        return _gunzipped(body, max_bytes)
    if encoding != "identity":
        raise SourceError("not_metrics", "the answer has an encoding we did not ask for")
    return body


def _received(response: requests.Response, max_bytes: int) -> bytes:
    pieces: list[bytes] = []
    received_bytes = 0
    try:
        while piece := response.raw.read(_PIECE_BYTES, decode_content=False):
            pieces.append(piece)
            received_bytes += len(piece)
            if received_bytes > max_bytes:
                raise SourceError("too_large", f"more than {max_bytes} bytes")
    except _FAILURES as error:
        raise SourceError(*describe_failure(error)) from error
    return b"".join(pieces)


def _gunzipped(body: bytes, max_bytes: int) -> bytes:
    unzip = zlib.decompressobj(_GZIP_WINDOW_BITS)
    try:
        decoded = unzip.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise SourceError("not_metrics", "the answer says gzip and is not") from error
    if len(decoded) > max_bytes:
        raise SourceError("too_large", f"more than {max_bytes} bytes when unpacked")
    if not unzip.eof:
        raise SourceError("truncated", "the compressed answer broke off")
    return decoded


# --- sockets that know the deadline -----------------------------------------------------------
#
# A time limit per read, which is all that requests offers, lets a server that sends a byte now
# and then hold us for ever. So every read gets only what is left of the whole.


def _remaining_seconds() -> float:
    remaining_seconds = _deadline.get() - time.monotonic()
    if remaining_seconds <= 0:
        raise TimeoutError
    return remaining_seconds


class _Socket(socket.socket):
    def recv_into(self, buffer: "WriteableBuffer", nbytes: int = 0, flags: int = 0) -> int:
        self.settimeout(_remaining_seconds())
        return super().recv_into(buffer, nbytes, flags)


class _TlsSocket(ssl.SSLSocket):
    def recv_into(
        self, buffer: "WriteableBuffer", nbytes: int | None = None, flags: int = 0
    ) -> int:
        self.settimeout(_remaining_seconds())
        return super().recv_into(buffer, nbytes, flags)


class _Connection(urllib3.connection.HTTPConnection):
    def _new_conn(self) -> socket.socket:
        return _connected(self.host, self.port)


class _TlsConnection(urllib3.connection.HTTPSConnection):
    def _new_conn(self) -> socket.socket:
        return _connected(self.host, self.port)


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


class _Adapter(HTTPAdapter):
    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self._tls = tls
        super().__init__(pool_connections=1, pool_maxsize=1)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 (as upstream)
        super().init_poolmanager(*args, **kwargs, ssl_context=self._tls)
        self.poolmanager.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}

    def cert_verify(self, *_: object, **__: object) -> None:
        """Leave it to the context, which verifies; upstream loads its bundle on every connect."""


def _tls_context(ca_file: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca_file)
    if ca_file is None:
        # A slim container has no authorities of its own.
        context.load_verify_locations(DEFAULT_CA_BUNDLE_PATH)
    context.sslsocket_class = _TlsSocket
    return context


def _connected(host: str, port: int) -> socket.socket:
    """Return a socket to the first address of *host* that answers, each given its share of time."""
    failure: OSError = socket.gaierror(socket.EAI_NONAME, "no address")
    addresses = _addresses(host.strip("[]"), port)
    for addresses_left, (family, kind, protocol, _, address) in zip(
        range(len(addresses), 0, -1), addresses, strict=True
    ):
        sock = _Socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(_remaining_seconds() / addresses_left)
            sock.connect(address)
            # A TLS handshake comes next, bounded by this.
            sock.settimeout(_remaining_seconds())
        except (ConnectionResetError, BrokenPipeError) as error:
            sock.close()
            # urllib3 takes these two for a server that has answered already, and goes on to read
            # from a connection that was never made.
            failure = ConnectionAbortedError(errno.ECONNABORTED, str(error))
        except OSError as error:
            sock.close()
            failure = error
        else:
            return sock
    raise failure


_Addresses = Sequence[tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]]


def _addresses(host: str, port: int) -> _Addresses:
    kind = socket.SOCK_STREAM
    try:
        return socket.getaddrinfo(host, port, type=kind, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        pass
    # The resolver has no time limit that we could set: it gets a thread, which ends when the
    # resolver gives up by itself.
    answers: queue.SimpleQueue[_Addresses | OSError] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            answers.put(socket.getaddrinfo(host, port, type=kind))
        except (OSError, UnicodeError) as error:
            answers.put(error if isinstance(error, OSError) else socket.gaierror(str(error)))

    threading.Thread(target=look_up, name=f"look up {host}", daemon=True).start()
    try:
        answer = answers.get(timeout=_remaining_seconds())
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(answer, OSError):
        raise answer
    return answer
