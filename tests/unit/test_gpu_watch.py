from dataclasses import dataclass

from kvheadroom.errors import SourceError
from kvheadroom.faces.series import snapshot_series
from kvheadroom.live.card_view import view_cards
from kvheadroom.live.snapshot import Snapshot
from kvheadroom.poll.gpu_watch import GpuWatch
from kvheadroom.readings import GpuProcess, GpuReading, NvmlReading, SourceFailure, SourceHealth
from kvheadroom.units import GIB

LOST = SourceFailure("0", "lost", "nvmlDeviceGetHandleByIndex: GPU is lost (15)")


@dataclass
class Script:
    """A GPU source that gives what the script says, step by step."""

    steps: list[NvmlReading | SourceError]

    def read(self) -> NvmlReading:
        step = self.steps.pop(0)
        if isinstance(step, SourceError):
            raise step
        return step

    def close(self) -> None: ...


def device(target: str) -> GpuReading:
    return GpuReading(gpu=target, uuid=f"uuid of {target}")


def node(*targets: str, failure: SourceFailure | None = None) -> NvmlReading:
    failures = (failure,) if failure else ()
    return NvmlReading("590", tuple(device(target) for target in targets), failures)


def outcomes(*steps: NvmlReading | SourceError) -> list[dict[str, SourceHealth]]:
    """Return the health of every target after each step."""
    watch = GpuWatch(Script(list(steps)))
    seen = []
    for _ in steps:
        watch.poll()
        seen.append({health.target: health for health in watch.outcome.health})
    return seen


def test_a_mig_device_is_down_with_its_gpu() -> None:
    """Lost with GPU 0 and for its reason, while GPU 1 and its MIG device are up."""
    _, lost = outcomes(node("0", "0:1", "1", "1:1"), node("1", "1:1", failure=LOST))

    assert {target: health.up for target, health in lost.items()} == {
        "driver": True, "0": False, "0:1": False, "1": True, "1:1": True,
    }  # fmt: skip
    assert (lost["0:1"].reason, lost["0:1"].detail) == ("lost", LOST.detail)
    assert lost["0:1"].failures["lost"] == 1


def test_a_mig_device_that_cannot_be_listed_is_down() -> None:
    """The GPU answers but not for its MIG devices: they are not taken for removed."""
    unlisted = GpuReading(gpu="0", uuid="U", unavailable={"mig_devices": "no_permission"})

    _, hidden = outcomes(node("0", "0:1"), NvmlReading("590", (unlisted,)))

    assert hidden["0"].up
    assert (hidden["0:1"].up, hidden["0:1"].reason) == (False, "no_permission")


def test_a_removed_mig_device_is_gone_and_not_down() -> None:
    """Its GPU answers without it; a later loss of the GPU or the driver is not its failure."""
    _, removed, lost, gone = outcomes(
        node("0", "0:1"), node("0"), node(failure=LOST), SourceError("timeout", "no answer")
    )

    assert [set(health) for health in (removed, lost, gone)] == [{"driver", "0"}] * 3


def test_a_gpu_that_is_no_longer_counted_is_lost() -> None:
    """After a driver restart without GPU 1 it is down, with its MIG device, and not forgotten."""
    _, without = outcomes(node("0", "1", "1:0"), node("0"))

    down = {target: health.reason for target, health in without.items() if not health.up}
    assert down == {"1": "lost", "1:0": "lost"}


def test_failures_are_counted_on_when_a_device_returns() -> None:
    """Lost twice, removed, back: two failures, and a third with the next loss."""
    steps = outcomes(
        node("0", "0:1"),
        node(failure=LOST),
        node(failure=LOST),
        node("0", "0:1"),
        node("0"),
        node("0", "0:1"),
        node(failure=LOST),
    )

    counts = [health["0:1"].failures["lost"] if "0:1" in health else None for health in steps]
    assert counts == [0, 1, 2, 2, None, 2, 3]


def test_a_mig_device_is_down_with_the_driver() -> None:
    """Every device that was there is down for the driver's reason, and up again with it."""
    gone = SourceError("driver_not_loaded", "the driver is not loaded")

    _, down, up = outcomes(node("0", "0:1"), gone, node("0", "0:1"))

    assert {health.reason for health in down.values()} == {"driver_not_loaded"}
    assert all(health.up for health in up.values())


# --- what is served of a GPU with MIG devices -----------------------------------------------


def served(*gpus: GpuReading) -> dict[tuple[str, str], float]:
    """Return the value of each GPU family by name and GPU."""
    return {
        (spec.name, labels[0]): value
        for spec, labels, value in snapshot_series(Snapshot(cards=view_cards(gpus, (), {}, {})))
        if "_gpu_" in spec.name
    }


def full(target: str, size_gib: int) -> GpuReading:
    total, reserved = size_gib * GIB, GIB
    return GpuReading(
        gpu=target, uuid=target, total_bytes=total, reserved_bytes=reserved, used_bytes=GIB,
        free_bytes=total - 2 * GIB, utilization_ratio=0.5, temperature_celsius=60.0,
        power_watts=300.0, processes=(GpuProcess(7, GIB),),
    )  # fmt: skip


MEMORY = [
    *(f"kvheadroom_gpu_memory_{part}_bytes" for part in ("total", "reserved", "used", "free")),
    "kvheadroom_gpu_processes",
    "kvheadroom_gpu_process_memory_bytes",
]


def test_no_byte_of_a_gpu_with_mig_devices_is_served_twice() -> None:
    """Summed over devices, memory and processes are those of the MIG devices and of GPU 1."""
    series = served(full("0", 80), full("0:0", 10), full("0:1", 20), full("1", 80))

    for name in MEMORY:
        assert {gpu for family, gpu in series if family == name} == {"0:0", "0:1", "1"}
    total = sum(value for (family, _), value in series.items() if family == MEMORY[0])
    assert total == (10 + 20 + 80) * GIB


def test_a_gpu_with_mig_devices_keeps_what_is_the_boards() -> None:
    """Identity, utilization, temperature and power are its own."""
    series = served(full("0", 80), device("0:0"))

    assert {family for family, gpu in series if gpu == "0"} == {
        "kvheadroom_gpu_info",
        "kvheadroom_gpu_utilization_ratio",
        "kvheadroom_gpu_temperature_celsius",
        "kvheadroom_gpu_power_watts",
    }
