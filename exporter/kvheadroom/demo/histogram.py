"""Histograms and the bucket bounds that vLLM gives them."""

from bisect import bisect_left
from itertools import accumulate
from typing import Final

# Bounds as vLLM 0.32 shows them on its page.
FIRST_TOKEN_SECONDS: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_INTERVAL_SECONDS: Final = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
REQUEST_SECONDS: Final = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
STEP_TOKENS: Final = (1.0, *(float(2**power) for power in range(3, 15)))
SIBLINGS: Final = (1.0, 2.0, 5.0, 10.0, 20.0)
PREEMPTIONS: Final = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)


def token_bounds(max_model_len: int) -> tuple[float, ...]:
    """Return 1, 2, 5, 10, 20, 50 ... up to *max_model_len* tokens."""
    bounds = []
    decade = 1
    while decade <= max_model_len:
        bounds += [float(step * decade) for step in (1, 2, 5) if step * decade <= max_model_len]
        decade *= 10
    return tuple(bounds)


class Histogram:
    """Counts of observed values per bucket.

    Attributes:
        upper_bounds: Finite bounds, increasing; shape ``(n,)``.
        total: Sum of the observed values.
        count: Number of observations.
    """

    __slots__ = ("_counts", "count", "total", "upper_bounds")

    def __init__(self, upper_bounds: tuple[float, ...]) -> None:
        self.upper_bounds = upper_bounds
        self.total = 0.0
        self.count = 0
        self._counts = [0] * (len(upper_bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        """Record *value*, *times* times."""
        self._counts[bisect_left(self.upper_bounds, value)] += times
        self.total += value * times
        self.count += times

    def cumulative_counts(self) -> list[int]:
        """Return the observations at or below each bound and, last, all; shape ``(n + 1,)``."""
        return list(accumulate(self._counts))
