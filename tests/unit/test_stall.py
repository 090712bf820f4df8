"""An engine that has stopped behind a front end that answers, against recorded and made pages."""

import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.evidence import page

from kvheadroom.live.stall import StallPast, observe_stall
from kvheadroom.node.page_reader import PageReader
from kvheadroom.node.vllm_names import MEANING_OF
from kvheadroom.node.vllm_page import read_server_page
from kvheadroom.readings import EngineReading, HealthAnswer

TRACE = Path(__file__).parent.parent / "evidence" / "preemption-trace.jsonl.gz"
READER = PageReader(MEANING_OF)

BUSY = EngineReading(
    rank="0",
    requests_running=4.0,
    requests_waiting=2.0,
    kv_used_ratio=0.5,
    preemptions_total=0.0,
    prompt_tokens_total=900.0,
    generation_tokens_total=5000.0,
    finished_total={"stop": 7.0, "length": 1.0, "abort": 0.0},
)
IDLE = replace(BUSY, requests_running=0.0, requests_waiting=0.0, kv_used_ratio=0.0)


def engine(body: bytes) -> EngineReading:
    return read_server_page(body, READER).engines[0]


def recorded(name: str) -> EngineReading:
    return engine(page(f"real-servers/{name}"))


def watched(
    readings: Iterable[EngineReading],
    *,
    every_seconds: float = 5.0,
    health: HealthAnswer | None = "ok",
    paused: bool | None = None,
    past: StallPast | None = None,
) -> list[StallPast]:
    pasts = [past or StallPast()]
    for number, reading in enumerate(readings):
        pasts.append(
            observe_stall(
                pasts[-1],
                reading,
                health=health,
                paused=paused,
                at_seconds=1000.0 + number * every_seconds,
                poll_interval_seconds=every_seconds,
            )
        )
    return pasts[1:]


def first_stalled(pasts: Sequence[StallPast]) -> int | None:
    return next((number for number, past in enumerate(pasts) if past.stalled), None)


# --- stopped ----------------------------------------------------------------------------------


def test_a_poll_a_moment_early_costs_no_interval() -> None:
    """Polls 4.99 s apart say it at the sixth of them, as those of 5 s do."""
    pasts = [StallPast()]
    for number in range(7):
        pasts.append(
            observe_stall(
                pasts[-1],
                BUSY,
                health="ok",
                paused=None,
                at_seconds=1000 + number * 4.99,
                poll_interval_seconds=5.0,
            )
        )

    assert first_stalled(pasts[1:]) == first_stalled(watched([BUSY] * 7)) == 5


@pytest.mark.parametrize("every_seconds", [1.0, 2.0, 5.0, 10.0, 15.0])
def test_the_real_dead_engine_of_0_11_0_is_stalled_in_time(every_seconds: float) -> None:
    """Its page froze with 15 running; due within three polls or 30 s, whichever is longer."""
    frozen = [recorded("0.11.0/busy")] + [recorded("0.11.0/after")] * 60

    number = first_stalled(
        watched([recorded("0.11.0/fresh"), *frozen], every_seconds=every_seconds)
    )

    assert number is not None
    # The page before the first frozen one is the last at which it may still have run.
    assert number * every_seconds <= max(3 * every_seconds, 30.0)
    assert number >= 3


def test_what_was_seen_is_said_with_its_numbers() -> None:
    """15 running, 14 waiting and 36.5 % in use are what that page says."""
    past = watched([recorded("0.11.0/busy")] * 10)[-1]

    assert past.evidence is not None
    assert all(seen in past.evidence for seen in ("15 running", "14 waiting", "36.5%", "45 s"))
    assert "\n" not in past.evidence


def test_a_503_from_health_is_said_at_once() -> None:
    """vLLM answers it when the engine's process is gone, whatever the page still shows."""
    for reading in (BUSY, IDLE, EngineReading(rank="0")):
        past = watched([reading], health="dead")[0]
        assert past.stalled
        assert "503" in (past.evidence or "")


def test_a_stall_ends_with_the_first_number_that_moves() -> None:
    """One token is enough."""
    moving = replace(BUSY, generation_tokens_total=5001.0)

    pasts = watched([BUSY] * 10 + [moving])

    assert pasts[-2].stalled
    assert pasts[-1].stalled is False
    assert pasts[-1].evidence is None


def test_clients_that_hang_up_are_no_progress() -> None:
    """The front end counts an abort without the engine."""
    aborted = [
        replace(BUSY, finished_total={"stop": 7.0, "length": 1.0, "abort": float(number)})
        for number in range(10)
    ]

    assert watched(aborted)[-1].stalled


def test_polls_that_failed_count_as_time_and_not_as_pages() -> None:
    """Two pages half a minute apart are not yet three."""
    two = watched([BUSY] * 2, every_seconds=40.0)

    assert two[-1].stalled is False
    assert observe_stall(
        two[-1], BUSY, health="ok", paused=None, at_seconds=1045.0, poll_interval_seconds=5.0
    ).stalled


def test_a_queue_in_front_of_a_hanging_server_is_stalled() -> None:
    """Nothing runs, nothing moves, and /health does not answer."""
    queue = replace(IDLE, requests_waiting=3.0)

    assert watched([queue] * 10, health="hanging")[-1].stalled
    assert watched([queue] * 10, health="ok")[-1].stalled is False


# --- not stopped ------------------------------------------------------------------------------


def test_a_real_engine_under_pressure_is_never_stalled() -> None:
    """150 pages of vLLM 0.32, one a second, with no request finished for half a minute."""
    lines = gzip.decompress(TRACE.read_bytes()).splitlines()
    readings = [engine(json.loads(line)["page"].encode()) for line in lines]

    assert first_stalled(watched(readings, every_seconds=1.0)) is None


def test_an_idle_engine_is_not_stalled() -> None:
    """Its page stands still for hours; a /health that hangs for a while is no proof."""
    for health in ("ok", "hanging", None):
        assert {past.stalled for past in watched([IDLE] * 100, health=health)} == {False}


def test_a_long_prefill_is_not_stalled() -> None:
    """No token comes out for minutes; each chunk takes blocks."""
    prefill = [replace(BUSY, kv_used_ratio=0.1 + 0.001 * chunk) for chunk in range(60)]

    assert first_stalled(watched(prefill)) is None


def test_a_first_step_gets_two_minutes() -> None:
    """One huge chunk, or kernels compiled on first use: no number can move before it ends."""
    first = replace(IDLE, requests_running=1.0, kv_used_ratio=0.3)

    pasts = watched([IDLE, *[first] * 40])

    assert first_stalled(pasts[:20]) is None
    assert pasts[-1].stalled
    assert watched([IDLE, *[first] * 8], health="hanging")[-1].stalled


def test_sleep_and_pause_are_not_stalled() -> None:
    """Requests kept in the running list while the operator has stopped the scheduler."""
    asleep = replace(BUSY, sleep_state="weights_offloaded")

    assert {past.stalled for past in watched([asleep] * 20)} == {False}
    assert {past.stalled for past in watched([BUSY] * 20, paused=True)} == {False}


def test_an_engine_that_wakes_gets_its_time_again() -> None:
    """The page of a minute's sleep is no evidence against it."""
    asleep = watched([replace(BUSY, sleep_state="discard_all")] * 20)[-1]
    woken = observe_stall(
        asleep, BUSY, health="ok", paused=None, at_seconds=1100.0, poll_interval_seconds=5.0
    )

    assert woken.stalled is False


def test_a_page_without_gauges_is_unknown() -> None:
    """Several API servers before their first request, or --disable-log-stats."""
    assert watched([EngineReading(rank="0")] * 20)[-1].stalled is None
    assert watched([recorded("0.32.0-api2/fresh")] * 20)[-1].stalled is not True
