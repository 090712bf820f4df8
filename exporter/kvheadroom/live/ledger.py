"""Who holds a GPU's memory: entries that add up to the card's total to the byte."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from kvheadroom.live.rank_parts import Part, PartSource, RankParts
from kvheadroom.readings import GpuReading
from kvheadroom.units import format_bytes

Component = Literal[
    "reserved",  # what driver and firmware keep
    "weights",
    "kv",
    "context",
    "non_torch",
    "cuda_graph",
    "activation",
    "process",  # a whole process, or the rest of a rank whose weights or pool are not known
    "unexplained",  # held, and nothing says what for; negative where more is claimed than held
    "free",
]
OwnerKind = Literal[
    "engine",  # belongs to a vLLM server
    "offline",  # vLLM without a server
    "other",  # a program that is no vLLM
    "unknown",  # its process cannot be seen from here
]

# What a rank is known to hold is stated in full. An estimate is what a part usually takes, an
# activation peak what it takes at most, and an engine that has not reported its pool may still be
# loading: of these a process may hold less. Where it does, the surest part is granted first, in
# the order in which a start makes them.
_GRANTED_IN_ORDER: Final[tuple[Component, ...]] = (
    "context",
    "weights",
    "kv",
    "non_torch",
    "cuda_graph",
    "activation",
)


@dataclass(frozen=True, slots=True)
class ProcessOwner:
    """Whose a process on a GPU is.

    Attributes:
        kind: What sort of program.
        name: The engine's id, or the program's name from a bounded set; ``other`` for the rest.
    """

    kind: OwnerKind
    name: str


@dataclass(frozen=True, slots=True)
class RankOnCard:
    """One rank of an engine on one GPU or MIG device.

    Attributes:
        engine: The engine's id.
        gpu_uuid: Of the GPU or MIG device.
        pid: The process as the driver lists it; ``None`` where that is not known.
        parts: What it holds.
        kv_used_ratio: Share of its pool in use, 0-1; ``None`` while that is not known.
    """

    engine: str
    gpu_uuid: str
    pid: int | None
    parts: RankParts
    kv_used_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One holder of memory, or one part of what it holds.

    Attributes:
        component: Which part.
        bytes: How much it holds.
        source: Who says so.
        owner: The engine's id or the program's name; ``None`` for what belongs to the card.
        pid: The process, where one is known.
        planned_bytes: What is set aside for the part, where that is more than it holds.
        used_bytes: Of a KV pool, what requests hold now; ``None`` for other parts.
    """

    component: Component
    bytes: int
    source: PartSource
    owner: str | None = None
    pid: int | None = None
    planned_bytes: int | None = None
    used_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Ledger:
    """A GPU's memory by holder.

    Attributes:
        gpu: Index of the GPU or MIG device.
        uuid: Its UUID.
        total_bytes: Its memory; the sum of all entries.
        entries: The driver's reserve, every rank's parts, every other process, the unexplained
            rests, and what is free; in that order.
        notes: What limits the figures, one line each.
    """

    gpu: str
    uuid: str
    total_bytes: int
    entries: tuple[LedgerEntry, ...]
    notes: tuple[str, ...] = ()

    @property
    def unexplained_bytes(self) -> int:
        """Everything held that nothing accounts for; negative where more is claimed than held."""
        return self.sum_of("unexplained")

    def sum_of(self, component: Component, owner: str | None = None) -> int:
        """Return the bytes of *component*, of one *owner* or of all."""
        return sum(
            entry.bytes
            for entry in self.entries
            if entry.component == component and owner in {None, entry.owner}
        )


@dataclass(frozen=True, slots=True)
class NoLedger:
    """A GPU whose memory cannot be accounted for.

    Attributes:
        gpu: Index of the GPU or MIG device.
        uuid: Its UUID.
        reason: Why, one line.
    """

    gpu: str
    uuid: str
    reason: str


def gpu_ledger(
    gpu: GpuReading, ranks: Sequence[RankOnCard], owners: Mapping[int, ProcessOwner]
) -> Ledger | NoLedger:
    """Return who holds the memory of *gpu*.

    The driver's total, reserve and free memory are taken as they are, and what is between them is
    divided. A process whose bytes the driver tells is divided by itself, so that its own rest
    shows. A rank without bytes of its own is explained from what no other process holds: WSL and
    MIG without privilege tell no bytes, a container may not see the pids. A process that cannot be
    seen from here is taken for such a rank where there is one.

    Args:
        gpu: The GPU or MIG device.
        ranks: Ranks of all engines; those of other GPUs are passed over.
        owners: Pid → whose it is; a pid that is missing is unknown.
    """
    total = gpu.total_bytes
    if total is None:
        return NoLedger(gpu.gpu, gpu.uuid, "the driver reports no memory of its own for this GPU")
    reserved = gpu.reserved_bytes or 0
    if gpu.free_bytes is None and gpu.used_bytes is None:
        return NoLedger(gpu.gpu, gpu.uuid, "the driver reports neither used nor free memory")
    free = gpu.free_bytes
    if free is None:
        free = total - reserved - (gpu.used_bytes or 0)
    book = _Book(gpu, ranks, owners)
    entries, notes = book.divide(total - reserved - free)
    first: tuple[LedgerEntry, ...] = ()
    if gpu.reserved_bytes is None:
        notes = (*notes, "this driver counts its own reserve as used")
    else:
        first = (LedgerEntry("reserved", reserved, "measured"),)
    last = LedgerEntry("free", free, "measured")
    return Ledger(gpu.gpu, gpu.uuid, total, (*first, *entries, last), notes)


class _Book:
    """The processes of one GPU, sorted by what is known of them."""

    def __init__(
        self, gpu: GpuReading, ranks: Sequence[RankOnCard], owners: Mapping[int, ProcessOwner]
    ) -> None:
        listed = gpu.processes or ()
        self._held = {one.pid: one.used_bytes for one in listed if one.used_bytes is not None}
        self._silent = [one.pid for one in listed if one.used_bytes is None]
        self._is_listed = gpu.processes is not None
        self._owners = owners
        self._placed: dict[int, list[RankOnCard]] = {}
        self._unplaced: list[RankOnCard] = []
        for rank in ranks:
            if rank.gpu_uuid != gpu.uuid:
                continue
            if rank.pid in self._held:
                self._placed.setdefault(rank.pid, []).append(rank)
            else:
                self._unplaced.append(rank)
        self._unplaced = [rank for rank in self._unplaced if not self._place_by_engine(rank)]

    def _place_by_engine(self, rank: RankOnCard) -> bool:
        """Give *rank* the largest process of its engine that is nobody's yet, if there is one."""
        owner = ProcessOwner("engine", rank.engine)
        own = [pid for pid in self._held.keys() - self._placed.keys() if self._owner(pid) == owner]
        if not own:
            return False
        pid = max(own, key=lambda one: self._held[one])
        self._placed[pid] = [replace(rank, pid=pid)]
        return True

    def divide(self, used_bytes: int) -> tuple[tuple[LedgerEntry, ...], tuple[str, ...]]:
        """Return entries that add up to *used_bytes*, and what limits them."""
        parts: list[LedgerEntry] = []
        others: list[LedgerEntry] = []
        notes: list[str] = []
        left_bytes = used_bytes
        for pid, held_bytes in sorted(self._held.items(), key=lambda item: -item[1]):
            if ranks := self._placed.get(pid):
                parts += _explained(held_bytes, ranks, pid=pid)
                notes += _shortfalls(held_bytes, ranks)
            elif self._may_be_a_rank(pid):
                continue
            else:
                owner = self._owner(pid).name
                others.append(LedgerEntry("process", held_bytes, "measured", owner, pid))
            left_bytes -= held_bytes
        shared = _granted(left_bytes, self._unplaced)
        left_bytes -= sum(entry.bytes for entry in shared)
        parts += shared
        rest = LedgerEntry("unexplained", left_bytes, "computed")
        notes += self._limits(left_bytes)
        return (*parts, *others, rest), tuple(notes)

    def _owner(self, pid: int) -> ProcessOwner:
        return self._owners.get(pid, ProcessOwner("unknown", "unknown"))

    def _may_be_a_rank(self, pid: int) -> bool:
        return bool(self._unplaced) and self._owner(pid).kind == "unknown"

    def _limits(self, rest_bytes: int) -> Iterable[str]:
        if not self._is_listed:
            yield "the driver does not list the processes of this GPU"
        ranked = {rank.pid for rank in self._unplaced}
        silent = [self._owner(pid).name for pid in self._silent if pid not in ranked]
        if silent:
            names = ", ".join(sorted(set(silent)))
            yield f"the driver does not tell the bytes of {len(silent)} process(es): {names}"
        for rank in self._unplaced:
            yield from _unknown_parts(rank)
        for ranks in self._placed.values():
            for rank in ranks:
                yield from _unknown_parts(rank)
        if rest_bytes < 0:
            yield f"{format_bytes(-rest_bytes)} more is claimed than the driver counts as used"


def _explained(held_bytes: int, ranks: Sequence[RankOnCard], *, pid: int) -> list[LedgerEntry]:
    """Return the parts of one process and its rest, which add up to *held_bytes*."""
    entries = _granted(held_bytes, ranks)
    rest_bytes = held_bytes - sum(entry.bytes for entry in entries)
    owner = ranks[0].engine if len({rank.engine for rank in ranks}) == 1 else None
    # What a rank of unknown size holds is no mystery: it is its weights, or its pool.
    is_the_unknown = rest_bytes > 0 and any(_unknown(rank) for rank in ranks)
    component: Component = "process" if is_the_unknown else "unexplained"
    return [*entries, LedgerEntry(component, rest_bytes, "computed", owner, pid)]


def _granted(held_bytes: int, ranks: Sequence[RankOnCard]) -> list[LedgerEntry]:
    """Return what of *held_bytes* is which part of *ranks*.

    What they are known to hold is stated in full, even where that is more than there is.
    """
    firm = [
        _entry(rank, component, part, part.bytes)
        for rank in ranks
        for component, part in _firm_parts(rank)
    ]
    left_bytes = held_bytes - sum(entry.bytes for entry in firm)
    granted: list[LedgerEntry] = []
    for component in _GRANTED_IN_ORDER:
        for rank in ranks:
            part: Part | None = getattr(rank.parts, component)
            if part is not None and not _is_firm(rank, component, part):
                count = min(part.bytes, max(0, left_bytes))
                granted.append(_entry(rank, component, part, count))
                left_bytes -= count
    order = {rank.engine: number for number, rank in enumerate(ranks)}
    return sorted([*firm, *granted], key=lambda entry: order.get(entry.owner or "", 0))


def _firm_parts(rank: RankOnCard) -> Iterable[tuple[Component, Part]]:
    for component in _GRANTED_IN_ORDER:
        part: Part | None = getattr(rank.parts, component)
        if part is not None and _is_firm(rank, component, part):
            yield component, part


def _is_firm(rank: RankOnCard, component: Component, part: Part) -> bool:
    if component == "activation" or part.source == "estimated":
        return False
    # What model and settings say is not yet there while a start is under way.
    has_reported = rank.parts.kv is not None and rank.parts.kv.source != "configured"
    return has_reported or part.source in {"log", "engine"}


def _entry(rank: RankOnCard, component: Component, part: Part, count: int) -> LedgerEntry:
    used = rank.kv_used_ratio if component == "kv" else None
    return LedgerEntry(
        component=component,
        bytes=count,
        source=part.source,
        owner=rank.engine,
        pid=rank.pid,
        planned_bytes=part.bytes if part.bytes > count else None,
        used_bytes=None if used is None else round(count * used),
    )


def _shortfalls(held_bytes: int, ranks: Sequence[RankOnCard]) -> Iterable[str]:
    firm = sum(part.bytes for rank in ranks for _, part in _firm_parts(rank))
    if firm > held_bytes:
        names = ", ".join(rank.engine for rank in ranks)
        yield (
            f"{names}: its known parts come to {format_bytes(firm)}, "
            f"its process holds {format_bytes(held_bytes)}"
        )


def _unknown(rank: RankOnCard) -> tuple[str, ...]:
    sizes = (("weights", rank.parts.weights), ("KV pool", rank.parts.kv))
    return tuple(words for words, part in sizes if part is None)


def _unknown_parts(rank: RankOnCard) -> Iterable[str]:
    if missing := _unknown(rank):
        yield f"{rank.engine}: the size of its {' and its '.join(missing)} is not known"
