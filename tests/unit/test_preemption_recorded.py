"""Preemptions inferred from what real vLLM 0.32.0 servers went through, polled at every pace."""

from itertools import pairwise
from typing import NamedTuple

import pytest
from tests.unit import evidence
from tests.unit.recorded import Recorded, recorded

from kvheadroom.live.preemption import PreemptionPast, observe_preemptions
from kvheadroom.node.page_reader import PageReader
from kvheadroom.node.vllm_names import MEANING_OF
from kvheadroom.node.vllm_page import read_server_page

# The servers were started with --max-num-seqs 64.
MAX_NUM_SEQS = 64
PREEMPTING = ("preemption/mixed-lengths", "preemption/overrun")
PACES = [(seconds, phase) for seconds in (1, 5, 15) for phase in range(seconds)]


class Judged(NamedTuple):
    """A page and what is said of preemptions by then."""

    page: Recorded
    said: PreemptionPast

    @property
    def total(self) -> int:
        """Preemptions said so far."""
        assert self.said.inferred_total is not None
        return self.said.inferred_total


def judge(pages: list[Recorded]) -> list[Judged]:
    past = PreemptionPast()
    judged = []
    for page in pages:
        past = observe_preemptions(
            past, page.reading, at_seconds=page.at_seconds, max_num_seqs=MAX_NUM_SEQS
        )
        judged.append(Judged(page, past))
    return judged


def reported(pages: list[Recorded]) -> list[float]:
    """Return vLLM's counter on each page, since the first."""
    counts = [page.reading.preemptions_total or 0.0 for page in pages]
    return [count - counts[0] for count in counts]


def waiting(page: Recorded) -> float:
    assert page.reading.requests_waiting is not None
    return page.reading.requests_waiting


# --- forty requests overrun the pool ----------------------------------------------------------


@pytest.fixture(scope="module")
def overrun() -> list[Recorded]:
    """A page a second; the first preemption is between t = 19 and 20."""
    return recorded("preemption-trace")


def test_the_first_is_known_at_once(overrun: list[Recorded]) -> None:
    """At t = 20 s, while vLLM's counter first moves at t = 55 s."""
    known = next(each.page.at_seconds for each in judge(overrun) if each.total)
    counted = next(
        page.at_seconds for page, count in zip(overrun, reported(overrun), strict=True) if count
    )

    assert (round(known), round(counted)) == (20, 55)


def test_everyone_who_waits_is_known_to_be_preempted(overrun: list[Recorded]) -> None:
    """All forty had run by t = 20 and no other came: whoever waits after that was preempted."""
    judged = [each for each in judge(overrun) if each.page.at_seconds >= 20]

    assert [each.said.preempted_now for each in judged] == [waiting(each.page) for each in judged]


def test_27_are_known_when_the_counter_first_moves(overrun: list[Recorded]) -> None:
    """Running had fallen by 27 with one request finished."""
    by_then = [each for each in judge(overrun) if round(each.page.at_seconds) <= 55]

    assert by_then[-1].total == 27


@pytest.mark.parametrize(("seconds", "phase"), PACES)
def test_all_45_are_known_in_the_end(overrun: list[Recorded], seconds: int, phase: int) -> None:
    """vLLM's own final count, at every pace and phase, without one too many on the way."""
    judged = judge(overrun[phase::seconds])

    assert judged[-1].total == 45


@pytest.mark.parametrize(("seconds", "phase"), [(s, p) for s, p in PACES if s == 5])
def test_polled_every_five_seconds_the_counter_is_half_a_minute_behind(
    overrun: list[Recorded], seconds: int, phase: int
) -> None:
    """The first is known at the first poll from t = 20 on; by t = 55 all but one are."""
    judged = judge(overrun[phase::seconds])
    known = next(each.page.at_seconds for each in judged if each.total)
    by_then = [each.total for each in judged if each.page.at_seconds < 55.5]

    assert 20 <= round(known) < 25
    assert by_then[-1] >= 26


@pytest.mark.parametrize(("seconds", "phase"), [(s, p) for s, p in PACES if s == 15])
def test_polled_every_fifteen_seconds_it_is_known_before_the_counter_moves(
    overrun: list[Recorded], seconds: int, phase: int
) -> None:
    """At the second poll from t = 20 on at the latest, at least 15 s ahead of the counter."""
    pages = overrun[phase::seconds]
    known = next(each.page.at_seconds for each in judge(pages) if each.total)
    counted = next(
        page.at_seconds for page, count in zip(pages, reported(pages), strict=True) if count
    )

    assert counted - known > 14.9


def test_another_server_under_the_same_load_is_known_a_minute_ahead() -> None:
    """First preempted between t = 11 and 12; vLLM's counter first moves at t = 71 s."""
    pages = recorded("preemption/overrun")
    known = next(each.page.at_seconds for each in judge(pages) if each.total)
    counted = next(
        page.at_seconds for page, count in zip(pages, reported(pages), strict=True) if count
    )

    assert (round(known), round(counted)) == (12, 71)


@pytest.mark.parametrize(("seconds", "phase"), PACES)
def test_all_42_of_another_server_are_known_in_the_end(seconds: int, phase: int) -> None:
    """vLLM's own final count, at every pace and phase."""
    assert judge(recorded("preemption/overrun")[phase::seconds])[-1].total == 42


# --- other loads ------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "phase"), PACES)
@pytest.mark.parametrize("name", [*PREEMPTING, "preemption-trace"])
def test_the_total_is_never_behind_the_counter_and_never_falls(
    name: str, seconds: int, phase: int
) -> None:
    """What vLLM reports is said, and what was said stays."""
    pages = recorded(name)[phase::seconds]
    totals = [each.total for each in judge(pages)]

    assert all(total >= count for total, count in zip(totals, reported(pages), strict=True))
    assert all(later >= sooner for sooner, later in pairwise(totals))


@pytest.mark.parametrize(("seconds", "phase"), [(s, p) for s, p in PACES if s < 15])
def test_requests_of_mixed_lengths_end_with_the_counter(seconds: int, phase: int) -> None:
    """21 preemptions, once every request has finished."""
    pages = recorded("preemption/mixed-lengths")[phase::seconds]

    assert judge(pages)[-1].total == reported(pages)[-1] == 21


@pytest.mark.parametrize(("seconds", "phase"), PACES)
@pytest.mark.parametrize("name", ["hang-ups", "hang-ups-at-a-full-pool"])
def test_clients_that_hang_up_are_no_preemption(name: str, seconds: int, phase: int) -> None:
    """Nothing can have been preempted: see tests/evidence/preemption/README.md."""
    judged = judge(recorded(f"preemption/{name}")[phase::seconds])

    assert {each.total for each in judged} == {0}
    assert not any(each.said.preempted_now for each in judged)


def test_the_pool_that_clients_hung_up_at_was_full() -> None:
    """Else the test before would show nothing: requests waited, and hung up uncounted."""
    pages = recorded("preemption/hang-ups-at-a-full-pool")
    used = [page.reading.kv_used_ratio or 0.0 for page in pages if waiting(page)]
    finished = sum(pages[-1].reading.finished_total.values())

    assert sum(ratio > 0.9 for ratio in used) >= 10
    # Of 28 x 3 + 54 requests, these were answered; the clients of the others had hung up.
    assert finished == 109


def test_gauges_that_appear_with_the_first_traffic_hide_no_preemption() -> None:
    """Two API servers publish counters from the start, gauges later: 14, then 29 were preempted.

    Source: tests/evidence/real-servers/0.32.0-api2.
    """
    past = PreemptionPast()
    totals = []
    for number, name in enumerate(("fresh", "busy", "after")):
        page = evidence.page(f"real-servers/0.32.0-api2/{name}")
        (engine,) = read_server_page(page, PageReader(MEANING_OF)).engines
        past = observe_preemptions(past, engine, at_seconds=20.0 * number)
        totals.append(past.inferred_total)

    assert totals == [None, 14, 29]
