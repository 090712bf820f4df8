"""Whether two successive readings come from the same process."""

from collections.abc import Iterator

from kvheadroom.readings import EngineReading, ServerReading


def server_restarted(before: ServerReading, now: ServerReading) -> bool:
    """Return whether the server behind *now* is another process than the one behind *before*.

    It is when it started at another time, where both pages tell, or when a counter fell: the
    engine behind a front end that lives on may have been replaced.
    """
    if started_anew(before.started_unix_seconds, now.started_unix_seconds):
        return True
    earlier = {engine.rank: engine for engine in before.engines}
    return any(
        counters_fell(earlier[engine.rank], engine)
        for engine in now.engines
        if engine.rank in earlier
    )


def started_anew(before_unix_seconds: float | None, now_unix_seconds: float | None) -> bool:
    """Return whether both start times are known and differ."""
    known = before_unix_seconds is not None and now_unix_seconds is not None
    return known and before_unix_seconds != now_unix_seconds


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
