"""Watch the node's GPUs: poll NVML, keep how the driver and each GPU fare."""

from dataclasses import dataclass
from typing import Final, Protocol

from kvheadroom.errors import Reason
from kvheadroom.poll.health import Failed, attempt, failed, succeeded, unpolled
from kvheadroom.readings import NvmlReading, SourceHealth

DRIVER_TARGET: Final = "driver"


class GpuSource(Protocol):
    """Where GPU readings come from."""

    def read(self) -> NvmlReading:
        """Return every GPU, or raise SourceError when the driver does not answer."""
        ...

    def close(self) -> None:
        """Give the driver back; never blocks, whichever thread reads meanwhile."""
        ...


@dataclass(frozen=True, slots=True)
class GpuOutcome:
    """What the last poll of NVML gave.

    Attributes:
        health: The driver first, then every GPU and MIG device that is there, answering or not.
        reading: The GPUs; ``None`` when the driver did not answer.
    """

    health: tuple[SourceHealth, ...]
    reading: NvmlReading | None = None


class GpuWatch:
    """The node's GPUs under watch; see :class:`~kvheadroom.poll.server_watch.ServerWatch`."""

    def __init__(self, source: GpuSource) -> None:
        self.source = source
        self._driver = unpolled("nvml", DRIVER_TARGET)
        # Of every device that was ever there: one that returns goes on counting its failures.
        # Indices are few, so it stays small.
        self._gpus: dict[str, SourceHealth] = {}
        self._present: frozenset[str] = frozenset()
        self.outcome = GpuOutcome((self._driver,))

    def poll(self) -> None:
        """Read every GPU once and swap the outcome; never raises."""
        result = attempt(self.source.read)
        seconds = result.duration_seconds
        if isinstance(result, Failed):
            reading, reason, detail = None, result.error.reason, str(result.error)
            self._driver = failed(self._driver, reason, detail, seconds)
            # The GPUs are down with their driver, for the driver's reason.
            faults: dict[str, _Fault] = dict.fromkeys(self._present, (reason, detail))
        else:
            reading = result.reading
            self._driver = succeeded(self._driver, seconds)
            faults = _faults(reading, self._present)
        answered = [gpu.gpu for gpu in reading.gpus] if reading else []
        for target in answered:
            self._gpus[target] = succeeded(self._health(target), seconds)
        for target, (reason, detail) in faults.items():
            self._gpus[target] = failed(self._health(target), reason, detail, seconds)
        self._present = frozenset((*answered, *faults))
        present = (health for target, health in self._gpus.items() if target in self._present)
        self.outcome = GpuOutcome((self._driver, *present), reading)

    def _health(self, target: str) -> SourceHealth:
        return self._gpus.get(target) or unpolled("nvml", target)


# Why a device gave no data, and the line for a person.
_Fault = tuple[Reason, str]


def _faults(reading: NvmlReading, known: frozenset[str]) -> dict[str, _Fault]:
    """Return every device that gave no data, among them the MIG devices of an unread GPU.

    A known MIG device that its GPU no longer lists is gone rather than down, unless the GPU, or
    its list of MIG devices, could not be read. A GPU that the driver no longer counts is lost:
    nobody takes one out of a running machine.

    Args:
        reading: What the driver answered.
        known: Devices that were there before.
    """
    faults: dict[str, _Fault] = {
        failure.target: (failure.reason, failure.detail) for failure in reading.failures
    }
    counted = {gpu.gpu for gpu in reading.gpus} | faults.keys()
    for target in sorted(known - counted):
        if ":" not in target:
            faults[target] = ("lost", f"GPU {target}: the driver no longer counts it")
    unread = dict(faults)
    for gpu in reading.gpus:
        if reason := gpu.unavailable.get("mig_devices"):
            unread[gpu.gpu] = (reason, f"GPU {gpu.gpu}: its MIG devices cannot be listed")
    for target in sorted(known - faults.keys()):
        parent, separator, _ = target.partition(":")
        if separator and parent in unread:
            faults[target] = unread[parent]
    return faults
