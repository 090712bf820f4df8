import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from apscheduler.events import EVENT_JOB_SUBMITTED

from kvheadroom.poll.schedule import PollSchedule, missed_polls


@pytest.mark.parametrize(
    ("elapsed_seconds", "missed"),
    [
        (5.0, 0),  # the next one
        (4.999999, 0),  # due times are rounded to microseconds
        (7.6, 0),  # half an interval and more is no whole poll
        (9.9, 0),
        (10.0, 1),
        (9.999999, 1),
        (3600.0, 719),
        (0.0, -1),  # due before the schedule's own first
        (-60.0, -13),
    ],
)
def test_only_whole_intervals_are_missed_polls(elapsed_seconds: float, missed: int) -> None:
    """At 5 s an hour holds 720 polls, of which the last one ran."""
    assert missed_polls(elapsed_seconds, 5.0) == missed


class Polls:
    """When each poll began, on the monotonic clock."""

    def __init__(self) -> None:
        self.starts: list[float] = []

    def poll(self) -> None:
        self.starts.append(time.monotonic())


def wait_until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)


@pytest.fixture
def schedule() -> Iterator[PollSchedule]:
    made = PollSchedule()
    yield made
    made.stop()


def hold(schedule: PollSchedule, seconds: float) -> None:
    """Keep the scheduler's thread from working, from its next poll on, as a busy machine does."""
    entered, release = threading.Event(), threading.Event()

    def block(event: object) -> None:
        entered.set()
        release.wait(10)

    schedule._scheduler.add_listener(block, EVENT_JOB_SUBMITTED)
    assert entered.wait(5)
    time.sleep(seconds)
    schedule._scheduler.remove_listener(block)
    release.set()


def test_polls_that_fell_due_while_the_scheduler_had_no_time_are_missed(
    schedule: PollSchedule,
) -> None:
    """Held for 10 intervals, it runs the last of those due; begun and missed are all there were."""
    interval_seconds, polls = 0.1, Polls()
    schedule.add("a", polls.poll, interval_seconds=interval_seconds)
    schedule.start()
    wait_until(lambda: len(polls.starts) >= 2)

    hold(schedule, 10 * interval_seconds)
    begun = len(polls.starts)
    wait_until(lambda: len(polls.starts) >= begun + 2)
    schedule.stop()

    assert schedule.missed >= 8
    due = round((polls.starts[-1] - polls.starts[0]) / interval_seconds) + 1
    assert abs(len(polls.starts) + schedule.missed - due) <= 1
    assert schedule.skipped == 0


def test_a_poll_that_runs_late_is_not_missed(schedule: PollSchedule) -> None:
    """1.6 intervals after the one before it is more than half an interval late, and runs."""
    polls = Polls()
    schedule.add("a", polls.poll, interval_seconds=1.0)
    schedule.start()

    hold(schedule, 1.6)
    begun = len(polls.starts)
    wait_until(lambda: len(polls.starts) >= begun + 2)

    assert max(later - start for start, later in pairwise(polls.starts)) > 1.5
    assert schedule.missed == 0


def test_a_poll_scheduled_anew_has_missed_nothing(schedule: PollSchedule) -> None:
    """A shorter interval counts from the change, not from the last poll of the longer one."""
    polls = Polls()
    schedule.add("a", polls.poll, interval_seconds=0.5)
    schedule.start()
    wait_until(lambda: len(polls.starts) >= 1)
    time.sleep(0.3)

    schedule.add("a", polls.poll, interval_seconds=0.05)
    wait_until(lambda: len(polls.starts) >= 4)

    assert schedule.missed == 0
