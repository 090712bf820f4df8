"""Every gauge against what a real vLLM says of itself, idle, preempting and afterwards."""

import time
from collections.abc import Iterator

import pytest
from tests.e2e.exporter import Exporter
from tests.real_vllm.server import API_KEY, BLOCKS, MAX_MODEL_LEN, RealVllm, reported

pytestmark = pytest.mark.real_vllm

BLOCK_TOKENS = 128
# Four layers, two KV heads of 32, two bytes, a key and a value: from the model that was made.
BYTES_PER_BLOCK = 2 * 4 * 2 * 32 * 2 * BLOCK_TOKENS


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
    # The model's folder is found through /v1/models, on this very machine.
    exporter.wait_for("kv_capacity_bytes", BLOCKS * BYTES_PER_BLOCK, engine=engine)

    assert exporter.value("headroom_requests", engine=engine, context="1024") == 199 // 8
    tokens = exporter.value("kv_capacity_tokens", engine=engine, source="engine")
    (logged,) = vllm.logged(r"KV cache size: ([\d,]+) tokens")
    assert tokens == int(logged) == BLOCKS * BLOCK_TOKENS
    assert exporter.value("kv_capacity_blocks", engine=engine) == BLOCKS
    assert exporter.value("headroom_blocks", engine=engine) == BLOCKS - 1
    assert exporter.value("headroom_context_tokens", engine=engine, context="max") == MAX_MODEL_LEN
    assert exporter.value("endpoint_up", target=vllm.target, endpoint="/v1/models") == 1


def test_a_preempting_server(vllm: RealVllm, exporter: Exporter) -> None:
    """What we say at any moment is what vLLM's own page said within the last two polls."""
    engine = f"{vllm.target}/0"
    counted_before = reported(vllm.page(), "num_preemptions_total")
    load = vllm.start_load(requests=40, prompt_tokens=300, output_tokens=1500)
    deadline = time.monotonic() + 150
    running_seen: set[float] = set()
    while time.monotonic() < deadline:
        pages = pages_during(vllm, seconds=2.2)  # two polls of ours
        running = exporter.value("engine_requests_running", engine=engine)
        used = exporter.value("kv_used_ratio", engine=engine)
        pages += pages_during(vllm, seconds=0.1)

        assert running in {reported(page, "num_requests_running") for page in pages}
        usage = [reported(page, "kv_cache_usage_perc") for page in pages]
        assert used is not None
        assert min(usage) <= used <= max(usage)
        running_seen.add(running)
        if reported(pages[-1], "num_preemptions_total") > counted_before:
            break
    load.wait(240)

    assert not load.failed
    assert len(running_seen) > 3, "the load never rose and fell"
    counted = reported(vllm.page(), "num_preemptions_total")
    assert counted > counted_before, "the load never overran the pool"


def pages_during(vllm: RealVllm, seconds: float) -> list[str]:
    """Every page of vLLM's own, fetched as fast as one core allows."""
    until = time.monotonic() + seconds
    pages = [vllm.page()]
    while time.monotonic() < until:
        time.sleep(0.02)
        pages.append(vllm.page())
    return pages


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
