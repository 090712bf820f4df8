"""How good the forecast of a full pool is: replayed on simulated engines and a recorded trace.

``python -m bench.forecast`` prints, for polls 1, 5 and 15 s apart, the median relative error of
what was forecast before the pool filled, how many fillings were foreseen, and how many polls told
of one that did not come; and what was forecast at each second of the recorded trace.
"""

import gzip
import json
import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from statistics import median
from typing import Final, NamedTuple

from bench.figures import Figure
from kvheadroom.demo.engine import Engine
from kvheadroom.demo.plans import CardPlan, ServerPlan
from kvheadroom.demo.profiles import PROFILES
from kvheadroom.demo.scheduler import Limits
from kvheadroom.demo.traffic import Traffic, arrivals
from kvheadroom.live.forecast import ForecastPast, observe_usage
from kvheadroom.node.page_reader import PageReader
from kvheadroom.node.vllm_names import MEANING_OF
from kvheadroom.node.vllm_page import read_server_page

TRACE: Final = Path(__file__).parent.parent / "tests/evidence/preemption-trace.jsonl.gz"
TRACE_BLOCKS: Final = 199
# In the trace the first request is preempted between these two pages.
TRACE_FULL_SECONDS: Final = 20.0

INTERVALS_SECONDS: Final = (1, 5, 15)
SEEDS: Final = 2
# Between two fillings the pool must have had room for this long.
APART_SECONDS: Final = 60.0
# A forecast has come true when the pool fills within this many times its seconds.
PATIENCE: Final = 3.0


class Moment(NamedTuple):
    """One second of an engine's life."""

    at_seconds: float
    used_ratio: float
    is_full: bool


@dataclass
class Score:
    """What a replay found.

    Attributes:
        polls: Polls of a pool that had room.
        false_polls: Those that forecast a filling which did not come.
        fillings: Times the pool filled.
        foreseen: Those that a forecast announced.
        errors: Of forecasts before a filling: how far off, as a share of the time there was.
    """

    polls: int = 0
    false_polls: int = 0
    fillings: int = 0
    foreseen: int = 0
    errors: list[float] = field(default_factory=list)


def simulate(plan: ServerPlan, card: CardPlan, traffic: Traffic, seed: int) -> list[Moment]:
    """Return fifteen minutes of one simulated engine, second by second.

    Full is when requests wait with places to run in and too few blocks left for one of the longer
    prompts (the 95th percentile), or when no block is left.
    """
    limits = Limits(
        total_blocks=plan.blocks(card),
        block_tokens=16,
        max_model_len=plan.max_model_len,
        max_num_seqs=plan.max_num_seqs,
        max_num_batched_tokens=plan.max_num_batched_tokens,
    )
    engine = Engine(limits, plan.cost, arrivals(traffic, Random(seed)))
    prompt = traffic.prompt
    long_prompt_blocks = prompt.median_tokens * math.exp(1.645 * prompt.spread) / 16
    moments = []
    for second in range(900):
        engine.advance(second)
        stats = engine.stats
        free_blocks = (1 - stats.kv_used_ratio) * (limits.total_blocks - 1)
        head_waits = stats.requests_waiting > 0 and stats.requests_running < plan.max_num_seqs
        is_full = free_blocks < 1 or (head_waits and free_blocks < long_prompt_blocks)
        moments.append(Moment(float(second), stats.kv_used_ratio, is_full))
    return moments


def replay(moments: Sequence[Moment], interval_seconds: int, score: Score) -> None:
    """Add to *score* what polls of *moments* would have forecast."""
    fillings = _fillings(moments)
    foreseen: set[float] = set()
    past = ForecastPast()
    for moment in moments[::interval_seconds]:
        past = observe_usage(
            past,
            used_blocks=moment.used_ratio * 10_000,
            usable_blocks=10_000,
            at_seconds=moment.at_seconds,
            is_full=moment.is_full,
        )
        if moment.is_full:
            continue
        score.polls += 1
        if past.exhaustion_seconds is None:
            continue
        patience = max(PATIENCE * past.exhaustion_seconds, APART_SECONDS)
        filling = _next(fillings, moment.at_seconds)
        left_seconds = filling - moment.at_seconds
        if left_seconds > patience:
            score.false_polls += moment.at_seconds + patience <= moments[-1].at_seconds
        elif left_seconds >= interval_seconds:
            foreseen.add(filling)
            score.errors.append(abs(past.exhaustion_seconds - left_seconds) / left_seconds)
    score.fillings += len(fillings)
    score.foreseen += len(foreseen)


def _fillings(moments: Sequence[Moment]) -> list[float]:
    found: list[float] = []
    last = -math.inf
    for moment in moments:
        if moment.is_full:
            if moment.at_seconds - last > APART_SECONDS:
                found.append(moment.at_seconds)
            last = moment.at_seconds
    return found


def _next(fillings: Sequence[float], at_seconds: float) -> float:
    index = bisect_left(fillings, at_seconds)
    return fillings[index] if index < len(fillings) else math.inf


def _kinds(traffic: Traffic) -> dict[str, Traffic]:
    steady = 0.5 * traffic.peak_per_second
    return {
        "tides": traffic,
        "one slow tide": replace(
            traffic, period_seconds=1800.0, peak_per_second=1.5 * traffic.peak_per_second
        ),
        "steady": replace(traffic, quiet_per_second=steady, peak_per_second=steady),
    }


def _lives() -> dict[str, list[list[Moment]]]:
    lives: dict[str, list[list[Moment]]] = {}
    for node in PROFILES.values():
        for plan in node.servers:
            if plan.traffic.output is None:
                continue  # a pooling engine's pool is never short
            card = node.cards[plan.ranks[0][0]]
            for kind, traffic in _kinds(plan.traffic).items():
                for seed in range(SEEDS):
                    lives.setdefault(kind, []).append(simulate(plan, card, traffic, seed))
    return lives


def trace_moments() -> list[Moment]:
    """Return the pages of the recorded trace."""
    reader = PageReader(MEANING_OF)
    moments = []
    for line in gzip.decompress(TRACE.read_bytes()).splitlines():
        page = json.loads(line)
        (engine,) = read_server_page(page["page"].encode(), reader).engines
        used = engine.kv_used_ratio or 0.0
        # Until the first preemption requests wait for their step: every prompt still fits.
        is_full = bool(engine.requests_waiting) and page["t"] >= TRACE_FULL_SECONDS
        moments.append(Moment(page["t"], used, is_full))
    return moments


def forecasts(moments: Sequence[Moment]) -> list[tuple[Moment, float | None]]:
    """Return every moment and what was forecast at it."""
    past, told = ForecastPast(), []
    for moment in moments:
        past = observe_usage(
            past,
            used_blocks=moment.used_ratio * TRACE_BLOCKS,
            usable_blocks=TRACE_BLOCKS,
            at_seconds=moment.at_seconds,
            is_full=moment.is_full,
        )
        told.append((moment, past.exhaustion_seconds))
    return told


def figures() -> Iterator[Figure]:
    """Yield error, foresight and false alarms by kind of traffic and interval."""
    lives = _lives()
    for interval in INTERVALS_SECONDS:
        for kind, moments in lives.items():
            score = Score()
            for life in moments:
                replay(life, interval, score)
            name = f"{kind}, polled every {interval} s"
            if score.errors:
                yield Figure(f"{name}: median relative error", median(score.errors), "x")
            foreseen = f"{name}: of {score.fillings} fillings, foreseen"
            yield Figure(foreseen, score.foreseen, "")
            false_percent = 100 * score.false_polls / score.polls
            yield Figure(f"{name}: polls with a false alarm", false_percent, "%", at_most=4)


def main() -> None:
    """Print the trace's forecasts, then the figures."""
    print(f"recorded trace, first preemption at {TRACE_FULL_SECONDS:.0f} s")
    for interval in INTERVALS_SECONDS:
        print(f"polled every {interval} s: time, KV used, seconds until full")
        for moment, seconds in forecasts(trace_moments()[::interval]):
            if 0 < moment.at_seconds < TRACE_FULL_SECONDS + interval:
                told = "absent" if seconds is None else f"{seconds:.1f}"
                print(f"{moment.at_seconds:>6.0f}{moment.used_ratio:>8.1%}{told:>8}")
    for figure in figures():
        print(figure, flush=True)


if __name__ == "__main__":
    main()
