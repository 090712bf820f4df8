from hypothesis import given
from hypothesis import strategies as st

from kvheadroom.live.counters import RunningTotal


def total(*reported: float) -> float:
    counter = RunningTotal()
    for value in reported:
        counter = counter.advanced(value)
    return counter.total


def test_a_restart_adds_to_what_was_counted() -> None:
    """45 preemptions, a restart, 3 more: 48, not 3."""
    assert total(0, 45, 3) == 48


def test_a_known_restart_counts_whole_what_comes_after() -> None:
    """5, a restart, 7: the 7 are all new, although the counter did not fall."""
    assert RunningTotal().advanced(5).restarted().advanced(7).total == 12


def test_the_first_report_counts_whole() -> None:
    """What happened before we came is part of the engine's own total."""
    assert total(43) == 43


@given(st.lists(st.integers(0, 1000)))
def test_the_total_never_falls(reported: list[int]) -> None:
    """Whatever the reporting process does, ours only rises."""
    totals = [total(*reported[:end]) for end in range(len(reported) + 1)]

    assert totals == sorted(totals)
