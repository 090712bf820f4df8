"""Read lists of servers to watch in Prometheus' own format, from files and over HTTP."""

import glob
import json
import logging
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from kvheadroom.errors import ConfigError, SourceError
from kvheadroom.node.engine_url import EngineUrl, parse_engine_url
from kvheadroom.node.http import EngineHttp
from kvheadroom.units import MIB

_log = logging.getLogger(__name__)

_MOST_BYTES: Final = 4 * MIB
_MOST_TARGETS: Final = 10_000
_LABEL: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SCHEME: Final = "__scheme__"
_PATH: Final = "__metrics_path__"
# Labels that only direct Prometheus' own scrape.
_META: Final = "__"

Load = Callable[[Path], object]


@dataclass(frozen=True, slots=True)
class ListedServer:
    """One server in a list.

    Attributes:
        url: Base URL; may hold credentials, so it is never shown.
        address: The same server without them.
        labels: What the list says of it, without Prometheus' own ``__…__`` labels.
    """

    url: str = field(repr=False)
    address: str
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def parse_target_groups(data: object) -> tuple[ListedServer, ...]:
    """Return the servers in *data*, each once, the first mention of it.

    Args:
        data: A list of ``{"targets": ["host:port", …], "labels": {…}}``; the label ``__scheme__``
            is ``http`` or ``https``, ``__metrics_path__`` where its page is.

    Raises:
        ConfigError: It is something else. The text names the place and repeats no target.

    Source:
        Prometheus' ``file_sd`` and ``http_sd``; a target may be a base URL here.
    """
    if data is None:
        return ()
    if not isinstance(data, list):
        raise ConfigError("not a list of target groups")
    servers: dict[str, ListedServer] = {}
    for number, group in enumerate(data, 1):
        for server in _servers_of(group, f"group {number}"):
            servers.setdefault(server.address, server)
    if len(servers) > _MOST_TARGETS:
        raise ConfigError(f"more than {_MOST_TARGETS} targets")
    return tuple(servers.values())


def _servers_of(group: object, where: str) -> list[ListedServer]:
    if not isinstance(group, Mapping):
        raise ConfigError(f"{where}: not a mapping with targets and labels")
    unknown = next((str(key) for key in group if key not in ("targets", "labels")), None)
    if unknown is not None:
        raise ConfigError(f"{where}: unknown key {unknown[:40]!r}; use targets and labels")
    targets, labels = group.get("targets"), group.get("labels") or {}
    if not isinstance(targets, list) or not all(isinstance(one, str) for one in targets):
        raise ConfigError(f"{where}: targets must be a list of HOST:PORT")
    if not _are_labels(labels):
        raise ConfigError(f"{where}: labels must be names with texts")
    shown = {name: text for name, text in labels.items() if not name.startswith(_META)}
    # The server's own pages lie beside the one that Prometheus asks for.
    path = labels.get(_PATH, "").removesuffix("/metrics")
    servers: list[ListedServer] = []
    for number, target in enumerate(targets, 1):
        url = target if "://" in target else f"{labels.get(_SCHEME, 'http')}://{target}{path}"
        try:
            address = parse_engine_url(url).address
        except ConfigError as error:
            raise ConfigError(f"{where}, target {number}: {error}") from error
        servers.append(ListedServer(url, address, MappingProxyType(shown)))
    return servers


def _are_labels(labels: object) -> bool:
    return isinstance(labels, Mapping) and all(
        isinstance(name, str) and _LABEL.fullmatch(name) and isinstance(text, str)
        for name, text in labels.items()
    )


# --- files --------------------------------------------------------------------------------------

# What changes when a file is written or replaced.
_Stamp = tuple[int, int, int]


class TargetFiles:
    """Lists in files, read again when one changes. For one thread at a time.

    Args:
        patterns: Paths, the last part of which may be a pattern such as ``*.json``.
        load: Returns what a YAML file holds, or raises ConfigError.

    Attributes:
        problems: Path → why its list is not the one in force, in one line.
    """

    def __init__(self, patterns: Sequence[str], *, load: Load) -> None:
        self._patterns: Final = tuple(patterns)
        self._load: Final = load
        self._read: dict[str, tuple[_Stamp | None, tuple[ListedServer, ...]]] = {}
        self.problems: Mapping[str, str] = MappingProxyType({})

    def servers(self) -> tuple[ListedServer, ...]:
        """Return every server listed now; a file that cannot be used keeps what it last said."""
        paths = self._paths()
        problems = {path: text for path, text in self.problems.items() if path in paths}
        for path in paths:
            stamp = _stamp(path)
            if path in self._read and self._read[path][0] == stamp:
                continue
            known = self._read[path][1] if path in self._read else ()
            try:
                known = self._parsed(path)
                problems.pop(path, None)
            except ConfigError as error:
                problems[path] = str(error)
                fields = {"file": path, "detail": str(error)}
                _log.error("target file not used", extra={"fields": fields})
            self._read[path] = (stamp, known)
        self._read = {path: self._read[path] for path in paths}
        self.problems = MappingProxyType(problems)
        listed = {one.address: one for path in reversed(paths) for one in self._read[path][1]}
        return tuple(listed.values())

    def _paths(self) -> list[str]:
        found: dict[str, None] = {}
        for pattern in self._patterns:
            # A plain path stays, there or not: that it is missing must be said.
            matching = sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern]  # noqa: PTH207
            found.update(dict.fromkeys(matching))
        return list(found)

    def _parsed(self, path: str) -> tuple[ListedServer, ...]:
        file = Path(path)
        try:
            if file.stat().st_size > _MOST_BYTES or not file.is_file():
                raise ConfigError(f"{path}: not a regular file of at most {_MOST_BYTES} bytes")
            data = (
                parse_json(path, file.read_bytes()) if path.endswith(".json") else self._load(file)
            )
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
        try:
            return parse_target_groups(data)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error


def _stamp(path: str) -> _Stamp | None:
    try:
        status = os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def parse_json(where: str, content: bytes) -> object:
    """Return the JSON in *content*, which is called *where* in errors.

    Raises:
        ConfigError: It is none.
    """
    try:
        data: object = json.loads(content)
    except (ValueError, RecursionError):
        # The library repeats the text around the fault, which may be a secret.
        raise ConfigError(f"{where}: not JSON") from None
    return data


# --- HTTP ---------------------------------------------------------------------------------------


class AskedList:
    """A list that is asked for now and then; the latest answer holds. For one thread at a time.

    Args:
        address: What its source is called, free of secrets.
        ask: Returns the list, given when to give up by ``time.monotonic()``; or raises
            SourceError or ConfigError.
        deadline_seconds: How long one question may take.
        refresh_seconds: How often it is asked.

    Attributes:
        problem: Why the list in force is not today's, in one line; ``None`` when it is.
    """

    def __init__(
        self,
        address: str,
        ask: Callable[[float], tuple[ListedServer, ...]],
        *,
        deadline_seconds: float,
        refresh_seconds: float,
    ) -> None:
        self.address: Final = address
        self.problem: str | None = None
        self._ask: Final = ask
        self._deadline_seconds: Final = deadline_seconds
        self._refresh_seconds: Final = refresh_seconds
        self._servers: tuple[ListedServer, ...] = ()
        self._asked_monotonic_seconds: float | None = None

    def servers(self) -> tuple[ListedServer, ...]:
        """Return the list of the latest answer that was one; asks when it is due."""
        now = time.monotonic()
        asked = self._asked_monotonic_seconds
        if asked is not None and now - asked < self._refresh_seconds:
            return self._servers
        self._asked_monotonic_seconds = now
        try:
            self._servers, self.problem = self._ask(now + self._deadline_seconds), None
        except (SourceError, ConfigError) as error:
            problem = str(error)
            if problem != self.problem:
                fields = {"target": self.address, "detail": problem}
                _log.error("target list not used", extra={"fields": fields})
            self.problem = problem
        return self._servers


class TargetUrl(AskedList):
    """A list that a server gives over HTTP.

    Args:
        url: Where; credentials in it are sent as basic authentication, its query is never shown.
        deadline_seconds: How long one question may take.
        refresh_seconds: How often it is asked.
        ca_file: PEM file to trust instead of the usual authorities.

    Raises:
        ConfigError: The URL is none, or the *ca_file* cannot be read.
    """

    def __init__(
        self,
        url: str,
        *,
        deadline_seconds: float,
        refresh_seconds: float = 60.0,
        ca_file: str | None = None,
    ) -> None:
        base, self._path, self._shown_path = _taken_apart(url)
        try:
            self._http: Final = EngineHttp(base, ca_file=ca_file)
        except OSError as error:
            raise ConfigError(f"{ca_file}: no certificates can be read from it") from error
        super().__init__(
            base.netloc + self._shown_path,
            self._get,
            deadline_seconds=deadline_seconds,
            refresh_seconds=refresh_seconds,
        )

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def _get(self, deadline: float) -> tuple[ListedServer, ...]:
        try:
            body = self._http.get(
                self._path,
                accept="application/json",
                deadline_monotonic_seconds=deadline,
                max_bytes=_MOST_BYTES,
            )
        except SourceError as error:
            # It names the whole request.
            shown = str(error).replace(self._path, self._shown_path)
            raise SourceError(error.reason, shown) from None
        return parse_target_groups(parse_json(self.address, body))


def _taken_apart(url: str) -> tuple[EngineUrl, str, str]:
    """Return the server of *url*, the path to ask for, and the same without its query."""
    try:
        parts = urlsplit(url.strip())
    except ValueError:
        raise ConfigError("a target list's URL must look like http://host/path") from None
    base = parse_engine_url(urlunsplit((parts.scheme, parts.netloc, "", "", "")))
    path = parts.path or "/"
    if not (path + parts.query).isascii() or any(one.isspace() for one in path + parts.query):
        raise ConfigError(f"a target list's URL must have a plain path: {base.netloc}")
    return base, f"{path}?{parts.query}" if parts.query else path, path
