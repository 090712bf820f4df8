"""Counters of ours that survive an engine's restart and never fall."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunningTotal:
    """A counter carried over the restarts of the process that reports it.

    Attributes:
        total: Everything counted so far.
        last_reported: The reporting process' own value at the last poll.
    """

    total: float = 0.0
    last_reported: float = 0.0

    def restarted(self) -> "RunningTotal":
        """Return the counter after its reporter restarted: what it reports next is all new."""
        return RunningTotal(total=self.total, last_reported=0.0)

    def advanced(self, reported: float) -> "RunningTotal":
        """Return the counter after *reported* was read; a value that fell is a restart from 0."""
        fell = reported < self.last_reported
        gained = reported if fell else reported - self.last_reported
        return RunningTotal(total=self.total + gained, last_reported=reported)
