"""Say in one bounded word, and one line, why an HTTP exchange failed."""

import http.client
import os
import socket
import ssl
from collections.abc import Iterator
from typing import Final

from kvheadroom.errors import HttpReason

# The first class that fits decides, so the narrower ones come first.
_KNOWN: Final[tuple[tuple[type[BaseException], HttpReason, str], ...]] = (
    (TimeoutError, "timeout", "no complete answer in time"),
    (socket.gaierror, "unreachable", "the host name cannot be resolved"),
    (ssl.SSLError, "tls", "no TLS connection could be made"),
    (http.client.IncompleteRead, "truncated", "the answer broke off"),
    (http.client.RemoteDisconnected, "reset", "the server hung up without an answer"),
    (http.client.HTTPException, "not_metrics", "the answer is no proper HTTP"),
    (ConnectionRefusedError, "unreachable", "connection refused"),
    (ConnectionError, "reset", "the connection broke"),
)


def describe_failure(error: BaseException) -> tuple[HttpReason, str]:
    """Return the reason behind *error* and a text that repeats nothing the server sent.

    Libraries wrap the operating system's error two or three times; the innermost one that says
    something decides. Where none does, a library disliked the form of the answer.
    """
    for cause in reversed(list(_chain(error))):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return "tls", f"certificate not accepted: {cause.verify_message}"
        for kind, reason, text in _KNOWN:
            if isinstance(cause, kind):
                return reason, text
        if isinstance(cause, OSError) and cause.errno is not None:
            return "unreachable", os.strerror(cause.errno).lower()
    return "not_metrics", "the answer is no proper HTTP"


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__
