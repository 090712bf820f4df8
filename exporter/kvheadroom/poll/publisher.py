"""Publish a snapshot once per cycle: when every source has reported, or the rest is late."""

import logging
import threading
from collections.abc import Callable
from typing import Final

_log = logging.getLogger(__name__)

# A source that has not reported this long after the first one of its cycle is not waited for.
HOLD_SECONDS: Final = 0.25


class Publisher:
    """Gathers the reports of a cycle and publishes them as one.

    Args:
        publish: Makes and publishes a snapshot; runs in this publisher's own thread.
        expected: Names of the sources under watch now.
    """

    def __init__(self, publish: Callable[[], object], expected: Callable[[], set[str]]) -> None:
        self._publish = publish
        self._expected = expected
        self._reported: set[str] = set()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def start(self) -> None:
        """Begin to publish."""
        self._thread.start()

    def report(self, name: str) -> None:
        """Say that the poll of *name* has finished."""
        with self._changed:
            self._reported.add(name)
            self._changed.notify()

    def stop(self) -> None:
        """Publish no more."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def _run(self) -> None:
        while self._gather():
            try:
                self._publish()
            except Exception:  # noqa: BLE001  (a page that cannot be made must not end the thread)
                _log.exception("publishing failed; the next cycle tries again")

    def _gather(self) -> bool:
        """Wait for a cycle's reports; return False when stopping."""
        with self._changed:
            self._changed.wait_for(lambda: self._reported or self._stopping)
            self._changed.wait_for(
                lambda: self._stopping or self._reported >= self._expected(),
                timeout=HOLD_SECONDS,
            )
            self._reported.clear()
            return not self._stopping
