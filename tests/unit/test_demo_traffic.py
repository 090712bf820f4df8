from itertools import islice, takewhile
from random import Random

import pytest

from kvheadroom.demo.traffic import Lengths, Traffic, arrivals

TIDE = Traffic(
    quiet_per_second=1.0,
    peak_per_second=9.0,
    period_seconds=100.0,
    prompt=Lengths(100, 0.5, 20, 400),
    output=Lengths(50, 0.5, 5, 80),
)
BURSTS = Traffic(
    quiet_per_second=0.0,
    peak_per_second=0.001,
    period_seconds=100.0,
    prompt=Lengths(100, 0.0, 1, 400),
    burst_every_seconds=10.0,
    burst_requests=7,
)


def test_the_rate_is_lowest_at_the_start_and_highest_half_a_period_later() -> None:
    """The tide starts at its bottom, so a demo starts calm."""
    assert TIDE.rate_per_second(0.0) == pytest.approx(1.0)
    assert TIDE.rate_per_second(50.0) == pytest.approx(9.0)
    assert TIDE.rate_per_second(100.0) == pytest.approx(1.0)


def test_as_many_requests_come_as_the_rate_says() -> None:
    """Over whole periods the mean rate is the mean of bottom and peak: 5 a second."""
    count = sum(1 for _ in takewhile(lambda a: a.at_seconds < 1000, arrivals(TIDE, Random(1))))

    assert count == pytest.approx(5000, rel=0.05)


def test_requests_come_in_order_of_time_with_bursts_among_them() -> None:
    """A burst's requests share one moment and nothing comes out of order."""
    times = [arrival.at_seconds for arrival in islice(arrivals(BURSTS, Random(2)), 70)]

    assert times == sorted(times)
    assert len(set(times)) <= 12


def test_lengths_stay_within_their_bounds() -> None:
    """No prompt or output is beyond what was asked for."""
    sample = list(islice(arrivals(TIDE, Random(3)), 2000))

    assert {20, 400} >= {min(a.prompt_tokens for a in sample)}
    assert all(20 <= a.prompt_tokens <= 400 and 5 <= a.output_tokens <= 80 for a in sample)


def test_an_output_cut_off_at_its_limit_did_not_stop_by_itself() -> None:
    """It is max_tokens that ended it."""
    sample = list(islice(arrivals(TIDE, Random(4)), 2000))

    assert {a.stops for a in sample if a.output_tokens == 80} == {False}
    assert {a.stops for a in sample if a.output_tokens < 80} == {True}


def test_the_same_seed_asks_the_same() -> None:
    """Traffic is repeatable."""
    one, other = (list(islice(arrivals(TIDE, Random("seed")), 50)) for _ in range(2))

    assert one == other
