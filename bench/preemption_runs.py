"""Simulated engines whose true preemptions are known: what they are asked, and their pages."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from random import Random
from typing import Final

from kvheadroom.demo.engine import Engine, StepCost
from kvheadroom.demo.histogram import Histogram
from kvheadroom.demo.profiles import PROFILES
from kvheadroom.demo.scheduler import Limits
from kvheadroom.demo.stats import EngineStats
from kvheadroom.demo.traffic import Lengths, Traffic, arrivals
from kvheadroom.readings import EngineReading, HistogramReading

# Shares of clients that hang up.
HUNG_UP: Final = (0.0, 0.1, 0.3)
_PACE: Final = StepCost(0.015, 0.00028, 0.0004)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One engine and what it is asked.

    Attributes:
        name: For the table.
        limits: What bounds its scheduler.
        cost: Duration of its steps.
        traffic: Its requests.
    """

    name: str
    limits: Limits
    cost: StepCost
    traffic: Traffic

    def engine(self, seed: int) -> Engine:
        """Return the engine at its start; clients who hang up do so at any moment."""
        random = Random(seed)
        requests = (
            replace(arrival, patience_seconds=arrival.patience_seconds * random.uniform(0.05, 1.95))
            for arrival in arrivals(self.traffic, Random(seed))
        )
        return Engine(self.limits, self.cost, requests)


@dataclass(frozen=True, slots=True)
class Poll:
    """One page of a simulated engine, and what no page tells.

    Attributes:
        at_seconds: When it was read.
        reading: What it says.
        preemptions: All so far.
        preempted: Requests that wait preempted.
    """

    at_seconds: float
    reading: EngineReading
    preemptions: int
    preempted: int


# --- what is asked ----------------------------------------------------------------------------


def node_scenarios(
    *,
    loads: Sequence[float] = (1.0, 1.5),
    hung_up: Sequence[float] = HUNG_UP,
    names: Sequence[str] | None = None,
) -> Iterator[Scenario]:
    """Yield the decoders of the demo's nodes under mixed traffic.

    Args:
        loads: How many times the demo's traffic.
        hung_up: Shares of clients that hang up.
        names: Servers, all of them when ``None``.
    """
    for profile in ("card", "rack"):
        plan = PROFILES[profile]
        for server in plan.servers:
            if server.traffic.output is None or (names and server.name not in names):
                continue
            limits = server.limits(plan.cards[server.ranks[0][0]])
            for load, hurried in product(loads, hung_up):
                traffic = replace(
                    server.traffic,
                    quiet_per_second=server.traffic.quiet_per_second * load,
                    peak_per_second=server.traffic.peak_per_second * load,
                    hurried_ratio=hurried,
                )
                name = f"{profile}/{server.name} x {load:g}, {hurried:.0%} hang up"
                yield Scenario(name, limits, server.cost, traffic)


def batch_scenarios(*, hung_up: Sequence[float] = HUNG_UP) -> Iterator[Scenario]:
    """Yield pools overrun by batches of long answers, where preempted requests starve."""
    limits = Limits(
        total_blocks=800,
        block_tokens=16,
        max_model_len=8192,
        max_num_seqs=64,
        max_num_batched_tokens=2048,
    )
    for spread, hurried in product((0.0, 0.3, 0.8), hung_up):
        traffic = Traffic(
            quiet_per_second=0.05,
            peak_per_second=0.1,
            period_seconds=180.0,
            prompt=Lengths(200, spread, 50, 2000),
            output=Lengths(900, spread, 100, 4000),
            burst_every_seconds=90.0,
            burst_requests=30,
            hurried_ratio=hurried,
            patience_seconds=40.0,
        )
        name = f"batches, spread {spread:g}, {hurried:.0%} hang up"
        yield Scenario(name, limits, _PACE, traffic)


def queue_scenarios(*, hung_up: Sequence[float] = HUNG_UP) -> Iterator[Scenario]:
    """Yield engines where requests queue and hang up, and where nothing is ever preempted.

    A request holds its nine blocks of 128 tokens from admission to end. The pool is what they wait
    for, or the sequence limit.
    """
    pools = ((200, 64, "a full pool"), (900, 20, "max_num_seqs"))
    for (total_blocks, max_num_seqs, limit), hurried in product(pools, hung_up):
        limits = Limits(
            total_blocks=total_blocks,
            block_tokens=128,
            max_model_len=4096,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=2048,
        )
        traffic = Traffic(
            quiet_per_second=0.5,
            peak_per_second=4.0,
            period_seconds=120.0,
            prompt=Lengths(1030, 0.0, 1030, 1030),
            output=Lengths(110, 0.0, 110, 110),
            burst_every_seconds=30.0,
            burst_requests=12,
            hurried_ratio=hurried,
            patience_seconds=6.0,
        )
        yield Scenario(f"queue at {limit}, {hurried:.0%} hang up", limits, _PACE, traffic)


# --- what the pages say -----------------------------------------------------------------------


def polls(engine: Engine, *, seconds: int) -> Iterator[Poll]:
    """Yield a page of *engine* every second."""
    for second in range(seconds + 1):
        engine.advance(float(second))
        yield Poll(
            float(second), _reading_of(engine.stats), engine.preemptions, engine.preempted_requests
        )


def thinned(pages: Sequence[Poll], every: int) -> Iterator[Sequence[Poll]]:
    """Yield *pages* as polled every so many seconds, once for each phase."""
    for phase in range(every):
        yield pages[phase::every]


def _reading_of(stats: EngineStats) -> EngineReading:
    histograms = stats.histograms
    return EngineReading(
        rank="0",
        requests_running=stats.requests_running,
        requests_waiting=stats.requests_waiting,
        waiting_by_reason={"capacity": stats.requests_waiting, "deferred": 0.0},
        kv_used_ratio=stats.kv_used_ratio,
        preemptions_total=stats.preemptions,
        prompt_tokens_total=stats.prompt_tokens,
        generation_tokens_total=stats.generation_tokens,
        finished_total={reason: float(count) for reason, count in stats.finished.items()},
        prompt_tokens=_histogram(histograms.prompt_tokens),
        generation_tokens=_histogram(histograms.generation_tokens),
        sleep_state="awake",
    )


def _histogram(histogram: Histogram) -> HistogramReading:
    return HistogramReading(
        (*histogram.upper_bounds, float("inf")),
        tuple(map(float, histogram.cumulative_counts())),
        total=histogram.total,
        count=histogram.count,
    )
