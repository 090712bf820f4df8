"""A real vLLM found, judged and accounted for with nothing configured."""

import ast
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.exporter import Exporter
from tests.parts.fake_nvml import FakeNvml, compile_library, gpu
from tests.real_vllm.server import BLOCKS, MAX_MODEL_LEN, RealVllm, reported
from tests.unit.real_tree import look_until, real_discovery

from kvheadroom.units import GIB

pytestmark = pytest.mark.real_vllm

# Requests of 640 tokens: five blocks of 128 each, 39 of them in the 199 that can be used.
PROMPT_TOKENS = 500
OUTPUT_TOKENS = 140
CARD = {"total": 24 * GIB, "reserved": 300_000_001, "free": 17_000_000_003}
CORE_BYTES = 3_000_000_007
STRANGER_BYTES = 1_500_000_011


@pytest.fixture(scope="module")
def core_pid(vllm: RealVllm) -> int:
    """The process that would hold the GPU's memory."""
    children = Path(f"/proc/{vllm.process.pid}/task/{vllm.process.pid}/children").read_text()
    titles = {int(pid): Path(f"/proc/{pid}/cmdline").read_text() for pid in children.split()}
    return next(pid for pid, title in titles.items() if title.startswith("VLLM::EngineCore"))


@pytest.fixture(scope="module")
def exporter(
    vllm: RealVllm, core_pid: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Exporter]:
    """No engine is configured; the driver lists the engine's process and a stranger."""
    library = compile_library(tmp_path_factory.mktemp("nvml"))
    node = FakeNvml(tmp_path_factory.mktemp("node"), library)
    listed = f"{core_pid}:{CORE_BYTES} 1:{STRANGER_BYTES}"
    node.write(gpu(0, compute=listed, **CARD), devices=1)
    with Exporter("serve", "--poll.interval", "1s", environment=node.environment()) as running:
        running.wait_for("source_up", 1, target=vllm.target, seconds=15)
        running.wait_for("kv_capacity_drift_ratio", 0, engine=f"{vllm.target}/0", seconds=15)
        yield running


def test_every_flag_is_the_one_vllm_logs(vllm: RealVllm) -> None:
    """Read from the process alone, the command is what vLLM's own parser made of it."""
    (logged,) = re.findall(r"non-default args: (\{.*\})", vllm.log_text())
    told = ast.literal_eval(logged)
    discovery = real_discovery()
    found = look_until(
        lambda: discovery.look(()),
        lambda seen: vllm.target in seen.servers and seen.servers[vllm.target].model is not None,
    ).servers[vllm.target]

    command = found.command
    assert command is not None
    assert command.model == told.pop("model") == told.pop("model_tag")
    assert found.address.name == f"{told.pop('host')}:{told.pop('port')}"
    assert list(command.served_names) == told.pop("served_model_name")
    expected = {name.replace("_", "-"): value for name, value in told.items()}
    assert {name: command.options[name] for name in expected} == expected
    assert found.model is not None
    assert found.model.config == vllm.model / "config.json"


def test_the_engine_is_known_without_being_told(vllm: RealVllm, exporter: Exporter) -> None:
    """Model, version, settings and the whole budget; the capacity computed is the one reported."""
    engine = f"{vllm.target}/0"
    (info,) = [labels for labels, _ in exporter.samples("engine_info")]

    assert info["engine"] == engine
    assert info["model"] == "tiny"
    assert info["vllm_version"] == vllm.ask("/version")["version"]
    assert (info["budget"], info["tensor_parallel"], info["kv_layout"]) == ("full", "1", "uniform")
    assert exporter.value("engine_max_num_seqs", engine=engine) == 64
    assert exporter.value("kv_capacity_drift_ratio", engine=engine) == 0
    assert exporter.value("kv_capacity_blocks", engine=engine) == BLOCKS
    assert exporter.value("headroom_context_tokens", engine=engine, context="max") == MAX_MODEL_LEN
    assert exporter.value("engine_stalled", engine=engine) == 0


def test_the_ledger_adds_up_to_the_byte(vllm: RealVllm, exporter: Exporter) -> None:
    """The engine's parts and its rest are its process, and every entry together is the card."""
    engine = f"{vllm.target}/0"
    entries = exporter.samples("gpu_ledger_bytes")
    by_owner: dict[str, float] = {}
    for labels, count in entries:
        by_owner[labels["owner"]] = by_owner.get(labels["owner"], 0) + count

    assert sum(count for _, count in entries) == CARD["total"]
    assert by_owner[engine] == CORE_BYTES
    assert exporter.value("gpu_process_memory_bytes", owner=engine) == CORE_BYTES
    assert exporter.value("gpu_process_memory_bytes", owner="other") == STRANGER_BYTES
    assert exporter.value("engine_gpu_info", engine=engine, gpu="0") == 1
    parts = {labels["component"] for labels, _ in entries if labels["owner"] == engine}
    assert {"weights", "kv_free"} <= parts


def most_at_once(vllm: RealVllm, requests: int) -> tuple[float, float]:
    """The most requests that ran at once of so many, and the preemptions they cost."""
    before = reported(vllm.page(), "num_preemptions_total")
    load = vllm.start_load(requests, PROMPT_TOKENS, OUTPUT_TOKENS)
    most = 0.0
    while load.is_running():
        most = max(most, reported(vllm.page(), "num_requests_running"))
        time.sleep(0.02)
    load.wait(60)
    assert not load.failed
    return most, reported(vllm.page(), "num_preemptions_total") - before


def test_the_stated_headroom_is_what_vllm_admits(vllm: RealVllm, exporter: Exporter) -> None:
    """As many more of the traffic's own length run at once; half as many again have to wait."""
    engine = f"{vllm.target}/0"
    most_at_once(vllm, 6)
    deadline = time.monotonic() + 15
    while exporter.value("headroom_requests", engine=engine, context="observed") is None:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    exporter.wait_for("headroom_blocks", BLOCKS - 1, engine=engine)
    stated = exporter.value("headroom_requests", engine=engine, context="observed")
    assert stated is not None

    at_once, preempted = most_at_once(vllm, int(stated))
    exporter.wait_for("headroom_blocks", BLOCKS - 1, engine=engine)
    at_once_of_more, _ = most_at_once(vllm, int(stated * 1.5))

    assert (at_once, preempted) == (stated, 0)
    assert at_once_of_more < int(stated * 1.5)


def outputs_that_take(seconds: float, vllm: RealVllm) -> int:
    """How many tokens forty requests generate in that time, as far as the model's context goes."""
    started = time.monotonic()
    vllm.start_load(40, 300, 100).wait(60)
    per_second = 100 / (time.monotonic() - started)
    return min(round(seconds * per_second), MAX_MODEL_LEN - 300)


def test_preemption_is_known_before_vllm_counts_it(vllm: RealVllm, exporter: Exporter) -> None:
    """Our series moves at least 15 s before vLLM's counter does."""
    engine = f"{vllm.target}/0"
    counted_before = reported(vllm.page(), "num_preemptions_total")
    exporter.wait_for("engine_requests_preempted", 0, engine=engine)
    inferred_before = exporter.value("engine_preemptions_inferred_total", engine=engine)
    assert inferred_before is not None
    known_at: float | None = None
    most_preempted = 0.0
    load = vllm.start_load(40, 300, outputs_that_take(seconds=45, vllm=vllm))
    deadline = time.monotonic() + 150
    while reported(vllm.page(), "num_preemptions_total") == counted_before:
        assert time.monotonic() < deadline, "the load never overran the pool"
        inferred = exporter.value("engine_preemptions_inferred_total", engine=engine)
        if known_at is None and inferred is not None and inferred > inferred_before:
            known_at = time.monotonic()
        preempted = exporter.value("engine_requests_preempted", engine=engine)
        most_preempted = max(most_preempted, preempted or 0)
        time.sleep(0.2)
    counted_at = time.monotonic()
    load.abandon()

    assert known_at is not None
    assert counted_at - known_at >= 15
    assert most_preempted > 10
