"""How the preemptions inferred from a run's pages compare with those that happened in it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bench.preemption_runs import Poll
from kvheadroom.live.preemption import PreemptionPast, observe_preemptions


@dataclass(frozen=True, slots=True)
class Judged:
    """A page and what is inferred by then."""

    page: Poll
    past: PreemptionPast

    @property
    def total(self) -> int:
        """Preemptions said so far."""
        return self.past.inferred_total or 0

    @property
    def reported(self) -> float:
        """What vLLM itself reports."""
        return self.page.reading.preemptions_total or 0.0


@dataclass(frozen=True, slots=True)
class Score:
    """How inferred and true preemptions compare; scores of several runs add up.

    Attributes:
        true: Preemptions there were.
        inferred: Preemptions said.
        matched: Of both, those said in the interval when they were, or the next.
        ahead: Of those said, the ones that vLLM's counter had yet to show.
        ahead_matched: Of these, the ones said in their interval or the next.
        reported_in_time: Of the true ones, those vLLM's counter showed in the same time.
        true_episodes: Stretches of polls with a preempted request waiting or a preemption new.
        found_episodes: Of those, the ones said while they lasted, or a poll after.
        said_episodes: Stretches said.
        right_episodes: Of those, the ones that overlap a true one or follow it by a poll.
        delays_seconds: For each found one, from the first poll in it to the one that said so.
        counter_delays_seconds: From the same poll until vLLM's counter moved, where it did.
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
        return _share(self.matched, self.inferred)

    @property
    def ahead_precision(self) -> float:
        """Share of what was said before vLLM's counter that was so."""
        return _share(self.ahead_matched, self.ahead)

    @property
    def recall(self) -> float:
        """Share of what was so that was said; 1 when there was nothing."""
        return _share(self.matched, self.true)

    @property
    def counter_recall(self) -> float:
        """Share of what was so that vLLM's counter said in the same time."""
        return _share(self.reported_in_time, self.true)

    @property
    def episode_precision(self) -> float:
        """Share of the stretches said that were so."""
        return _share(self.right_episodes, self.said_episodes)

    @property
    def episode_recall(self) -> float:
        """Share of the true stretches that were said."""
        return _share(self.found_episodes, self.true_episodes)


def infer(pages: Iterable[Poll], max_num_seqs: int | None) -> list[Judged]:
    """Return each page with what is inferred by then."""
    past = PreemptionPast()
    judged = []
    for page in pages:
        past = observe_preemptions(
            past, page.reading, at_seconds=page.at_seconds, max_num_seqs=max_num_seqs
        )
        judged.append(Judged(page, past))
    return judged


def score(run: Sequence[Judged]) -> Score:
    """Return how what was inferred in one run compares with what happened in it."""
    steps = list(pairwise(run))
    true = [now.page.preemptions - before.page.preemptions for before, now in steps]
    said = [now.total - before.total for before, now in steps]
    reported = [round(now.reported - before.reported) for before, now in steps]
    ahead = [
        count - max(0, shown - before.past.unreported)
        for count, shown, (before, _) in zip(said, reported, steps, strict=True)
    ]
    really = [bool(n or now.page.preempted) for n, (_, now) in zip(true, steps, strict=True)]
    claimed = [bool(n or now.past.preempted_now) for n, (_, now) in zip(said, steps, strict=True)]
    times = [now.page.at_seconds for _, now in steps]
    episodes, claims = _stretches(really), _stretches(claimed)
    # An episode may be said until a poll after its end; the counter may take its time.
    delays = [_delay(claimed[: end + 1], times, start) for start, end in episodes]
    counter_delays = [_delay(reported, times, start) for start, _ in episodes]
    return Score(
        true=sum(true),
        inferred=sum(said),
        matched=_matched(true, said),
        ahead=sum(ahead),
        ahead_matched=_matched(true, ahead),
        reported_in_time=_matched(true, reported),
        true_episodes=len(episodes),
        found_episodes=sum(delay is not None for delay in delays),
        said_episodes=len(claims),
        right_episodes=sum(any(really[max(0, start - 1) : end]) for start, end in claims),
        delays_seconds=tuple(delay for delay in delays if delay is not None),
        counter_delays_seconds=tuple(delay for delay in counter_delays if delay is not None),
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


def _delay(moved: Sequence[int], times: Sequence[float], start: int) -> float | None:
    """Return the seconds from *start* until *moved* first did; ``None`` when it never does."""
    first = next((i for i in range(start, len(moved)) if moved[i]), None)
    return None if first is None else times[first] - times[start]


def _matched(true: Sequence[int], said: Sequence[int]) -> int:
    """Return how many can be paired so that each was said in its own interval or the next."""
    matched = late = 0
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
