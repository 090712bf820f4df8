"""Which of a startup log's figures belong to which rank of the engine that runs now."""

import re
from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any, Final

from kvheadroom.readings import BootReading, ProcessBoot

_AXIS: Final = re.compile(r"(DP|PP|TP)(\d{1,5})")
# Figures of an engine rather than of one of its ranks.
_OF_ENGINE: Final = frozenset({"kv_tokens", "max_concurrency"})
_IDENTITY: Final = frozenset({"process", "pid", "rank"})


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where a rank stands among those of its server.

    Attributes:
        dp: Data-parallel rank: which engine.
        pp: Pipeline stage.
        tp: Tensor-parallel rank.
        engines: Engines of the server.
        stages: Pipeline stages of an engine.
        ranks_per_stage: Tensor-parallel ranks of a stage.
        pid: Its process as that sees itself, inside its container; ``None`` where not known.
    """

    dp: int = 0
    pp: int = 0
    tp: int = 0
    engines: int = 1
    stages: int = 1
    ranks_per_stage: int = 1
    pid: int | None = None


def boot_of_rank(boot: BootReading, place: RankPlace) -> ProcessBoot:
    """Return what *boot* says of one rank, every figure from the closest process that has it.

    Most versions print a figure for one rank only, so what a rank does not say itself is taken
    from another of its stage, whose share is the same. A stage holds other layers than the next,
    so nothing is taken from there.
    """
    known: dict[str, Any] = {}
    for field in fields(ProcessBoot):
        if field.name not in _IDENTITY:
            source = _closest(boot, place, field.name)
            known[field.name] = None if source is None else getattr(source, field.name)
    own = next((one for one in boot.processes if _closeness(one, place) > _SIBLING), None)
    name, pid, rank = (own.process, own.pid, own.rank) if own else (None, None, None)
    return ProcessBoot(process=name, pid=pid, rank=rank, **known)


def is_boot_of(
    boot: BootReading, *, version: str | None, kv_tokens: int | None, max_model_len: int | None
) -> bool:
    """Return whether *boot* can be the start of the engine that runs now.

    A log that ends early, or belongs to another server, says other things than the engine's page.
    What one of both does not tell contradicts nothing.
    """
    if boot.failure is not None and not boot.is_ready:
        return False
    lengths = {boot.max_model_len, boot.asked_max_model_len} - {None}
    printed = {one.kv_tokens for one in boot.processes if one.kv_tokens is not None}
    return (
        _agree(version, {boot.version} - {None})
        and _agree(max_model_len, lengths)
        and _agree(kv_tokens, printed)
    )


def _agree(said: object, printed: Collection[object]) -> bool:
    return said is None or not printed or said in printed


# How close a process is to a rank.
_ITSELF: Final = 3
_SAME_NAME: Final = 2
_SIBLING: Final = 1
_ANOTHER: Final = 0


def _closest(boot: BootReading, place: RankPlace, name: str) -> ProcessBoot | None:
    closest, best = None, _ANOTHER
    for one in boot.processes:
        if getattr(one, name) is None:
            continue
        found = _engine_closeness(one, place) if name in _OF_ENGINE else _closeness(one, place)
        if found > best:
            closest, best = one, found
    return closest


def _engine_closeness(one: ProcessBoot, place: RankPlace) -> int:
    named = _axes(one).get("DP")
    if named is None:
        return _SIBLING if place.engines == 1 else _ANOTHER
    return _SAME_NAME if named == place.dp else _ANOTHER


def _closeness(one: ProcessBoot, place: RankPlace) -> int:
    if place.pid is not None and one.pid == place.pid:
        return _ITSELF
    axes = _axes(one)
    if axes.get("DP", place.dp) != place.dp:
        return _ANOTHER
    in_engine = None if one.rank is None else one.rank % (place.stages * place.ranks_per_stage)
    pp, tp = axes.get("PP"), axes.get("TP")
    if in_engine is not None:
        pp = in_engine // place.ranks_per_stage if pp is None else pp
        tp = in_engine % place.ranks_per_stage if tp is None else tp
    if place.stages > 1 and pp != place.pp:
        return _ANOTHER
    return _SAME_NAME if tp == place.tp else _SIBLING


def _axes(one: ProcessBoot) -> dict[str, int]:
    return {axis: int(number) for axis, number in _AXIS.findall(one.process or "")}
