"""Every gauge against what a real vLLM says of itself, idle, preempting and afterwards."""

import time
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.e2e.exporter import Exporter
from tests.real_vllm.server import API_KEY, BLOCKS, MAX_MODEL_LEN, RealVllm

pytestmark = pytest.mark.real_vllm

BLOCK_TOKENS = 128
# Four layers, two KV heads of 32, two bytes, a key and a value: from the model that was made.
BYTES_PER_BLOCK = 2 * 4 * 2 * 32 * 2 * BLOCK_TOKENS


def reported(page: str, name: str) -> float:
    return sum(
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == f"vllm:{name}"
    )


@pytest.fixture(scope="module")
def exporter(vllm: RealVllm) -> Iterator[Exporter]:
    with Exporter(
        "serve", "--no-nvml", "--poll.interval", "1s", "--engine", vllm.url, "--context", "1K",
        environment={"KVHEADROOM_API_KEY": API_KEY},
    ) as running:  # fmt: skip
        running.wait_for("source_up", 1, target=vllm.target)
        yield running


def test_an_idle_server(vllm: RealVllm, exporter: Exporter) -> None:
    """Blocks, tokens and bytes are what vLLM logged; all but the null block are free."""
    engine = f"{vllm.target}/0"
    exporter.wait_for("headroom_requests", (BLOCKS - 1) // 8, engine=engine, context="1024")

    tokens = exporter.value("kv_capacity_tokens", engine=engine, source="engine")
    assert tokens == vllm.logged_tokens() == BLOCKS * BLOCK_TOKENS
    assert exporter.value("kv_capacity_blocks", engine=engine) == BLOCKS
    assert exporter.value("headroom_blocks", engine=engine) == BLOCKS - 1
    # The model's folder is found through /v1/models, on this very machine.
    assert exporter.value("kv_capacity_bytes", engine=engine) == BLOCKS * BYTES_PER_BLOCK
    assert exporter.value("headroom_context_tokens", engine=engine, context="max") == MAX_MODEL_LEN
    assert exporter.value("endpoint_up", target=vllm.target, endpoint="/v1/models") == 1


def test_a_preempting_server(vllm: RealVllm, exporter: Exporter) -> None:
    """At each step ours equal the page fetched around them; preemption is reported late."""
    engine = f"{vllm.target}/0"
    load = vllm.start_load(requests=40, prompt_tokens=300, output_tokens=1500)
    deadline = time.monotonic() + 150
    compared = 0
    while time.monotonic() < deadline:
        before = vllm.page()
        time.sleep(2.2)  # two polls of ours
        running = exporter.value("engine_requests_running", engine=engine)
        used = exporter.value("kv_used_ratio", engine=engine)
        after = vllm.page()
        low, high = sorted(reported(page, "num_requests_running") for page in (before, after))
        assert running is not None
        assert used is not None
        # The server moves on between the two pages; ours was read between them.
        if low == high and low > 0:
            assert running == low
            compared += 1
        if reported(after, "num_preemptions_total") > 0:
            break
    load.wait(240)

    assert not load.failed
    assert compared > 0, "no two pages agreed, so nothing was compared"
    assert reported(vllm.page(), "num_preemptions_total") > 0, "the load never overran the pool"


def test_a_server_after_load(vllm: RealVllm, exporter: Exporter) -> None:
    """Counters and the traffic's own length are vLLM's; the cache is free again."""
    engine = f"{vllm.target}/0"
    page = vllm.page()

    exporter.wait_for("headroom_blocks", BLOCKS - 1, engine=engine)
    preemptions = reported(page, "num_preemptions_total")
    assert exporter.value("engine_preemptions_total", engine=engine) == preemptions
    assert exporter.value("engine_requests_running", engine=engine) == 0
    assert exporter.value("engine_requests_waiting", engine=engine, reason="capacity") == 0
    assert exporter.value("headroom_context_tokens", engine=engine, context="observed") == 1800
    assert exporter.value("headroom_requests", engine=engine, context="observed") == 199 // 15
    assert exporter.value("engine_restarts_total", engine=engine) == 0
