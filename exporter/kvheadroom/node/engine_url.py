"""Take an engine's base URL apart, so that its credentials are never written anywhere."""

import re
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

from kvheadroom.errors import ConfigError

DEFAULT_PORT: Final = {"http": 80, "https": 443}
_HOST_NAME: Final = re.compile(r"[a-z0-9_][a-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class EngineUrl:
    """A server's address, and apart from it what opens its door.

    Attributes:
        scheme: ``http`` or ``https``.
        host: Name or address, an IPv6 address without brackets.
        port: Never left out.
        path: Prefix of every path on the server: empty, or ``/…`` without a slash at the end.
        user: Credentials for basic authentication; ``None`` without.
    """

    scheme: Literal["http", "https"]
    host: str
    port: int
    path: str = ""
    user: tuple[str, str] | None = field(default=None, repr=False)

    @property
    def netloc(self) -> str:
        """``host:port``, without credentials."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def address(self) -> str:
        """``host:port``, and the path where there is one: what this server is called."""
        return self.netloc + self.path

    @property
    def origin(self) -> str:
        """``scheme://host:port``, without credentials."""
        return f"{self.scheme}://{self.netloc}"

    @property
    def is_loopback(self) -> bool:
        """Whether the server is on this machine."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def parse_engine_url(url: str) -> EngineUrl:
    """Return the parts of *url*, the base URL of a vLLM server.

    Raises:
        ConfigError: Not a base URL. The text never repeats the URL, which may hold a password.
    """
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        raise ConfigError("an engine's URL has no readable host and port") from error
    host = (parts.hostname or "").lower()
    if parts.scheme not in ("http", "https") or not _is_host(host):
        raise ConfigError("an engine's URL must look like http://host:8000")
    if port == 0:
        raise ConfigError(f"an engine's URL has port 0: {host}")
    if parts.query or parts.fragment or not _is_plain(parts.path):
        raise ConfigError(f"an engine's URL must end with a plain path: {host}")
    user = None
    if parts.username is not None:
        user = unquote(parts.username), unquote(parts.password or "")
    return EngineUrl(
        scheme="https" if parts.scheme == "https" else "http",
        host=host,
        port=port or DEFAULT_PORT[parts.scheme],
        # Whoever pastes the scrape URL means the server.
        path=parts.path.rstrip("/").removesuffix("/metrics").rstrip("/"),
        user=user,
    )


def engine_address(url: str) -> str:
    """Return what the server at base URL *url* is called: ``host:port`` and its path.

    Raises:
        ConfigError: Not a base URL.
    """
    return parse_engine_url(url).address


def _is_host(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return _HOST_NAME.fullmatch(host) is not None
    return True


def _is_plain(path: str) -> bool:
    return path.isascii() and path.isprintable() and not {" ", "\\"} & set(path)
