"""Whether an engine can take that many more requests of that length, now and after a restart."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kvheadroom.live.admission import AdmissionRules, admission_requests
from kvheadroom.live.capacity import Capacity
from kvheadroom.live.card_view import CardView
from kvheadroom.live.engine_view import EngineView, is_asleep
from kvheadroom.live.what_if import Load, WhatIf, load_of, what_ifs

FitLimit = Literal[
    "kv",  # blocks run out first
    "max_num_seqs",  # places to run in do
    "max_model_len",  # a request of that length is refused
    "queue",  # others wait already and come first
    "asleep",  # nothing is admitted until it is woken
    "stalled",  # it stands still behind a front end that answers
]


@dataclass(frozen=True, slots=True)
class Fit:
    """The answer for one engine.

    Nothing that runs is preempted for it, and none of it has to wait. Blocks that only keep a
    prefix for later are free, as vLLM sees it.

    Attributes:
        engine: The engine's id.
        context_tokens: Length of a request, prompt and answer.
        requests: How many of them were asked about.
        fits: Whether they can be taken now; ``None`` where that is not known.
        possible: How many could, each to its full length; ``None`` where that is not known.
        admitted: How many prompts of that length would be admitted at once, answers not reserved
            and windows still open.
        limit: What would stop the next one; ``None`` where that is not known, or nothing would.
        reason: One line.
        blocks_each: Blocks one request holds at its full length.
        blocks_needed: Blocks all of them hold.
        blocks_free: Blocks an admission can take now.
        places_free: Requests that may run beside those that do; ``None`` where not known.
        restarts: What a restart with one setting changed would give.
    """

    engine: str
    context_tokens: int
    requests: int
    fits: bool | None = None
    possible: int | None = None
    admitted: int | None = None
    limit: FitLimit | None = None
    reason: str = ""
    blocks_each: int | None = None
    blocks_needed: int | None = None
    blocks_free: int | None = None
    places_free: int | None = None
    restarts: tuple[WhatIf, ...] = ()


def fit(
    view: EngineView,
    *,
    context_tokens: int,
    requests: int,
    cards: Sequence[CardView] = (),
    engines: Sequence[EngineView] = (),
) -> Fit:
    """Return whether *view* can take *requests* more of *context_tokens* each.

    Args:
        view: The engine.
        context_tokens: Length of a request, prompt and answer, at least 1.
        requests: How many, at least 1.
        cards: Every GPU of the node, for what a larger share would give.
        engines: Every engine of the node; those of one server share its settings.
    """
    restarts = what_ifs(view, cards, engines, context_tokens=context_tokens, requests=requests)
    asked = Fit(view.engine, context_tokens, requests, restarts=restarts)
    capacity = view.capacity
    if capacity is None:
        return replace(asked, reason="the engine has not reported its KV pool")
    each = None if capacity.layout == "none" else capacity.blocks_for(context_tokens)
    asked = replace(
        asked,
        blocks_each=each,
        blocks_needed=None if each is None else each * requests,
        blocks_free=view.headroom.free_blocks if view.headroom else None,
    )
    stop = _standstill(view, capacity, context_tokens)
    if stop is not None:
        return _settled(asked, possible=0, limit=stop[0], reason=stop[1])
    load = load_of(view, context_tokens)
    if load is None:
        return replace(asked, reason="how full it is, and what waits, is not known")
    return _room(asked, capacity, load, view.facts.rules)


def _settled(asked: Fit, *, possible: int, limit: FitLimit, reason: str) -> Fit:
    fits = possible >= asked.requests
    return replace(asked, fits=fits, possible=possible, limit=limit, reason=reason)


def _standstill(
    view: EngineView, capacity: Capacity, context_tokens: int
) -> tuple[FitLimit, str] | None:
    """Return why none at all could be taken, whatever is free."""
    longest, pressure = capacity.max_model_len, view.pressure
    if longest is not None and context_tokens > longest:
        return "max_model_len", f"a request of more than {longest:,} tokens is refused"
    if is_asleep(view.reading):
        return "asleep", "the engine sleeps and admits nothing"
    if view.stalled:
        return "stalled", f"the engine stands still: {view.stall_evidence or 'no progress is seen'}"
    if pressure is None or not view.reading.requests_waiting:
        return None
    if pressure.binding in {"token_budget", "deferred", "none"}:
        return None
    return "queue", f"others wait already: {pressure.evidence}"


def _room(asked: Fit, capacity: Capacity, load: Load, rules: AdmissionRules) -> Fit:
    """Return how many the free blocks and places take; whoever waits already comes first."""
    places = rules.max_num_seqs
    left = None if places is None else max(0, places - load.running - load.waiting)
    asked = replace(asked, places_free=left)
    if capacity.layout == "none":
        return _by_places(asked, places)
    return _by_blocks(asked, capacity, load, rules)


def _by_places(asked: Fit, places: int | None) -> Fit:
    """Return the answer of a model that caches nothing: only places can run out."""
    left = asked.places_free
    if left is None:
        return replace(asked, reason="it caches nothing, and how many may run is not known")
    reason = f"it caches nothing; {left} of {places} places are free (--max-num-seqs)"
    return _settled(asked, possible=left, limit="max_num_seqs", reason=reason)


def _by_blocks(asked: Fit, capacity: Capacity, load: Load, rules: AdmissionRules) -> Fit:
    """Return how many the free blocks take, places permitting."""
    each, free, left = asked.blocks_each, asked.blocks_free, asked.places_free
    if not each or free is None:
        return replace(asked, reason="how many blocks such a request holds is not known")
    queued = load.waiting * (capacity.blocks_for(load.waiting_tokens) or each)
    free = max(0, free - queued)
    admitted = admission_requests(
        capacity,
        free_blocks=free,
        prompt_tokens=asked.context_tokens,
        running=load.running + load.waiting,
        rules=rules,
    )
    fitting = free // each
    reason = f"{free:,} blocks are free and each takes {each:,}"
    if queued:
        reason += f"; {queued:,} more are for those that wait"
    if left is None or fitting <= left:
        return replace(
            _settled(asked, possible=fitting, limit="kv", reason=reason), admitted=admitted
        )
    reason = f"{left} of {rules.max_num_seqs} places are free (--max-num-seqs); {reason}"
    return replace(
        _settled(asked, possible=left, limit="max_num_seqs", reason=reason), admitted=admitted
    )
