"""Ask one path of a server for its status alone, at a tenth of what a whole exchange costs."""

import re
import socket
import time
from contextlib import suppress
from typing import Final

from kvheadroom.errors import SourceError
from kvheadroom.node.http import EngineHttp
from kvheadroom.node.http_failures import describe_failure

_MAX_ANSWER_BYTES: Final = 64 * 1024
_PIECE_BYTES: Final = 4096
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] (\d{3})[ \r]")
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d{1,9})[ \t]*\r\n", re.IGNORECASE)
# Time for an answer that was under way already when it was asked for again.
_LATE_SECONDS: Final = 0.01


class StatusProbe:
    """One path of one server, asked again and again; for one thread at a time.

    Its connection is its own, so that a path that hangs leaves the page's connection alone. A
    question that got no answer in time stays asked: further calls only look whether the answer
    has come, so that a server that hangs delays one poll, not all that follow.
    """

    def __init__(self, http: EngineHttp, path: str) -> None:
        """Prepare to ask *path* of the server that *http* talks to; nothing is sent yet."""
        self._http: Final = http
        self._path: Final = path
        self._question: Final = http.head(path)
        self._socket: socket.socket | None = None
        self._received = b""
        self._is_asked = False
        self._is_fresh = False

    def begin(self, *, deadline_monotonic_seconds: float) -> None:
        """Send the question where a connection is kept, so that the answer is there when asked for.

        What goes wrong is said by :meth:`ask`.
        """
        if self._socket is None or self._is_asked:
            return
        try:
            self._socket.settimeout(_left_seconds(deadline_monotonic_seconds))
            self._socket.sendall(self._question)
        except OSError:
            self.close()
        else:
            self._is_asked = self._is_fresh = True

    def ask(self, *, deadline_monotonic_seconds: float) -> int:
        """Return the status of the answer to ``GET`` the path, redirects not followed.

        Raises:
            SourceError: ``timeout`` while no whole answer has come; another reason where none
                will.
        """
        try:
            return self._ask(deadline_monotonic_seconds)
        except TimeoutError as error:
            raise SourceError("timeout", f"{self._shown}: no complete answer in time") from error
        except (OSError, ValueError) as error:
            self.close()
            reason, text = describe_failure(error)
            raise SourceError(reason, f"{self._shown}: {text}") from error
        except SourceError as error:
            raise SourceError(error.reason, f"{self._shown}: {error}") from error

    def close(self) -> None:
        """Close the connection; a later question opens another."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.close()
        self._socket, self._received, self._is_asked, self._is_fresh = None, b"", False, False

    @property
    def _shown(self) -> str:
        return self._http.shown(self._path)

    def _ask(self, deadline: float) -> int:
        kept = self._socket
        is_fresh, self._is_fresh = self._is_fresh, False
        if kept is not None:
            try:
                if self._is_asked:
                    late = time.monotonic() + _LATE_SECONDS
                    return self._answer(kept, deadline if is_fresh else min(deadline, late))
                return self._send(kept, deadline)
            except TimeoutError:
                raise
            except OSError:
                # A server that restarted closed the connection we kept; that is no failure yet.
                self.close()
        self._socket = made = self._http.open_connection(deadline_monotonic_seconds=deadline)
        return self._send(made, deadline)

    def _send(self, sock: socket.socket, deadline: float) -> int:
        sock.settimeout(_left_seconds(deadline))
        sock.sendall(self._question)
        self._is_asked = True
        return self._answer(sock, deadline)

    def _answer(self, sock: socket.socket, deadline: float) -> int:
        """Wait for the rest of the answer; what has come by the deadline is kept for the next."""
        while b"\r\n\r\n" not in self._received:
            self._receive(sock, deadline)
        head, _, body = self._received.partition(b"\r\n\r\n")
        status, length = _STATUS_LINE.match(head), _LENGTH.search(head + b"\r\n")
        if status is None:
            raise ValueError
        if length is None or int(length[1]) > _MAX_ANSWER_BYTES:
            self.close()  # where such an answer ends does not matter: the status is known
            return int(status[1])
        while len(body) < int(length[1]):
            self._receive(sock, deadline)
            body = self._received.partition(b"\r\n\r\n")[2]
        self._received, self._is_asked = b"", False
        return int(status[1])

    def _receive(self, sock: socket.socket, deadline: float) -> None:
        if len(self._received) > 2 * _MAX_ANSWER_BYTES:
            raise ValueError
        sock.settimeout(_left_seconds(deadline))
        piece = sock.recv(_PIECE_BYTES)
        if not piece:
            raise ConnectionResetError
        self._received += piece


def _left_seconds(deadline: float) -> float:
    left_seconds = deadline - time.monotonic()
    if left_seconds <= 0:
        raise TimeoutError
    return left_seconds
