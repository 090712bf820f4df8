"""The TLS context of new connections, read again whenever the certificate's files change."""

import logging
import ssl
from pathlib import Path
from typing import Final

from kvheadroom.errors import ConfigError
from kvheadroom.faces.web_options import ClientAuth, TlsOptions, TlsVersion

_log = logging.getLogger(__name__)

_VERSION: Final[dict[TlsVersion, ssl.TLSVersion]] = {
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}
_VERIFY: Final[dict[ClientAuth, ssl.VerifyMode]] = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}

# What tells one state of the files from the next: inode, size and change time of each.
_Stamp = tuple[tuple[int, int, int] | None, ...]


class ServerCertificate:
    """The certificate that new connections are shown.

    A connection keeps the context it began with, so a rotation disturbs none. Files that
    cannot be used, half-way through a rotation or for good, leave the last good ones in place.

    Raises:
        ConfigError: The files cannot be used at start.
    """

    def __init__(self, options: TlsOptions) -> None:
        self._options = options
        self._stamp = _stamp_of(options)
        self._context = make_context(options)

    def current_context(self) -> ssl.SSLContext:
        """Return the context for one new connection."""
        stamp = _stamp_of(self._options)
        if stamp != self._stamp:
            # Before the attempt, so that bad files are tried and logged once.
            self._stamp = stamp
            try:
                self._context = make_context(self._options)
            except ConfigError as error:
                fields = {"detail": str(error)}
                _log.warning("TLS files refused, the older ones stay", extra={"fields": fields})
            else:
                fields = {"file": str(self._options.cert_file)}
                _log.info("TLS certificate read", extra={"fields": fields})
        return self._context


def make_context(options: TlsOptions) -> ssl.SSLContext:
    """Return a server context with the certificate and client rules of *options*.

    Raises:
        ConfigError: A file cannot be read or is not what it should be.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSION[options.min_version]
    context.maximum_version = _VERSION[options.max_version]
    context.options |= ssl.OP_NO_RENEGOTIATION  # a handshake is dear, and repeated for free
    certificate = f"TLS certificate {options.cert_file} with key {options.key_file}"
    try:
        # Without a password of ours OpenSSL would ask for one on the terminal.
        context.load_cert_chain(options.cert_file, options.key_file, password=lambda: "")
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot use {certificate}: {_reason(error)}") from error
    if options.client_ca_file is not None:
        try:
            context.load_verify_locations(options.client_ca_file)
        except (OSError, ValueError) as error:
            text = f"cannot use client_ca_file {options.client_ca_file}: {_reason(error)}"
            raise ConfigError(text) from error
    context.verify_mode = _VERIFY[options.client_auth_type]
    return context


def _stamp_of(options: TlsOptions) -> _Stamp:
    paths = (options.cert_file, options.key_file, options.client_ca_file)
    return tuple(_file_stamp(path) for path in paths)


def _file_stamp(path: Path | None) -> tuple[int, int, int] | None:
    if path is None:
        return None
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        known = {
            "KEY_VALUES_MISMATCH": "the key does not belong to the certificate",
            "NO_CERTIFICATE_OR_CRL_FOUND": "no certificate in it",
        }
        reason = error.reason or "not PEM, or an encrypted key"
        return known.get(reason, reason.lower().replace("_", " "))
    return getattr(error, "strerror", None) or str(error)
