"""Scheduling rules are those of vLLM 0.32's V1 scheduler, first come first served."""

from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvheadroom.demo.engine import Engine, StepCost
from kvheadroom.demo.scheduler import Limits
from kvheadroom.demo.traffic import Arrival, Lengths, Traffic, arrivals
from kvheadroom.errors import ConfigError

# One second a step, so that a time reads as a number of steps.
STEP = StepCost(fixed_seconds=1.0, prefill_token_seconds=0.0, decode_request_seconds=0.0)


def limits(
    *, total_blocks: int = 11, max_num_seqs: int = 8, max_num_batched_tokens: int = 1000
) -> Limits:
    return Limits(
        total_blocks=total_blocks,
        block_tokens=10,
        max_model_len=100,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
    )


def engine(bounds: Limits, requests: Iterable[Arrival]) -> Engine:
    return Engine(bounds, STEP, iter(requests))


def test_the_queue_waits_for_its_head() -> None:
    """A short request does not overtake a long one that does not fit (head-of-line blocking)."""
    long, short = Arrival(0.0, 60, 5), Arrival(0.0, 10, 5)
    simulated = engine(limits(), [long, long, short])

    simulated.advance(1.0)

    assert (simulated.stats.requests_running, simulated.stats.requests_waiting) == (1, 2)


def test_a_prompt_is_admitted_whole_or_not_at_all() -> None:
    """Room for the first chunk is not enough: the whole prompt must fit (reserve_full_isl)."""
    simulated = engine(
        limits(max_num_batched_tokens=45), [Arrival(0.0, 40, 9), Arrival(0.0, 70, 9)]
    )

    simulated.advance(1.0)

    assert simulated.stats.requests_waiting == 1
    assert simulated.stats.kv_used_ratio == pytest.approx(0.4)


def test_no_more_than_max_num_seqs_run() -> None:
    """With blocks to spare the sequence limit binds."""
    simulated = engine(limits(max_num_seqs=2), [Arrival(0.0, 10, 5)] * 3)

    simulated.advance(1.0)

    assert (simulated.stats.requests_running, simulated.stats.requests_waiting) == (2, 1)


def test_a_prompt_longer_than_the_token_budget_is_computed_in_chunks() -> None:
    """80 tokens at 30 a step give the first token after the third step."""
    simulated = engine(limits(max_num_batched_tokens=30), [Arrival(0.0, 80, 5)])

    simulated.advance(2.0)
    assert simulated.stats.generation_tokens == 0
    simulated.advance(3.0)
    assert simulated.stats.generation_tokens == 1
    assert simulated.stats.prompt_tokens == 80


def test_growth_preempts_the_last_request_and_puts_it_first_in_the_queue() -> None:
    """Two requests fill ten blocks; the next block comes from the younger one."""
    simulated = engine(limits(), [Arrival(0.0, 50, 30), Arrival(0.0, 50, 30)])

    simulated.advance(2.0)

    assert (simulated.stats.requests_running, simulated.stats.requests_waiting) == (1, 1)
    assert simulated.stats.kv_used_ratio == pytest.approx(0.6)


def test_the_preemption_counter_waits_for_the_next_output() -> None:
    """The counter moves only when the preempted request is back and has generated."""
    simulated = engine(limits(), [Arrival(0.0, 50, 30), Arrival(0.0, 50, 30)])

    simulated.advance(29.0)
    assert (simulated.stats.requests_waiting, simulated.stats.preemptions) == (1, 0)
    simulated.advance(31.0)
    assert (simulated.stats.requests_waiting, simulated.stats.preemptions) == (0, 1)


def test_a_request_aborted_while_preempted_is_never_counted() -> None:
    """Neither its preemption nor its end shows (vLLM issue 31503: aborts are not counted)."""
    hurried = Arrival(0.0, 50, 30, patience_seconds=10.0)
    simulated = engine(limits(), [Arrival(0.0, 50, 30), hurried])

    simulated.advance(60.0)

    assert simulated.stats.preemptions == 0
    assert sum(simulated.stats.finished.values()) == 1
    assert simulated.stats.requests_waiting == 0


def test_prompt_tokens_count_once_however_often_they_are_computed() -> None:
    """Recomputing after a preemption adds nothing to the prompt and prefix cache counters."""
    simulated = engine(limits(), [Arrival(0.0, 50, 30), Arrival(0.0, 50, 30)])

    simulated.advance(100.0)

    assert simulated.stats.preemptions == 1
    assert simulated.stats.prompt_tokens == 100
    assert simulated.stats.prefix_query_tokens == 100


def test_a_shared_prefix_is_found_by_the_second_request() -> None:
    """Of 50 prompt tokens 35 are shared: three full blocks of ten are hits and count once."""
    first = Arrival(0.0, 50, 9, prefix="system", prefix_tokens=35)
    second = Arrival(1.5, 50, 9, prefix="system", prefix_tokens=35)
    simulated = engine(limits(), [first, second])

    simulated.advance(3.0)

    assert simulated.stats.prefix_hit_tokens == 30
    assert simulated.stats.kv_used_ratio == pytest.approx((6 + 2) / 10)


def test_a_pooling_request_ends_with_its_prompt() -> None:
    """An embedding generates nothing and holds no block afterwards."""
    simulated = engine(limits(), [Arrival(0.0, 50, 0)])

    simulated.advance(1.0)

    assert simulated.stats.finished == {"stop": 1, "length": 0}
    assert simulated.stats.generation_tokens == 0
    assert simulated.stats.kv_used_ratio == 0.0


def test_an_encoder_runs_without_blocks_and_never_cuts_a_prompt() -> None:
    """Two prompts of 60 tokens do not share a step of 100; each is computed whole."""
    bounds = limits(total_blocks=1, max_num_batched_tokens=100)
    simulated = engine(bounds, [Arrival(0.0, 60, 0), Arrival(0.0, 60, 0)])

    simulated.advance(1.0)

    assert simulated.stats.prompt_tokens == 60
    assert (simulated.stats.requests_running, simulated.stats.requests_waiting) == (0, 1)


def test_a_request_longer_than_the_model_allows_never_arrives() -> None:
    """vLLM refuses it at the door, so no counter knows it."""
    simulated = engine(limits(), [Arrival(0.0, 90, 20), Arrival(0.0, 90, 10)])

    simulated.advance(50.0)

    assert simulated.stats.prompt_tokens == 90


def test_a_request_that_runs_into_its_max_tokens_ends_for_length() -> None:
    """Finished reasons are told apart."""
    simulated = engine(limits(), [Arrival(0.0, 10, 3, stops=False), Arrival(0.0, 10, 3)])

    simulated.advance(10.0)

    assert simulated.stats.finished == {"stop": 1, "length": 1}


def test_a_pool_too_small_for_one_request_is_refused() -> None:
    """vLLM does not start when max_model_len does not fit, and neither does the simulation."""
    with pytest.raises(ConfigError, match="do not hold one request"):
        limits(total_blocks=10)


def test_busy_time_is_the_time_inside_steps() -> None:
    """Three steps of one second each, the last one half done."""
    simulated = engine(limits(), [Arrival(5.0, 10, 3)])

    simulated.advance(7.5)

    assert simulated.busy_seconds(7.5) == pytest.approx(2.5)


TRAFFIC = Traffic(
    quiet_per_second=0.05,
    peak_per_second=1.0,
    period_seconds=60.0,
    prompt=Lengths(25, 0.6, 2, 70),
    output=Lengths(12, 0.6, 1, 30),
    prefix_tokens=14,
    burst_every_seconds=20.0,
    burst_requests=3,
    hurried_ratio=0.2,
    patience_seconds=15.0,
)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10_000), stops=st.lists(st.floats(0.1, 30.0), min_size=1, max_size=20))
def test_the_numbers_do_not_depend_on_when_somebody_looked(seed: int, stops: list[float]) -> None:
    """Advancing in many stops or in one publishes the same."""
    watched = engine(limits(), arrivals(TRAFFIC, Random(seed)))
    left_alone = engine(limits(), arrivals(TRAFFIC, Random(seed)))
    now_seconds = 0.0
    for stop in stops:
        now_seconds += stop
        watched.advance(now_seconds)
    left_alone.advance(now_seconds)

    for name in ("steps", "requests_running", "requests_waiting", "kv_used_ratio", "preemptions"):
        assert getattr(watched.stats, name) == getattr(left_alone.stats, name), name
    assert watched.stats.finished == left_alone.stats.finished


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10_000))
def test_no_block_is_lost_or_invented(seed: int) -> None:
    """Whatever was preempted, shared or aborted, used and free blocks add up to the pool."""
    simulated = engine(limits(max_num_seqs=4), arrivals(TRAFFIC, Random(seed)))
    for second in range(1, 120):
        simulated.advance(float(second))
        scheduler = simulated._scheduler
        held = {block for request in scheduler.running for block in request.blocks}

        assert len(held) + scheduler.pool.free_blocks == scheduler.pool.usable_blocks
        assert not any(request.blocks for request in scheduler.waiting)
        assert len(scheduler.running) <= 4
