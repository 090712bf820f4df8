"""Simulated GPUs: memory that adds up, and utilization, heat and power that follow the engines."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import NAMESPACE_DNS, uuid5

from kvheadroom.demo.plans import CardPlan
from kvheadroom.readings import GpuProcess, GpuReading, NvmlReading

DRIVER_VERSION: Final = "590.48.01"

_COOL_CELSIUS: Final = 34.0
_HOT_CELSIUS: Final = 74.0
_WARM_UP_SECONDS: Final = 25.0
_BUSY_POWER_RATIO: Final = 0.85


@dataclass(frozen=True, slots=True)
class SimulatedCard:
    """One GPU and who is on it.

    Attributes:
        plan: The card.
        processes: What each process holds.
        busy: One per engine on the card: virtual seconds it has spent in steps so far.
    """

    plan: CardPlan
    processes: tuple[GpuProcess, ...]
    busy: tuple[Callable[[], float], ...]


@dataclass(frozen=True, slots=True)
class _Sample:
    at_seconds: float = 0.0
    busy_seconds: float = 0.0
    utilization_ratio: float = 0.0
    temperature_celsius: float = _COOL_CELSIUS


def gpu_uuid(index: int) -> str:
    """Return the UUID of the simulated GPU at *index*."""
    return f"GPU-{uuid5(NAMESPACE_DNS, f'gpu{index}.demo.kvheadroom')}"


class SimulatedGpus:
    """Reads like the NVML source, without a driver."""

    def __init__(self, cards: Sequence[SimulatedCard], clock: Callable[[], float]) -> None:
        """Take the cards by index and the virtual clock in seconds."""
        self._cards = cards
        self._clock = clock
        self._latest = [_Sample() for _ in cards]

    def read(self) -> NvmlReading:
        """Return every card at this moment."""
        readings = (self._read_card(index, card) for index, card in enumerate(self._cards))
        return NvmlReading(driver_version=DRIVER_VERSION, gpus=tuple(readings))

    def close(self) -> None:
        """Do nothing: there is no driver to let go."""

    def _read_card(self, index: int, card: SimulatedCard) -> GpuReading:
        plan = card.plan
        sample = self._latest[index] = self._sample(self._latest[index], card)
        used_bytes = sum(process.used_bytes or 0 for process in card.processes)
        span_watts = (plan.limit_watts - plan.idle_watts) * _BUSY_POWER_RATIO
        return GpuReading(
            gpu=str(index),
            uuid=gpu_uuid(index),
            name=plan.name,
            compute_capability=plan.compute_capability,
            total_bytes=plan.total_bytes,
            reserved_bytes=plan.reserved_bytes,
            used_bytes=used_bytes,
            free_bytes=plan.total_bytes - plan.reserved_bytes - used_bytes,
            utilization_ratio=round(sample.utilization_ratio, 2),
            temperature_celsius=float(round(sample.temperature_celsius)),
            power_watts=round(plan.idle_watts + span_watts * sample.utilization_ratio, 3),
            processes=card.processes,
        )

    def _sample(self, last: _Sample, card: SimulatedCard) -> _Sample:
        now_seconds = self._clock()
        passed_seconds = now_seconds - last.at_seconds
        if passed_seconds <= 0:
            return last
        busy_seconds = sum(busy() for busy in card.busy)
        ratio = min(max((busy_seconds - last.busy_seconds) / passed_seconds, 0.0), 1.0)
        target_celsius = _COOL_CELSIUS + (_HOT_CELSIUS - _COOL_CELSIUS) * ratio
        kept = math.exp(-passed_seconds / _WARM_UP_SECONDS)
        return _Sample(
            at_seconds=now_seconds,
            busy_seconds=busy_seconds,
            utilization_ratio=ratio,
            temperature_celsius=target_celsius + (last.temperature_celsius - target_celsius) * kept,
        )
