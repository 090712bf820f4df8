"""The budget of an engine's previous start against this one, kept over our own restarts."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, Literal

from kvheadroom.live.boot_figures import RankPlace, boot_of_rank
from kvheadroom.readings import BootReading

Measure = Literal["tokens", "bytes", "blocks"]

# Free memory differs a little from start to start; a smaller change is no news.
_NOTABLE_RATIO: Final = 0.02
_SAME_RATIO: Final = 0.005
_DOUBLE: Final = 2.0
_UNIT: Final[Mapping[Measure, str]] = {
    "tokens": "KV tokens",
    "bytes": "KV bytes",
    "blocks": "KV blocks",
}
_SETTINGS: Final = ("utilization", "max_model_len", "kv_cache_dtype")
_STATE_FORMAT: Final = 1
_MOST_ENGINES: Final = 4_096
_MOST_TEXT: Final = 300
_LARGEST: Final = 1e18


@dataclass(frozen=True, slots=True)
class BootCapacity:
    """What one start of an engine made of its memory.

    Attributes:
        version: vLLM's version.
        tokens: What the pool holds, as vLLM counts it.
        bytes: The pool on one rank of the first stage.
        blocks: Block ids, the null block included.
        max_concurrency: Requests of *max_model_len* tokens.
        max_model_len: Longest request, tokens.
        utilization: Share of the GPU it manages, 0-1.
        kv_cache_dtype: As told.
    """

    version: str | None = None
    tokens: int | None = None
    bytes: int | None = None
    blocks: int | None = None
    max_concurrency: float | None = None
    max_model_len: int | None = None
    utilization: float | None = None
    kv_cache_dtype: str | None = None


@dataclass(frozen=True, slots=True)
class BootPast:
    """What is carried from one poll of an engine to the next, and over our restarts.

    Attributes:
        previous: The last budget that was another one; ``None`` before there was one.
        current: The budget of the start that runs now.
        restarts: Restarts seen when *current* was; ``None`` for what was seen before our own.
    """

    previous: BootCapacity | None = None
    current: BootCapacity | None = None
    restarts: int | None = None


@dataclass(frozen=True, slots=True)
class BootChange:
    """What a start changed.

    Attributes:
        measure: What is compared: tokens where both starts tell them, else bytes, else blocks.
        before: At the previous start.
        now: At this one.
        ratio: Now ÷ before - 1.
        before_version: vLLM's version at the previous start.
        now_version: At this one.
        text: One line with versions, figures and the settings that changed.
    """

    measure: Measure
    before: int
    now: int
    ratio: float
    before_version: str | None
    now_version: str | None
    text: str

    @property
    def is_notable(self) -> bool:
        """Whether the change is more than starts of the same server differ by."""
        return abs(self.ratio) >= _NOTABLE_RATIO


def capacity_of_boot(boot: BootReading, *, dp: int = 0, engines: int = 1) -> BootCapacity:
    """Return what a startup log says of one engine's budget."""
    own = boot_of_rank(boot, RankPlace(dp=dp, engines=engines))
    return BootCapacity(
        version=boot.version,
        tokens=own.kv_tokens,
        bytes=own.kv_bytes,
        max_concurrency=own.max_concurrency,
        max_model_len=boot.max_model_len,
        utilization=own.utilization_ratio,
    )


def observe_boot(past: BootPast, seen: BootCapacity | None, *, restarts: int) -> BootPast:
    """Return *past* with one more look at the engine in it.

    A pool keeps its size as long as its engine runs, so another budget of an engine that did not
    restart corrects the one before: some figures arrive late.

    Args:
        past: What the last call returned, or what was kept of it.
        seen: The budget as it shows now; ``None`` while the engine tells nothing.
        restarts: Restarts of the engine seen so far.
    """
    if seen is None:
        return past
    if past.current is None:
        return replace(past, current=seen, restarts=restarts)
    if _agree(past.current, seen):
        return replace(past, current=_joined(past.current, seen), restarts=restarts)
    began_anew = past.restarts != restarts or _differ(past.current.version, seen.version)
    is_news = began_anew and not _is_alike(past.current, seen)
    return BootPast(past.current if is_news else past.previous, seen, restarts)


def recall_boot(past: BootPast, earlier: BootCapacity) -> BootPast:
    """Return *past* with what a log says of the start before this one, where nothing is known.

    Args:
        past: What :func:`observe_boot` returned, or nothing yet.
        earlier: The budget of the start before the one that runs now.
    """
    if past.previous is not None or (past.current is not None and past.restarts is None):
        return past
    if past.current is None:
        return BootPast(current=earlier)
    return past if _is_alike(earlier, past.current) else replace(past, previous=earlier)


def boot_change(past: BootPast) -> BootChange | None:
    """Return what the start that runs now changed; ``None`` where there is nothing to compare."""
    if past.previous is None or past.current is None:
        return None
    return _change(past.previous, past.current)


def _change(before: BootCapacity, now: BootCapacity) -> BootChange | None:
    for measure in _UNIT:
        was: int | None = getattr(before, measure)
        became: int | None = getattr(now, measure)
        if was and became is not None:
            return BootChange(
                measure=measure,
                before=was,
                now=became,
                ratio=became / was - 1,
                before_version=before.version,
                now_version=now.version,
                text=_sentence(measure, was, became, before, now),
            )
    return None


def _sentence(
    measure: Measure, was: int, became: int, before: BootCapacity, now: BootCapacity
) -> str:
    versions = f"vLLM {before.version or '?'} → {now.version or '?'}"
    if before.version == now.version:
        versions = f"vLLM {now.version or '?'} restarted"
    ratio = became / was
    # A percentage beyond doubling has to be worked out by its reader.
    change = f"{ratio - 1:+.1%}" if ratio < _DOUBLE else f"x{ratio:.1f}"
    reasons = [
        f"{name} {getattr(before, name)} → {getattr(now, name)}"
        for name in _SETTINGS
        if _differ(getattr(before, name), getattr(now, name))
    ]
    if measure == "tokens" and _is_same_memory(before, now) and abs(ratio - 1) >= _NOTABLE_RATIO:
        reasons.append("in the same memory")
    why = f" ({', '.join(reasons)})" if reasons else ""
    figures = f"{was:,} → {became:,}"
    return f"{versions}: {_UNIT[measure]} {change}, {figures}{why}"


def _is_same_memory(before: BootCapacity, now: BootCapacity) -> bool:
    if not before.bytes or not now.bytes:
        return False
    return abs(now.bytes / before.bytes - 1) <= _SAME_RATIO


def _is_alike(before: BootCapacity, now: BootCapacity) -> bool:
    """Return whether *now* is the budget of *before* but for a little free memory."""
    told = ("version", *_SETTINGS)
    change = _change(before, now)
    return not any(_differ(getattr(before, name), getattr(now, name)) for name in told) and (
        change is not None and not change.is_notable
    )


def _differ(one: object, other: object) -> bool:
    return one is not None and other is not None and one != other


def _agree(one: BootCapacity, other: BootCapacity) -> bool:
    return not any(
        _differ(getattr(one, field.name), getattr(other, field.name))
        for field in fields(BootCapacity)
    )


def _joined(known: BootCapacity, seen: BootCapacity) -> BootCapacity:
    given = {name: value for name, value in asdict(seen).items() if value is not None}
    return replace(known, **given)


# --- kept over our own restarts ---------------------------------------------------------------


def dump_boots(pasts: Mapping[str, BootPast]) -> str:
    """Return *pasts*, engine id → past, as JSON text to keep."""
    engines = {
        engine: {
            name: asdict(boot)
            for name, boot in (("previous", past.previous), ("current", past.current))
            if boot is not None
        }
        for engine, past in pasts.items()
    }
    return json.dumps({"format": _STATE_FORMAT, "engines": engines}, indent=1, sort_keys=True)


def load_boots(text: str) -> dict[str, BootPast]:
    """Return what :func:`dump_boots` wrote; what does not read as such is left out.

    A record of the past is never a reason not to start.
    """
    try:
        state = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    engines = state.get("engines") if isinstance(state, dict) else None
    if not isinstance(engines, dict) or state.get("format") != _STATE_FORMAT:
        return {}
    pasts: dict[str, BootPast] = {}
    for engine, kept in list(engines.items())[:_MOST_ENGINES]:
        if isinstance(kept, dict):
            pasts[engine] = BootPast(
                _capacity(kept.get("previous")), _capacity(kept.get("current"))
            )
    return pasts


def _capacity(kept: object) -> BootCapacity | None:
    if not isinstance(kept, dict):
        return None
    known: dict[str, Any] = {
        field.name: kept[field.name]
        for field in fields(BootCapacity)
        if _is_kept(field.name, kept.get(field.name))
    }
    return BootCapacity(**known) if known else None


def _is_kept(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return False
    if name in {"version", "kv_cache_dtype"}:
        return isinstance(value, str) and len(value) <= _MOST_TEXT
    kind = (int, float) if name in {"max_concurrency", "utilization"} else int
    return isinstance(value, kind) and 0 <= value < _LARGEST
