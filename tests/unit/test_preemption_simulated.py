"""Preemptions inferred from a simulated engine's pages, against those it really went through.

The simulation is held against a real server in test_demo_real_trace.py.
"""

from functools import cache

import pytest
from bench.preemption_runs import (
    Poll,
    Scenario,
    batch_scenarios,
    node_scenarios,
    polls,
    queue_scenarios,
    thinned,
)
from bench.preemption_score import Score, infer, score

SECONDS = 400


@cache
def run(scenario: Scenario, seed: int) -> tuple[Poll, ...]:
    """Return a page a second; cached, for several paces to be tried on it."""
    return tuple(polls(scenario.engine(seed), seconds=SECONDS))


def judged(scenario: Scenario, seed: int, every: int) -> Score:
    """Return the score of all phases at one poll every so many seconds."""
    pages = run(scenario, seed)
    runs = (infer(each, scenario.limits.max_num_seqs) for each in thinned(pages, every))
    return sum((score(each) for each in runs), Score())


@pytest.mark.parametrize("every", [1, 5, 15])
@pytest.mark.parametrize(
    "scenario", list(batch_scenarios(hung_up=(0.0, 0.1))), ids=lambda s: s.name
)
def test_batches_of_long_answers(scenario: Scenario, every: int) -> None:
    """Where preempted requests starve, nearly all are said when it happens, and none wrongly."""
    found = judged(scenario, seed=0, every=every)

    assert found.true > 100
    assert found.ahead_precision > 0.99
    assert found.precision > 0.9
    assert found.recall > 0.87
    assert abs(found.inferred - found.true) < 0.08 * found.true
    # Every episode is said while it lasts, and what is said is one.
    assert found.found_episodes == found.true_episodes
    assert found.right_episodes >= 0.98 * found.said_episodes


@pytest.mark.parametrize("scenario", list(batch_scenarios(hung_up=(0.0,))), ids=lambda s: s.name)
def test_the_counter_alone_says_them_late(scenario: Scenario) -> None:
    """At a poll a second vLLM's counter shows at most two thirds within a poll."""
    found = judged(scenario, seed=0, every=1)

    assert found.counter_recall < 0.67 < found.recall
    assert sum(found.delays_seconds) < sum(found.counter_delays_seconds) / 4


@pytest.mark.parametrize("every", [1, 5, 15])
@pytest.mark.parametrize("scenario", list(queue_scenarios()), ids=lambda s: s.name)
def test_queues_without_preemption(scenario: Scenario, every: int) -> None:
    """Requests wait for blocks or for a sequence, and clients hang up: nothing is said."""
    pages = run(scenario, 0)
    found = judged(scenario, seed=0, every=every)

    assert sum((page.reading.requests_waiting or 0) > 0 for page in pages) > 60
    assert (found.true, found.inferred, found.said_episodes) == (0, 0, 0)


@pytest.mark.parametrize("every", [1, 5])
@pytest.mark.parametrize(
    "scenario",
    list(node_scenarios(loads=(1.5,), hung_up=(0.1,), names=("chat", "qwen3-8b"))),
    ids=lambda s: s.name,
)
def test_mixed_traffic_whose_clients_hang_up(scenario: Scenario, every: int) -> None:
    """Where the counter is seconds behind at most, what is said before it is right all the same."""
    found = judged(scenario, seed=0, every=every)

    assert found.true > 50
    assert found.ahead_precision > 0.9
    assert found.recall >= found.counter_recall - 0.05
    assert found.precision > 0.85
