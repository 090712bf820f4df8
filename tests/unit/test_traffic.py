from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvheadroom.live.traffic import (
    TrafficLengths,
    TrafficWindow,
    lengths,
    observe,
    quantile,
)
from kvheadroom.readings import HistogramReading

BOUNDS = (100.0, 200.0, 500.0, 1000.0, inf)


def histogram(*values: float) -> HistogramReading:
    return HistogramReading(
        upper_bounds=BOUNDS,
        cumulative_counts=tuple(float(sum(v <= bound for v in values)) for bound in BOUNDS),
        total=float(sum(values)),
        count=float(len(values)),
    )


def seen(*polls: tuple[float, HistogramReading, HistogramReading]) -> TrafficWindow:
    window = TrafficWindow()
    for at_seconds, prompt, generation in polls:
        window = observe(
            window, at_seconds=at_seconds, window_seconds=900, prompt=prompt, generation=generation
        )
    return window


def measured(window: TrafficWindow) -> TrafficLengths | None:
    return lengths(window, max_model_len=8192)


def test_no_finished_request_is_unknown() -> None:
    """A fresh engine has no traffic to measure."""
    assert measured(seen((0, histogram(), histogram()))) is None


def test_the_first_poll_answers_from_the_engines_start() -> None:
    """Forty real requests of 300 + 1,500 tokens: the mean is 1,800."""
    found = measured(seen((0, histogram(*[300] * 40), histogram(*[1500] * 40))))

    assert found is not None
    assert (found.mean_tokens, found.requests) == (1800, 40)


def test_the_window_forgets_what_came_before() -> None:
    """Old short requests do not pull down the mean of recent long ones."""
    old, recent = [100] * 1000, [900] * 10

    found = measured(
        seen(
            (0, histogram(*old), histogram(*old)),
            (60, histogram(*old, *recent), histogram(*old, *recent)),
        )
    )

    assert found is not None
    assert (found.mean_tokens, found.requests) == (1800, 10)


def test_a_restart_begins_a_new_window() -> None:
    """Histograms that fell belong to a new process; the old ones no longer count."""
    found = measured(
        seen(
            (0, histogram(*[100] * 50), histogram(*[100] * 50)),
            (5, histogram(900), histogram(900)),
        )
    )

    assert found is not None
    assert (found.mean_tokens, found.requests) == (1800, 1)


def test_an_idle_hour_does_not_make_the_traffic_unknown() -> None:
    """With nothing finished inside the window the whole life of the engine answers."""
    prompt = histogram(300)
    polls = [(float(at), prompt, prompt) for at in range(0, 3600, 5)]

    found = measured(seen(*polls))

    assert found is not None
    assert found.mean_tokens == 600


@given(st.lists(st.floats(0.5, 60), min_size=1, max_size=300))
def test_the_window_is_bounded(gaps: list[float]) -> None:
    """However often an engine is polled, about thirty checkpoints are kept."""
    at, polls = 0.0, []
    for gap in gaps:
        at += gap
        polls.append((at, histogram(100), histogram(100)))

    assert len(seen(*polls).checkpoints) <= 33


def test_the_window_reaches_back_as_far_as_it_says() -> None:
    """After an hour of polls the oldest checkpoint is one window old, within one slot."""
    polls = [(float(at), histogram(100), histogram(100)) for at in range(0, 3601, 5)]

    oldest = seen(*polls).checkpoints[0].at_seconds

    assert 900 <= 3600 - oldest <= 900 + 30 + 5


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # What histogram_quantile(0.95, …) gives over these very buckets.
        ([150.0] * 20, 195.0),
        ([50.0] * 10 + [400.0] * 10, 470.0),
    ],
)
def test_the_quantile_is_prometheus_own(values: list[float], expected: float) -> None:
    """Linear interpolation inside the bucket."""
    assert quantile(histogram(*values), 0.95, longest=None) == pytest.approx(expected)


@pytest.mark.parametrize("longest", [8192.0, None])
def test_beyond_the_last_bound_the_longest_request_answers(longest: float | None) -> None:
    """vLLM's last finite bound of an 8,192-token model is 5,000, which would flatter."""
    assert quantile(histogram(*[7000.0] * 20), 0.95, longest=longest) == longest
