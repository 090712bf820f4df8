"""When an engine's pool will be full, by how its use has grown, or nothing where it has not."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import median
from typing import Final, NamedTuple

# A line is not drawn further than this many times the stretch it was fitted to, so that half an
# hour is as far as any reaches.
_REACH: Final = 2.0


class _Stretch(NamedTuple):
    """How long, the least rise over it, and the share of it at its end that must rise too."""

    seconds: float
    least_rise: float
    late_share: float


# Stretches that a line is fitted to, and the share of the pool that it must rise by over each: a
# burst of requests does as much in a short one.
_LONG: Final = (
    _Stretch(900.0, 0.06, late_share=1 / 3),
    _Stretch(480.0, 0.06, late_share=1 / 3),
    _Stretch(240.0, 0.06, late_share=1 / 3),
    _Stretch(120.0, 0.06, late_share=1 / 3),
)
_SHORT: Final = (
    _Stretch(60.0, 0.12, late_share=1 / 2),
    _Stretch(30.0, 0.2, late_share=1 / 2),
    _Stretch(15.0, 0.3, late_share=1 / 2),
    _Stretch(7.0, 0.3, late_share=1 / 2),
)
# A poll is never quite on time.
_LATE_SECONDS: Final = 1.0
_RECENT_SECONDS: Final = 60.0 + _LATE_SECONDS
# Beyond the recent past, use is kept as the means and peaks of slots, for an hour.
_SLOT_SECONDS: Final = 15.0
_SLOTS: Final = 240
_MOST_RECENT: Final = 128

# Fewer points than this make no trend; more than this are thinned, since every pair is looked at.
_FEWEST_POINTS: Final = 3
_MOST_POINTS: Final = 24
# Of all pairs of points, by how large a share more must rise than fall.
_CONCORDANCE: Final = 0.8
# The line must rise by so many times what the points are off it in the median.
_RISE_OVER_NOISE: Final = 4.0
# The late part must rise at least at this share of the whole stretch's pace.
_LEAST_LATE_PACE: Final = 0.4
# Of the times that use was as high before, the share that must have ended in a full pool.
_LEAST_FILLED: Final = 0.5
# Use is full to within what no gauge resolves.
_FULL_RATIO: Final = 0.995


@dataclass(frozen=True, slots=True)
class _Slot:
    """The use of the pool over a slot of time, share of the pool.

    Attributes:
        since_seconds: When it began.
        mean: Mean of its samples.
        peak: Highest of them.
        samples: How many there are.
        was_full: The pool was full at one of them.
    """

    since_seconds: float
    mean: float
    peak: float
    samples: int
    was_full: bool


# When, and the share of the pool that was in use.
_Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class ForecastPast:
    """How an engine's pool was used, of bounded size, carried from poll to poll.

    Attributes:
        exhaustion_seconds: Seconds from the last poll until the pool is full: 0 when it is,
            ``None`` when it is not filling, or too little is known to say so.
        recent: The samples of the last minute, oldest first.
        slots: What came before and they, by slots, oldest first.
    """

    exhaustion_seconds: float | None = None
    recent: tuple[_Point, ...] = ()
    slots: tuple[_Slot, ...] = ()


def observe_usage(
    past: ForecastPast,
    *,
    used_blocks: float,
    usable_blocks: int,
    at_seconds: float,
    is_full: bool = False,
) -> ForecastPast:
    """Return *past* with one more poll in it; after a restart or a sleep, hand in a new past.

    Args:
        past: What the last call returned.
        used_blocks: Blocks that live requests hold.
        usable_blocks: Blocks they can hold.
        at_seconds: When that was read, monotonic clock; later than the poll before.
        is_full: Requests wait because blocks are short, whatever the share in use.
    """
    if usable_blocks <= 0:
        return ForecastPast()
    used = min(1.0, max(0.0, used_blocks / usable_blocks))
    now_full = is_full or used >= _FULL_RATIO
    recent = tuple(point for point in past.recent if 0 <= at_seconds - point[0] <= _RECENT_SECONDS)
    past = replace(
        past,
        recent=(*recent, (at_seconds, used))[-_MOST_RECENT:],
        slots=_with_sample(past.slots, at_seconds, used, is_full=now_full),
    )
    seconds = 0.0 if now_full else _seconds_until(past, at_seconds)
    return replace(past, exhaustion_seconds=seconds)


def _with_sample(
    slots: tuple[_Slot, ...], at_seconds: float, used: float, *, is_full: bool
) -> tuple[_Slot, ...]:
    last = slots[-1] if slots else None
    if last is None or at_seconds - last.since_seconds >= _SLOT_SECONDS:
        return (*slots, _Slot(at_seconds, used, used, 1, is_full))[-_SLOTS:]
    count = last.samples + 1
    grown = _Slot(
        since_seconds=last.since_seconds,
        mean=last.mean + (used - last.mean) / count,
        peak=max(last.peak, used),
        samples=count,
        was_full=last.was_full or is_full,
    )
    return (*slots[:-1], grown)


def _seconds_until(past: ForecastPast, now_seconds: float) -> float | None:
    used = past.recent[-1][1]
    found: list[float] = []
    for stretch, points in _stretches(past, now_seconds):
        per_second = _rise_per_second(points, stretch)
        if per_second is None:
            continue
        seconds = (1.0 - used) / per_second
        is_near = seconds <= _REACH * stretch.seconds
        if is_near and not _has_turned_before(past.slots, used, now_seconds - stretch.seconds):
            found.append(seconds)
    # Of a long trend and a shorter one, the steeper: what fills ever faster is full sooner.
    return min(found, default=None)


def _stretches(
    past: ForecastPast, now_seconds: float
) -> Iterator[tuple[_Stretch, Sequence[_Point]]]:
    """Yield every stretch that the past covers, with its points, oldest first."""
    first_seconds = past.slots[0].since_seconds
    # A slot's mean stands for its middle; the one under way is not over.
    middles = [
        (slot.since_seconds + _SLOT_SECONDS / 2 * (slot.samples > 1), slot.mean)
        for slot in past.slots[:-1]
    ]
    latest = past.recent[-1]
    for stretch in _LONG:
        if now_seconds - first_seconds >= stretch.seconds:
            long = [point for point in middles if now_seconds - point[0] <= stretch.seconds]
            yield stretch, [*long, latest]
    for stretch in _SHORT:
        if now_seconds - past.recent[0][0] >= stretch.seconds - _LATE_SECONDS:
            from_seconds = now_seconds - stretch.seconds - _LATE_SECONDS
            yield stretch, [point for point in past.recent if point[0] >= from_seconds]


def _rise_per_second(points: Sequence[_Point], stretch: _Stretch) -> float | None:
    """Return how fast a line through *points* rises; ``None`` where no trend stands out.

    Source:
        The slope is the median over all pairs of points (Theil 1950, Sen 1968), so that a few
        requests that come or go at once do not tilt it; the trend must be in most pairs (Mann
        1945, Kendall).
    """
    points = _thinned(points)
    if len(points) < _FEWEST_POINTS:
        return None
    slopes = _slopes(points)
    rising = sum(slope > 0 for slope in slopes) - sum(slope < 0 for slope in slopes)
    slope = median(slopes)
    if slope <= 0 or rising < _CONCORDANCE * len(slopes):
        return None
    level_at_zero = median(used - slope * at for at, used in points)
    noise = median(abs(used - slope * at - level_at_zero) for at, used in points)
    rise = slope * (points[-1][0] - points[0][0])
    if rise < max(stretch.least_rise, _RISE_OVER_NOISE * noise):
        return None
    late = _slopes(points[int((1 - stretch.late_share) * (len(points) - 1)) :])
    return slope if median(late) >= _LEAST_LATE_PACE * slope else None


def _slopes(points: Sequence[_Point]) -> list[float]:
    return [
        (later_used - used) / (later - at)
        for (at, used), (later, later_used) in combinations(points, 2)
        if later > at
    ]


def _thinned(points: Sequence[_Point]) -> Sequence[_Point]:
    """Return evenly many of *points*, the last one among them."""
    step = -(-len(points) // _MOST_POINTS)
    return points[::-1][::step][::-1]


def _has_turned_before(slots: Sequence[_Slot], used: float, until_seconds: float) -> bool:
    """Return whether use was as high as *used* before, and mostly came back without filling.

    So does traffic that comes and goes all the time: what it has reached again and again without
    filling the pool is no sign that it will.
    """
    filled: list[bool] = []
    was_above = False
    # Of the slot under way, use has not come back yet.
    for slot in slots[:-1]:
        if slot.since_seconds > until_seconds:
            break
        is_above = slot.peak >= used
        if is_above and was_above:
            filled[-1] |= slot.was_full
        elif is_above:
            filled.append(slot.was_full)
        was_above = is_above
    return sum(filled) < _LEAST_FILLED * len(filled)
