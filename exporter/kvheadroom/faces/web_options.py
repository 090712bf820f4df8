"""What the operator decides about the HTTP face: where it listens, whom it serves, its limits."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from kvheadroom.errors import ConfigError

ClientAuth = Literal["NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"]
TlsVersion = Literal["TLS12", "TLS13"]

TLS_VERSIONS: Final[tuple[TlsVersion, ...]] = TlsVersion.__args__  # type: ignore[attr-defined]

# The five headers that exporter-toolkit's http_server_config.headers admits.
HEADER_NAMES: Final = (
    "Content-Security-Policy",
    "Strict-Transport-Security",
    "X-Content-Type-Options",
    "X-Frame-Options",
    "X-XSS-Protection",
)

_PATH: Final = re.compile(r"(/[A-Za-z0-9._~-]+)+/?")
_HIGHEST_PORT: Final = 65535
_OWN_PATHS: Final = ("/-/", "/api/")


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """The ``tls_server_config`` of exporter-toolkit, as far as Python's ssl can honor it.

    Attributes:
        cert_file: PEM certificate, followed by its intermediates.
        key_file: PEM private key, not encrypted.
        client_ca_file: PEM certificates that sign clients' certificates.
        client_auth_type: Whether clients must show one.
        min_version: Oldest protocol spoken.
        max_version: Newest protocol spoken.
    """

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None
    client_auth_type: ClientAuth = "NoClientCert"
    min_version: TlsVersion = "TLS12"
    max_version: TlsVersion = "TLS13"


@dataclass(frozen=True, slots=True)
class WebOptions:
    """Everything about the HTTP face that can be set.

    Attributes:
        listen: ``(host, port)`` of each listener; host ``""`` is every interface, port 0 any port.
        telemetry_path: Where Prometheus scrapes.
        max_connections: Open connections; one more evicts the least useful. A TLS connection
            costs ten times the memory, so under TLS at most 128 are open whatever is set here.
        max_requests: Requests in flight; one more is answered 503.
        tls: ``None`` serves plain HTTP.
        basic_auth_users: User name → bcrypt hash; empty asks nobody for a password.
        headers: Added to every response.
        handshake_seconds: Limit from a TLS client's connection to the end of its handshake.
        head_seconds: Limit from a connection, or a further request's first byte, to the end of
            the request's headers.
        response_seconds: Limit from there until the client has taken the whole response.
        idle_seconds: How long a connection is kept between two requests; above Prometheus'
            default scrape interval of one minute, so that a scraper keeps its connection.
    """

    listen: tuple[tuple[str, int], ...]
    telemetry_path: str = "/metrics"
    max_connections: int = 512
    max_requests: int = 40
    tls: TlsOptions | None = None
    basic_auth_users: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    handshake_seconds: float = 5.0
    head_seconds: float = 10.0
    response_seconds: float = 30.0
    idle_seconds: int = 75

    @property
    def clients_are_known(self) -> bool:
        """Whether every client that reaches a route has proven who it is."""
        by_certificate = (
            self.tls is not None and self.tls.client_auth_type == "RequireAndVerifyClientCert"
        )
        return bool(self.basic_auth_users) or by_certificate


def format_address(host: str, port: int) -> str:
    """Return ``host:port`` as a person reads it: IPv6 in brackets, every interface as ``*``."""
    shown = f"[{host}]" if ":" in host else host or "*"
    return f"{shown}:{port}"


def reloaded_options(running: WebOptions, wanted: WebOptions) -> WebOptions:
    """Return *running* with what can change while it serves taken from *wanted*.

    That is users and headers. Whether every client is known also depends on how TLS runs, so a
    TLS rule that is only wanted must not open the pages yet.
    """
    return replace(running, basic_auth_users=wanted.basic_auth_users, headers=wanted.headers)


def check_web_options(options: WebOptions) -> None:
    """Refuse options that cannot be honored, before anything listens.

    Raises:
        ConfigError: One line that names the option.
    """
    if not options.listen:
        raise ConfigError("no address to listen on")
    for host, port in options.listen:
        if not 0 <= port <= _HIGHEST_PORT:  # the resolver would silently take it modulo 65536
            raise ConfigError(f"cannot listen on {format_address(host, port)}: no such port")
    check_telemetry_path(options.telemetry_path)
    for name in ("max_connections", "max_requests"):
        if getattr(options, name) < 1:
            raise ConfigError(f"{name} must be at least 1: {getattr(options, name)}")
    for name, text in options.headers.items():
        _check_header(name, text)
    if options.tls is not None:
        _check_tls(options.tls)


def check_telemetry_path(path: str) -> None:
    """Refuse a telemetry path that is none, or that hides a route of ours.

    Raises:
        ConfigError: It does not start with ``/``, is ``/`` itself, has characters that clients
            would have to escape, or lies below ``/-/`` or ``/api/``.
    """
    if not path.startswith("/"):
        raise ConfigError(f"the telemetry path must start with a slash: {path!r}")
    if path == "/" or f"{path}/".startswith(_OWN_PATHS):
        raise ConfigError(f"the telemetry path hides a page of kvheadroom itself: {path!r}")
    has_dots = any(segment in {".", ".."} for segment in path.split("/"))
    if has_dots or not _PATH.fullmatch(path):
        raise ConfigError(f"the telemetry path is no plain path like /metrics: {path!r}")


def _check_header(name: str, text: str) -> None:
    if name.lower() not in {known.lower() for known in HEADER_NAMES}:
        raise ConfigError(f"response header {name!r} cannot be set; only {', '.join(HEADER_NAMES)}")
    if not (text.isascii() and text.isprintable()):
        raise ConfigError(f"response header {name} must be one line of printable ASCII")


def _check_tls(tls: TlsOptions) -> None:
    if TLS_VERSIONS.index(tls.min_version) > TLS_VERSIONS.index(tls.max_version):
        raise ConfigError(f"TLS min_version {tls.min_version} is above {tls.max_version}")
    # Either half alone would let in clients that the operator meant to keep out.
    if tls.client_ca_file is None and tls.client_auth_type != "NoClientCert":
        raise ConfigError(f"client_auth_type {tls.client_auth_type} needs a client_ca_file")
    if tls.client_ca_file is not None and tls.client_auth_type == "NoClientCert":
        raise ConfigError("client_ca_file is given, but client_auth_type is NoClientCert")
