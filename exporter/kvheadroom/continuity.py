"""Whether two successive readings come from the same process."""

from collections.abc import Iterator

from kvheadroom.readings import EngineReading, ServerReading


def server_restarted(before: ServerReading, now: ServerReading) -> bool:
    """Return whether the server behind *now* is another process than the one behind *before*.

    Where both pages tell when the process started, that decides; else a counter that fell does.
    """
    if before.started_unix_seconds is not None and now.started_unix_seconds is not None:
        return before.started_unix_seconds != now.started_unix_seconds
    earlier = {engine.rank: engine for engine in before.engines}
    return any(
        counters_fell(earlier[engine.rank], engine)
        for engine in now.engines
        if engine.rank in earlier
    )


def counters_fell(before: EngineReading, now: EngineReading) -> bool:
    """Return whether any counter of one engine is lower in *now* than it was in *before*."""
    return any(
        later < sooner
        for sooner, later in zip(_counters(before), _counters(now), strict=True)
        if sooner is not None and later is not None
    )


def _counters(engine: EngineReading) -> Iterator[float | None]:
    yield engine.preemptions_total
    yield engine.prompt_tokens_total
    yield engine.generation_tokens_total
    yield sum(engine.finished_total.values()) if engine.finished_total else None
