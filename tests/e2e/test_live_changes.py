"""What changes on a node is said within a poll or two, or within the time that is promised."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.e2e.exporter import Exporter
from tests.e2e.made_node import MadeNode, held, polls_until
from tests.e2e.page_server import PageServer, answer, hang
from tests.parts.fake_nvml import gpu
from tests.unit.evidence import page

from kvheadroom.units import GIB

pytestmark = pytest.mark.parts

TOLD = ("--max-model-len", "2048", "--max-num-seqs", "64", "--num-gpu-blocks-override", "40")
CARD = {"total": 24 * GIB, "reserved": 400_000_001, "free": 9_000_000_003}
FULL = 0.9743589743589743
STILL_SECONDS = 30
STARTED = b"seconds 1.79603274515e+09"


class Frozen(NamedTuple):
    exporter: Exporter
    door: PageServer
    began: float


@pytest.fixture(scope="module", autouse=True)
def frozen(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Iterator[Frozen]:
    """A server that shows one page for ever and whose ``/health`` hangs, watched meanwhile.

    The engine of the recorded 0.11.0 server died under load while its front end went on.
    """
    node, release = MadeNode(tmp_path_factory.mktemp("frozen"), library), threading.Event()
    door = node.server(100, "0.11.0", "--max-model-len", "2048")
    door.routes["/health"] = hang(release)
    began = time.monotonic()
    with node.watch(interval="1s") as exporter:
        yield Frozen(exporter, door, began)
        release.set()
    node.close()


def test_a_server_that_moves_keeps_its_id(made_node: MadeNode) -> None:
    """Restarted on another port, it is the same engine within two looks, asked at the new one."""
    door = made_node.server(100, "0.28.0", *TOLD)
    engine = f"{door.target}/0"

    with made_node.watch() as exporter:
        exporter.wait_for("kv_used_ratio", FULL, engine=engine)
        made_node.stop(100, door)
        moved = made_node.server(150, "0.28.0", *TOLD)
        later = page("real-servers/0.28.0/after").replace(b"seconds 1.79603174515e+09", STARTED)
        moved.page(later)
        polls = polls_until(
            exporter, "proc", lambda: exporter.value("kv_used_ratio", engine=engine) == 0
        )

        assert moved.target != door.target
        assert polls <= 2
        assert exporter.value("engine_info", engine=engine, target=moved.target) == 1
        assert exporter.value("engine_restarts_total", engine=engine) == 1
        assert len(exporter.samples("engine_info")) == 1


def test_a_server_that_stops_is_down(made_node: MadeNode) -> None:
    """Within two looks its series are gone, and that it is down is said, not left out."""
    door = made_node.server(100, "0.28.0", *TOLD)
    engine = f"{door.target}/0"

    with made_node.watch() as exporter:
        exporter.wait_for("kv_used_ratio", FULL, engine=engine)
        made_node.stop(100, door)
        polls = polls_until(
            exporter, "proc", lambda: exporter.value("source_up", target=door.target) == 0
        )

        assert polls <= 2
        assert exporter.value("kv_used_ratio") is None


def test_what_a_dead_server_left_on_the_gpu_stays_its_own(made_node: MadeNode) -> None:
    """Its core, adopted by init, holds its memory on; nobody else is blamed."""
    door = made_node.server(100, "0.28.0", *TOLD)
    engine = f"{door.target}/0"
    made_node.driver.write(gpu(0, compute=held((101, 8 * GIB)), **CARD), devices=1)

    with made_node.watch() as exporter:
        exporter.wait_for("gpu_process_memory_bytes", 8 * GIB, owner=engine)
        exporter.wait_for("kv_used_ratio", FULL, engine=engine)
        made_node.tree.end(100)
        door.close()
        exporter.wait_for("source_up", 0, target=door.target)
        time.sleep(0.5)

        assert exporter.value("gpu_process_memory_bytes", owner=engine) == 8 * GIB
        assert exporter.value("gpu_process_memory_bytes", owner="other") is None


def test_an_intruder_is_seen_at_the_next_poll(made_node: MadeNode) -> None:
    """What a program that is no engine takes shows with the driver's own list."""
    door = made_node.server(100, "0.28.0", *TOLD)
    own = (101, 8 * GIB)
    made_node.driver.write(gpu(0, compute=held(own), **CARD), devices=1)

    with made_node.watch() as exporter:
        exporter.wait_for("gpu_intruder_memory_bytes", 0, gpu="0")
        exporter.wait_for("kv_used_ratio", FULL, engine=f"{door.target}/0")
        made_node.tree.add(700, "/usr/bin/blender")
        made_node.driver.write(gpu(0, compute=held(own, (700, 3 * GIB)), **CARD), devices=1)
        polls = polls_until(
            exporter,
            "nvml",
            lambda: exporter.value("gpu_intruder_memory_bytes", gpu="0") == 3 * GIB,
        )

        assert polls <= 1


def test_an_engine_that_restarts_beside_another_is_no_intruder(made_node: MadeNode) -> None:
    """Its new process is on the GPU before anyone has looked whose it is."""
    first = made_node.server(100, "0.28.0", *TOLD)
    second = made_node.server(200, "0.28.0", *TOLD, "--seed", "7")
    cores = held((101, 8 * GIB), (201, 4 * GIB))
    made_node.driver.write(gpu(0, compute=cores, **CARD), devices=1)

    with made_node.watch() as exporter:
        exporter.wait_for("gpu_process_memory_bytes", 4 * GIB, owner=f"{second.target}/0")
        exporter.wait_for("kv_used_ratio", FULL, engine=f"{first.target}/0")
        made_node.stop(200, second)
        made_node.server(250, "0.28.0", *TOLD, "--seed", "7")
        cores = held((101, 8 * GIB), (251, 5 * GIB))
        # The driver answers after the processes were looked at.
        slow = {"0.delay_ms.nvmlDeviceGetMemoryInfo_v2": 100}
        made_node.driver.write(gpu(0, compute=cores, **CARD), slow, devices=1)
        taken: set[float | None] = set()

        def is_back() -> bool:
            taken.add(exporter.value("gpu_intruder_memory_bytes", gpu="0"))
            owned = exporter.value("gpu_process_memory_bytes", owner=f"{second.target}/0")
            return owned == 5 * GIB

        polls_until(exporter, "proc", is_back)

        assert taken == {0}


def test_an_upgrade_that_moves_the_capacity_is_said_at_once(made_node: MadeNode) -> None:
    """With both versions, at the first page after the restart."""
    door = made_node.server(100, "0.18.1", *TOLD, model="0.28.0")
    engine = f"{door.target}/0"

    with made_node.watch() as exporter:
        exporter.wait_for("kv_capacity_blocks", 40, engine=engine)
        made_node.stop(100, door)
        newer = made_node.server(150, "0.28.0", *TOLD)
        # 33 of 40 blocks: the -18 % of a real upgrade.
        text = page("real-servers/0.28.0/busy").replace(b'gpu_blocks="40"', b'gpu_blocks="33"')
        newer.page(text.replace(b'size_tokens="5120"', b'size_tokens="4224"'))
        exporter.wait_for("kv_capacity_blocks", 33, engine=engine)

        ((labels, ratio),) = exporter.samples("kv_capacity_boot_change_ratio")
        assert ratio == pytest.approx(33 / 40 - 1)
        assert (labels["engine"], labels["previous_version"]) == (engine, "0.18.1")
        assert labels["version"] == "0.28.0"


def test_a_dead_engine_behind_a_living_front_end_is_said_at_once(made_node: MadeNode) -> None:
    """Its page is as it was, /health says 503: stalled within a poll of the server."""
    door = made_node.server(100, "0.11.0", "--max-model-len", "2048")
    engine = f"{door.target}/0"

    with made_node.watch() as exporter:
        exporter.wait_for("engine_stalled", 0, engine=engine)
        door.routes["/health"] = answer(b"", status=503)
        polls = polls_until(
            exporter, "vllm", lambda: exporter.value("engine_stalled", engine=engine) == 1
        )

        # One may have been under way.
        assert polls <= 2
        assert exporter.value("source_up", target=door.target) == 1


def test_a_frozen_engine_is_said_in_time(frozen: Frozen) -> None:
    """Running requests and a page that stands still: stalled after 30 s, and not much before."""
    engine = f"{frozen.door.target}/0"
    early = frozen.began + STILL_SECONDS - 5
    if time.monotonic() < early:
        time.sleep(early - time.monotonic())
        assert frozen.exporter.value("engine_stalled", engine=engine) == 0
    left = frozen.began + STILL_SECONDS + 4 - time.monotonic()
    frozen.exporter.wait_for("engine_stalled", 1, engine=engine, seconds=left)

    assert frozen.exporter.value("source_up", target=frozen.door.target) == 1
    assert frozen.exporter.value("engine_requests_running", engine=engine) == 15
