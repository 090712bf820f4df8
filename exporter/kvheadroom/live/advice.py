"""What to change on an engine that is short of something, with what it gives and what it costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from kvheadroom.live.card_view import CardView
from kvheadroom.live.engine_view import EngineView, is_asleep
from kvheadroom.live.headroom import OBSERVED_CONTEXT
from kvheadroom.live.larger_share import larger_share
from kvheadroom.live.pinned_pool import PinnedPool, pinned_pool
from kvheadroom.live.what_if import WhatIf, fp8_what_if, has_fp8_units, share_what_if
from kvheadroom.units import format_duration

AdviceKind = Literal[
    "rebalance",  # one data-parallel rank is full while another idles
    "larger_share",  # the GPU has memory that nobody claims
    "quantize_cache",  # an fp8 cache
    "fewer_places",  # --max-num-seqs lets more run than stay resident
    "more_places",  # --max-num-seqs binds while blocks are free
    "pin_pool",  # the GPU is claimed more than once over, or a restart would be refused
]

# A pool that runs full within this time is short of blocks already.
_SOON_SECONDS: Final = 600.0
# Less than this is not worth a restart.
_LEAST_GAIN_RATIO: Final = 0.05
_LEAST_PLACES_RATIO: Final = 0.1
_FULL_RATIO: Final = 0.9
_IDLE_RATIO: Final = 0.5


@dataclass(frozen=True, slots=True)
class Advice:
    """One change.

    Attributes:
        engine: The engine's id.
        kind: Which.
        change: What to change: flags and values where there are any.
        effect: What it gives, one line.
        cost: What it costs, one line.
        evidence: What was seen, one line.
        tokens: The pool after it, as vLLM would print it; ``None`` where that does not change or
            is not known.
        tokens_now: The pool of today.
        requests: Requests at once after it; ``None`` where that is not known.
        requests_now: The same of today.
    """

    engine: str
    kind: AdviceKind
    change: str
    effect: str
    cost: str
    evidence: str
    tokens: int | None = None
    tokens_now: int | None = None
    requests: int | None = None
    requests_now: int | None = None

    @property
    def text(self) -> str:
        """All of it in one line."""
        return f"{self.change}: {self.effect}. Cost: {self.cost}. Seen: {self.evidence}"


def advise(
    view: EngineView, cards: Sequence[CardView], engines: Sequence[EngineView]
) -> tuple[Advice, ...]:
    """Return what would help *view*, what needs no restart first; nothing where all is well.

    Every figure is computed from the engine's own pool, so that an engine whose model or command
    is not known gets less advice, or none.

    Args:
        view: The engine.
        cards: Every GPU of the node.
        engines: Every engine of the node.
    """
    if is_asleep(view.reading):
        return ()
    found: list[Advice | None] = []
    # Of one that stands still nothing is known but what its GPU tells.
    if not view.stalled:
        shortage = _kv_shortage(view)
        if shortage is not None:
            found += [
                _rebalance(view, engines, shortage),
                _larger_share(view, cards, engines, shortage),
                _quantize_cache(view, shortage),
            ]
        found += [_fewer_places(view), _more_places(view)]
    pin = pinned_pool(view, cards)
    found.append(None if pin is None else _pin_pool(view, pin))
    return tuple(one for one in found if one is not None)


def advise_all(
    cards: Sequence[CardView], engines: Sequence[EngineView]
) -> dict[str, tuple[Advice, ...]]:
    """Return the advice for every engine that there is any for, by its id."""
    advice = {view.engine: advise(view, cards, engines) for view in engines}
    return {engine: given for engine, given in advice.items() if given}


def _kv_shortage(view: EngineView) -> str | None:
    """Return what shows that *view* is short of blocks; ``None`` where nothing does."""
    if view.pressure is not None and view.pressure.binding == "kv":
        return f"{_queue(view)} for blocks"
    if view.requests_preempted:
        return f"{view.requests_preempted} requests lost their blocks and wait"
    seconds = view.exhaustion_seconds
    if seconds == 0:
        return "its pool is full"
    if seconds is not None and seconds <= _SOON_SECONDS:
        return f"its free blocks run out in {format_duration(seconds)}"
    return None


def _queue(view: EngineView) -> str:
    reading = view.reading
    return f"{reading.requests_running or 0:.0f} run, {reading.requests_waiting or 0:.0f} wait"


def _length(view: EngineView) -> int:
    """Return the length that requests are counted in, tokens."""
    longest = view.capacity.max_model_len if view.capacity else None
    tokens = view.traffic.mean_tokens if view.traffic else longest or 1
    return tokens if longest is None else min(tokens, longest)


def _rebalance(view: EngineView, engines: Sequence[EngineView], shortage: str) -> Advice | None:
    if (view.reading.kv_used_ratio or 0.0) < _FULL_RATIO:
        return None
    rooms = {
        one.engine: requests
        for one in engines
        if one.engine != view.engine
        and one.target == view.target
        and one.reading.replica == view.reading.replica
        and (requests := _idle_room(one))
    }
    if not rooms:
        return None
    names, requests = " and ".join(sorted(rooms)), sum(rooms.values())
    return Advice(
        engine=view.engine,
        kind="rebalance",
        change="spread requests over the data-parallel ranks: by load, and none bound to a rank",
        effect=f"{names} could take {requests} more requests of the observed length now",
        cost="no restart; what a rank has cached of a prompt is computed anew on another",
        evidence=f"{shortage}; nothing waits on {names}, and half of the pool is free",
        requests=requests,
        requests_now=0,
    )


def _idle_room(view: EngineView) -> int | None:
    """Return how many requests an engine without a queue could take; ``None`` where it is busy."""
    used = view.reading.kv_used_ratio
    if view.stalled or is_asleep(view.reading) or view.headroom is None or used is None:
        return None
    if used > _IDLE_RATIO or view.reading.requests_waiting != 0:
        return None
    return view.headroom.requests.get(OBSERVED_CONTEXT)


def _larger_share(
    view: EngineView, cards: Sequence[CardView], engines: Sequence[EngineView], shortage: str
) -> Advice | None:
    share = larger_share(view, cards, engines)
    if isinstance(share, str):
        return None
    found = share_what_if(view, share, context_tokens=_length(view), requests=1)
    cost = "a restart, and memory that no other server can claim then"
    return _of_what_if(view, "larger_share", found, cost, f"{shortage}; {share.evidence}")


def _quantize_cache(view: EngineView, shortage: str) -> Advice | None:
    options = view.facts.options
    if options is None or not has_fp8_units(options.device.capability):
        return None
    found = fp8_what_if(view, context_tokens=_length(view), requests=1)
    cost = "a restart, and keys and values of less precision: compare answers before and after"
    return _of_what_if(view, "quantize_cache", found, cost, shortage)


def _of_what_if(
    view: EngineView, kind: AdviceKind, found: WhatIf | None, cost: str, evidence: str
) -> Advice | None:
    """Return the advice to do what *found* reckons with, if it is worth it."""
    if found is None or found.gain_ratio is None or found.gain_ratio < _LEAST_GAIN_RATIO:
        return None
    places = view.facts.rules.max_num_seqs
    if found.tokens is None or found.requests is None or found.requests_now == places:
        return None
    return Advice(
        engine=view.engine,
        kind=kind,
        change=found.change,
        effect=(
            f"{found.tokens:,} tokens instead of {found.tokens_now or 0:,} "
            f"({found.gain_ratio:+.0%} room), {found.requests:,} requests of {_length(view):,} "
            f"tokens at once instead of {found.requests_now or 0:,}"
        ),
        cost=cost,
        evidence=evidence,
        tokens=found.tokens,
        tokens_now=found.tokens_now,
        requests=found.requests,
        requests_now=found.requests_now,
    )


def _places_flag(view: EngineView) -> str:
    options, places = view.facts.options, view.facts.rules.max_num_seqs
    is_other = options is not None and options.max_num_seqs != places
    return "--max-num-active-seqs" if is_other else "--max-num-seqs"


def _fewer_places(view: EngineView) -> Advice | None:
    """Return the advice to admit no more than stay resident, while requests are preempted."""
    places, capacity, traffic = view.facts.rules.max_num_seqs, view.capacity, view.traffic
    if not view.requests_preempted or places is None or capacity is None or traffic is None:
        return None
    each = capacity.blocks_for(traffic.p95_tokens) if traffic.p95_tokens else None
    if not each:
        return None
    resident = max(1, capacity.usable_blocks // each)
    if resident >= places:
        return None
    return Advice(
        engine=view.engine,
        kind="fewer_places",
        change=f"{_places_flag(view)} {resident}",
        effect=(
            f"{resident} requests of the observed 95th percentile, {traffic.p95_tokens:,} tokens, "
            f"stay resident; of {places} some are preempted and computed again"
        ),
        cost="a restart, and short requests wait where they might have fit",
        evidence=f"{view.requests_preempted} requests lost their blocks and wait",
        requests=resident,
        requests_now=places,
    )


def _more_places(view: EngineView) -> Advice | None:
    """Return the advice to let more requests run, while blocks are free and places are not."""
    places, capacity, traffic = view.facts.rules.max_num_seqs, view.capacity, view.traffic
    pressure, headroom = view.pressure, view.headroom
    if pressure is None or pressure.binding != "max_num_seqs" or places is None:
        return None
    if capacity is None or headroom is None or traffic is None or view.requests_preempted:
        return None
    tokens = traffic.p95_tokens or traffic.mean_tokens
    each = capacity.blocks_for(tokens)
    if not each:
        return None
    # No more than would stay resident, and no further than one restart can be judged by.
    value = min(places + headroom.free_blocks // each, capacity.usable_blocks // each, 2 * places)
    if value < places * (1 + _LEAST_PLACES_RATIO):
        return None
    return Advice(
        engine=view.engine,
        kind="more_places",
        change=f"{_places_flag(view)} {value}",
        effect=(
            f"{value} requests run at once instead of {places}; the pool holds them at "
            f"{tokens:,} tokens each"
        ),
        cost="a restart, longer steps, and a little more memory for graphs and activations",
        evidence=f"{_queue(view)} for a place; {headroom.free_blocks:,} blocks are free",
        requests=value,
        requests_now=places,
    )


def _pin_pool(view: EngineView, pin: PinnedPool) -> Advice:
    kept = pin.tokens is not None and pin.tokens == pin.tokens_now
    start = "its server starts again beside what holds the GPU now"
    if kept:
        effect = f"keeps its {pin.tokens:,} tokens, and {start}"
    elif pin.tokens is None or pin.tokens_now is None:
        effect = start
    else:
        effect = (
            f"{start}, with {pin.tokens:,} tokens instead of {pin.tokens_now:,}: "
            f"{pin.requests} requests of the full length instead of {pin.requests_now}"
        )
    return Advice(
        engine=view.engine,
        kind="pin_pool",
        change=pin.change,
        effect=effect,
        cost="the pool stays as it is whatever the GPU has free: set it anew with model or GPU",
        evidence=pin.evidence,
        tokens=pin.tokens,
        tokens_now=pin.tokens_now,
        requests=pin.requests,
        requests_now=pin.requests_now,
    )
