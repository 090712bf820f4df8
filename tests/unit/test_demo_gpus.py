from tests.unit.virtual_clock import VirtualClock

from kvheadroom.demo.gpus import SimulatedCard, SimulatedGpus
from kvheadroom.demo.profiles import PROFILES
from kvheadroom.readings import GpuProcess
from kvheadroom.units import GIB

CARD = PROFILES["card"].cards[0]


def card_with(busy: float, clock: VirtualClock) -> SimulatedGpus:
    """A card whose one engine is busy for that share of the time."""
    card = SimulatedCard(CARD, (GpuProcess(1, GIB),), (lambda: busy * clock.now_seconds,))
    return SimulatedGpus([card], clock)


def test_utilization_is_the_busy_share_since_the_last_read() -> None:
    """An engine in steps for a quarter of the time keeps its card a quarter busy."""
    clock = VirtualClock()
    gpus = card_with(0.25, clock)
    clock.now_seconds = 8.0

    assert gpus.read().gpus[0].utilization_ratio == 0.25


def test_two_reads_at_one_moment_agree() -> None:
    """No time has passed, so nothing has changed."""
    clock = VirtualClock()
    gpus = card_with(0.5, clock)
    clock.now_seconds = 8.0

    assert gpus.read() == gpus.read()


def test_a_busy_card_is_hot_and_draws_power_within_its_limit() -> None:
    """Temperature and power follow the load; power stays below the board's limit."""
    clock = VirtualClock()
    idle, busy = card_with(0.0, clock), card_with(1.0, clock)
    clock.now_seconds = 120.0
    cool, hot = idle.read().gpus[0], busy.read().gpus[0]

    assert cool.temperature_celsius is not None
    assert hot.temperature_celsius is not None
    assert hot.temperature_celsius > cool.temperature_celsius + 20
    assert cool.power_watts == CARD.idle_watts
    assert hot.power_watts is not None
    assert hot.power_watts < CARD.limit_watts
