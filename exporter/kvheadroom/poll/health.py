"""How a source fares, poll by poll: up or down, why, and the failures counted."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from kvheadroom.errors import HTTP_REASONS, NVML_REASONS, PROC_REASONS, Reason, SourceError
from kvheadroom.readings import SourceHealth, SourceKind

_log = logging.getLogger(__name__)

T = TypeVar("T")

_REASONS: Final[dict[SourceKind, tuple[Reason, ...]]] = {
    "nvml": NVML_REASONS,
    "vllm": HTTP_REASONS,
    "proc": PROC_REASONS,
}


def unpolled(source: SourceKind, target: str) -> SourceHealth:
    """Return the health of a source before its first poll: down, every failure count at 0."""
    return SourceHealth(
        source=source,
        target=target,
        up=False,
        reason=None,
        detail="not polled yet",
        failures=dict.fromkeys(_REASONS[source], 0),
    )


def succeeded(health: SourceHealth, duration_seconds: float) -> SourceHealth:
    """Return *health* after a poll that gave data."""
    if not health.up:
        _log.info("source up", extra={"fields": _identity(health)})
    return replace(
        health,
        up=True,
        reason=None,
        detail=None,
        duration_seconds=duration_seconds,
        last_success_unix_seconds=time.time(),
    )


def failed(
    health: SourceHealth, reason: Reason, detail: str, duration_seconds: float
) -> SourceHealth:
    """Return *health* after a poll that gave none, the failure counted."""
    if health.up or health.reason != reason:
        fields = {**_identity(health), "reason": reason, "detail": detail}
        _log.warning("source down", extra={"fields": fields})
    return replace(
        health,
        up=False,
        reason=reason,
        detail=detail,
        failures={**health.failures, reason: health.failures.get(reason, 0) + 1},
        duration_seconds=duration_seconds,
    )


def _identity(health: SourceHealth) -> dict[str, str]:
    return {"source": health.source, "target": health.target}


@dataclass(frozen=True, slots=True)
class Succeeded(Generic[T]):
    """A poll that gave data.

    Attributes:
        reading: What it gave.
        duration_seconds: How long it took.
    """

    reading: T
    duration_seconds: float


@dataclass(frozen=True, slots=True)
class Failed:
    """A poll that gave none.

    Attributes:
        error: Why not.
        duration_seconds: How long it took.
    """

    error: SourceError
    duration_seconds: float


def attempt(read: Callable[[], T]) -> Succeeded[T] | Failed:
    """Return what *read* gave, or why it gave nothing; never raises."""
    started = time.monotonic()
    try:
        return Succeeded(read(), time.monotonic() - started)
    except SourceError as error:
        return Failed(error, time.monotonic() - started)
    except Exception as error:  # noqa: BLE001  (one source's bug must not end the others)
        kind = type(error).__name__
        _log.warning("internal error while polling", extra={"fields": {"error": kind}})
        _log.debug("traceback of the internal error", exc_info=True)
        detail = f"internal error: {kind} (run with --log.level debug)"
        return Failed(SourceError("internal", detail), time.monotonic() - started)
