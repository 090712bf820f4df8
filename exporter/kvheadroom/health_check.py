"""Ask a running kvheadroom whether it is healthy."""

import http.client
import ssl
from typing import Final
from urllib.parse import urlsplit

_TIMEOUT_SECONDS: Final = 3.0


def check(url: str) -> str | None:
    """Return ``None`` if *url* answers as a living kvheadroom does, else what came back."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "not a URL with a host and a port"
    if parts.scheme not in {"http", "https"} or parts.hostname is None:
        return "not a URL like http://127.0.0.1:10420/-/healthy"
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        # It is our own process on the other end; its certificate names the node, not loopback.
        context = ssl._create_unverified_context()  # noqa: S323, SLF001
        connection = http.client.HTTPSConnection(
            parts.hostname, port, timeout=_TIMEOUT_SECONDS, context=context
        )
    else:
        connection = http.client.HTTPConnection(parts.hostname, port, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("GET", parts.path or "/")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return f"GET {parts.scheme}://{parts.hostname}:{port}{parts.path}: {error}"
    finally:
        connection.close()
    # With basic auth configured it asks for a password first, which only a living process can.
    alive = status in {http.HTTPStatus.OK, http.HTTPStatus.UNAUTHORIZED}
    return None if alive else f"{parts.path}: status {status}"
