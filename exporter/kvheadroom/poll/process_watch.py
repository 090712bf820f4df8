"""Watch the node's processes: which servers there are, and whose each GPU process is."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from kvheadroom.errors import SourceError
from kvheadroom.poll.discovery import Discovered
from kvheadroom.poll.health import Failed, attempt, failed, succeeded, unpolled
from kvheadroom.readings import GpuReading, SourceHealth

_NOTHING: Final = Discovered()


class ProcessSource(Protocol):
    """Where the node's vLLM servers are found."""

    @property
    def target(self) -> str:
        """What to call it: where ``/proc`` is."""
        ...

    def look(self, gpus: Sequence[GpuReading]) -> Discovered:
        """Return what is there now, or raise OSError where processes cannot be seen."""
        ...


@dataclass(frozen=True, slots=True)
class ProcessOutcome:
    """What the last look at the node gave.

    Attributes:
        health: How looking fares.
        discovered: What was found; nothing while looking fails.
    """

    health: SourceHealth
    discovered: Discovered = _NOTHING

    def has_seen(self, gpus: Sequence[GpuReading]) -> bool:
        """Return whether every process on the *gpus* was looked up."""
        owners = self.discovered.owners
        return all(one.pid in owners for gpu in gpus for one in gpu.processes or ())


class ProcessWatch:
    """The node's processes under watch; see :class:`~kvheadroom.poll.server_watch.ServerWatch`."""

    def __init__(self, source: ProcessSource) -> None:
        self.source = source
        self.outcome = ProcessOutcome(unpolled("proc", source.target))
        # The driver's list asks for a look of its own when it names someone new.
        self._looking = threading.Lock()

    def poll(self, gpus: Sequence[GpuReading]) -> None:
        """Look once and swap the outcome; never raises.

        Args:
            gpus: As NVML listed them last.
        """
        with self._looking:
            result = attempt(lambda: self._look(gpus))
            health, seconds = self.outcome.health, result.duration_seconds
            if isinstance(result, Failed):
                down = failed(health, result.error.reason, str(result.error), seconds)
                self.outcome = ProcessOutcome(down)
            else:
                self.outcome = ProcessOutcome(succeeded(health, seconds), result.reading)

    def _look(self, gpus: Sequence[GpuReading]) -> Discovered:
        try:
            return self.source.look(gpus)
        except OSError as error:
            detail = f"{self.source.target}: cannot be listed: {error.strerror}"
            raise SourceError("unreachable", detail) from error
