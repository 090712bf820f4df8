"""Watch the node's GPUs: poll NVML, keep how the driver and each GPU fare."""

from dataclasses import dataclass
from typing import Final, Protocol

from kvheadroom.poll.health import attempt, failed, succeeded, unpolled
from kvheadroom.readings import NvmlReading, SourceHealth

DRIVER_TARGET: Final = "driver"


class GpuSource(Protocol):
    """Where GPU readings come from."""

    def read(self) -> NvmlReading:
        """Return every GPU, or raise SourceError when the driver does not answer."""
        ...

    def close(self) -> None:
        """Give the driver back; never blocks."""
        ...


@dataclass(frozen=True, slots=True)
class GpuOutcome:
    """What the last poll of NVML gave.

    Attributes:
        health: The driver first, then every GPU that was ever seen.
        reading: The GPUs; ``None`` when the driver did not answer.
    """

    health: tuple[SourceHealth, ...]
    reading: NvmlReading | None = None


class GpuWatch:
    """The node's GPUs under watch; see :class:`~kvheadroom.poll.server_watch.ServerWatch`."""

    def __init__(self, source: GpuSource) -> None:
        self.source = source
        self._driver = unpolled("nvml", DRIVER_TARGET)
        self._gpus: dict[str, SourceHealth] = {}
        self.outcome = GpuOutcome((self._driver,))

    def poll(self) -> None:
        """Read every GPU once and swap the outcome; never raises."""
        reading, error, seconds = attempt(self.source.read)
        if error is not None or reading is None:
            reason, detail = (error.reason, str(error)) if error else ("internal", "no reading")
            self._driver = failed(self._driver, reason, detail, seconds)
            # The GPUs are down with their driver, for the driver's reason.
            for target, health in self._gpus.items():
                self._gpus[target] = failed(health, reason, detail, seconds)
        else:
            self._driver = succeeded(self._driver, seconds)
            self._note_gpus(reading, seconds)
        self.outcome = GpuOutcome((self._driver, *self._gpus.values()), reading)

    def _note_gpus(self, reading: NvmlReading, seconds: float) -> None:
        for gpu in reading.gpus:
            health = self._gpus.get(gpu.gpu) or unpolled("nvml", gpu.gpu)
            self._gpus[gpu.gpu] = succeeded(health, seconds)
        for failure in reading.failures:
            health = self._gpus.get(failure.target) or unpolled("nvml", failure.target)
            self._gpus[failure.target] = failed(health, failure.reason, failure.detail, seconds)
        # A MIG device that was removed is gone, not down.
        seen = {gpu.gpu for gpu in reading.gpus} | {failure.target for failure in reading.failures}
        self._gpus = {target: health for target, health in self._gpus.items() if target in seen}
