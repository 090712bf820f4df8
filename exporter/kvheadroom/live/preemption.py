"""Preempted requests, inferred from poll to poll: vLLM's own counter waits until they are back.

From one poll to the next

    running changes by   admitted - finished - preempted - aborted
    waiting changes by   arrived + preempted - admitted - aborted

Finished requests are counted. So whoever left the running list uncounted was preempted or aborted:
preempted, where the queue makes up for the departure and the pool was full; aborted, where requests
are gone from both lists. Whatever stays in doubt is left to vLLM's counter, and is added when it
shows there.
"""

from dataclasses import dataclass, replace
from typing import Final

from kvheadroom.readings import EngineReading

# A request in its prefill has no output yet. Nothing vLLM admits needs more steps than this: a
# prompt of 128K tokens takes 64 at its smallest default budget, 2048 tokens.
_PREFILL_STEPS: Final = 64
# A finished request held the most: twice the mean of the running ones, where all are as long.
_FINISHED_SHARES: Final = 2.0
# A preemption makes room at once; real pools with preempted requests stood at 0.74 and more.
_LEAST_FULL_RATIO: Final = 0.7
# In more time than this, arrivals and aborts nobody saw can make up any balance.
_LONGEST_GAP_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """The part of a reading that the balance needs.

    Attributes:
        at_seconds: When it was read.
        running: Running requests.
        waiting: Waiting requests of every kind.
        waiting_for_capacity: Of those, all that a preempted one can be among.
        used_ratio: Usage of the pool.
        finished: Finished requests so far.
        reported: vLLM's preemption counter.
        prompt_tokens: Prompt tokens of requests that had their first output.
        mean_prompt_tokens: Length of a prompt; ``None`` before the first request has finished.
        generated_tokens: Generated tokens.
    """

    at_seconds: float
    running: int
    waiting: int
    waiting_for_capacity: int
    used_ratio: float
    finished: float
    reported: float
    prompt_tokens: float
    mean_prompt_tokens: float | None
    generated_tokens: float


@dataclass(frozen=True, slots=True)
class _Change:
    """What happened from one reading to the next.

    Attributes:
        risen: Rise of the running list, negative for a fall.
        finished: Requests that finished.
        started: New requests that had their first output, estimated from prompt tokens.
        admitted_new: Some of them were certainly admitted in between.
        reported: Preemptions that vLLM's counter came to show.
        shown: Of those, the ones that had not been inferred.
        left: Requests that left the running list uncounted, at least.
        gone: Requests that are in neither list any more and did not finish, at least.
    """

    risen: int
    finished: int
    started: int
    admitted_new: bool
    reported: int
    shown: int
    left: int
    gone: int

    @property
    def admitted(self) -> int:
        """Requests admitted, new or resumed, at least."""
        return max(0, self.risen + self.finished + self.left)


@dataclass(frozen=True, slots=True)
class PreemptionPast:
    """What is carried from one poll of an engine to the next, and what it says.

    Attributes:
        preempted_now: Preempted requests that wait to be resumed; ``None`` while not known.
        inferred_total: Preemptions since the first poll, inferred or, failing that, as reported:
            it never falls, and never lags behind what vLLM has reported since then. ``None`` until
            a page had all that is needed.
        seen: The last reading that had it.
        waiting: Requests known to wait preempted when it was read.
        unreported: Inferred preemptions that vLLM's counter has yet to show.
        unanswered: Admitted requests whose first output has yet to come, at most.
        quiet_steps: Steps since a request was last admitted or had its first output.
        anchored: At some poll since, no request in the queue was a preempted one.
    """

    preempted_now: int | None = None
    inferred_total: int | None = None
    seen: _Seen | None = None
    waiting: int = 0
    unreported: int = 0
    unanswered: int = 0
    quiet_steps: float = 0.0
    anchored: bool = False


def observe_preemptions(
    past: PreemptionPast,
    reading: EngineReading,
    *,
    at_seconds: float,
    max_num_seqs: int | None = None,
    restarted: bool = False,
) -> PreemptionPast:
    """Return *past* with one more poll of the engine in it.

    Args:
        past: What the last call returned.
        reading: What the page says now.
        at_seconds: When it was read, monotonic clock.
        max_num_seqs: Most requests the engine runs at once; ``None`` while not known.
        restarted: The engine is another process than at the last poll.

    Source:
        vLLM 0.32's scheduler, first come first served: a preempted request goes to the head of
        the queue, so nothing new is admitted while one waits.
    """
    if restarted or _has_not_run(reading):
        past = PreemptionPast(
            inferred_total=past.inferred_total, seen=_new_engine(at_seconds), anchored=True
        )
    now = _seen(reading, at_seconds, past.seen)
    if now is None:
        # A gauge that is missing, or kept from before a sleep, says nothing of the queue.
        return replace(past, preempted_now=None)
    before = past.seen
    if before is None or at_seconds - before.at_seconds > _LONGEST_GAP_SECONDS:
        return _begin(past, now, max_num_seqs)
    return _fold(past, before, now, max_num_seqs)


def _begin(past: PreemptionPast, now: _Seen, max_num_seqs: int | None) -> PreemptionPast:
    """Begin a balance: one reading does not tell who is preempted, or in its prefill."""
    missed = _risen(past.seen.reported, now.reported) if past.seen else 0
    anchored = _none_is_preempted(now, max_num_seqs)
    return PreemptionPast(
        preempted_now=0 if anchored else None,
        inferred_total=(past.inferred_total or 0) + max(0, missed - past.unreported),
        seen=now,
        unanswered=now.running,
        anchored=anchored,
    )


def _fold(
    past: PreemptionPast, before: _Seen, now: _Seen, max_num_seqs: int | None
) -> PreemptionPast:
    change = _change(past, before, now)
    quiet_steps = _quiet_steps(past, change, before, now)
    unreported = max(0, past.unreported - change.reported)
    unanswered = 0
    if quiet_steps < _PREFILL_STEPS:
        balance = past.unanswered + change.admitted - change.started - change.reported
        unanswered = min(max(0, balance), now.running + unreported + change.left)
    # Of those preempted before, each waits, or is back and has yet to have an output.
    places = min(now.waiting_for_capacity, now.waiting_for_capacity + unanswered - unreported)
    inferred = min(_preempted(change, before, now), max(0, places))
    waiting = past.waiting + inferred + change.shown - change.admitted
    if change.admitted_new:
        # Nothing new is admitted past a preempted request: those that waited are back, or gone.
        waiting = inferred
    none_preempted = _none_is_preempted(now, max_num_seqs)
    waiting = 0 if none_preempted else min(max(0, waiting), now.waiting_for_capacity)
    anchored = past.anchored or none_preempted or change.admitted_new
    return PreemptionPast(
        preempted_now=waiting if anchored else None,
        inferred_total=(past.inferred_total or 0) + change.shown + inferred,
        seen=now,
        waiting=waiting,
        # Whoever is neither waiting nor unanswered is gone, and will never be reported.
        unreported=min(unreported + inferred, now.waiting + unanswered),
        unanswered=unanswered,
        quiet_steps=quiet_steps,
        anchored=anchored,
    )


# --- what two readings say --------------------------------------------------------------------


def _change(past: PreemptionPast, before: _Seen, now: _Seen) -> _Change:
    risen = now.running - before.running
    finished = _risen(before.finished, now.finished)
    reported = _risen(before.reported, now.reported)
    started = _started(before, now)
    # A preemption is reported with the first output after it. More of them than there were
    # requests without an output: the others were admitted in between.
    admitted = max(0, reported - past.unanswered)
    return _Change(
        risen=risen,
        finished=finished,
        started=started,
        admitted_new=started > 0 and past.unanswered == 0,
        reported=reported,
        shown=max(0, reported - past.unreported),
        left=max(0, admitted - finished - risen),
        gone=max(0, before.waiting - now.waiting - risen - finished),
    )


def _started(before: _Seen, now: _Seen) -> int:
    """Return about how many new requests had their first output: it counts their whole prompt."""
    tokens = now.prompt_tokens - before.prompt_tokens
    if tokens <= 0:
        return 0
    return max(1, round(tokens / now.mean_prompt_tokens)) if now.mean_prompt_tokens else 1


def _quiet_steps(past: PreemptionPast, change: _Change, before: _Seen, now: _Seen) -> float:
    if change.started or change.reported or change.admitted:
        return 0.0
    # A running request gains one token a step.
    generated = max(0.0, now.generated_tokens - before.generated_tokens)
    return past.quiet_steps + generated / max(before.running, now.running, 1)


def _preempted(change: _Change, before: _Seen, now: _Seen) -> int:
    """Return how many of those that left uncounted were certainly preempted, beyond *shown*."""
    doubtful = change.left - change.shown - change.gone
    if doubtful <= 0 or max(before.used_ratio, now.used_ratio) < _LEAST_FULL_RATIO:
        return 0
    share = max(seen.used_ratio / max(1, seen.running) for seen in (before, now))
    free_ratio = 1 - now.used_ratio
    if not change.admitted_new:
        # What has just become free may not have been given out yet.
        free_ratio -= _FINISHED_SHARES * share * change.finished
    # With room for one, whoever waits preempted would be back: the youngest, so hardly the largest.
    return doubtful if free_ratio <= share else 0


def _none_is_preempted(now: _Seen, max_num_seqs: int | None) -> bool:
    """Return whether no request in the queue can be a preempted one.

    Where every sequence is taken, the last one went to the head of the queue.
    """
    if now.waiting_for_capacity == 0:
        return True
    # More than that running: the limit is another than we were told.
    return now.running == max_num_seqs


def _risen(before: float, now: float) -> int:
    return max(0, round(now - before))


# --- readings ---------------------------------------------------------------------------------


def _seen(reading: EngineReading, at_seconds: float, before: _Seen | None) -> _Seen | None:
    """Return what the balance needs of *reading*; ``None`` when that is unknown or stale."""
    running, waiting = reading.requests_running, reading.requests_waiting
    used, finished = reading.kv_used_ratio, _finished(reading)
    if running is None or waiting is None or used is None or finished is None:
        return None
    if reading.sleep_state not in {None, "awake"}:
        return None
    earlier = before or _new_engine(at_seconds)
    prompts = reading.prompt_tokens
    return _Seen(
        at_seconds=at_seconds,
        running=round(running),
        waiting=round(waiting),
        waiting_for_capacity=round(reading.waiting_by_reason.get("capacity", waiting)),
        used_ratio=used,
        finished=finished,
        reported=_known(reading.preemptions_total, earlier.reported),
        prompt_tokens=_known(reading.prompt_tokens_total, earlier.prompt_tokens),
        mean_prompt_tokens=prompts.total / prompts.count if prompts and prompts.count else None,
        generated_tokens=_known(reading.generation_tokens_total, earlier.generated_tokens),
    )


def _known(count: float | None, earlier: float) -> float:
    # A counter that is missing for once has not moved, as far as anyone can tell.
    return earlier if count is None else count


def _finished(reading: EngineReading) -> float | None:
    if reading.finished_total:
        return sum(reading.finished_total.values())
    # Every request that finished has its prompt in this histogram.
    return None if reading.prompt_tokens is None else reading.prompt_tokens.count


def _has_not_run(reading: EngineReading) -> bool:
    # A server of several processes shows its counters from the start, the gauges only later.
    return reading.prompt_tokens_total == 0 and reading.preemptions_total == 0


def _new_engine(at_seconds: float) -> _Seen:
    """Return what an engine's page says before its first request."""
    return _Seen(
        at_seconds=at_seconds,
        running=0,
        waiting=0,
        waiting_for_capacity=0,
        used_ratio=0.0,
        finished=0.0,
        reported=0.0,
        prompt_tokens=0.0,
        mean_prompt_tokens=None,
        generated_tokens=0.0,
    )
