import os
import time
from pathlib import Path
from typing import Any

import pytest
from tests.parts.fake_nvml import FakeNvml, Reader, gpu, mig, start_reader

pytestmark = pytest.mark.parts

UNINITIALIZED, NO_PERMISSION, DRIVER_NOT_LOADED = 1, 4, 9
GPU_IS_LOST, RESET_REQUIRED, LIB_RM_VERSION_MISMATCH, UNKNOWN = 15, 16, 18, 999
CPU_BUDGET_MILLISECONDS = 3.0


def uuids(reading: dict[str, Any]) -> list[str]:
    return [device["uuid"] for device in reading["gpus"]]


def failures(reading: dict[str, Any]) -> list[tuple[str, str]]:
    return [(failure["target"], failure["reason"]) for failure in reading["failures"]]


def threads_have_ended(reader: Reader) -> bool:
    """Look for the source's threads until there are none, for two seconds."""
    ends = time.monotonic() + 2.0
    while any(name.startswith("nvml-") for name in reader.ask("threads")["names"]):
        if time.monotonic() > ends:
            return False
        time.sleep(0.01)
    return True


# --- the driver as a whole ------------------------------------------------------------------


def test_the_real_library_without_a_kernel_module_says_so(real_nvml_directory: Path) -> None:
    """NVIDIA's own library without its kernel module: driver_not_loaded, at every read."""
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this machine has the kernel module")
    environment = os.environ | {"LD_LIBRARY_PATH": str(real_nvml_directory)}
    with start_reader(environment, deadline_seconds=10) as reader:
        answers = [reader.read() for _ in range(3)]

    assert [answer["error"] for answer in answers] == ["driver_not_loaded"] * 3


def test_a_driver_installed_later_is_found_without_a_restart(
    tmp_path: Path, nvml_library: Path
) -> None:
    """From no library, over no kernel module, to two GPUs: one process, three reads."""
    node = FakeNvml(tmp_path)
    node.write(**{"fail.nvmlInitWithFlags": DRIVER_NOT_LOADED})
    with node.reader() as reader:
        missing = reader.read()
        node.install(nvml_library)
        not_loaded = reader.read()
        node.write(gpu(0), gpu(1), devices=2)
        found = reader.read()

    assert (missing["error"], not_loaded["error"]) == ("driver_missing", "driver_not_loaded")
    assert uuids(found) == ["GPU-00000000", "GPU-00000001"]


def test_an_upgraded_driver_is_loaded_in_place_of_the_old_one(
    tmp_path: Path, nvml_library: Path, old_nvml_library: Path
) -> None:
    """After a version mismatch the library on disk now is used, not the one loaded before it.

    The reserved bytes show which of the two answers: only the new one can tell them.
    """
    node = FakeNvml(tmp_path, old_nvml_library)
    node.write(gpu(0, reserved=10), devices=1)
    with node.reader() as reader:
        before = reader.read()
        node.install(nvml_library)
        node.write(gpu(0, reserved=10), devices=1, **{"0.fail.*": LIB_RM_VERSION_MISMATCH})
        mismatch = reader.read()
        node.write(gpu(0, reserved=10), devices=1)
        after = reader.read()

    assert before["gpus"][0]["reserved_bytes"] is None
    assert mismatch["error"] == "driver_error"
    assert after["gpus"][0]["reserved_bytes"] == 10


@pytest.mark.parametrize("code", [UNINITIALIZED, DRIVER_NOT_LOADED, UNKNOWN])
def test_a_driver_lost_while_running_is_initialized_again(node: FakeNvml, code: int) -> None:
    """The read that meets it fails as a whole; the next one starts NVML anew, with new handles."""
    node.write(gpu(0), devices=1)
    with node.reader() as reader:
        assert len(reader.read()["gpus"]) == 1
        node.write(gpu(0), devices=1, **{"fail.nvmlDeviceGetCount_v2": code})
        lost = reader.read()
        node.write(gpu(0), devices=1)
        found = reader.read()

    assert lost["error"] == ("driver_not_loaded" if code == DRIVER_NOT_LOADED else "driver_error")
    assert "nvmlDeviceGetCount" in lost["detail"]
    assert len(found["gpus"]) == 1


def test_a_node_whose_driver_is_loaded_but_has_no_gpu_reads_as_empty(node: FakeNvml) -> None:
    """No GPU is a reading, not a failure."""
    with node.reader() as reader:
        reading = reader.read()

    assert (reading["gpus"], reading["failures"]) == ([], [])


def test_closing_before_and_after_use_is_safe_and_a_closed_source_can_read_again(
    node: FakeNvml,
) -> None:
    """Close shuts NVML down; a read after it starts NVML anew."""
    node.write(gpu(0), devices=1)
    with node.reader() as reader:
        reader.ask("close")
        first = reader.read()
        reader.ask("close")
        reader.ask("close")
        threads_end = threads_have_ended(reader)
        second = reader.read()

    assert uuids(first) == uuids(second) == ["GPU-00000000"]
    assert threads_end


# --- one GPU of several ---------------------------------------------------------------------


@pytest.mark.parametrize("code", [GPU_IS_LOST, RESET_REQUIRED])
def test_a_lost_gpu_costs_no_other_and_comes_back_by_itself(node: FakeNvml, code: int) -> None:
    """It is a failure under its index; after its reset the same source reads it again."""
    with node.reader() as reader:
        node.write(gpu(0), gpu(1, fail_any=code), gpu(2), devices=3)
        lost = reader.read()
        # Handles from before the reset are no longer valid.
        node.write(gpu(0), gpu(1, epoch=1), gpu(2), devices=3)
        back = reader.read()

    assert uuids(lost) == ["GPU-00000000", "GPU-00000002"]
    assert failures(lost) == [("1", "lost")]
    assert uuids(back) == ["GPU-00000000", "GPU-00000001", "GPU-00000002"]
    assert back["failures"] == []


@pytest.mark.parametrize(
    "function", ["nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMigMode", "nvmlDeviceGetPowerUsage"]
)
def test_a_gpu_lost_half_way_gives_no_half_reading(node: FakeNvml, function: str) -> None:
    """Whichever call meets the loss, the GPU is a failure as a whole."""
    node.write(gpu(0, **{f"fail_{function}": GPU_IS_LOST}), gpu(1), devices=2)
    with node.reader() as reader:
        reading = reader.read()

    assert uuids(reading) == ["GPU-00000001"]
    assert failures(reading) == [("0", "lost")]


def test_a_gpu_lost_under_its_mig_devices_is_one_failure(node: FakeNvml) -> None:
    """MIG devices of a lost GPU are not listed as failures of their own."""
    lost = mig(0, 0, fail_any=GPU_IS_LOST)
    node.write(gpu(0, mig=1, mig_slots=7), lost, mig(0, 1), devices=1)
    with node.reader() as reader:
        reading = reader.read()

    assert reading["gpus"] == []
    assert failures(reading) == [("0", "lost")]


@pytest.mark.parametrize("function", ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID"])
def test_a_gpu_that_cannot_be_identified_is_a_failure(node: FakeNvml, function: str) -> None:
    """Without a handle or uuid there is nothing to hang readings on; the reason says why."""
    node.write(gpu(0, **{f"fail_{function}": NO_PERMISSION}), gpu(1), devices=2)
    with node.reader() as reader:
        reading = reader.read()

    assert uuids(reading) == ["GPU-00000001"]
    assert failures(reading) == [("0", "no_permission")]
    assert function.removesuffix("_v2") in reading["failures"][0]["detail"]


def test_eight_gpus_cost_little(node: FakeNvml) -> None:
    """A read of 8 GPUs with 2 processes each stays within 3 ms of CPU time, library included."""
    gpus = [gpu(index, compute="100:1000 200:2000") for index in range(8)]
    node.write(*gpus, devices=8)
    with node.reader() as reader:
        reader.ask("cpu 10")
        milliseconds = reader.ask("cpu 40")["milliseconds"]

    # The fastest: a busy machine slows some reads and speeds none up.
    assert milliseconds[0] < CPU_BUDGET_MILLISECONDS
