"""Read one vLLM server: page and health on every poll, version and model after a restart."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, TypeVar

from kvheadroom.continuity import server_restarted
from kvheadroom.errors import ConfigError, Reason, SourceError
from kvheadroom.node.engine_url import parse_engine_url
from kvheadroom.node.http import EngineHttp
from kvheadroom.node.page_reader import PageReader
from kvheadroom.node.status_probe import StatusProbe
from kvheadroom.node.vllm_endpoints import (
    HEALTH_PATH,
    MODELS_PATH,
    PAUSED_PATH,
    VERSION_PATH,
    ServedModel,
    health_of,
    parse_models,
    parse_paused,
    parse_version,
)
from kvheadroom.node.vllm_names import MEANING_OF
from kvheadroom.node.vllm_page import read_server_page
from kvheadroom.readings import HealthAnswer, ServerReading
from kvheadroom.units import MIB

PAGE_PATH: Final = "/metrics"
# Without it, a library that prefers OpenMetrics rewrites `vllm:` to `vllm_` in the samples.
_PAGE_TYPE: Final = "text/plain;version=0.0.4"
_MAX_JSON_BYTES: Final = 1 * MIB
_IDENTITY_LIFETIME_SECONDS: Final = 60.0
# A question that got no answer in time is asked again earlier, yet seldom: the page waits for it.
_RETRY_SECONDS: Final = 15.0
_PASSING: Final[frozenset[Reason]] = frozenset({"timeout", "reset", "unreachable"})
# A front end that serves its page answers the small questions at once, or something is wrong.
_SMALL_ANSWER_SECONDS: Final = 1.0

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class EngineTarget:
    """Where a vLLM server is, and what opens its doors.

    Attributes:
        url: Base URL, ``http://host:8000``; credentials in it are sent as basic authentication.
        api_key: The server's ``--api-key``, sent to ``/v1/models`` only.
        ca_file: PEM file to trust instead of the usual authorities.
    """

    url: str = field(repr=False)
    api_key: str | None = field(default=None, repr=False)
    ca_file: str | None = None


@dataclass(frozen=True, slots=True)
class _Identity:
    """What a server said of itself, which holds until it restarts."""

    asked_monotonic_seconds: float
    version: str | None
    model: ServedModel | None
    endpoints: Mapping[str, Reason | None]

    def is_due(self, now_monotonic_seconds: float) -> bool:
        """Return whether it should be asked for again."""
        is_partial = not _PASSING.isdisjoint(self.endpoints.values())
        lifetime = _RETRY_SECONDS if is_partial else _IDENTITY_LIFETIME_SECONDS
        return now_monotonic_seconds - self.asked_monotonic_seconds >= lifetime


class VllmSource:
    """One vLLM server, polled; for one thread at a time.

    Attributes:
        target: ``host:port``, and the path of the base URL where it has one; no credentials.
    """

    target: Final[str]

    def __init__(
        self,
        target: EngineTarget,
        *,
        deadline_seconds: float,
        max_page_bytes: int = 16 * MIB,
    ) -> None:
        """Prepare to read *target*; nothing is sent yet.

        Args:
            target: The server.
            deadline_seconds: How long one poll may take in all.
            max_page_bytes: Largest page that is read.

        Raises:
            ConfigError: The URL is none, the key cannot be one, or the ``ca_file`` cannot be read.
        """
        url = parse_engine_url(target.url)
        self.target = url.address
        try:
            self._http: Final = EngineHttp(url, ca_file=target.ca_file)
        except OSError as error:
            raise ConfigError(f"{target.ca_file}: no certificates can be read from it") from error
        self._health: Final = StatusProbe(self._http, HEALTH_PATH)
        self._api_key: Final = _checked_key(target.api_key)
        self._deadline_seconds: Final = deadline_seconds
        self._max_page_bytes: Final = max_page_bytes
        self._reader: Final = PageReader(MEANING_OF)
        self._last_page: ServerReading | None = None
        self._identity: _Identity | None = None
        self._missing_paths: set[str] = set()

    def read(self) -> ServerReading:
        """Return what the server tells now.

        Raises:
            SourceError: The page could not be read whole, in time, or as a vLLM page.
        """
        started = time.monotonic()
        deadline = started + self._deadline_seconds
        last_page, self._last_page = self._last_page, None
        if last_page is None:
            self._identity = None
        if HEALTH_PATH not in self._missing_paths:
            self._health.begin(deadline_monotonic_seconds=deadline)
        try:
            page = self._read_page(deadline)
        except SourceError:
            # The next poll is not to read what was asked at this one.
            self._health.close()
            raise
        if last_page is not None and server_restarted(last_page, page):
            self._identity = None
        self._last_page = page
        known = self._identity
        is_due = known is None or known.is_due(started)
        if is_due:
            self._missing_paths.clear()
        health = self._ask_health(deadline)
        still = last_page is not None and _stands_still(last_page, page)
        paused = self._ask_paused(deadline) if still and health != "dead" else None
        if known is None or is_due:
            self._identity = known = self._ask_identity(known, deadline)
        return replace(
            page,
            health=health,
            paused=paused,
            vllm_version=known.version,
            max_model_len=known.model.max_model_len if known.model else None,
            model_root=known.model.root if known.model else None,
            endpoints=known.endpoints,
        )

    def close(self) -> None:
        """Close the connections."""
        self._health.close()
        self._http.close()

    def _read_page(self, deadline: float) -> ServerReading:
        body = self._http.get(
            PAGE_PATH,
            accept=_PAGE_TYPE,
            deadline_monotonic_seconds=deadline,
            max_bytes=self._max_page_bytes,
        )
        model = self._identity.model if self._identity else None
        served_name = model.name if model else None
        try:
            return read_server_page(body, self._reader, served_name=served_name)
        except SourceError as error:
            raise SourceError(error.reason, f"{self._http.shown(PAGE_PATH)}: {error}") from error

    def _ask_health(self, deadline: float) -> HealthAnswer | None:
        if HEALTH_PATH in self._missing_paths:
            return None
        try:
            status = self._health.ask(deadline_monotonic_seconds=_small_deadline(deadline))
        except SourceError as error:
            return "hanging" if error.reason == "timeout" else None
        health = health_of(status)
        if health is None:
            self._missing_paths.add(HEALTH_PATH)
        return health

    def _ask_paused(self, deadline: float) -> bool | None:
        if PAUSED_PATH in self._missing_paths:
            return None
        paused, reason = self._ask(PAUSED_PATH, parse_paused, _small_deadline(deadline))
        if reason not in {None, "timeout"}:
            self._missing_paths.add(PAUSED_PATH)
        return paused

    def _ask_identity(self, known: _Identity | None, deadline: float) -> _Identity:
        """Ask what only changes with a restart; what does not answer now keeps what it said before.

        The page waits for this, so each question gets half of the time that is left.
        """
        version, version_reason = self._ask(VERSION_PATH, parse_version, deadline)
        model, model_reason = self._ask(MODELS_PATH, parse_models, deadline, self._api_key)
        return _Identity(
            asked_monotonic_seconds=time.monotonic(),
            version=version or (known.version if known else None),
            model=model or (known.model if known else None),
            endpoints=MappingProxyType({VERSION_PATH: version_reason, MODELS_PATH: model_reason}),
        )

    def _ask(
        self,
        path: str,
        parse: Callable[[bytes], _Answer],
        deadline: float,
        bearer: str | None = None,
    ) -> tuple[_Answer | None, Reason | None]:
        now = time.monotonic()
        try:
            body = self._http.get(
                path,
                accept="application/json",
                deadline_monotonic_seconds=now + (deadline - now) / 2,
                max_bytes=_MAX_JSON_BYTES,
                bearer=bearer,
            )
            return parse(body), None
        except SourceError as error:
            return None, error.reason


def _small_deadline(deadline: float) -> float:
    now = time.monotonic()
    return now + min(_SMALL_ANSWER_SECONDS, (deadline - now) / 2)


def _stands_still(before: ServerReading, now: ServerReading) -> bool:
    """Return whether an engine that runs requests shows not one other number than before."""
    earlier = {engine.rank: engine for engine in before.engines}
    return any(
        engine.requests_running and engine == earlier.get(engine.rank) for engine in now.engines
    )


def _checked_key(api_key: str | None) -> str | None:
    if api_key is None:
        return None
    key = api_key.strip()
    if not key or not key.isascii() or not key.isprintable():
        raise ConfigError("an engine's API key must be one line of ASCII")
    return key
