"""Run calls that may never return, each in a daemon thread of its own, against a deadline."""

import math
import threading
import time
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from typing import Final, Generic, TypeVar

T = TypeVar("T")

# Threads that all run at once fight over the interpreter's lock: 8 GPUs read so cost five times
# the CPU of 8 read in turn. So each call is let run alone for a moment, which a healthy one needs
# only a part of, before the next one starts.
_HEAD_START_SECONDS: Final = 0.01


class _Occupancy:
    """How many calls run in the lanes of this process, whichever :class:`Lanes` they are of."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0

    def __enter__(self) -> None:
        with self._lock:
            self._running += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._running -= 1

    def if_alone(self, act: Callable[[], object]) -> bool:
        with self._lock:
            if self._running > 1:
                return False
            act()
            return True


_occupancy: Final = _Occupancy()


def if_alone(act: Callable[[], object]) -> bool:
    """Do what no call may overlap with; to be called from within a call that runs in a lane.

    Args:
        act: Done while no other call of the process runs, hung ones included, nor can begin.

    Returns:
        Whether it was done.
    """
    return _occupancy.if_alone(act)


class Lanes:
    """One daemon thread per target, kept between calls; a thread that hangs is never doubled.

    A hung thread cannot be interrupted, only left behind: what it returns in the end is thrown
    away, and until then its target counts as late. Threads are daemons, so a process can exit
    while one hangs. One thread gathers at a time; any may close meanwhile.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        # Else a lane could be told to end between being chosen for a call and given it.
        self._lock = threading.Lock()
        self._lanes: dict[str, _Lane] = {}

    def gather(
        self, calls: Mapping[str, Callable[[], T]], *, deadline_monotonic_seconds: float
    ) -> dict[str, T]:
        """Return what every call returned by the deadline, by target.

        Args:
            calls: Target → what to call for it.
            deadline_monotonic_seconds: When to stop waiting, on ``time.monotonic``'s clock.

        Returns:
            Target → result; a late target is not in it. A target still busy with an earlier call
            is late at once, so that one hung call delays one gathering, not all that follow.

        Raises:
            Exception: Whatever a call raised, as soon as it did.
        """
        answers: SimpleQueue[_Answer[T]] = SimpleQueue()
        results: dict[str, T] = {}

        def take_one(timeout_seconds: float) -> bool:
            left_seconds = deadline_monotonic_seconds - time.monotonic()
            try:
                answer = answers.get(timeout=max(0.0, min(timeout_seconds, left_seconds)))
            except Empty:
                return False
            results[answer.target] = answer.result()
            return True

        awaited = 0
        for target, call in calls.items():
            with self._lock:
                started = self._lane(target).start(target, call, answers)
            if started:
                awaited += 1
                take_one(_HEAD_START_SECONDS)
        while len(results) < awaited and take_one(math.inf):
            pass
        return results

    def busy_seconds(self, target: str) -> float | None:
        """Return how long the target's current call has run; ``None`` when there is none."""
        with self._lock:
            lane = self._lanes.get(target)
        since = None if lane is None else lane.busy_since_monotonic_seconds
        return None if since is None else time.monotonic() - since

    def idle(self) -> bool:
        """Return whether no call is running."""
        with self._lock:
            return not any(lane.busy for lane in self._lanes.values())

    def close(self) -> None:
        """Let every thread end, a hung one when its call returns; until then its target is busy.

        Never waits. What is gathered afterwards runs in new threads.
        """
        with self._lock:
            for lane in self._lanes.values():
                lane.end()
            self._lanes = {target: lane for target, lane in self._lanes.items() if lane.busy}

    def _lane(self, target: str) -> "_Lane":
        lane = self._lanes.get(target)
        if lane is None or (lane.ended and not lane.busy):
            lane = self._lanes[target] = _Lane(f"{self._name}-{target}")
        return lane


class _Answer(Generic[T]):
    """What one call returned or raised, carried from its thread to the caller's."""

    __slots__ = ("_error", "_value", "target")

    def __init__(self, target: str, call: Callable[[], T]) -> None:
        self.target = target
        self._error: Exception | None = None
        try:
            self._value = call()
        except Exception as error:  # noqa: BLE001  (raised again by result, where it is handled)
            self._error = error

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._value


class _Lane:
    """One daemon thread that runs one call at a time.

    Attributes:
        busy_since_monotonic_seconds: When its call was handed over; ``None`` when it has none.
        ended: Whether it was told to end, which it does once it has no call.
    """

    def __init__(self, name: str) -> None:
        self.busy_since_monotonic_seconds: float | None = None
        self.ended = False
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    @property
    def busy(self) -> bool:
        return self.busy_since_monotonic_seconds is not None

    def start(self, target: str, call: Callable[[], T], answers: "SimpleQueue[_Answer[T]]") -> bool:
        """Hand the call to the thread; ``False`` when it is still busy with an earlier one."""
        if self.busy:
            return False

        def answer() -> None:
            # Both ends before the answer is out: its reader may start the next call at once.
            with _occupancy:
                finished = _Answer(target, call)
            self.busy_since_monotonic_seconds = None
            answers.put(finished)

        self.busy_since_monotonic_seconds = time.monotonic()
        self._calls.put(answer)
        return True

    def end(self) -> None:
        if not self.ended:
            self.ended = True
            self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
