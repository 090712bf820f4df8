from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.parts.fake_nvml import FakeNvml, gpu

pytestmark = pytest.mark.parts

ReadNode = Callable[..., dict[str, Any]]

# A recorded H200 under driver 590.48.01: nvidia-smi showed 143771 / 614 / 0 / 143158 MiB,
# each rounded up by itself.
H200_TOTAL = 150_754_820_096
H200_RESERVED = 643_825_664

NO_PERMISSION, NOT_SUPPORTED, FUNCTION_NOT_FOUND, UNKNOWN = 4, 3, 13, 999
VERSION_MISMATCH = 25


def read_gpu(read_node: ReadNode, **values: object) -> dict[str, Any]:
    reading = read_node(gpu(0, **values), devices=1)
    assert reading["failures"] == []
    (only,) = reading["gpus"]
    return dict(only)


def test_every_reading_of_a_healthy_gpu_is_in_base_units(read_node: ReadNode) -> None:
    """Percent becomes a ratio and milliwatts become watts; nothing is missing."""
    reading = read_node(gpu(0, utilization=97, temperature=61, power=650_500), devices=1)

    (only,) = reading["gpus"]
    assert reading["driver_version"] == "590.48.01"
    assert (only["gpu"], only["uuid"], only["name"]) == ("0", "GPU-00000000", "NVIDIA H200")
    assert (only["utilization_ratio"], only["temperature_celsius"]) == (0.97, 61.0)
    assert only["power_watts"] == 650.5
    assert only["mig_profile"] is None
    assert only["unavailable"] == {}


@pytest.mark.parametrize("reported_used", [0, H200_RESERVED], ids=["excludes", "includes"])
def test_used_memory_is_the_same_whichever_used_the_driver_means(
    read_node: ReadNode, reported_used: int
) -> None:
    """nvml.h says both that used includes and that it excludes the reserve; an idle H200 uses 0."""
    free = H200_TOTAL - H200_RESERVED
    only = read_gpu(
        read_node, total=H200_TOTAL, reserved=H200_RESERVED, free=free, used=reported_used
    )

    assert only["used_bytes"] == 0
    assert only["reserved_bytes"] == H200_RESERVED
    assert only["total_bytes"] == only["reserved_bytes"] + only["used_bytes"] + only["free_bytes"]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (FUNCTION_NOT_FOUND, "function_missing"),
        (VERSION_MISMATCH, "function_missing"),
        (NOT_SUPPORTED, "not_supported"),
    ],
)
def test_version_1_is_read_where_version_2_is_not_to_be_had(
    read_node: ReadNode, code: int, reason: str
) -> None:
    """Without version 2 the reserve is unknown and part of what is used."""
    only = read_gpu(read_node, total=1000, free=900, fail_nvmlDeviceGetMemoryInfo_v2=code)

    assert (only["total_bytes"], only["used_bytes"], only["free_bytes"]) == (1000, 100, 900)
    assert only["reserved_bytes"] is None
    assert only["unavailable"] == {"reserved_bytes": reason}


def test_a_driver_without_the_newer_functions_is_read(
    tmp_path: Path, old_nvml_library: Path
) -> None:
    """A library that has no nvmlDeviceGetMemoryInfo_v2 at all gives version-1 memory."""
    node = FakeNvml(tmp_path, old_nvml_library)
    node.write(gpu(0, total=1000, free=900), devices=1)
    with node.reader() as reader:
        (only,) = reader.read()["gpus"]

    assert (only["reserved_bytes"], only["used_bytes"]) == (None, 100)
    assert only["temperature_celsius"] == 61.0


def test_a_gpu_that_shares_the_machines_memory_has_unknown_memory_but_known_processes(
    read_node: ReadNode,
) -> None:
    """On GB10 both memory calls are Not Supported while per-process bytes work.

    Source: raw readings in nvitop issue 208 and nvtop issue 511 (89.3 GiB vLLM worker).
    """
    worker_bytes = int(89.3 * 2**30)
    only = read_gpu(read_node, total=None, compute=f"4242:{worker_bytes}")

    fields = ("total_bytes", "reserved_bytes", "used_bytes", "free_bytes")
    assert [only[field] for field in fields] == [None] * 4
    assert only["unavailable"] == {"memory": "not_supported"}
    assert only["processes"] == [{"pid": 4242, "used_bytes": worker_bytes}]


def test_memory_that_may_not_be_read_is_unknown_without_trying_version_1(
    read_node: ReadNode,
) -> None:
    """No Permission is the answer, not a reason to ask another way."""
    only = read_gpu(read_node, fail_nvmlDeviceGetMemoryInfo_v2=NO_PERMISSION)

    assert only["total_bytes"] is None
    assert only["unavailable"] == {"memory": "no_permission"}


def test_a_not_available_number_is_unknown(read_node: ReadNode) -> None:
    """All ones in a memory field are NVML's "not available", not 16 EiB."""
    only = read_gpu(read_node, total=1000, reserved=10, free="none")

    assert (only["total_bytes"], only["used_bytes"], only["free_bytes"]) == (1000, None, None)
    assert only["unavailable"] == {"memory": "not_supported"}


def test_numbers_that_contradict_each_other_are_not_passed_on(read_node: ReadNode) -> None:
    """More free and reserved than there is means unknown use, never a negative one."""
    only = read_gpu(read_node, total=1000, reserved=200, free=900, used=0)

    assert (only["used_bytes"], only["free_bytes"]) == (None, None)
    assert only["unavailable"] == {"memory": "driver_error"}


def test_a_process_in_several_lists_is_counted_once(read_node: ReadNode) -> None:
    """Compute, graphics and MPS lists are one list by pid, with the most bytes known of each."""
    only = read_gpu(read_node, compute="20:500 10:none", graphics="20:300 30:7", mps="10:900")

    assert only["processes"] == [
        {"pid": 10, "used_bytes": 900},
        {"pid": 20, "used_bytes": 500},
        {"pid": 30, "used_bytes": 7},
    ]


def test_bytes_the_driver_does_not_tell_are_unknown(read_node: ReadNode) -> None:
    """Under WSL every process is listed without its memory (nvtop issue 432): None, not 0."""
    only = read_gpu(read_node, compute="77:none")

    assert only["processes"] == [{"pid": 77, "used_bytes": None}]


def test_no_process_and_no_list_are_told_apart(read_node: ReadNode) -> None:
    """An idle GPU has an empty list; an unreadable list is None with its reason."""
    idle = read_gpu(read_node)
    hidden = read_gpu(
        read_node, compute="1:1", fail_nvmlDeviceGetComputeRunningProcesses_v3=NO_PERMISSION
    )

    assert idle["processes"] == []
    assert hidden["processes"] is None
    assert hidden["unavailable"] == {"processes": "no_permission"}


def test_a_gpu_without_graphics_and_mps_still_lists_its_compute_processes(
    read_node: ReadNode,
) -> None:
    """Not Supported for the lists beside compute means they are empty."""
    only = read_gpu(
        read_node,
        compute="5:50",
        fail_nvmlDeviceGetGraphicsRunningProcesses_v3=NOT_SUPPORTED,
        fail_nvmlDeviceGetMPSComputeRunningProcesses_v3=FUNCTION_NOT_FOUND,
    )

    assert only["processes"] == [{"pid": 5, "used_bytes": 50}]
    assert only["unavailable"] == {}


def test_a_list_with_a_part_missing_is_not_given_for_whole(read_node: ReadNode) -> None:
    """When the graphics list fails for another reason, processes may be hidden: unknown."""
    only = read_gpu(
        read_node, compute="5:50", fail_nvmlDeviceGetGraphicsRunningProcesses_v3=UNKNOWN
    )

    assert only["processes"] is None
    assert only["unavailable"] == {"processes": "driver_error"}


@pytest.mark.parametrize(
    ("function", "reading"),
    [
        ("nvmlDeviceGetName", "name"),
        ("nvmlDeviceGetUtilizationRates", "utilization_ratio"),
        ("nvmlDeviceGetTemperature", "temperature_celsius"),
        ("nvmlDeviceGetPowerUsage", "power_watts"),
    ],
)
def test_one_failing_call_costs_one_reading(
    read_node: ReadNode, function: str, reading: str
) -> None:
    """The reading is unknown, with its reason, and every other one is there."""
    healthy = read_gpu(read_node)
    only = read_gpu(read_node, **{f"fail_{function}": NO_PERMISSION})

    assert only == healthy | {reading: None, "unavailable": {reading: "no_permission"}}


def test_temperature_survives_the_announced_end_of_its_call(read_node: ReadNode) -> None:
    """nvml.h 13.5 marks nvmlDeviceGetTemperature deprecated; without it its successor is asked."""
    only = read_gpu(read_node, fail_nvmlDeviceGetTemperature=FUNCTION_NOT_FOUND)

    assert only["temperature_celsius"] == 61.0


def test_a_text_that_is_no_text_costs_one_reading(read_node: ReadNode) -> None:
    """A name that is not UTF-8 is a driver error of that reading, not a crash."""
    only = read_gpu(read_node, name="H200 \udcff")

    assert only["name"] is None
    assert only["unavailable"] == {"name": "driver_error"}


def test_an_unknown_driver_version_costs_nothing_else(read_node: ReadNode) -> None:
    """GPUs are read even where the driver does not tell its version."""
    reading = read_node(gpu(0), devices=1, **{"fail.nvmlSystemGetDriverVersion": NOT_SUPPORTED})

    assert reading["driver_version"] is None
    assert len(reading["gpus"]) == 1
