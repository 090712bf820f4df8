"""Preempted requests, inferred from poll to poll: vLLM's own counter waits until they are back.

What is admitted, finishes, is preempted or is aborted moves the gauges by one each:

    running: + admitted - finished - preempted - aborted
    waiting: + arrived + preempted - admitted - aborted

Every admission is followed by an output that a counter shows: the first token of a new request,
or the reported preemption of a resumed one. So the departures from the running list that no
counter explains are preemptions or aborts. They are preemptions when the waiting queue makes up
for them and the pool was full; all else is doubt, and doubt infers nothing.
"""

from dataclasses import dataclass, replace
from typing import Final

from kvheadroom.readings import EngineReading, HistogramReading

# A request in its prefill has no output yet. Nothing vLLM admits needs more steps than this: a
# prompt of 128K tokens takes 64 of its smallest default budget, 2048 tokens.
_PREFILL_STEPS: Final = 64
# A preemption leaves less than the preempted request held, and one more block: about a request's
# share of what is in use. The last one admitted may hold more than the mean.
_SHARES_LEFT: Final = 2.0
_LOWEST_FULL_RATIO: Final = 0.7
# Beyond this much unseen, arrivals and aborts can make up any balance.
_LONGEST_GAP_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """The part of one reading that the balance needs, every value known."""

    at_seconds: float
    running: int
    waiting: int
    waiting_for_capacity: int
    used_ratio: float
    finished: float
    reported: float
    first_tokens: float | None
    prompt_tokens: float | None
    generated_tokens: float | None
    mean_prompt_tokens: float | None


@dataclass(frozen=True, slots=True)
class PreemptionPast:
    """What is carried from one poll of an engine to the next, and what it says.

    Attributes:
        preempted_now: Preempted requests that wait to be resumed; ``None`` while not known.
        inferred_total: Preemptions since the first poll, inferred or at last reported; never
            falls and never lags behind what vLLM reported since; ``None`` while its pages lack
            what is needed.
        seen: The last reading with every value known.
        unreported: Preemptions inferred that vLLM's counter has yet to show.
        unanswered: At most so many admitted requests whose output has yet to come.
        hang_ups: Requests that left uncounted in the last interval and may show in the next.
        quiet_steps: Steps since a request was last admitted or had its first output.
        anchored: The queue is known to have held no preempted request at some poll.
    """

    preempted_now: int | None = None
    inferred_total: int | None = None
    seen: _Seen | None = None
    unreported: int = 0
    unanswered: int = 0
    hang_ups: int = 0
    quiet_steps: float = 0.0
    anchored: bool = False


@dataclass(frozen=True, slots=True)
class PoolSize:
    """The KV pool of one engine, where every block holds the same number of tokens.

    Attributes:
        usable_blocks: Blocks that requests can hold.
        block_tokens: Tokens of one block.
    """

    usable_blocks: int
    block_tokens: int


def observe_preemptions(
    past: PreemptionPast,
    reading: EngineReading,
    *,
    at_seconds: float,
    capacity: PoolSize | None = None,
    max_num_seqs: int | None = None,
    restarted: bool = False,
) -> PreemptionPast:
    """Return *past* with one more poll of the engine in it.

    Args:
        past: What the last call returned.
        reading: What the page says now.
        at_seconds: When it was read, monotonic clock.
        capacity: The engine's pool; ``None`` while it, or a block's tokens, are not known.
        max_num_seqs: Most requests it runs at once; ``None`` while not known.
        restarted: The engine is another process than at the last poll.

    Source:
        vLLM 0.32's scheduler, first come first served: a preempted request goes to the head of
        the queue, so nothing new is admitted while one waits.
    """
    now = _seen(reading, at_seconds)
    if now is None:
        # A gauge that is missing, or kept from before a sleep, says nothing of the queue.
        return replace(past, preempted_now=None)
    if restarted:
        past = replace(
            PreemptionPast(inferred_total=past.inferred_total or 0),
            seen=_new_engine(now),
            anchored=True,
        )
    before = past.seen
    if before is None or at_seconds - before.at_seconds > _LONGEST_GAP_SECONDS:
        return _begin(past, now, max_num_seqs)
    return _fold(past, before, now, capacity, max_num_seqs)


def _begin(past: PreemptionPast, now: _Seen, max_num_seqs: int | None) -> PreemptionPast:
    """Start a balance: who is preempted, or in prefill, cannot be told from one reading."""
    total = past.inferred_total or 0
    if past.seen is not None:
        total += max(0, _risen(past.seen.reported, now.reported) - past.unreported)
    anchored = _none_is_preempted(now, max_num_seqs)
    return PreemptionPast(
        preempted_now=0 if anchored else None,
        inferred_total=total,
        seen=now,
        unanswered=now.running,
        anchored=anchored,
    )


def _fold(
    past: PreemptionPast,
    before: _Seen,
    now: _Seen,
    capacity: PoolSize | None,
    max_num_seqs: int | None,
) -> PreemptionPast:
    risen = now.running - before.running
    finished = _risen(before.finished, now.finished)
    reported = _risen(before.reported, now.reported)
    started_at_least, started = _new_requests_answered(before, now)
    certain_admissions = max(0, started_at_least + reported - past.unanswered)
    # Whoever is not running any more though no counter says why: preempted or aborted.
    left = max(0, certain_admissions - finished - risen)
    gone = max(0, before.waiting + before.running - now.waiting - now.running - finished)
    covered = min(reported, past.unreported)
    shown = reported - covered  # preemptions that were never inferred
    doubtful = max(0, left - shown)
    aborted = min(doubtful, gone + past.hang_ups)
    unanswered = past.unanswered + risen + finished + left - started - reported
    quiet_steps = _quiet_steps(past, before, now, quiet=not started and not reported and risen + finished + left <= 0)
    if quiet_steps >= _PREFILL_STEPS:
        unanswered = 0
    unanswered = min(max(unanswered, 0), now.running + past.unreported + left)
    unreported = past.unreported - covered
    inferred = 0
    if _pool_was_full(before, now, capacity):
        # A preempted request waits, or is back without an output yet.
        places = now.waiting_for_capacity + unanswered - unreported
        inferred = min(doubtful - aborted, max(0, places), _room_before(before, now))
    unreported = min(unreported + inferred, now.waiting + unanswered)
    none_preempted = _none_is_preempted(now, max_num_seqs)
    admitted_new = started_at_least > past.unanswered
    anchored = past.anchored or none_preempted or admitted_new
    still_waiting = (past.preempted_now or 0) - risen - finished - aborted
    preempted = min(max(still_waiting, unreported - unanswered), unreported)
    if admitted_new:
        preempted = min(preempted, inferred)
    preempted = 0 if none_preempted else max(0, min(preempted, now.waiting_for_capacity))
    return PreemptionPast(
        preempted_now=preempted if anchored or preempted else None,
        inferred_total=(past.inferred_total or 0) + shown + inferred,
        seen=now,
        unreported=unreported,
        unanswered=unanswered,
        hang_ups=max(0, gone - max(0, aborted - past.hang_ups)),
        quiet_steps=quiet_steps,
        anchored=anchored,
    )


# --- what two readings say --------------------------------------------------------------------


def _new_requests_answered(before: _Seen, now: _Seen) -> tuple[int, int]:
    """Return how many new requests had their first token: at least, and about."""
    if before.first_tokens is not None and now.first_tokens is not None:
        answered = _risen(before.first_tokens, now.first_tokens)
        return answered, answered
    if before.prompt_tokens is None or now.prompt_tokens is None:
        return 0, 0
    tokens = now.prompt_tokens - before.prompt_tokens
    if tokens <= 0:
        return 0, 0
    # A prompt counts as a whole with its first token; how many prompts these were is a guess.
    return 0, max(1, round(tokens / now.mean_prompt_tokens)) if now.mean_prompt_tokens else 1


def _quiet_steps(past: PreemptionPast, before: _Seen, now: _Seen, *, quiet: bool) -> float:
    if not quiet or before.generated_tokens is None or now.generated_tokens is None:
        return 0.0
    running = max(before.running, now.running, 1)
    return past.quiet_steps + max(0.0, now.generated_tokens - before.generated_tokens) / running


def _pool_was_full(before: _Seen, now: _Seen, _capacity: PoolSize | None) -> bool:
    """Return whether the pool can have been too short for a running request's next block."""
    share = max(seen.used_ratio / max(1, seen.running) for seen in (before, now))
    full = max(_LOWEST_FULL_RATIO, 1 - _SHARES_LEFT * share)
    return max(before.used_ratio, now.used_ratio) >= full


def _room_before(before: _Seen, now: _Seen) -> int:
    """Return how many of those that left can have run beside all that run now.

    Nothing is admitted past a preempted request, so what runs now was admitted while the preempted
    ones still held their blocks.
    """
    if not before.used_ratio:
        return before.running
    return max(0, round(max(1, before.running) / before.used_ratio) - now.running)


def _none_is_preempted(now: _Seen, max_num_seqs: int | None) -> bool:
    """Return whether the queue certainly holds no preempted request.

    With every sequence slot taken, the last one went to the head of the queue.
    """
    if now.waiting_for_capacity == 0:
        return True
    return max_num_seqs is not None and now.running >= max_num_seqs


def _risen(before: float, now: float) -> int:
    return max(0, round(now - before))


# --- readings ---------------------------------------------------------------------------------


def _seen(reading: EngineReading, at_seconds: float) -> _Seen | None:
    """Return what the balance needs of *reading*; ``None`` when any of it is unknown or stale."""
    running, waiting = reading.requests_running, reading.requests_waiting
    used, finished = reading.kv_used_ratio, _finished(reading)
    if running is None or waiting is None or used is None or finished is None:
        return None
    if reading.sleep_state not in {None, "awake"}:
        return None
    return _Seen(
        at_seconds=at_seconds,
        running=round(running),
        waiting=round(waiting),
        waiting_for_capacity=round(reading.waiting_by_reason.get("capacity", waiting)),
        used_ratio=used,
        finished=finished,
        reported=reading.preemptions_total or 0.0,
        first_tokens=reading.first_tokens_total,
        prompt_tokens=reading.prompt_tokens_total,
        generated_tokens=reading.generation_tokens_total,
        mean_prompt_tokens=_mean(reading.prompt_tokens),
    )


def _finished(reading: EngineReading) -> float | None:
    if reading.finished_total:
        return sum(reading.finished_total.values())
    # Every finished request is in this histogram too.
    return None if reading.prompt_tokens is None else reading.prompt_tokens.count


def _mean(lengths: HistogramReading | None) -> float | None:
    return lengths.total / lengths.count if lengths is not None and lengths.count > 0 else None


def _new_engine(now: _Seen) -> _Seen:
    """Return what *now*'s engine would have shown when it started: nothing at all."""
    return replace(
        now,
        running=0,
        waiting=0,
        waiting_for_capacity=0,
        used_ratio=0.0,
        finished=0.0,
        reported=0.0,
        first_tokens=None if now.first_tokens is None else 0.0,
        prompt_tokens=None if now.prompt_tokens is None else 0.0,
        generated_tokens=None if now.generated_tokens is None else 0.0,
    )
