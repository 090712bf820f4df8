"""The simulated engine against what a real vLLM 0.32.0 went through."""

import gzip
import json
import re
from collections.abc import Iterator
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvheadroom.demo.engine import Engine, StepCost
from kvheadroom.demo.scheduler import Limits
from kvheadroom.demo.traffic import Arrival

EVIDENCE = Path(__file__).parent.parent / "evidence"

# The trace's own pace: a full prefill step of 2048 tokens takes about a second, a decode step of
# 40 requests 36 ms and one of 12 requests 17 ms.
PACE = StepCost(0.008, prefill_token_seconds=0.00045, decode_request_seconds=0.00075)


class State(NamedTuple):
    """What a page says at one moment; counters since the start of the load."""

    running: int
    waiting: int
    used_ratio: float
    preemptions: int
    finished: int


class Seen(NamedTuple):
    """A state and when it was seen."""

    at_seconds: float
    state: State


def state_of_page(page: str) -> State:
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            reason = sample.labels.get("finished_reason")
            if reason in (None, "length"):
                values[sample.name] = sample.value
    return State(
        running=int(values["vllm:num_requests_running"]),
        waiting=int(values["vllm:num_requests_waiting"]),
        used_ratio=round(values["vllm:kv_cache_usage_perc"], 4),
        preemptions=int(values["vllm:num_preemptions_total"]),
        finished=int(values["vllm:request_success_total"]),
    )


@pytest.fixture(scope="module")
def real() -> list[Seen]:
    """One state a second, from the load's start on; an earlier run's counts taken off."""
    lines = gzip.decompress((EVIDENCE / "preemption-trace.jsonl.gz").read_bytes()).splitlines()
    pages = [json.loads(line) for line in lines]
    before = state_of_page(pages[0]["page"])
    seen = []
    for page in pages:
        state = state_of_page(page["page"])
        since = state._replace(
            preemptions=state.preemptions - before.preemptions,
            finished=state.finished - before.finished,
        )
        if since.running or since.finished:
            seen.append(Seen(page["t"], since))
    return seen


def steps_of(engine: Engine) -> Iterator[Seen]:
    """Yield what the engine publishes after each step, until it is idle."""
    now_seconds = 0.0
    steps = 0
    while not steps or engine.stats.requests_running or engine.stats.requests_waiting:
        now_seconds += 0.004  # shorter than any step
        engine.advance(now_seconds)
        stats = engine.stats
        if stats.steps > steps:
            steps = stats.steps
            state = State(
                running=stats.requests_running,
                waiting=stats.requests_waiting,
                used_ratio=round(stats.kv_used_ratio, 4),
                preemptions=stats.preemptions,
                finished=stats.finished["length"],
            )
            yield Seen(now_seconds, state)


def load(requests: int, prompt_tokens: int, output_tokens: int, *, total_blocks: int) -> Engine:
    """One request first, the others while it is in its first step, as on the real server."""
    first = Arrival(0.0, prompt_tokens, output_tokens, stops=False)
    others = [Arrival(0.001, prompt_tokens, output_tokens, stops=False)] * (requests - 1)
    limits = Limits(
        total_blocks=total_blocks,
        block_tokens=128,
        max_model_len=2048,
        max_num_seqs=64,
        max_num_batched_tokens=2048,
    )
    return Engine(limits, PACE, iter([first, *others]))


@pytest.fixture(scope="module")
def simulated() -> list[Seen]:
    return list(steps_of(load(40, 300, 1500, total_blocks=200)))


def test_every_state_of_the_real_server_comes_up_in_its_order(
    real: list[Seen], simulated: list[Seen]
) -> None:
    """Running, waiting, usage, counter and finished of each real second, all five at once.

    Source: tests/evidence/preemption-trace.jsonl.gz.
    """
    remaining = iter(seen.state for seen in simulated)
    changes = [state for state, _same in groupby(seen.state for seen in real)]
    missing = [state for state in changes if state not in remaining]

    assert len(changes) > 50
    assert missing == []


def test_the_counter_ends_where_the_real_one_ended(real: list[Seen], simulated: list[Seen]) -> None:
    """45 preemptions, as in the trace."""
    assert simulated[-1].state.preemptions == real[-1].state.preemptions == 45


def test_the_counter_is_as_late_as_the_real_one(real: list[Seen], simulated: list[Seen]) -> None:
    """From the first preempted request to the counter's first move: 35 s on the real server."""

    def lag_seconds(seen: list[Seen]) -> float:
        # The first fall of running with no request finished is the first preemption.
        first = next(
            after.at_seconds
            for before, after in pairwise(seen)
            if after.state.running < before.state.running and not after.state.finished
        )
        return next(s.at_seconds for s in seen if s.state.preemptions) - first

    assert lag_seconds(real) == pytest.approx(35, abs=1)
    assert lag_seconds(simulated) == pytest.approx(lag_seconds(real), rel=0.2)


def test_running_falls_as_waiting_rises(simulated: list[Seen]) -> None:
    """Until the first one finishes, all 40 requests are either running or waiting."""
    sums = {s.state.running + s.state.waiting for s in simulated[1:] if not s.state.finished}

    assert sums == {40}


def test_another_real_load_ends_with_its_preemptions() -> None:
    """30 requests of 120 + 350 tokens in 40 blocks: 29 preemptions.

    Source: tests/evidence/demo/real-0.32.0-after.prom.
    """
    page = (EVIDENCE / "demo" / "real-0.32.0-after.prom").read_text()
    counter = re.search(r"^vllm:num_preemptions_total\{.*\} (.+)$", page, re.MULTILINE)
    assert counter

    *_, last = steps_of(load(30, 120, 350, total_blocks=40))

    assert last.state.preemptions == float(counter[1]) == 29
