"""How well preemptions are inferred: simulated engines whose truth is known, at 1, 5 and 15 s.

``python -m bench preemption`` takes some minutes. What is said ahead of vLLM's counter is scored
apart: the rest is the counter's own doing. Every phase of an interval is tried; counts are per
phase.
"""

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from bench.figures import Figure
from bench.preemption_runs import (
    HUNG_UP,
    Poll,
    Scenario,
    batch_scenarios,
    node_scenarios,
    polls,
    queue_scenarios,
    thinned,
)
from bench.preemption_score import Score, infer, score

INTERVALS_SECONDS: Final = (1, 5, 15)
SEEDS: Final = range(2)
SECONDS: Final = 400


def figures() -> Iterator[Figure]:
    """Yield precision, recall and delay for each kind of load, share of hang-ups and interval."""
    kinds: dict[str, Callable[[float], Iterable[Scenario]]] = {
        "batches": lambda share: batch_scenarios(hung_up=(share,)),
        "mixed": lambda share: node_scenarios(hung_up=(share,)),
        "no preemption": lambda share: queue_scenarios(hung_up=(share,)),
    }
    for kind, scenarios in kinds.items():
        for share in HUNG_UP:
            totals = _totals(scenarios(share))
            for interval_seconds, total in totals.items():
                what = f"{kind}, {share:.0%} hang up, {interval_seconds} s"
                strict = share < max(HUNG_UP)
                yield from _figures(what, total, interval_seconds, strict=strict)


def _totals(scenarios: Iterable[Scenario]) -> dict[int, Score]:
    totals = dict.fromkeys(INTERVALS_SECONDS, Score())
    for scenario in scenarios:
        for seed in SEEDS:
            pages = list(polls(scenario.engine(seed), seconds=SECONDS))
            for interval in INTERVALS_SECONDS:
                totals[interval] += _scored(pages, interval, scenario.limits.max_num_seqs)
    return totals


def _scored(pages: Sequence[Poll], interval_seconds: int, max_num_seqs: int) -> Score:
    runs = (infer(each, max_num_seqs) for each in thinned(pages, interval_seconds))
    return sum((score(each) for each in runs), Score())


def _figures(what: str, total: Score, phases: int, *, strict: bool) -> Iterator[Figure]:
    if not total.true:
        yield Figure(f"{what}: false alarms", total.inferred, "", at_most=0 if strict else None)
        return
    least = 0.9 if strict else None
    yield Figure(f"{what}: preemptions there were", total.true / phases, "")
    yield Figure(f"{what}: preemptions said", total.inferred / phases, "")
    yield Figure(f"{what}: said ahead of vLLM's counter", total.ahead / phases, "")
    yield Figure(f"{what}: precision of those", total.ahead_precision, "", at_least=least)
    yield Figure(f"{what}: precision, all", total.precision, "", at_least=least)
    yield Figure(f"{what}: recall", total.recall, "", at_least=least)
    yield Figure(f"{what}: recall of vLLM's counter", total.counter_recall, "")
    yield Figure(f"{what}: precision of episodes", total.episode_precision, "", at_least=least)
    yield Figure(f"{what}: recall of episodes", total.episode_recall, "", at_least=least)
    yield Figure(f"{what}: mean delay", _mean(total.delays_seconds), "s")
    yield Figure(f"{what}: mean delay of vLLM's counter", _mean(total.counter_delays_seconds), "s")
    longest = max(total.counter_delays_seconds, default=0.0)
    yield Figure(f"{what}: longest delay of vLLM's counter", longest, "s")


def _mean(seconds: Sequence[float]) -> float:
    return statistics.fmean(seconds) if seconds else 0.0


if __name__ == "__main__":
    for each in figures():
        print(each, flush=True)
