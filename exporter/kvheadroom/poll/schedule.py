"""When sources are polled: the only user of APScheduler."""

import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from apscheduler.events import EVENT_JOB_MAX_INSTANCES, EVENT_JOB_SUBMITTED, JobSubmissionEvent
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

# One poll may hang until its deadline; every source needs a thread of its own then. Threads are
# only made when no idle one is left.
_MOST_THREADS: Final = 256

# Sources start this far apart, so that their answers do not meet on one core, and close enough
# together to be rendered as one cycle.
_STAGGER_SECONDS: Final = 0.005

# Due times are multiples of the interval but for the rounding to microseconds.
_CLOCK_ERROR_SECONDS: Final = 0.001


@dataclass(slots=True)
class _Due:
    """When a poll was last due, and how long until the next one is."""

    last: datetime
    interval_seconds: float


class PollSchedule:
    """Runs each poll at a fixed interval, in a thread of its own, never twice at once.

    Attributes:
        missed: Polls that were due by the system clock and never ran, because the machine slept
            or had no time until the next was due; one that runs late is none.
        skipped: Polls not begun because the one before was still running.
    """

    def __init__(self) -> None:
        self.missed = 0
        self.skipped = 0
        self._lock = threading.Lock()
        self._due: dict[str, _Due] = {}
        self._scheduler = BackgroundScheduler(
            timezone=UTC,
            executors={"default": ThreadPoolExecutor(_MOST_THREADS)},
            # APScheduler drops a run that is one second late unless told to run it all the same;
            # of several that became due meanwhile it runs the last.
            job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
        )
        self._scheduler.add_listener(self._note_due, EVENT_JOB_SUBMITTED | EVENT_JOB_MAX_INSTANCES)
        # Skips are counted here and logged by nobody: one hanging engine would fill the log.
        logging.getLogger("apscheduler").setLevel(logging.ERROR)

    def start(self) -> None:
        """Begin to poll; what was added before starts at once."""
        self._scheduler.start()

    def add(self, name: str, poll: Callable[[], None], *, interval_seconds: float) -> None:
        """Poll *name* every *interval_seconds* from now on; replaces an older one of that name."""
        position = len(self._scheduler.get_jobs())
        first = datetime.now(UTC) + timedelta(seconds=position * _STAGGER_SECONDS)
        with self._lock:
            self._due[name] = _Due(first - timedelta(seconds=interval_seconds), interval_seconds)
        self._scheduler.add_job(
            poll,
            "interval",
            seconds=interval_seconds,
            id=name,
            next_run_time=first,
            replace_existing=True,
        )

    def remove(self, name: str) -> None:
        """Stop polling *name*; a poll in progress runs to its end."""
        self._scheduler.remove_job(name)
        with self._lock:
            self._due.pop(name, None)

    def stop(self) -> None:
        """Begin no further poll; does not wait for those in progress."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)

    def _note_due(self, event: JobSubmissionEvent) -> None:
        at = event.scheduled_run_times[-1]
        with self._lock:
            self.skipped += event.code == EVENT_JOB_MAX_INSTANCES
            due = self._due.get(event.job_id)
            if due is None:
                return
            missed = missed_polls((at - due.last).total_seconds(), due.interval_seconds)
            # Below 0 it is a poll of the schedule that this one took the place of.
            if missed >= 0:
                self.missed += missed
                due.last = at


def missed_polls(elapsed_seconds: float, interval_seconds: float) -> int:
    """Return how many polls were due strictly between two that began or were skipped.

    Args:
        elapsed_seconds: From when the one was due to when the other was, however late they were.
        interval_seconds: From one due time to the next.

    Returns:
        -1 where less than an interval lies between the two: they are not of the same schedule.
    """
    return math.floor((elapsed_seconds + _CLOCK_ERROR_SECONDS) / interval_seconds) - 1
