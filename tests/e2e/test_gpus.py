"""The real command with the real pynvml over a compiled NVML whose answers the test writes."""

from pathlib import Path

import pytest
from tests.e2e.exporter import Exporter
from tests.parts.fake_nvml import FakeNvml, gpu, mig

pytestmark = pytest.mark.parts

LOST = 15  # NVML_ERROR_GPU_IS_LOST


@pytest.fixture
def node(tmp_path: Path, library: Path) -> FakeNvml:
    return FakeNvml(tmp_path / "node", library)


def serve(node: FakeNvml) -> Exporter:
    return Exporter("serve", "--poll.interval", "200ms", environment=node.environment())


def test_every_gpu_and_mig_device_is_served(node: FakeNvml) -> None:
    """Total is reserved + used + free, the card's processes are counted, a MIG device is 0:1."""
    node.write(
        gpu(0, mig=1, mig_slots=7),
        mig(0, 1),
        gpu(1, compute="4100:60000000000 4200:1000000000"),
        devices=2,
    )

    with serve(node) as exporter:
        exporter.wait_for("source_up", 1, source="nvml", target="1")
        total = exporter.value("gpu_memory_total_bytes", gpu="1")
        parts = [
            exporter.value(f"gpu_memory_{part}_bytes", gpu="1")
            for part in ("reserved", "used", "free")
        ]

        assert total == 150_754_820_096
        assert sum(part for part in parts if part is not None) == total
        assert exporter.value("gpu_process_memory_bytes", gpu="1", owner="other") == 61e9
        assert exporter.value("gpu_memory_total_bytes", gpu="0:1") == 18e9
        assert exporter.value("gpu_info", gpu="1", driver_version="590.48.01") == 1


def test_a_lost_gpu_is_down_alone_and_comes_back(node: FakeNvml) -> None:
    """Its series go, the other card's stay, and it returns without a restart."""
    node.write(gpu(0), gpu(1), devices=2)

    with serve(node) as exporter:
        exporter.wait_for("source_up", 1, target="1")
        node.write(gpu(0), gpu(1, fail_any=LOST), devices=2)
        exporter.wait_for("source_up", 0, target="1")

        assert exporter.value("gpu_memory_total_bytes", gpu="1") is None
        assert exporter.value("gpu_memory_total_bytes", gpu="0") is not None
        assert exporter.value("poll_failures_total", target="1", reason="lost") != 0

        node.write(gpu(0), gpu(1), devices=2)
        exporter.wait_for("source_up", 1, target="1")


def test_a_hanging_gpu_leaves_the_others_and_the_exit_alone(node: FakeNvml) -> None:
    """A call that never returns costs its own GPU only, and SIGTERM still ends the process."""
    node.write(gpu(0), gpu(1, hang_any=1), devices=2)

    with serve(node) as exporter:
        exporter.wait_for("source_up", 0, target="1")
        exporter.wait_for("source_up", 1, target="0")

        assert exporter.value("poll_failures_total", target="1", reason="timeout") != 0
        assert exporter.stop() < 2.0
        assert exporter.process.returncode == 0


def test_a_driver_that_comes_later_is_found(tmp_path: Path, library: Path) -> None:
    """The exporter starts before the driver is installed and needs no restart."""
    node = FakeNvml(tmp_path / "node")
    node.write(gpu(0), devices=1)

    with serve(node) as exporter:
        exporter.wait_for("source_up", 0, target="driver")
        assert exporter.value("poll_failures_total", reason="driver_missing") != 0

        node.install(library)
        exporter.wait_for("source_up", 1, target="driver")
        exporter.wait_for("source_up", 1, target="0")


def test_a_gpu_without_memory_readings_shows_none(node: FakeNvml) -> None:
    """GB10 answers NOT_SUPPORTED to the memory call: absent and said, not 0."""
    node.write(gpu(0, total=None, reserved=None, free=None), devices=1)

    with serve(node) as exporter:
        exporter.wait_for("source_up", 1, target="0")

        assert exporter.value("gpu_memory_total_bytes") is None
        assert exporter.value("gpu_memory_used_bytes") is None
        reason = exporter.value(
            "gpu_reading_unavailable", gpu="0", reading="memory", reason="not_supported"
        )
        assert reason == 1
