"""Watch one server's startup log: read what is new, keep what its starts said."""

import logging
import threading
from dataclasses import replace
from typing import Protocol

from kvheadroom.node.log_follow import FollowedBoots

_log = logging.getLogger(__name__)


class LogSource(Protocol):
    """Where a server's starts come from."""

    def read(self) -> FollowedBoots:
        """Return what the log says, what is new included."""
        ...

    def close(self) -> None:
        """Let go of the log; not while it is read."""
        ...


class LogWatch:
    """One startup log under watch; see :class:`~kvheadroom.poll.server_watch.ServerWatch`.

    Attributes:
        outcome: What the log said at the last poll.
    """

    def __init__(self, name: str, source: LogSource) -> None:
        self.outcome = FollowedBoots(problem="not polled yet")
        self._name = name
        self._source = source
        self._reading = threading.Lock()
        self._is_closed = False

    def poll(self) -> None:
        """Read what is new and swap the outcome; never raises."""
        with self._reading:
            if not self._is_closed:
                self._poll()
        self._let_go()

    def close(self) -> None:
        """Let go of the log, at the latest when the poll in progress ends; never waits."""
        self._is_closed = True
        self._let_go()

    def _poll(self) -> None:
        before = self.outcome
        try:
            found = self._source.read()
        except Exception as error:  # noqa: BLE001  (a log may hold anything; the daemon goes on)
            _log.debug("traceback of the failed read", exc_info=True)
            found = replace(before, problem=f"internal error: {type(error).__name__}")
        if found.problem is not None and found.problem != before.problem:
            fields = {"server": self._name, "detail": found.problem}
            _log.warning("startup log cannot be read", extra={"fields": fields})
        self.outcome = found

    def _let_go(self) -> None:
        if self._is_closed and self._reading.acquire(blocking=False):
            try:
                self._source.close()
            finally:
                self._reading.release()
