"""Watch one vLLM server: poll it, carry its engines' past, keep the latest outcome."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kvheadroom.live.engine_view import (
    EngineFacts,
    EnginePast,
    EngineView,
    ViewOptions,
    view_engine,
)
from kvheadroom.live.snapshot import ServerView
from kvheadroom.poll.health import attempt, failed, succeeded, unpolled
from kvheadroom.readings import ServerReading, SourceHealth


class ServerSource(Protocol):
    """Where one vLLM server's readings come from."""

    @property
    def target(self) -> str:
        """``host:port``."""
        ...

    def read(self) -> ServerReading:
        """Return the server's answers, or raise SourceError."""
        ...

    def close(self) -> None:
        """Close the connection; a read in progress ends at its deadline."""
        ...


@dataclass(frozen=True, slots=True)
class ServerOutcome:
    """What the last poll of one vLLM server gave.

    Attributes:
        health: How the source fares.
        server: What it answered; ``None`` when it did not.
        engines: Its engines; empty when it did not answer or tells nothing.
    """

    health: SourceHealth
    server: ServerView | None = None
    engines: tuple[EngineView, ...] = ()


class ServerWatch:
    """One vLLM server under watch.

    Only :meth:`poll` changes anything, and the schedule never runs it twice at once; readers take
    :attr:`outcome`, one reference swapped whole.
    """

    def __init__(
        self,
        source: ServerSource,
        *,
        facts: Callable[[ServerReading], EngineFacts],
        options: ViewOptions,
    ) -> None:
        self.source = source
        self.facts = facts
        self.options = options
        self.outcome = ServerOutcome(unpolled("vllm", source.target))
        self._pasts: dict[str, EnginePast] = {}

    def poll(self) -> None:
        """Read the server once and swap the outcome; never raises."""
        reading, error, seconds = attempt(self._read)
        health = self.outcome.health
        if error is not None or reading is None:
            reason, detail = (error.reason, str(error)) if error else ("internal", "no reading")
            self.outcome = ServerOutcome(failed(health, reason, detail, seconds))
            return
        server, engines = reading
        self.outcome = ServerOutcome(succeeded(health, seconds), server, engines)

    def _read(self) -> tuple[ServerView, tuple[EngineView, ...]]:
        reading = self.source.read()
        at_seconds = time.monotonic()
        facts = self.facts(reading)
        views: list[EngineView] = []
        for engine in reading.engines:
            view, past = view_engine(
                engine,
                reading,
                target=self.source.target,
                facts=facts,
                past=self._pasts.get(engine.rank, EnginePast()),
                options=self.options,
                at_seconds=at_seconds,
            )
            views.append(view)
            self._pasts[engine.rank] = past
        server = ServerView(
            target=self.source.target,
            silent=reading.silent,
            endpoints=reading.endpoints,
            vllm_version=reading.vllm_version,
        )
        return server, tuple(views)
