"""Ask a running kvheadroom for something of its API."""

import http.client
import ssl
from base64 import b64encode
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

from kvheadroom.errors import ConfigError, KvHeadroomError

_TIMEOUT_SECONDS: Final = 5.0
_MOST_BYTES: Final = 64 * 1024 * 1024
_LONGEST_MESSAGE: Final = 300


@dataclass(frozen=True, slots=True)
class ApiAccess:
    """Where a kvheadroom is, and how it lets us in.

    Attributes:
        url: ``http://127.0.0.1:10420``, or https.
        user: Of its ``basic_auth_users``; ``None`` sends none.
        password_file: Holds the user's password.
        ca_file: Holds the certificates that its own is checked against.
    """

    url: str
    user: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None


def get(access: ApiAccess, path: str) -> bytes:
    """Return what the kvheadroom answers to GET *path*.

    Raises:
        ConfigError: The URL, the user or a file cannot be used.
        KvHeadroomError: It does not answer, or with another status than 200.
    """
    parts = _parts(access.url)
    headers = _credentials(access)
    connection = _connection(parts, access.ca_file)
    place = f"{parts.scheme}://{parts.netloc}"
    try:
        connection.request("GET", parts.path.rstrip("/") + path, headers=headers)
        response = connection.getresponse()
        body = response.read(_MOST_BYTES)
    except (OSError, http.client.HTTPException) as error:
        why = str(error) or type(error).__name__
        raise KvHeadroomError(f"cannot ask the kvheadroom at {place}: {why}") from error
    finally:
        connection.close()
    if response.status != http.HTTPStatus.OK:
        said = " ".join(body.decode(errors="replace")[:_LONGEST_MESSAGE].split())
        raise KvHeadroomError(f"{place} answers {response.status}: {said}")
    return body


def _parts(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url:
        raise ConfigError("--url: must be http://HOST:PORT or https://HOST:PORT")
    if parts.username is not None:
        raise ConfigError("--url: must hold no user; give --user and --password-file")
    return parts


def _credentials(access: ApiAccess) -> dict[str, str]:
    if access.user is None:
        return {}
    if access.password_file is None:
        raise ConfigError("--user: needs --password-file")
    try:
        password = access.password_file.read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise ConfigError(f"--password-file {access.password_file}: {reason}") from error
    token = b64encode(f"{access.user}:{password}".encode()).decode()
    return {"Authorization": f"Basic {token}"}


def _connection(parts: SplitResult, ca_file: Path | None) -> http.client.HTTPConnection:
    host, port = parts.hostname or "", parts.port
    if parts.scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=_TIMEOUT_SECONDS)
    if ca_file is None and _is_loopback(host):
        # It is our own node on the other end; its certificate names the node, not loopback.
        context = ssl._create_unverified_context()  # noqa: S323, SLF001
    else:
        try:
            context = ssl.create_default_context(cafile=ca_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"--ca-file {ca_file}: {error}") from error
    return http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_SECONDS, context=context)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
