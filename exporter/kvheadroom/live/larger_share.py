"""How much larger an engine's share of its GPUs could be, everything else on them as it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import Final

from kvheadroom.engine.budget import LARGEST_SHARE
from kvheadroom.engine.options import EngineOptions
from kvheadroom.live.card_view import CardView
from kvheadroom.live.claims import CardClaims, Restart
from kvheadroom.live.engine_view import EngineView
from kvheadroom.live.ledger import ProcessOwner
from kvheadroom.units import MIB

# Left on every GPU for what nobody counts: other contexts, peaks beyond the profile.
_MARGIN_BYTES: Final = 512 * MIB
_MARGIN_RATIO: Final = 0.02
_STEP: Final = 0.01


@dataclass(frozen=True, slots=True)
class LargerShare:
    """A change that gives every rank of an engine more memory.

    Attributes:
        change: The flag and its new value.
        more_bytes: What each rank gains.
        evidence: What its GPUs have to spare, one line.
    """

    change: str
    more_bytes: int
    evidence: str


def larger_share(
    view: EngineView, cards: Sequence[CardView], engines: Sequence[EngineView]
) -> LargerShare | str:
    """Return the largest share that the GPUs of *view* allow, or why there is none.

    What the other engines claim and the other processes hold stays theirs, and a margin stays
    free. The GPU with the least to spare decides, of all engines of the server.

    Args:
        view: The engine.
        cards: Every GPU of the node.
        engines: Every engine of the node; those of one server share its settings.
    """
    options = view.facts.options
    if options is None:
        return "the server's command is not known"
    own = {one.engine for one in engines if one.target == view.target} | {view.engine}
    places = [(card, sum(rank.engine in own for rank in card.ranks)) for card in cards]
    places = [(card, ranks) for card, ranks in places if ranks]
    if sum(ranks for _, ranks in places) < _world_size(options):
        return "not all of its GPUs are known"
    rooms: list[_Room] = []
    for card, ranks in places:
        room = _room(card, ranks, view)
        if isinstance(room, str):
            return room
        rooms.append(room)
    if options.kv_cache_memory_bytes is not None:
        return _larger_pool(options.kv_cache_memory_bytes, rooms)
    return _larger_utilization(options.gpu_memory_utilization, rooms)


def restart_of(claims: CardClaims, view: EngineView) -> Restart | None:
    """Return whether the server of *view* would start again on one GPU."""
    names = {view.facts.name, view.facts.server, view.target}
    return next((one for one in claims.restarts if one.server in names), None)


@dataclass(frozen=True, slots=True)
class _Room:
    """What one GPU has to spare for each rank of an engine.

    Attributes:
        gpu: Its index.
        visible_bytes: Memory that shares are of.
        spare_bytes: Beside all claims, other processes and the margin.
    """

    gpu: str
    visible_bytes: int
    spare_bytes: int


def _world_size(options: EngineOptions) -> int:
    ranks = options.tensor_parallel * options.pipeline_parallel * options.data_parallel
    return ranks * options.prefill_context_parallel


def _room(card: CardView, ranks: int, view: EngineView) -> _Room | str:
    gpu, claims = card.gpu, card.claims
    if claims is None or gpu.total_bytes is None or gpu.free_bytes is None:
        return f"what is claimed of GPU {gpu.gpu} is not known"
    visible = gpu.total_bytes - (gpu.reserved_bytes or 0)
    margin = max(_MARGIN_BYTES, round(gpu.total_bytes * _MARGIN_RATIO))
    spare = min(gpu.free_bytes, claims.unallocated_bytes - _others_bytes(card)) - margin
    restart = restart_of(claims, view)
    if restart is not None and restart.found_bytes is not None:
        spare = min(spare, restart.found_bytes - restart.asked_bytes - margin)
    return _Room(gpu.gpu, visible, spare // ranks)


def _others_bytes(card: CardView) -> int:
    """Return what processes that belong to no engine hold.

    One that cannot be seen from here may be a rank whose process is not known.
    """
    kinds = {"other", "offline"}
    if all(rank.pid is not None for rank in card.ranks):
        kinds.add("unknown")
    unseen = ProcessOwner("unknown", "unknown")
    return sum(
        process.used_bytes or 0
        for process in card.gpu.processes or ()
        if card.owners.get(process.pid, unseen).kind in kinds
    )


def _larger_utilization(today: float, rooms: Sequence[_Room]) -> LargerShare | str:
    tightest = min(rooms, key=lambda room: room.spare_bytes / room.visible_bytes)
    most = min(LARGEST_SHARE, today + tightest.spare_bytes / tightest.visible_bytes)
    # Rounded down to a hundredth, as people write it; what a float lacks to one is no reason.
    share = floor(most / _STEP + 1e-6) * _STEP
    if share < today + _STEP / 2:
        return f"GPU {tightest.gpu} has nothing to spare"
    more = min(floor((share - today) * room.visible_bytes) for room in rooms)
    return LargerShare(f"--gpu-memory-utilization {share:.2f}", more, _evidence(tightest))


def _larger_pool(today_bytes: int, rooms: Sequence[_Room]) -> LargerShare | str:
    tightest = min(rooms, key=lambda room: room.spare_bytes)
    more = tightest.spare_bytes // MIB * MIB
    if more <= 0:
        return f"GPU {tightest.gpu} has nothing to spare"
    change = f"--kv-cache-memory-bytes {today_bytes + more}"
    return LargerShare(change, more, _evidence(tightest))


def _evidence(room: _Room) -> str:
    ratio = room.spare_bytes / room.visible_bytes
    return f"GPU {room.gpu} has {ratio:.0%} to spare beside all claims and a margin"
