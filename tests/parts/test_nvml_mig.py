from collections.abc import Callable
from typing import Any

import pytest
from tests.parts.fake_nvml import gpu, mig

pytestmark = pytest.mark.parts

ReadNode = Callable[..., dict[str, Any]]

NO_PERMISSION, UNKNOWN = 4, 999
PARENT = gpu(0, mig=1, mig_slots=7)


def by_label(reading: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {device["gpu"]: device for device in reading["gpus"]}


def test_mig_devices_follow_their_gpu_and_keep_their_index(read_node: ReadNode) -> None:
    """A removed MIG device leaves a gap (Not Found); those after it keep their label."""
    reading = read_node(PARENT, mig(0, 0), mig(0, 2), gpu(1), devices=2)

    assert [device["gpu"] for device in reading["gpus"]] == ["0", "0:0", "0:2", "1"]
    assert by_label(reading)["0:2"]["uuid"] == "MIG-0000-0002"
    assert reading["failures"] == []


def test_a_mig_device_has_memory_and_processes_of_its_own(read_node: ReadNode) -> None:
    """Memory belongs to the instance; sensors belong to the board and are not asked for."""
    device = by_label(
        read_node(PARENT, mig(0, 1, total=1000, reserved=50, free=600, compute="9:350"), devices=1)
    )["0:1"]

    assert (device["total_bytes"], device["used_bytes"], device["free_bytes"]) == (1000, 350, 600)
    assert device["processes"] == [{"pid": 9, "used_bytes": 350}]
    assert device["power_watts"] is None
    assert device["unavailable"] == {
        "utilization_ratio": "not_supported",
        "temperature_celsius": "not_supported",
        "power_watts": "not_supported",
    }


@pytest.mark.parametrize(
    ("name", "attributes", "profile"),
    [
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", {}, "1g.10gb+me"),
        ("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb", {}, "1c.3g.20gb"),
        ("NVIDIA A100-SXM4-40GB", {"gpu_slices": 1, "memory_mib": 4864}, "1g.5gb"),
        (
            "NVIDIA A100-SXM4-40GB",
            {"gpu_slices": 3, "compute_slices": 1, "memory_mib": 19968},
            "1c.3g.20gb",
        ),
    ],
)
def test_the_profile_is_in_the_name_or_follows_from_the_attributes(
    read_node: ReadNode, name: str, attributes: dict[str, object], profile: str
) -> None:
    """Profile names and sizes as NVIDIA's MIG user guide lists them for A100 and H100."""
    reading = read_node(PARENT, mig(0, 0, name=name, **attributes), devices=1)

    assert by_label(reading)["0:0"]["mig_profile"] == profile


def test_an_unknown_profile_is_unknown(read_node: ReadNode) -> None:
    """Without a profile in the name or attributes there is none, and the reason is told."""
    device = by_label(read_node(PARENT, mig(0, 0, name="NVIDIA A30"), devices=1))["0:0"]

    assert device["mig_profile"] is None
    assert device["unavailable"]["mig_profile"] == "not_supported"


def test_a_gpu_whose_total_needs_privilege_still_shows_its_mig_devices(
    read_node: ReadNode,
) -> None:
    """nvml.h: under MIG the GPU's own memory and processes are for the privileged only."""
    parent = gpu(
        0,
        mig=1,
        mig_slots=7,
        fail_nvmlDeviceGetMemoryInfo_v2=NO_PERMISSION,
        fail_nvmlDeviceGetComputeRunningProcesses_v3=NO_PERMISSION,
    )
    devices = by_label(read_node(parent, mig(0, 0), devices=1))

    assert (devices["0"]["total_bytes"], devices["0"]["processes"]) == (None, None)
    assert devices["0"]["unavailable"] == {"memory": "no_permission", "processes": "no_permission"}
    assert devices["0:0"]["total_bytes"] == 18_000_000_000


def test_a_gpu_with_mig_switched_off_has_no_mig_devices(read_node: ReadNode) -> None:
    """What is left of an earlier partition is not read."""
    reading = read_node(gpu(0, mig=0, mig_slots=7), mig(0, 0), devices=1)

    assert list(by_label(reading)) == ["0"]


def test_a_mig_device_that_cannot_be_read_costs_no_other(read_node: ReadNode) -> None:
    """It is told as a failure under its own label."""
    reading = read_node(PARENT, mig(0, 0), mig(0, 1, fail_nvmlDeviceGetUUID=UNKNOWN), devices=1)

    assert list(by_label(reading)) == ["0", "0:0"]
    (failure,) = reading["failures"]
    assert (failure["target"], failure["reason"]) == ("0:1", "driver_error")


def test_unreadable_mig_devices_cost_the_gpu_nothing(read_node: ReadNode) -> None:
    """When MIG devices cannot be listed the GPU itself is read and says so."""
    parent = gpu(0, mig=1, mig_slots=7, fail_nvmlDeviceGetMaxMigDeviceCount=UNKNOWN)
    devices = by_label(read_node(parent, mig(0, 0), devices=1))

    assert list(devices) == ["0"]
    assert devices["0"]["used_bytes"] is not None
    assert devices["0"]["unavailable"] == {"mig_devices": "driver_error"}
