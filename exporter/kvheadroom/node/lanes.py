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


class Lanes:
    """One daemon thread per target, kept between calls; a thread that hangs is never doubled.

    A hung thread cannot be interrupted, only left behind: what it returns in the end is thrown
    away, and until then its target counts as late. Threads are daemons, so a process can exit
    while one hangs. Meant for one caller; only the calls themselves run at the same time.
    """

    def __init__(self, name: str) -> None:
        self._name = name
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
            if self._lane(target).start(target, call, answers):
                awaited += 1
                take_one(_HEAD_START_SECONDS)
        while len(results) < awaited and take_one(math.inf):
            pass
        return results

    def busy_seconds(self, target: str) -> float | None:
        """Return how long the target's current call has run; ``None`` when there is none."""
        lane = self._lanes.get(target)
        since = None if lane is None else lane.busy_since_monotonic_seconds
        return None if since is None else time.monotonic() - since

    def idle(self) -> bool:
        """Return whether no call is running."""
        return all(self.busy_seconds(target) is None for target in self._lanes)

    def close(self) -> None:
        """Let every idle thread end; a hung one is left behind, its target still busy."""
        for target in [target for target in self._lanes if self.busy_seconds(target) is None]:
            self._lanes.pop(target).end()

    def _lane(self, target: str) -> "_Lane":
        if target not in self._lanes:
            self._lanes[target] = _Lane(f"{self._name}-{target}")
        return self._lanes[target]


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
    """One daemon thread that runs one call at a time."""

    def __init__(self, name: str) -> None:
        self.busy_since_monotonic_seconds: float | None = None
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def start(self, target: str, call: Callable[[], T], answers: "SimpleQueue[_Answer[T]]") -> bool:
        """Hand the call to the thread; ``False`` when it is still busy with an earlier one."""
        if self.busy_since_monotonic_seconds is not None:
            return False

        def answer() -> None:
            finished = _Answer(target, call)
            # Before the answer is out: its reader may start the next call at once.
            self.busy_since_monotonic_seconds = None
            answers.put(finished)

        self.busy_since_monotonic_seconds = time.monotonic()
        self._calls.put(answer)
        return True

    def end(self) -> None:
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
