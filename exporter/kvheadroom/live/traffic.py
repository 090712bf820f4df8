"""How long the requests of an engine are, from its histograms over a window."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Final

from kvheadroom.readings import HistogramReading

# The window is kept as this many checkpoints at most, whatever the poll interval.
_CHECKPOINTS: Final = 30


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    at_seconds: float
    prompt: HistogramReading
    generation: HistogramReading


@dataclass(frozen=True, slots=True)
class TrafficWindow:
    """The recent past of one engine's length histograms, oldest first."""

    checkpoints: tuple[_Checkpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class TrafficLengths:
    """How long finished requests were, prompt and output together.

    Attributes:
        mean_tokens: Mean prompt plus mean output, rounded up to a whole token.
        p95_tokens: 95th percentile of prompts plus that of outputs, rounded up: vLLM has no
            histogram of the sum, and this errs on the long side. ``None`` where the percentile
            lies beyond the last bucket and the longest request is not known.
        requests: Finished requests behind the figures.
        prompt_mean_tokens: Mean of the prompts alone, rounded up.
        prompt_p95_tokens: Their 95th percentile, rounded up; ``None`` as *p95_tokens* is.
    """

    mean_tokens: int
    p95_tokens: int | None
    requests: int
    prompt_mean_tokens: int | None = None
    prompt_p95_tokens: int | None = None


def observe(
    window: TrafficWindow,
    *,
    at_seconds: float,
    window_seconds: float,
    prompt: HistogramReading | None,
    generation: HistogramReading | None,
) -> TrafficWindow:
    """Return *window* with one more poll in it and what is too old dropped.

    Args:
        window: What was seen so far.
        at_seconds: When the histograms were read, monotonic clock.
        window_seconds: How far back the window reaches.
        prompt: Prompt lengths since the engine's start; ``None`` where the page has none.
        generation: Output lengths since the engine's start.
    """
    if prompt is None or generation is None:
        return TrafficWindow()
    seen = window.checkpoints
    if seen and (prompt.count < seen[-1].prompt.count or _bounds_changed(seen[-1], prompt)):
        seen = ()  # the engine restarted: its histograms begin again
    newest = _Checkpoint(at_seconds, prompt, generation)
    settled, latest = seen[:-1], seen[-1:]
    # The latest entry always follows the last poll; it settles once its slot has passed.
    if settled and at_seconds - settled[-1].at_seconds < window_seconds / _CHECKPOINTS:
        latest = ()
    settled = (*settled, *latest)
    # One entry older than the window stays: it is the window's far edge.
    while len(settled) > 1 and at_seconds - settled[1].at_seconds >= window_seconds:
        settled = settled[1:]
    return TrafficWindow((*settled, newest))


def lengths(window: TrafficWindow, *, max_model_len: int | None) -> TrafficLengths | None:
    """Return the lengths of requests that finished inside *window*.

    While none finished inside it, those since the engine's start are used: an idle hour does not
    make the traffic unknown. ``None`` when no request ever finished.
    """
    if not window.checkpoints:
        return None
    newest, oldest = window.checkpoints[-1], window.checkpoints[0]
    prompt = _difference(newest.prompt, oldest.prompt)
    generation = _difference(newest.generation, oldest.generation)
    if prompt.count <= 0 or generation.count <= 0:
        prompt, generation = newest.prompt, newest.generation
    if prompt.count <= 0 or generation.count <= 0:
        return None
    mean = prompt.total / prompt.count + generation.total / generation.count
    longest = None if max_model_len is None else float(max_model_len)
    prompt_p95 = quantile(prompt, 0.95, longest=longest)
    generation_p95 = quantile(generation, 0.95, longest=longest)
    return TrafficLengths(
        mean_tokens=max(1, ceil(mean)),
        p95_tokens=_sum_in_whole_tokens(prompt_p95, generation_p95),
        requests=int(prompt.count),
        prompt_mean_tokens=max(1, ceil(prompt.total / prompt.count)),
        prompt_p95_tokens=None if prompt_p95 is None else max(1, ceil(prompt_p95)),
    )


def _sum_in_whole_tokens(prompt: float | None, generation: float | None) -> int | None:
    return None if prompt is None or generation is None else max(1, ceil(prompt + generation))


def quantile(histogram: HistogramReading, q: float, *, longest: float | None) -> float | None:
    """Return the *q*-quantile of *histogram* by linear interpolation inside its bucket.

    vLLM's last finite bound may lie far below the longest request, so a quantile in the unbounded
    bucket is answered with *longest*, or not at all while that is unknown.

    Source:
        Prometheus' ``histogram_quantile``, whose answer in the bounded buckets this equals.
    """
    rank = q * histogram.cumulative_counts[-1]
    lower_bound, lower_count = 0.0, 0.0
    for bound, count in zip(histogram.upper_bounds, histogram.cumulative_counts, strict=True):
        if count >= rank:
            if bound == inf:
                return longest
            inside = count - lower_count
            share = (rank - lower_count) / inside if inside else 0.0
            return lower_bound + (bound - lower_bound) * share
        lower_bound, lower_count = bound, count
    return longest


def _bounds_changed(last: _Checkpoint, prompt: HistogramReading) -> bool:
    # Buckets end at max_model_len, so a restart with another length changes them.
    return last.prompt.upper_bounds != prompt.upper_bounds


def _difference(newer: HistogramReading, older: HistogramReading) -> HistogramReading:
    counts: Sequence[float] = (
        [n - o for n, o in zip(newer.cumulative_counts, older.cumulative_counts, strict=True)]
        if newer.upper_bounds == older.upper_bounds
        else newer.cumulative_counts
    )
    return HistogramReading(
        upper_bounds=newer.upper_bounds,
        cumulative_counts=tuple(counts),
        total=newer.total - older.total,
        count=newer.count - older.count,
    )
