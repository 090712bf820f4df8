"""Memory that a process which is no engine took while engines held the GPU."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from kvheadroom.live.ledger import ProcessOwner
from kvheadroom.readings import GpuReading
from kvheadroom.units import MIB

# Desktops and notebooks breathe; what a program allocates on purpose is more.
_GROWTH_BYTES: Final = 64 * MIB
_NOBODY: Final[Mapping[int, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Intruder:
    """One process that took memory beside the engines.

    Attributes:
        pid: As the driver lists it.
        name: The program's name from a bounded set; ``other`` for the rest.
        taken_bytes: What it took since it was first seen, or all it holds where it came later
            than the engines; ``None`` where the driver does not tell.
        is_new: It came while engines held the GPU, rather than grew.
    """

    pid: int
    name: str
    taken_bytes: int | None
    is_new: bool


@dataclass(frozen=True, slots=True)
class IntruderPast:
    """What is carried from one poll of a GPU to the next.

    Attributes:
        tenants: Pid → bytes of everyone who was there before the engines, or before us; grown
            memory counts from there.
        was_watched: Engines held the GPU at the last poll.
        engines: Pids of the engines that did.
        intruders: Who has taken memory since, and still holds it.
    """

    tenants: Mapping[int, int] = field(default_factory=lambda: _NOBODY)
    was_watched: bool = False
    engines: frozenset[int] = frozenset()
    intruders: tuple[Intruder, ...] = ()


def observe_intruders(
    past: IntruderPast, gpu: GpuReading, owners: Mapping[int, ProcessOwner]
) -> IntruderPast:
    """Return *past* with one more poll in it; its ``intruders`` are those of now.

    Who is there when engines arrive, or when watching begins, is a tenant: the engines have
    measured their share beside it. Who comes or grows later takes what they count on. A process
    that cannot be seen from here is a stranger only where the engines' own can be: otherwise it
    may be one of theirs. An engine's process that has ended is none while the driver still lists
    it.

    Args:
        past: What the last call returned; a new one at first.
        gpu: The GPU or MIG device; without a list of processes nothing is known, and *past* stays.
        owners: Pid → whose it is; nobody has looked yet whose one is that is missing.
    """
    if gpu.processes is None:
        return past
    listed = {one.pid: one.used_bytes for one in gpu.processes}
    engines = frozenset(pid for pid in listed if _is_engine(owners.get(pid), pid, past))
    if not engines:
        # Nobody is intruded upon. An engine that returns measures its share beside who is there.
        return IntruderPast()
    strangers = {pid: held for pid, held in listed.items() if pid in owners and pid not in engines}
    if not past.was_watched:
        tenants = {pid: held or 0 for pid, held in strangers.items()}
        return IntruderPast(MappingProxyType(tenants), was_watched=True, engines=engines)
    # A pid that went away may come back as another program.
    tenants = {pid: held for pid, held in past.tenants.items() if pid in strangers}
    found = (
        _intruder(pid, held, tenants.get(pid), owners.get(pid)) for pid, held in strangers.items()
    )
    return IntruderPast(
        MappingProxyType(tenants),
        was_watched=True,
        engines=engines,
        intruders=tuple(one for one in found if one is not None),
    )


def _is_engine(owner: ProcessOwner | None, pid: int, past: IntruderPast) -> bool:
    if owner is None or owner.kind == "unknown":
        return pid in past.engines
    return owner.kind == "engine"


def _intruder(
    pid: int, held_bytes: int | None, before_bytes: int | None, owner: ProcessOwner | None
) -> Intruder | None:
    name = owner.name if owner else "unknown"
    if before_bytes is None:
        return Intruder(pid, name, held_bytes, is_new=True)
    grown = (held_bytes or 0) - before_bytes
    if held_bytes is None or grown < _GROWTH_BYTES:
        return None
    return Intruder(pid, name, grown, is_new=False)
