"""Simulated engines whose preemptions are known, and how well they are inferred from polls."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

from kvheadroom.demo.engine import Engine, StepCost
from kvheadroom.demo.histogram import Histogram
from kvheadroom.demo.profiles import PROFILES
from kvheadroom.demo.scheduler import Limits
from kvheadroom.demo.stats import EngineStats
from kvheadroom.demo.traffic import Lengths, Traffic, arrivals
from kvheadroom.live.preemption import PreemptionPast, observe_preemptions
from kvheadroom.readings import EngineReading, HistogramReading


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
        """Return the engine at its start; those who hang up do so at any moment."""
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


def scenarios() -> Iterator[Scenario]:
    """Yield every decoder of the demo's nodes, as it is and asked more, hurried and not."""
    for profile, plan in PROFILES.items():
        for server in plan.servers:
            if server.traffic.output is None:
                continue
            limits = server.limits(plan.cards[server.ranks[0][0]])
            for load in (1.0, 1.5):
                for hurried in (0.0, 0.1, 0.3):
                    traffic = replace(
                        server.traffic,
                        quiet_per_second=server.traffic.quiet_per_second * load,
                        peak_per_second=server.traffic.peak_per_second * load,
                        hurried_ratio=hurried,
                    )
                    name = f"{profile}/{server.name} x{load:g}, {hurried:.0%} hang up"
                    yield Scenario(name, limits, server.cost, traffic)


def batch_scenarios() -> Iterator[Scenario]:
    """Yield pools overrun by batches of long answers, where preempted requests starve."""
    limits = Limits(
        total_blocks=800,
        block_tokens=16,
        max_model_len=8192,
        max_num_seqs=64,
        max_num_batched_tokens=2048,
    )
    cost = StepCost(0.015, 0.00028, 0.0004)
    for spread in (0.0, 0.3, 0.8):
        for hurried in (0.0, 0.1, 0.3):
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
            yield Scenario(
                f"batch, spread {spread:g}, {hurried:.0%} hang up", limits, cost, traffic
            )


def quiet_scenarios() -> Iterator[Scenario]:
    """Yield engines where requests queue and hang up, and where nothing can ever be preempted.

    A request holds its nine blocks of 128 tokens from admission to end. In the first three the
    pool is what they wait for, in the others the sequence limit.
    """
    cost = StepCost(0.015, 0.00028, 0.0004)
    for total_blocks, max_num_seqs, limit in ((200, 64, "a full pool"), (900, 20, "max_num_seqs")):
        limits = Limits(
            total_blocks=total_blocks,
            block_tokens=128,
            max_model_len=4096,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=2048,
        )
        for hurried in (0.0, 0.1, 0.3):
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
            yield Scenario(f"queue at {limit}, {hurried:.0%} hang up", limits, cost, traffic)


def polls(
    engine: Engine, *, seconds: float, interval_seconds: float, offset_seconds: float = 0.0
) -> Iterator[Poll]:
    """Yield a page of *engine* every interval."""
    count = int((seconds - offset_seconds) / interval_seconds)
    for number in range(count + 1):
        at_seconds = offset_seconds + number * interval_seconds
        engine.advance(at_seconds)
        yield Poll(
            at_seconds,
            reading_of(engine.stats),
            engine.preemptions,
            engine.preempted_requests,
        )


def reading_of(stats: EngineStats) -> EngineReading:
    """Return what the engine's page would be read as."""
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
        prompt_tokens=_reading(histograms.prompt_tokens),
        generation_tokens=_reading(histograms.generation_tokens),
        sleep_state="awake",
    )


def _reading(histogram: Histogram) -> HistogramReading:
    return HistogramReading(
        (*histogram.upper_bounds, float("inf")),
        tuple(map(float, histogram.cumulative_counts())),
        total=histogram.total,
        count=histogram.count,
    )


@dataclass(frozen=True, slots=True)
class Score:
    """How inferred and true preemptions compare; scores of several runs add up.

    Attributes:
        true: Preemptions there were.
        inferred: Preemptions said.
        matched: Of both, those said in the interval when they were, or the next.
        ahead: Of those said, the ones vLLM's counter had yet to show.
        ahead_matched: Of these, the ones said in their interval or the next.
        reported_in_time: Of the true ones, those vLLM's counter showed in the same time.
        true_episodes: Stretches of polls with a preempted request waiting or a preemption new.
        found_episodes: Of those, the ones said while they lasted, or a poll after.
        said_episodes: Stretches said.
        right_episodes: Of those, the ones that overlap a true one.
        delays_seconds: For each found one, from the poll that could show it to the one that said.
        counter_delays_seconds: The same of vLLM's counter, while it moved at all.
    """

    true: int = 0
    inferred: int = 0
    matched: int = 0
    ahead: int = 0
    ahead_matched: int = 0
    reported_in_time: int = 0
    true_episodes: int = 0
    found_episodes: int = 0
    said_episodes: int = 0
    right_episodes: int = 0
    delays_seconds: tuple[float, ...] = ()
    counter_delays_seconds: tuple[float, ...] = ()

    def __add__(self, other: "Score") -> "Score":
        """Return both runs as one."""
        return Score(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))

    @property
    def precision(self) -> float:
        """Share of what was said that was so; 1 when nothing was said."""
        return self.matched / self.inferred if self.inferred else 1.0

    @property
    def ahead_precision(self) -> float:
        """Share of what was said before vLLM's counter that was so."""
        return self.ahead_matched / self.ahead if self.ahead else 1.0

    @property
    def recall(self) -> float:
        """Share of what was so that was said; 1 when there was nothing."""
        return self.matched / self.true if self.true else 1.0

    @property
    def counter_recall(self) -> float:
        """Share of what was so that vLLM's counter said in the same time."""
        return self.reported_in_time / self.true if self.true else 1.0


def infer(
    seen: Iterable[Poll], *, max_num_seqs: int | None = None
) -> list[tuple[Poll, PreemptionPast]]:
    """Return each poll with what is inferred by then."""
    past = PreemptionPast()
    inferred = []
    for poll in seen:
        past = observe_preemptions(
            past,
            poll.reading,
            at_seconds=poll.at_seconds,
            max_num_seqs=max_num_seqs,
        )
        inferred.append((poll, past))
    return inferred


def score(run: Sequence[tuple[Poll, PreemptionPast]]) -> Score:
    """Return how what was inferred in one run compares with what happened in it."""
    steps = list(pairwise(run))
    true = [now.preemptions - before.preemptions for (before, _), (now, _) in steps]
    said = [
        (past.inferred_total or 0) - (earlier.inferred_total or 0)
        for (_, earlier), (_, past) in steps
    ]
    reported = [
        round((now.reading.preemptions_total or 0) - (before.reading.preemptions_total or 0))
        for (before, _), (now, _) in steps
    ]
    ahead = [
        count - max(0, shown - earlier.unreported)
        for count, shown, ((_, earlier), _) in zip(said, reported, steps, strict=True)
    ]
    really = [
        bool(count or now.preempted) for count, (_, (now, _)) in zip(true, steps, strict=True)
    ]
    claimed = [
        bool(count or past.preempted_now) for count, (_, (_, past)) in zip(said, steps, strict=True)
    ]
    times = [now.at_seconds for _, (now, _) in steps]
    episodes, claims = _stretches(really), _stretches(claimed)
    found = [
        next((i for i in range(a, min(b + 1, len(times))) if claimed[i]), None) for a, b in episodes
    ]
    shown = [next((i for i in range(a, len(times)) if reported[i]), None) for a, _ in episodes]
    return Score(
        true=sum(true),
        inferred=sum(said),
        matched=_matched(true, said),
        ahead=sum(ahead),
        ahead_matched=_matched(true, ahead),
        reported_in_time=_matched(true, reported),
        true_episodes=len(episodes),
        found_episodes=sum(i is not None for i in found),
        said_episodes=len(claims),
        right_episodes=sum(any(really[max(0, a - 1) : b]) for a, b in claims),
        delays_seconds=tuple(
            times[i] - times[a] for i, (a, _) in zip(found, episodes, strict=True) if i is not None
        ),
        counter_delays_seconds=tuple(
            times[i] - times[a] for i, (a, _) in zip(shown, episodes, strict=True) if i is not None
        ),
    )


def _matched(true: Sequence[int], said: Sequence[int]) -> int:
    """Return how many can be paired so that each was said in its own interval or the next."""
    matched, late = 0, 0
    for was, claim in zip(true, said, strict=True):
        from_before = min(late, claim)
        now = min(was, claim - from_before)
        matched += from_before + now
        late = was - now
    return matched


def _stretches(flags: Sequence[bool]) -> list[tuple[int, int]]:
    """Return start and end, exclusive, of every run of true flags."""
    edges = [i for i, flag in enumerate(flags) if flag != (i > 0 and flags[i - 1])]
    if len(edges) % 2:
        edges.append(len(flags))
    return list(zip(edges[::2], edges[1::2], strict=True))
