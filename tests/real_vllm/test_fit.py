import json
import time
from collections.abc import Mapping
from typing import Any

import pytest
from tests.e2e.exporter import Exporter
from tests.real_vllm.server import BLOCKS, RealVllm, reported

pytestmark = pytest.mark.real_vllm

# A request of 300 + 500 tokens takes 7 of the 199 blocks of 128 tokens that can be held.
PROMPT_TOKENS, OUTPUT_TOKENS = 300, 500
FITTING = (BLOCKS - 1) // 7


def test_what_is_said_to_fit_runs_at_once_to_its_end(vllm: RealVllm) -> None:
    """28 requests are admitted, none waits and none is preempted; of 42 some are."""
    exporter = Exporter("serve", "--no-nvml", "--engine", vllm.url, "--poll.interval", "500ms")
    try:
        answer = _answer(exporter, tokens=PROMPT_TOKENS + OUTPUT_TOKENS, requests=FITTING)
    finally:
        exporter.stop()

    assert (answer["possible"], answer["fits"]) == (FITTING, True)
    assert _held_up(vllm, FITTING) == 0
    assert _held_up(vllm, FITTING * 3 // 2) > 0


def _answer(exporter: Exporter, *, tokens: int, requests: int) -> Mapping[str, Any]:
    """What the exporter says of the only engine, once it knows its model."""
    deadline = time.monotonic() + 20
    while True:
        status, body = exporter.get(f"/api/v1/fit?context_tokens={tokens}&requests={requests}")
        assert status == 200
        engines = json.loads(body).get("engines")
        if engines and "fits" in engines[0]:
            found: Mapping[str, Any] = engines[0]
            return found
        assert time.monotonic() < deadline, body
        time.sleep(0.2)


def _held_up(vllm: RealVllm, requests: int) -> float:
    """The most that waited, or were preempted, while so many requests ran."""
    before = reported(vllm.page(), "num_preemptions_total")
    load = vllm.start_load(requests, PROMPT_TOKENS, OUTPUT_TOKENS)
    # The first pages show requests on their way in.
    time.sleep(1.0)
    waited = 0.0
    while load.is_running():
        page = vllm.page()
        waited = max(waited, reported(page, "num_requests_waiting"))
        time.sleep(0.1)
    load.wait(10)
    assert not load.failed
    return waited + reported(vllm.page(), "num_preemptions_total") - before
