"""Read ``--web.config.file``: TLS, basic auth and headers in exporter-toolkit's format."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kvheadroom.errors import ConfigError
from kvheadroom.faces.web_options import ClientAuth, TlsOptions, TlsVersion, WebOptions
from kvheadroom.settings import Settings
from kvheadroom.strict_yaml import FileRecord, load_record


class TlsInFile(FileRecord, frozen=True, forbid_unknown_fields=True):
    """``tls_server_config``; the keys that Python's ssl cannot honor are here to be refused."""

    cert_file: str | None = None
    key_file: str | None = None
    client_ca_file: str | None = None
    client_auth_type: ClientAuth | str = "NoClientCert"
    min_version: TlsVersion | None = None
    max_version: TlsVersion | None = None
    cert: str | None = None
    key: str | None = None
    client_ca: str | None = None
    client_allowed_sans: tuple[str, ...] = ()
    cipher_suites: tuple[str, ...] = ()
    prefer_server_cipher_suites: bool = True
    curve_preferences: tuple[str, ...] = ()


class HttpInFile(FileRecord, frozen=True, forbid_unknown_fields=True):
    """``http_server_config``."""

    http2: bool = False
    headers: Mapping[str, str] = MappingProxyType({})


class WebConfigFile(FileRecord, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    tls_server_config: TlsInFile | None = None
    http_server_config: HttpInFile = HttpInFile()
    basic_auth_users: Mapping[str, str] = MappingProxyType({})
    rate_limit: Any = None


def web_options(settings: Settings) -> WebOptions:
    """Return how to serve, from *settings* and the web configuration file they name.

    Raises:
        ConfigError: The file asks for something that cannot be honored.
    """
    path = settings.web_config_file
    if path is None:
        return WebOptions(listen=settings.listen_addresses, telemetry_path=settings.telemetry_path)
    file = load_record(path, WebConfigFile)
    _refuse(path, _unhonored(file))
    return WebOptions(
        listen=settings.listen_addresses,
        telemetry_path=settings.telemetry_path,
        tls=_tls(path, file.tls_server_config),
        basic_auth_users=file.basic_auth_users,
        headers=file.http_server_config.headers,
    )


def _unhonored(file: WebConfigFile) -> Mapping[str, bool]:
    tls = file.tls_server_config or TlsInFile()
    return {
        "http_server_config.http2": file.http_server_config.http2,
        "rate_limit": file.rate_limit is not None,
        "tls_server_config.cert": tls.cert is not None,
        "tls_server_config.key": tls.key is not None,
        "tls_server_config.client_ca": tls.client_ca is not None,
        "tls_server_config.client_allowed_sans": bool(tls.client_allowed_sans),
        "tls_server_config.cipher_suites": bool(tls.cipher_suites),
        "tls_server_config.prefer_server_cipher_suites": not tls.prefer_server_cipher_suites,
        "tls_server_config.curve_preferences": bool(tls.curve_preferences),
    }


def _refuse(path: Path, unhonored: Mapping[str, bool]) -> None:
    # A security setting that is silently ignored is worse than a server that does not start.
    for key, asked in unhonored.items():
        if asked:
            raise ConfigError(f"{path}: {key} cannot be honored by kvheadroom; remove it")


def _tls(path: Path, tls: TlsInFile | None) -> TlsOptions | None:
    if tls is None:
        return None
    if tls.cert_file is None or tls.key_file is None:
        raise ConfigError(f"{path}: tls_server_config needs both cert_file and key_file")
    return TlsOptions(
        cert_file=path.parent / tls.cert_file,
        key_file=path.parent / tls.key_file,
        client_ca_file=None if tls.client_ca_file is None else path.parent / tls.client_ca_file,
        client_auth_type=_client_auth(path, tls.client_auth_type),
        min_version=tls.min_version or "TLS12",
        max_version=tls.max_version or "TLS13",
    )


def _client_auth(path: Path, text: str) -> ClientAuth:
    if text in {"RequestClientCert", "RequireAnyClientCert"}:
        raise ConfigError(
            f"{path}: client_auth_type {text} lets any certificate in; use "
            "RequireAndVerifyClientCert or NoClientCert"
        )
    if text == "NoClientCert":
        return "NoClientCert"
    if text == "VerifyClientCertIfGiven":
        return "VerifyClientCertIfGiven"
    if text == "RequireAndVerifyClientCert":
        return "RequireAndVerifyClientCert"
    raise ConfigError(f"{path}: no such client_auth_type: {text!r}")
