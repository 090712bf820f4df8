"""When a pool will be full, against lines of known slope, noise, a recorded trace, a simulator."""

import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median

import pytest

from kvheadroom.demo.engine import Engine
from kvheadroom.demo.profiles import PROFILES
from kvheadroom.demo.scheduler import Limits
from kvheadroom.demo.traffic import arrivals
from kvheadroom.live.forecast import ForecastPast, observe_usage
from kvheadroom.node.page_reader import PageReader
from kvheadroom.node.vllm_names import MEANING_OF
from kvheadroom.node.vllm_page import read_server_page

EVIDENCE = Path(__file__).parent.parent / "evidence"
BLOCKS = 10_000
INTERVALS = [1.0, 5.0, 15.0]


def told(
    used_ratio: Callable[[float], float],
    *,
    until_seconds: float,
    every_seconds: float = 5.0,
    past: ForecastPast | None = None,
) -> list[float | None]:
    """Return what every poll of a use that *used_ratio* gives by time was told."""
    past = past or ForecastPast()
    found = []
    for number in range(int(until_seconds / every_seconds) + 1):
        at_seconds = number * every_seconds
        past = observe_usage(
            past,
            used_blocks=used_ratio(at_seconds) * BLOCKS,
            usable_blocks=BLOCKS,
            at_seconds=50_000.0 + at_seconds,
        )
        found.append(past.exhaustion_seconds)
    return found


# --- a pool that fills ------------------------------------------------------------------------


@pytest.mark.parametrize("every_seconds", INTERVALS)
@pytest.mark.parametrize("fills_seconds", [90.0, 300.0, 1200.0])
def test_a_line_is_drawn_to_where_it_ends(every_seconds: float, fills_seconds: float) -> None:
    """Half way up a straight line as much time is left as has gone by."""
    half = fills_seconds / 2

    found = told(lambda at: at / fills_seconds, until_seconds=half, every_seconds=every_seconds)

    left_seconds = fills_seconds - (len(found) - 1) * every_seconds
    assert found[-1] == pytest.approx(left_seconds, rel=0.02)


@pytest.mark.parametrize("every_seconds", INTERVALS)
def test_requests_that_come_and_go_do_not_tilt_the_line(every_seconds: float) -> None:
    """A rise of 0.1 % a second under 3 % of noise: 400 s are left at 60 %."""
    noise = Random(1)

    found = told(
        lambda at: 0.001 * at + noise.uniform(-0.03, 0.03),
        until_seconds=600,
        every_seconds=every_seconds,
    )

    assert found[-1] == pytest.approx(400, rel=0.25)


def test_what_fills_faster_than_before_is_full_sooner() -> None:
    """200 s at 0.1 % a second, then 60 s at 0.6 %: 73 s are left, and 440 by the first pace."""
    found = told(lambda at: 0.001 * at + 0.005 * max(0.0, at - 200), until_seconds=260)

    assert found[-1] == pytest.approx(73, rel=0.1)


def test_polls_that_failed_leave_the_pace_as_it_is() -> None:
    """Two minutes without a page in the middle of a rise."""
    past = ForecastPast()
    for at in (*range(0, 200, 5), *range(320, 420, 5)):
        past = observe_usage(
            past, used_blocks=at * BLOCKS / 800, usable_blocks=BLOCKS, at_seconds=float(at)
        )

    assert past.exhaustion_seconds == pytest.approx(800 - 415, rel=0.05)


def test_a_full_pool_is_full_now() -> None:
    """By its blocks, or because requests wait for blocks at a plateau below 1."""
    assert told(lambda _: 1.0, until_seconds=0) == [0.0]
    plateau = observe_usage(
        ForecastPast(), used_blocks=89, usable_blocks=100, at_seconds=1.0, is_full=True
    )
    assert plateau.exhaustion_seconds == 0.0


# --- a pool that does not ---------------------------------------------------------------------


@pytest.mark.parametrize("every_seconds", INTERVALS)
@pytest.mark.parametrize(
    "used_ratio",
    [
        lambda _: 0.0,
        lambda _: 0.9,
        lambda at: 0.9 - at / 2000,
        lambda at: 0.2 if at < 300 else 0.5,
        lambda at: 0.5 + 1e-5 * at,
    ],
    ids=["empty", "level", "falling", "one step", "a creep that no line reaches the end of"],
)
def test_no_trend_is_no_forecast(
    used_ratio: Callable[[float], float], every_seconds: float
) -> None:
    """Level, falling, a single burst that stays, and growth of 3.6 % an hour."""
    assert set(told(used_ratio, until_seconds=900, every_seconds=every_seconds)) == {None}


@pytest.mark.parametrize("every_seconds", INTERVALS)
def test_noise_is_no_trend(every_seconds: float) -> None:
    """Use that jumps about 60 % by itself: forecasts in at most one poll of a hundred."""
    noise = Random(2)
    found = told(lambda _: noise.gauss(0.6, 0.06), until_seconds=3600, every_seconds=every_seconds)

    assert sum(seconds is not None for seconds in found) <= len(found) / 100


@pytest.mark.parametrize("every_seconds", INTERVALS)
def test_a_sawtooth_alarms_in_its_first_round_at_most(every_seconds: float) -> None:
    """Requests that grow from 30 % to 70 % together and end: once seen to, they are believed."""
    period = 120.0

    found = told(
        lambda at: 0.3 + 0.4 * (at % period) / period,
        until_seconds=3000,
        every_seconds=every_seconds,
    )

    assert set(found[int(period / every_seconds) + 2 :]) == {None}


def test_a_sawtooth_that_fills_the_pool_is_forecast_each_time() -> None:
    """Its rounds end at 100 %."""
    found = told(lambda at: 0.2 + 0.8 * (at % 200) / 195, until_seconds=1995)

    last_round = found[-40:-1]
    assert [seconds for seconds in last_round if seconds is not None][-20:]
    assert last_round[-10] == pytest.approx(50, abs=8)


def test_growth_that_has_stopped_is_told_no_more() -> None:
    """A minute and a half after the last rise of five minutes, at most."""
    found = told(lambda at: min(0.6, at / 500), until_seconds=900)

    assert found[300 // 5 - 1] is not None
    assert set(found[390 // 5 :]) == {None}


def test_too_little_is_known_at_first() -> None:
    """Two polls make a line and no trend."""
    assert told(lambda at: 0.02 * at, until_seconds=5) == [None, None]


def test_an_engine_without_blocks_has_no_forecast() -> None:
    """An encoder holds no KV."""
    past = observe_usage(ForecastPast(), used_blocks=0, usable_blocks=0, at_seconds=1.0)

    assert past.exhaustion_seconds is None


def test_the_past_is_bounded() -> None:
    """Two hours at a poll a second keep a minute of polls and an hour of slots."""
    past = ForecastPast()
    for at in range(7200):
        past = observe_usage(past, used_blocks=50, usable_blocks=100, at_seconds=float(at))

    assert len(past.recent) <= 62
    assert len(past.slots) == 3600 // 15


# --- a real server and a simulated one --------------------------------------------------------


def test_the_recorded_trace_is_forecast_ten_seconds_ahead() -> None:
    """40 real requests start at 5 s and fill 199 blocks; the first is preempted before 20 s."""
    reader, past, found = PageReader(MEANING_OF), ForecastPast(), {}
    for line in gzip.decompress((EVIDENCE / "preemption-trace.jsonl.gz").read_bytes()).splitlines():
        moment = json.loads(line)
        (engine,) = read_server_page(moment["page"].encode(), reader).engines
        past = observe_usage(
            past,
            used_blocks=(engine.kv_used_ratio or 0.0) * 199,
            usable_blocks=199,
            at_seconds=moment["t"],
        )
        found[round(moment["t"])] = past.exhaustion_seconds

    assert all(found[second] is None for second in range(6))
    ahead = {second: found[second] for second in range(10, 20)}
    assert None not in ahead.values()
    errors = [abs((seconds or 0) - (20 - at)) / (20 - at) for at, seconds in ahead.items()]
    assert median(errors) < 0.4


def test_a_simulated_engine_with_room_is_left_alone() -> None:
    """Half an hour of steady traffic that its own scheduler never ran short in."""
    plan = next(plan for plan in PROFILES["rack"].servers if plan.name == "llama-8b")
    limits = Limits(
        total_blocks=plan.blocks(PROFILES["rack"].cards[6]),
        block_tokens=16,
        max_model_len=plan.max_model_len,
        max_num_seqs=plan.max_num_seqs,
        max_num_batched_tokens=plan.max_num_batched_tokens,
    )
    traffic = plan.traffic
    engine = Engine(limits, plan.cost, arrivals(traffic, Random(3)))
    past, forecast, polls, fullest = ForecastPast(), 0, 0, -math.inf
    for at in range(0, 1800, 5):
        engine.advance(at)
        used = engine.stats.kv_used_ratio
        past = observe_usage(
            past, used_blocks=used * BLOCKS, usable_blocks=BLOCKS, at_seconds=float(at)
        )
        fullest, polls = max(fullest, used), polls + 1
        forecast += past.exhaustion_seconds is not None

    assert fullest < 0.95
    assert forecast <= 0.02 * polls
