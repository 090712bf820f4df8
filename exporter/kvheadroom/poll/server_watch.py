"""Watch one vLLM server: poll it, carry its engines' past, keep the latest outcome."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from kvheadroom.live.engine_facts import EngineFacts
from kvheadroom.live.engine_view import (
    EnginePast,
    EngineView,
    ViewOptions,
    view_engine,
)
from kvheadroom.live.snapshot import ServerView
from kvheadroom.poll.health import Failed, attempt, failed, succeeded, unpolled
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
        facts: What is known of its engines without asking them.
    """

    health: SourceHealth
    server: ServerView | None = None
    engines: tuple[EngineView, ...] = ()
    facts: EngineFacts = field(default_factory=EngineFacts)


class ServerWatch:
    """One vLLM server under watch.

    Only :meth:`poll` changes anything, and the schedule never runs it twice at once; readers take
    :attr:`outcome`, one reference swapped whole.
    """

    def __init__(
        self,
        source: ServerSource,
        *,
        facts: Callable[[ServerReading | None], EngineFacts],
        options: ViewOptions,
    ) -> None:
        self.source = source
        self.facts = facts
        self.options = options
        self.outcome = ServerOutcome(unpolled("vllm", source.target))
        self._began_monotonic_seconds: float | None = None
        self._pasts: dict[str, EnginePast] = {}
        self._is_closed = False

    def outcome_unless_stuck(self, since_monotonic_seconds: float) -> ServerOutcome:
        """Return the outcome, or say down while a poll hangs that began before that moment.

        Every read has a deadline, so this is for what nobody thought of: what is old is not
        served as live.
        """
        outcome, target = self.outcome, self.source.target
        if outcome.health.target != target:
            # It has moved; what was read at its old address may be another's by now.
            moved = replace(outcome.health, target=target, up=False, detail="not polled yet")
            return ServerOutcome(moved, facts=outcome.facts)
        began = self._began_monotonic_seconds
        if began is None or began >= since_monotonic_seconds:
            return outcome
        detail = "the poll in progress does not end"
        stuck = replace(outcome.health, up=False, reason="timeout", detail=detail)
        return ServerOutcome(stuck, facts=outcome.facts)

    def close(self) -> None:
        """Close the source; the poll in progress, if there is one, gives nothing."""
        self._is_closed = True
        self.source.close()

    def poll(self) -> None:
        """Read the server once and swap the outcome; never raises."""
        self._began_monotonic_seconds = time.monotonic()
        try:
            self._poll()
        finally:
            self._began_monotonic_seconds = None

    def _poll(self) -> None:
        # Another source may take its place meanwhile.
        source = self.source
        health = replace(self.outcome.health, target=source.target)
        result = attempt(lambda: self._read(source))
        if self._is_closed or source is not self.source:
            # What was broken off by us says nothing of the server.
            return
        seconds = result.duration_seconds
        if isinstance(result, Failed):
            down = failed(health, result.error.reason, str(result.error), seconds)
            self.outcome = ServerOutcome(down, facts=self.facts(None))
        else:
            server, engines, facts = result.reading
            self.outcome = ServerOutcome(succeeded(health, seconds), server, engines, facts)

    def _read(self, source: ServerSource) -> tuple[ServerView, tuple[EngineView, ...], EngineFacts]:
        reading = source.read()
        at_seconds = time.monotonic()
        facts = self.facts(reading)
        views: list[EngineView] = []
        # A rank that is away comes back with its history; one that stays away is forgotten.
        oldest = at_seconds - self.options.traffic_window_seconds
        pasts = {rank: past for rank, past in self._pasts.items() if past.read_at_seconds >= oldest}
        for engine in reading.engines:
            view, past = view_engine(
                engine,
                reading,
                target=source.target,
                facts=facts,
                past=self._pasts.get(engine.rank, EnginePast()),
                options=self.options,
                at_seconds=at_seconds,
            )
            views.append(view)
            pasts[engine.rank] = past
        self._pasts = pasts
        server = ServerView(
            target=source.target,
            silent=reading.silent,
            endpoints=reading.endpoints,
            vllm_version=reading.vllm_version,
        )
        return server, tuple(views), facts
