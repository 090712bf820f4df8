"""What the engines on a GPU claim of it, and which of them could start again."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from math import ceil
from typing import Final

from kvheadroom.engine import budget
from kvheadroom.engine.budget import CardBudget, Demand, Start, budget_card, exactly, start_order
from kvheadroom.engine.versions import Version
from kvheadroom.live.rank_parts import Part, RankParts
from kvheadroom.readings import GpuReading
from kvheadroom.units import format_bytes

# Older versions look at what is free only after they have loaded the model.
_CHECKED_SINCE: Final[Version] = (0, 9, 1)


@dataclass(frozen=True, slots=True)
class Claim:
    """What one rank of an engine claims of one GPU.

    Attributes:
        engine: The engine's id.
        server: Its server, whose engines stop and start together.
        utilization: ``--gpu-memory-utilization``, 0-1.
        kv_cache_memory_bytes: Exact pool instead of a share; ``None`` uses the share.
        held_bytes: What its process holds now; ``None`` where the driver does not tell.
        parts: What it is meant to hold awake.
        version: Of its server; ``None`` is read as a recent one.
        caches_kv: Whether the model has a KV cache at all; an encoder has none.
        is_asleep: It has given its weights and its pool away for now.
    """

    engine: str
    server: str
    utilization: float
    kv_cache_memory_bytes: int | None
    held_bytes: int | None
    parts: RankParts
    version: Version | None = None
    caches_kv: bool = True
    is_asleep: bool = False


@dataclass(frozen=True, slots=True)
class Restart:
    """Whether one server would start again on one GPU, everything else as it is.

    Attributes:
        server: Which.
        starts: ``None`` where that hangs on something that is not known.
        asked_bytes: What it wants to find free.
        found_bytes: What it would find, its own memory given back; ``None`` where not known.
        reason: One line.
    """

    server: str
    starts: bool | None
    asked_bytes: int
    found_bytes: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Share:
    """What one engine manages of one GPU.

    Attributes:
        engine: The engine's id.
        managed_bytes: Its share, or all it needs where its pool is given in bytes.
        ratio: The same of the memory CUDA sees, 0-1.
        context_bytes: What its context takes beside that.
    """

    engine: str
    managed_bytes: int
    ratio: float
    context_bytes: int


@dataclass(frozen=True, slots=True)
class CardClaims:
    """What is claimed of one GPU.

    Attributes:
        gpu: Index of the GPU or MIG device.
        uuid: Its UUID.
        shares: Of every engine, in the order given.
        unallocated_bytes: What shares, contexts and the driver leave; negative where together
            they are more than the GPU has.
        restarts: Every server, in the order given.
        start_order: Servers in an order in which all would start on the GPU as others leave it;
            ``None`` where there is none.
    """

    gpu: str
    uuid: str
    shares: tuple[Share, ...]
    unallocated_bytes: int
    restarts: tuple[Restart, ...]
    start_order: tuple[str, ...] | None

    @property
    def claimed_ratio(self) -> float:
        """Sum of all shares: engines on one GPU do not know of each other, so it may exceed 1."""
        return sum(share.ratio for share in self.shares)

    @property
    def is_overcommitted(self) -> bool:
        """Whether shares and contexts together are more than the GPU has."""
        return self.unallocated_bytes < 0

    @property
    def explanation(self) -> str:
        """One line on who could start again, and in which order."""
        refused = [one.server for one in self.restarts if one.starts is False]
        if not refused:
            return "every server would start again"
        if self.start_order is None:
            return f"{_listed(refused)} would not start again, and in no order all would"
        order = ", then ".join(self.start_order)
        return f"{_listed(refused)} would not start again; all do in this order: {order}"


def card_claims(gpu: GpuReading, claims: Sequence[Claim]) -> CardClaims | None:
    """Return what *claims* come to on *gpu*; ``None`` where it has none or its memory is unknown.

    Args:
        gpu: The GPU or MIG device.
        claims: Of every rank on it, those of one server together.

    Source:
        A share is of the memory CUDA sees, which lacks the driver's reserve.
    """
    if gpu.total_bytes is None or gpu.free_bytes is None or not claims:
        return None
    free, total = gpu.free_bytes, gpu.total_bytes - (gpu.reserved_bytes or 0)
    card = budget_card(total, [_demand(claim) for claim in claims])
    planned = {
        claim.engine: _start(claim, managed_bytes=instance.managed_bytes, total_bytes=total)
        for claim, instance in zip(claims, card.instances, strict=True)
    }
    servers = {
        server: tuple(group) for server, group in groupby(claims, key=lambda claim: claim.server)
    }
    return CardClaims(
        gpu=gpu.gpu,
        uuid=gpu.uuid,
        shares=tuple(
            Share(
                engine=one.demand.name,
                managed_bytes=one.managed_bytes,
                ratio=one.managed_bytes / total,
                context_bytes=one.demand.context.bytes,
            )
            for one in card.instances
        ),
        unallocated_bytes=card.unallocated_bytes,
        restarts=tuple(
            _restart(server, group, [planned[claim.engine] for claim in group], free)
            for server, group in servers.items()
        ),
        start_order=_order(card, servers, planned, free),
    )


def cannot_restart(cards: Iterable[CardClaims]) -> tuple[str, ...]:
    """Return the servers that at least one of their GPUs would refuse, each once."""
    refused = (one.server for card in cards for one in card.restarts if one.starts is False)
    return tuple(dict.fromkeys(refused))


def _listed(names: Sequence[str]) -> str:
    return " and ".join((", ".join(names[:-1]), names[-1]) if len(names) > 1 else names)


def _bytes(part: Part | None) -> int:
    return 0 if part is None else part.bytes


def _demand(claim: Claim) -> Demand:
    parts = claim.parts
    return Demand(
        name=claim.engine,
        utilization=claim.utilization,
        kv_cache_memory_bytes=claim.kv_cache_memory_bytes,
        weights=exactly(_bytes(parts.weights)),
        activation=exactly(_bytes(parts.activation)),
        non_torch=exactly(_bytes(parts.non_torch)),
        cuda_graphs=exactly(_bytes(parts.cuda_graph)),
        context=budget.CONTEXT if parts.context is None else exactly(parts.context.bytes),
        caches_kv=claim.caches_kv,
    )


def _start(claim: Claim, *, managed_bytes: int, total_bytes: int) -> Start:
    """Return what the rank asks for and will hold.

    Source:
        vLLM compares what is free with the share even where the pool is given in bytes.
    """
    share_bytes = ceil(total_bytes * claim.utilization)
    context = claim.parts.context
    context_bytes = budget.CONTEXT.bytes if context is None else context.bytes
    held_bytes = claim.held_bytes
    if held_bytes is None or claim.is_asleep:
        named = sum(_bytes(getattr(claim.parts, field.name)) for field in fields(RankParts))
        held_bytes = managed_bytes + context_bytes if claim.caches_kv else named
    return Start(max(share_bytes, managed_bytes), context_bytes, held_bytes)


def _need_bytes(starts: Sequence[Start], context_bytes: int | None = None) -> int:
    """Return what must be free for *starts* one after the other, contexts included.

    Args:
        starts: Of one server on one GPU.
        context_bytes: Of each context; ``None`` takes its own.
    """
    need, held = 0, 0
    for start in starts:
        context = start.context_bytes if context_bytes is None else context_bytes
        need = max(need, held + start.asked_bytes + context)
        held += start.held_bytes
    return need


def _restart(
    server: str, claims: Sequence[Claim], starts: Sequence[Start], free_bytes: int
) -> Restart:
    """Return whether *server* would start again: its own memory is free then."""
    contexts = sum(start.context_bytes for start in starts)
    asked = _need_bytes(starts) - contexts
    known = [claim.held_bytes for claim in claims if claim.held_bytes is not None]
    room = free_bytes + sum(known)
    if any(claim.version is not None and claim.version < _CHECKED_SINCE for claim in claims):
        reason = "its version does not look at what is free before it loads the model"
        return Restart(server, None, asked, None, reason)
    fits = room >= _need_bytes(starts)
    if len(known) < len(claims) and not fits:
        reason = "the driver does not tell what its process holds"
        return Restart(server, None, asked, None, reason)
    found = room - contexts
    # Between the least and the usual size of a context, it hangs on that.
    hopeless = room < _need_bytes(starts, budget.CONTEXT.low_bytes)
    verdict = True if fits else False if hopeless else None
    reason = f"asks for {format_bytes(asked)} and would find {format_bytes(found)}"
    return Restart(server, verdict, asked, found, reason)


def _order(
    card: CardBudget,
    groups: Mapping[str, Sequence[Claim]],
    planned: Mapping[str, Start],
    free_bytes: int,
) -> tuple[str, ...] | None:
    """Return an order in which all servers start on the memory that others leave."""
    own = [
        claim.held_bytes if claim.held_bytes is not None else planned[claim.engine].held_bytes
        for group in groups.values()
        for claim in group
    ]
    room = min(card.total_bytes, free_bytes + sum(own))
    servers = list(groups)
    whole = []
    for group in groups.values():
        starts = [planned[claim.engine] for claim in group]
        whole.append(Start(_need_bytes(starts), 0, sum(start.held_bytes for start in starts)))
    order = start_order(room, whole)
    return None if order is None else tuple(servers[position] for position in order)
