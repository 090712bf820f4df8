"""One node with every kind of tenant: who is found, and whose each byte is said to be."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.e2e.exporter import Exporter
from tests.e2e.made_node import MadeNode, held, ledger_sum
from tests.e2e.page_server import PageServer
from tests.parts.fake_nvml import gpu, mig

from kvheadroom.units import GIB

pytestmark = pytest.mark.parts

#: What the servers were told when they were recorded.
TOLD = ("--max-model-len", "2048", "--max-num-seqs", "64", "--enforce-eager")
BLOCKS = ("--num-gpu-blocks-override", "40")
CARD = {"total": 24 * GIB, "reserved": 400_000_001, "free": 5_000_000_003}
STRANGER = 700


class Node(NamedTuple):
    exporter: Exporter
    first: PageServer
    second: PageServer
    tensor: PageServer
    data: PageServer
    sliced: PageServer
    unified: PageServer
    alone: PageServer


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Iterator[Node]:
    """Eight GPUs: two engines and a stranger, TP2, DP2, MIG, no memory readings, and one alone."""
    made = MadeNode(tmp_path_factory.mktemp("node"), library)
    first = made.server(100, "0.28.0", *TOLD, *BLOCKS, "--gpu-memory-utilization", "0.6")
    second = made.server(200, "0.32.0-gemma3", *TOLD, "--gpu-memory-utilization=0.5")
    made.tree.add(STRANGER, "/usr/bin/blender")
    tensor = made.server(
        300, "0.28.0", *TOLD, *BLOCKS, "-tp", "2", environment={"CUDA_VISIBLE_DEVICES": "1,2"}
    )
    for rank in (0, 1):
        made.tree.title(302 + rank, f"VLLM::Worker_TP{rank}", parent=301)
    data = made.server(
        400, "0.28.0", *TOLD, *BLOCKS, "--data-parallel-size", "2",
        titles={401: "VLLM::EngineCore_DP0", 402: "VLLM::EngineCore_DP1"}, pages="dp2.",
    )  # fmt: skip
    sliced = made.server(500, "0.28.0", *TOLD, *BLOCKS)
    unified = made.server(600, "0.28.0", *TOLD, *BLOCKS)
    alone = made.server(800, "0.28.0", *TOLD, *BLOCKS)
    made.tree.add(900, state="Z")
    made.driver.write(
        gpu(0, compute=held((101, 9 * GIB + 1), (201, 7 * GIB + 2), (STRANGER, GIB + 3)), **CARD),
        gpu(1, compute=held((302, 11 * GIB)), **CARD),
        gpu(2, compute=held((303, 11 * GIB + 5)), **CARD),
        gpu(3, compute=held((401, 10 * GIB)), **CARD),
        gpu(4, compute=held((402, 10 * GIB), (900, 123_456_789), (9_999, 77)), **CARD),
        gpu(5, mig=1, mig_slots=7),
        mig(5, 1, compute=held((501, 900_000_000)), free=17_000_000_000),
        gpu(6, name="NVIDIA GB10", total=None, reserved=None, free=None, compute="601:none"),
        gpu(7, compute=held((801, 8 * GIB)), **CARD),
        devices=8,
    )
    with made.watch() as exporter:
        for server in (first, second, tensor, sliced, unified, alone):
            engine = f"{server.target}/0"
            exporter.wait_for("kv_capacity_drift_ratio", 0, engine=engine, seconds=15)
        for rank in (0, 1):
            exporter.wait_for("kv_capacity_drift_ratio", 0, engine=f"{data.target}/{rank}")
        exporter.wait_for("gpu_process_memory_bytes", 8 * GIB, owner=f"{alone.target}/0")
        yield Node(exporter, first, second, tensor, data, sliced, unified, alone)
    made.close()


@pytest.mark.parametrize("index", ["0", "1", "2", "3", "4", "7"])
def test_the_ledger_of_every_card_adds_up(node: Node, index: str) -> None:
    """Reserve, parts, strangers, the unexplained rest and what is free are the card's total."""
    assert ledger_sum(node.exporter, index) == CARD["total"]


def test_two_engines_and_a_stranger(node: Node) -> None:
    """Each is charged its own process; neither could start again beside the others."""
    exporter = node.exporter
    first, second = f"{node.first.target}/0", f"{node.second.target}/0"

    owned = {
        labels["owner"]: count
        for labels, count in exporter.samples("gpu_process_memory_bytes")
        if labels["gpu"] == "0"
    }
    assert owned == {first: 9 * GIB + 1, second: 7 * GIB + 2, "other": GIB + 3}
    claimed = exporter.value("gpu_utilization_claimed_ratio", gpu="0")
    assert claimed == pytest.approx(1.1)
    # 0.6 and 0.5 of 24 GiB have to be free; 4.7 GiB are, and what the engine itself gives back.
    for server in (node.first, node.second):
        assert exporter.value("server_restart_blocked", gpu="0", server=server.target) == 1
    sizes = {
        labels["component"]: count
        for labels, count in exporter.samples("budget_bytes")
        if labels["engine"] == first
    }
    # Four layers, two KV heads of 32 in bfloat16, 40 blocks of 128 tokens.
    assert sizes["kv"] == 2 * 4 * 2 * 32 * 2 * 128 * 40


def test_tensor_parallel_ranks_are_each_on_their_card(node: Node) -> None:
    """One engine, a rank on each of two cards with half of the heads."""
    engine = f"{node.tensor.target}/0"
    places = {
        labels["gpu"]
        for labels, _ in node.exporter.samples("engine_gpu_info")
        if labels["engine"] == engine
    }

    assert places == {"1", "2"}
    for index, count in (("1", 11 * GIB), ("2", 11 * GIB + 5)):
        owned = node.exporter.value("gpu_process_memory_bytes", gpu=index, owner=engine)
        assert owned == count
        half = node.exporter.value("budget_bytes", gpu=index, engine=engine, component="kv")
        assert half == 2 * 4 * 1 * 32 * 2 * 128 * 40
    assert node.exporter.value("engine_info", engine=engine, tensor_parallel="2") == 1


def test_data_parallel_engines_are_two(node: Node) -> None:
    """Each rank is an engine with a pool of its own, on the card that its process is on."""
    for rank, index in (("0", "3"), ("1", "4")):
        engine = f"{node.data.target}/{rank}"

        assert node.exporter.value("kv_capacity_blocks", engine=engine) == 40
        assert node.exporter.value("engine_gpu_info", engine=engine, gpu=index) == 1
        owned = node.exporter.value("gpu_process_memory_bytes", gpu=index, owner=engine)
        assert owned == 10 * GIB


def test_zombies_and_pids_that_are_not_there_are_nobodys(node: Node) -> None:
    """What the driver still lists of them is counted, and no engine is charged with it."""
    owned = node.exporter.value("gpu_process_memory_bytes", gpu="4", owner="other")

    assert owned == 123_456_789 + 77


def test_an_engine_on_a_slice_is_on_that_slice(node: Node) -> None:
    """The MIG device has the ledger; the card it is cut from repeats none of it."""
    engine = f"{node.sliced.target}/0"

    assert node.exporter.value("engine_gpu_info", engine=engine, gpu="5:1") == 1
    assert ledger_sum(node.exporter, "5:1") == 18_000_000_000
    assert node.exporter.value("gpu_memory_total_bytes", gpu="5") is None
    assert ledger_sum(node.exporter, "5") == 0


def test_memory_shared_with_the_cpu_is_unknown_and_headroom_is_not(node: Node) -> None:
    """GB10 tells no memory of its own: no ledger, and no figure in its place."""
    engine = f"{node.unified.target}/0"

    assert node.exporter.value("engine_gpu_info", engine=engine, gpu="6") == 1
    for name in ("gpu_memory_total_bytes", "gpu_ledger_bytes", "gpu_utilization_claimed_ratio"):
        assert [labels for labels, _ in node.exporter.samples(name) if labels["gpu"] == "6"] == []
    assert node.exporter.value("headroom_blocks", engine=engine) is not None
    assert node.exporter.value("gpu_reading_unavailable", gpu="6", reading="memory") == 1
