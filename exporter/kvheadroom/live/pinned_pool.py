"""The pool an engine could be pinned to, so that it starts again on a GPU that lacks room."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import Final

from kvheadroom.engine.capacity import Allocation
from kvheadroom.live.card_view import CardView
from kvheadroom.live.engine_view import EngineView
from kvheadroom.live.known_pool import known_pool, resident_requests
from kvheadroom.live.larger_share import restart_of
from kvheadroom.units import MIB, format_bytes

# What estimates and printed figures may be off by.
_MARGIN_BYTES: Final = 64 * MIB


@dataclass(frozen=True, slots=True)
class PinnedPool:
    """A pool in bytes, and the share that the check at start then asks for.

    Attributes:
        change: Flags and values.
        evidence: Why it is needed, one line.
        tokens: The pool as vLLM would print it; ``None`` where the model is not known.
        tokens_now: The same of today.
        requests: Requests of the longest length that it holds.
        requests_now: The same of today.
    """

    change: str
    evidence: str
    tokens: int | None = None
    tokens_now: int | None = None
    requests: int | None = None
    requests_now: int | None = None


def pinned_pool(view: EngineView, cards: Sequence[CardView]) -> PinnedPool | None:
    """Return the pool that lets the server of *view* start again on all of its GPUs.

    ``None`` where nothing is in the way, where its pool is pinned already, and where too little is
    known, or free, to name one.

    Source:
        vLLM compares what is free with the share even where the pool is given in bytes, so the
        share must come down as well.
    """
    options = view.facts.options
    if options is None or options.kv_cache_memory_bytes is not None:
        return None
    if view.capacity is None or view.capacity.usable_blocks == 0:
        return None
    places = [(card, rank) for card in cards for rank in card.ranks if rank.engine == view.engine]
    evidence = [why for card, _ in places if (why := _trouble(view, card)) is not None]
    if not evidence:
        return None
    pool_bytes: list[int] = []
    shares = [options.gpu_memory_utilization]
    for card, rank in places:
        managed, room = _managed_bytes(view, card), _room_bytes(view, card)
        if rank.parts.kv is None or managed is None or room is None:
            return None
        # The pool is what the rest leaves of the share, so the rest is known as well.
        left = room - (managed - rank.parts.kv.bytes)
        fits = left >= rank.parts.kv.bytes
        pool_bytes.append(rank.parts.kv.bytes if fits else (left - _MARGIN_BYTES) // MIB * MIB)
        visible = (card.gpu.total_bytes or 0) - (card.gpu.reserved_bytes or 0)
        shares.append(floor(room / visible * 100) / 100)
    return _pinned(view, min(pool_bytes), min(shares), evidence[0])


def _trouble(view: EngineView, card: CardView) -> str | None:
    """Return what is wrong on *card* for the server of *view*; ``None`` where nothing is.

    Where all would start again and only the sum is too much, the largest share gives way.
    """
    claims = card.claims
    if claims is None:
        return None
    restart = restart_of(claims, view)
    if restart is not None and restart.starts is False:
        return f"it would not start again on GPU {card.gpu.gpu}: {restart.reason}"
    if not claims.is_overcommitted or any(one.starts is False for one in claims.restarts):
        return None
    largest = max(claims.shares, key=lambda share: share.managed_bytes)
    if largest.engine != view.engine:
        return None
    over = format_bytes(-claims.unallocated_bytes)
    return f"the servers of GPU {card.gpu.gpu} claim {over} more than it has"


def _managed_bytes(view: EngineView, card: CardView) -> int | None:
    """Return the share of *card* that the rank manages."""
    shares = card.claims.shares if card.claims else ()
    return next((one.managed_bytes for one in shares if one.engine == view.engine), None)


def _room_bytes(view: EngineView, card: CardView) -> int | None:
    """Return what the rank on *card* may take, its context aside."""
    claims, managed = card.claims, _managed_bytes(view, card)
    if claims is None or managed is None:
        return None
    room = managed + min(0, claims.unallocated_bytes)
    restart = restart_of(claims, view)
    found = None if restart is None else restart.found_bytes
    return room if found is None else min(room, found)


def _pinned(view: EngineView, rank_bytes: int, share: float, evidence: str) -> PinnedPool | None:
    if rank_bytes <= 0:
        return None
    options = view.facts.options
    change = f"--kv-cache-memory-bytes {rank_bytes}"
    if options is not None and share < options.gpu_memory_utilization:
        change += f" --gpu-memory-utilization {share:.2f}"
    pool = known_pool(view)
    if isinstance(pool, str):
        return PinnedPool(change, evidence)
    found, today = pool.with_rank_bytes(rank_bytes), pool.today
    if not isinstance(found, Allocation):
        return None
    longest = today.max_model_len
    return PinnedPool(
        change=change,
        evidence=evidence,
        tokens=found.tokens,
        tokens_now=today.tokens,
        requests=int(resident_requests(found, min(longest, found.max_model_len))),
        requests_now=int(resident_requests(today, longest)),
    )
