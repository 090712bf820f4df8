"""When sources are polled: the only user of APScheduler."""

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from apscheduler.events import EVENT_JOB_MAX_INSTANCES, JobExecutionEvent
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

# One poll may hang until its deadline; every source needs a thread of its own then. Threads are
# only made when no idle one is left.
_MOST_THREADS: Final = 256

# Sources start this far apart, so that their answers do not meet on one core, and close enough
# together to be rendered as one cycle.
_STAGGER_SECONDS: Final = 0.005


class PollSchedule:
    """Runs each poll at a fixed interval, in a thread of its own, never twice at once.

    Attributes:
        missed: Polls that were due and never ran (the machine slept, or had no time).
        skipped: Polls not begun because the one before was still running.
    """

    def __init__(self) -> None:
        self.missed = 0
        self.skipped = 0
        self._lock = threading.Lock()
        self._skips: dict[str, int] = {}
        self._scheduler = BackgroundScheduler(
            timezone=UTC,
            executors={"default": ThreadPoolExecutor(_MOST_THREADS)},
            # APScheduler drops a run that is one second late unless told to run it all the same.
            job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
        )
        self._scheduler.add_listener(self._note_skip, EVENT_JOB_MAX_INSTANCES)
        # Skips are counted here and logged by nobody: one hanging engine would fill the log.
        logging.getLogger("apscheduler").setLevel(logging.ERROR)

    def start(self) -> None:
        """Begin to poll; what was added before starts at once."""
        self._scheduler.start()

    def add(self, name: str, poll: Callable[[], None], *, interval_seconds: float) -> None:
        """Poll *name* every *interval_seconds* from now on; replaces an older one of that name."""
        position = len(self._scheduler.get_jobs())
        first = datetime.now(UTC) + timedelta(seconds=position * _STAGGER_SECONDS)
        self._scheduler.add_job(
            _counting_gaps(poll, interval_seconds, lambda gaps: self._note_gap(name, gaps)),
            "interval",
            seconds=interval_seconds,
            id=name,
            next_run_time=first,
            replace_existing=True,
        )

    def remove(self, name: str) -> None:
        """Stop polling *name*; a poll in progress runs to its end."""
        self._scheduler.remove_job(name)

    def stop(self) -> None:
        """Begin no further poll; does not wait for those in progress."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)

    def _note_skip(self, event: JobExecutionEvent) -> None:
        with self._lock:
            self.skipped += 1
            self._skips[event.job_id] = self._skips.get(event.job_id, 0) + 1

    def _note_gap(self, name: str, gaps: int) -> None:
        # A skipped poll leaves a gap too, and is counted as what it is.
        with self._lock:
            self.missed += max(0, gaps - self._skips.pop(name, 0))


def _counting_gaps(
    poll: Callable[[], None], interval_seconds: float, note: Callable[[int], None]
) -> Callable[[], Any]:
    """Return *poll* wrapped so that whole intervals in which it did not run are noted."""
    last_start = time.monotonic()

    def run() -> None:
        nonlocal last_start
        now = time.monotonic()
        note(round((now - last_start) / interval_seconds) - 1)
        last_start = now
        poll()

    return run
