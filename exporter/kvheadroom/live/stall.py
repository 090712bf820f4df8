"""Whether an engine behind a front end that answers has stopped, told from page to page."""

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from kvheadroom.readings import EngineReading, HealthAnswer

# A step seldom takes seconds, so an engine that runs requests and shows no change for as long as
# this, on as many pages, has stopped.
_STILL_SECONDS: Final = 30.0
_STILL_PAGES: Final = 3
# It may have stopped right after the page before the first of those, and polls are not punctual:
# one that comes a millisecond early must not cost a whole interval.
_UNSEEN_INTERVALS: Final = 1.1
# Nothing need move while the first prompts after a pause are in one step, which may have kernels
# to compile besides; KV use moves with every further step.
_FIRST_STEP_SECONDS: Final = 120.0
# What the front end counts by itself, engine or no engine.
_COUNTED_BY_FRONT_END: Final = frozenset({"abort", "error"})


class _Progress(NamedTuple):
    """Every number of a page that a step of the engine would have changed."""

    running: float
    waiting: float | None
    used_ratio: float | None
    prompt_tokens: float | None
    generation_tokens: float | None
    preemptions: float | None
    finished: float


@dataclass(frozen=True, slots=True)
class StallPast:
    """What is known of an engine's progress, carried from poll to poll.

    Attributes:
        stalled: Whether the engine has stopped; ``None`` while its page does not tell.
        evidence: What was seen, one line; ``None`` unless stalled.
        progress: The numbers of the last page.
        still_since_seconds: When that page's numbers were first seen, monotonic clock.
        still_pages: Pages in a row with those numbers, that first one included.
        tokens_when_idle: Prompt and generated tokens when it last ran nothing; ``None`` before.
    """

    stalled: bool | None = None
    evidence: str | None = None
    progress: _Progress | None = None
    still_since_seconds: float = 0.0
    still_pages: int = 0
    tokens_when_idle: tuple[float | None, float | None] | None = None


def observe_stall(
    past: StallPast,
    reading: EngineReading,
    *,
    health: HealthAnswer | None,
    paused: bool | None,
    at_seconds: float,
    poll_interval_seconds: float,
) -> StallPast:
    """Return *past* with one more page in it.

    A poll that failed is no page: nothing is handed in for it, and the time goes on.

    Args:
        past: What the last call returned.
        reading: The engine's part of the page.
        health: What the server's ``/health`` answers; ``None`` where that is not known.
        paused: Whether the server says that its schedulers are paused; ``None`` where it does not.
        at_seconds: When the page was read, monotonic clock.
        poll_interval_seconds: From one poll to the next.

    Source:
        vLLM's gauges and counters change with the engine's steps only. Its ``/health`` answers 503
        once the engine's process has died, and 200 while that hangs.
    """
    past = _advanced(past, reading, at_seconds)
    if health == "dead":
        seen = "/health answers 503: the engine behind this server has died"
        return replace(past, stalled=True, evidence=f"{seen}; {_shown(past.progress)}")
    if past.progress is None:
        return replace(past, stalled=None, evidence=None)
    if paused or reading.sleep_state not in {None, "awake"}:
        # What stood still until now was told to, and gets its time again when it is woken.
        rested = replace(past, still_since_seconds=at_seconds, still_pages=1)
        return replace(rested, stalled=False, evidence=None)
    still_seconds = at_seconds - past.still_since_seconds
    stalled = (
        _has_work(past.progress, health)
        and past.still_pages >= _STILL_PAGES
        and still_seconds
        >= _patience_seconds(past, health) - _UNSEEN_INTERVALS * poll_interval_seconds
    )
    if not stalled:
        return replace(past, stalled=False, evidence=None)
    evidence = (
        f"{_shown(past.progress)}: no token, no finished request, no change of KV use"
        f" for {still_seconds:.0f} s over {past.still_pages} pages{_SHOWN_HEALTH[health]}"
    )
    return replace(past, stalled=True, evidence=evidence)


_SHOWN_HEALTH: Final[dict[HealthAnswer | None, str]] = {
    "ok": "; /health answers 200",
    "hanging": "; /health does not answer",
    None: "",
}


def _advanced(past: StallPast, reading: EngineReading, at_seconds: float) -> StallPast:
    progress = _progress(reading)
    tokens = (reading.prompt_tokens_total, reading.generation_tokens_total)
    if progress is None:
        return StallPast()
    idle_tokens = tokens if not progress.running else past.tokens_when_idle
    if progress == past.progress:
        return replace(past, still_pages=past.still_pages + 1, tokens_when_idle=idle_tokens)
    return StallPast(
        progress=progress,
        still_since_seconds=at_seconds,
        still_pages=1,
        tokens_when_idle=idle_tokens,
    )


def _progress(reading: EngineReading) -> _Progress | None:
    """Return the numbers that steps change; ``None`` where a page has too few to judge by."""
    tokens = (reading.prompt_tokens_total, reading.generation_tokens_total)
    if reading.requests_running is None or tokens == (None, None):
        return None
    counted = reading.finished_total.items()
    return _Progress(
        running=reading.requests_running,
        waiting=reading.requests_waiting,
        used_ratio=reading.kv_used_ratio,
        prompt_tokens=reading.prompt_tokens_total,
        generation_tokens=reading.generation_tokens_total,
        preemptions=reading.preemptions_total,
        finished=sum(count for reason, count in counted if reason not in _COUNTED_BY_FRONT_END),
    )


def _has_work(progress: _Progress, health: HealthAnswer | None) -> bool:
    # A queue with nothing running may be held back on purpose, unless the server hangs as well.
    return progress.running > 0 or (health == "hanging" and bool(progress.waiting))


def _patience_seconds(past: StallPast, health: HealthAnswer | None) -> float:
    progress = past.progress
    if progress is None or health == "hanging":
        return _STILL_SECONDS
    tokens = (progress.prompt_tokens, progress.generation_tokens)
    no_token_yet = tokens == past.tokens_when_idle or not any(tokens)
    return _FIRST_STEP_SECONDS if no_token_yet else _STILL_SECONDS


def _shown(progress: _Progress | None) -> str:
    if progress is None:
        return "its page tells nothing of its requests"
    waiting = "" if progress.waiting is None else f", {progress.waiting:.0f} waiting"
    used = "" if progress.used_ratio is None else f", KV {progress.used_ratio:.1%} used"
    return f"{progress.running:.0f} running{waiting}{used}"
