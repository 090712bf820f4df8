"""CUDA's rules for hidden devices, from NVIDIA's programming guide and container toolkit."""

from collections.abc import Mapping

import pytest

from kvheadroom.live.process_tree import Rank
from kvheadroom.live.visible_devices import Sizes, completed, rank_at, settled, visible_devices
from kvheadroom.readings import GpuReading

A, B, C = "GPU-aaaa1111-0000", "GPU-aabb2222-0000", "GPU-cccc3333-0000"
ALIKE = tuple(GpuReading(str(at), uuid, name="H100") for at, uuid in enumerate((A, B, C)))
MIXED = (GpuReading("0", A, name="H100"), GpuReading("1", B, name="T4"))
CUT = (
    GpuReading("0", A, name="H100"),
    GpuReading("0:0", "MIG-11", mig_profile="1g.10gb"),
    GpuReading("0:1", "MIG-22", mig_profile="1g.10gb"),
    GpuReading("1", B, name="H100"),
)


def cuda(value: str) -> Mapping[str, str]:
    return {"CUDA_VISIBLE_DEVICES": value}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0", (A,)),
        ("2,0", (C, A)),
        (" 1 , 2 ", (B, C)),
        (B, (B,)),
        ("GPU-aabb", (B,)),
        ("GPU-cccc,GPU-aaaa", (C, A)),
        ("GPU-aa", ()),  # two begin so
        ("0,-1,1", (A,)),  # the first invalid one ends the list
        ("0,7,1", (A,)),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("0,0", ()),  # a device twice is refused
        ("MIG-GPU-aaaa1111/1/0", None),
    ],
)
def test_devices_are_chosen_as_cuda_chooses(value: str, expected: tuple[str, ...] | None) -> None:
    """By number, by uuid or by the start of one, as far as the list is valid."""
    assert visible_devices(cuda(value), ALIKE) == expected


def test_without_the_variable_every_device_is_visible() -> None:
    """An unset variable hides nothing."""
    assert visible_devices({}, ALIKE) == (A, B, C)


def test_numbers_of_different_cards_need_an_order() -> None:
    """CUDA counts by speed unless told otherwise, and speeds are not known here."""
    assert visible_devices(cuda("0"), MIXED) is None
    assert visible_devices(cuda(B), MIXED) == (B,)
    assert visible_devices({**cuda("1"), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, MIXED) == (B,)


def test_a_mig_device_is_chosen_by_its_uuid() -> None:
    """A slice is named whole; a number means the first slice of a card that is cut."""
    assert visible_devices(cuda("MIG-22"), CUT) == ("MIG-22",)
    assert visible_devices({**cuda("0"), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, CUT) == ("MIG-11",)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("all", (A, B, C)),
        (f"{C},{A}", (A, C)),
        ("2", (C,)),
        ("none", ()),
        ("void", (A, B, C)),
        ("GPU-unknown", None),
    ],
)
def test_a_container_counts_its_own_devices(given: str, expected: tuple[str, ...] | None) -> None:
    """Inside a container devices are counted anew, in the order of the bus."""
    environment = {"NVIDIA_VISIBLE_DEVICES": given}

    assert visible_devices(environment, ALIKE, is_contained=True) == expected
    assert visible_devices(environment, ALIKE) == (A, B, C)


def test_cuda_numbers_count_within_the_container() -> None:
    """Number 1 of a container that has the second and third card is the third."""
    environment = {"NVIDIA_VISIBLE_DEVICES": "1,2", **cuda("1")}

    assert visible_devices(environment, ALIKE, is_contained=True) == (C,)


def test_device_ids_choose_among_the_visible() -> None:
    """--device-ids of vLLM 0.32 counts within what CUDA_VISIBLE_DEVICES left."""
    assert visible_devices(cuda("2,1"), ALIKE, device_ids="1") == (B,)
    assert visible_devices(cuda("2"), ALIKE, device_ids="1") is None


def test_nothing_is_told_without_gpus() -> None:
    """Where NVML gives no GPU there is nothing to choose from."""
    assert visible_devices(cuda("0"), ()) is None


def test_nothing_is_told_of_an_environment_out_of_sight() -> None:
    """Another user's variables may hide GPUs, and we would not see it."""
    assert visible_devices(None, ALIKE) is None


@pytest.mark.parametrize(
    ("position", "expected"),
    [(0, (0, 0, 0)), (1, (0, 0, 1)), (2, (0, 1, 0)), (5, (1, 0, 1)), (7, (1, 1, 1))],
)
def test_ranks_follow_the_devices(position: int, expected: tuple[int, int, int]) -> None:
    """vLLM numbers tensor ranks first, then stages, then engines."""
    rank = rank_at(position, Sizes(data=2, pipeline=2, tensor=2))

    assert (rank.data, rank.pipeline, rank.tensor) == expected


def test_a_dimension_of_one_is_rank_zero() -> None:
    """What has one rank is not in a title; what has more stays unknown without one."""
    rank = settled(Rank(), Sizes(tensor=2, first_data=3))

    assert (rank.data, rank.pipeline, rank.tensor) == (3, 0, None)
    assert completed(rank, Rank(0, 0, 1)).tensor == 1
