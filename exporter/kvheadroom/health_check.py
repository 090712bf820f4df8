"""Ask a running kvheadroom whether it is healthy."""

import http.client
import ssl
from typing import Final
from urllib.parse import urlsplit

_TIMEOUT_SECONDS: Final = 3.0


def check(url: str) -> str | None:
    """Return ``None`` if *url* answers as a living kvheadroom does, else what came back."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or parts.hostname is None:
        return f"not a URL: {url!r}"
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        # It is our own process on the other end; its certificate names the node, not loopback.
        context = ssl._create_unverified_context()  # noqa: S323, SLF001
        connection = http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=_TIMEOUT_SECONDS, context=context
        )
    else:
        connection = http.client.HTTPConnection(
            parts.hostname, parts.port, timeout=_TIMEOUT_SECONDS
        )
    try:
        connection.request("GET", parts.path or "/")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return f"GET {parts.scheme}://{parts.hostname}:{parts.port}{parts.path}: {error}"
    finally:
        connection.close()
    # With basic auth configured it asks for a password first, which only a living process can.
    alive = status in {http.HTTPStatus.OK, http.HTTPStatus.UNAUTHORIZED}
    return None if alive else f"{parts.path}: status {status}"
