"""What is said of preemptions, poll by poll, where a few readings settle what happened."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvheadroom.live.preemption import PreemptionPast, observe_preemptions
from kvheadroom.readings import EngineReading, HistogramReading


def reading(
    running: float,
    waiting: float,
    used: float,
    finished: float = 0.0,
    **counters: Any,  # noqa: ANN401  (as many types as a reading has fields)
) -> EngineReading:
    """Return a page of an engine that had finished 50 requests before, prompts of 100 tokens."""
    finished += 50
    prompts = HistogramReading((float("inf"),), (finished,), total=100 * finished, count=finished)
    counted: dict[str, Any] = {
        "preemptions_total": 0.0,
        "prompt_tokens_total": 1000.0,
        "generation_tokens_total": 0.0,
        "finished_total": {"stop": finished, "length": 0.0},
        "prompt_tokens": prompts,
        "waiting_by_reason": {"capacity": waiting, "deferred": 0.0},
        "sleep_state": "awake",
    }
    return EngineReading(
        rank="0",
        requests_running=running,
        requests_waiting=waiting,
        kv_used_ratio=used,
        **(counted | counters),
    )


# Ten requests that have had their first token, at a pool that is nearly full.
FULL = reading(10, 0, 0.98)


def judge(
    *readings: EngineReading, interval_seconds: float = 5.0, max_num_seqs: int | None = None
) -> PreemptionPast:
    """Fold *readings*, one an interval; the engine is idle before the first."""
    idle = reading(0, 0, 0.0, prompt_tokens_total=0.0)
    past = PreemptionPast()
    for number, each in enumerate((idle, *readings)):
        past = observe_preemptions(
            past, each, at_seconds=number * interval_seconds, max_num_seqs=max_num_seqs
        )
    return past


def test_running_falls_and_waiting_rises_at_a_full_pool() -> None:
    """Two requests that left the running list uncounted and came to the queue were preempted."""
    past = judge(FULL, reading(8, 2, 0.95))

    assert (past.preempted_now, past.inferred_total) == (2, 2)


def test_a_resumed_request_waits_no_more() -> None:
    """It is back in the running list; what had been inferred stays counted."""
    back = reading(10, 0, 0.97, preemptions_total=2.0, finished=0.0)

    past = judge(FULL, reading(8, 2, 0.95), back)

    assert (past.preempted_now, past.inferred_total) == (0, 2)


def test_an_inferred_preemption_is_not_counted_again_when_it_is_reported() -> None:
    """Two inferred, then two reported, are two."""
    past = judge(
        FULL, reading(8, 2, 0.95), reading(8, 2, 0.97, preemptions_total=2.0, finished=2.0)
    )

    assert past.inferred_total == 2


def test_a_preemption_nobody_saw_is_added_when_it_is_reported() -> None:
    """Preempted and back between two polls: only the counter knows."""
    past = judge(FULL, replace(FULL, preemptions_total=3.0))

    assert (past.preempted_now, past.inferred_total) == (0, 3)


def test_a_finished_request_was_not_preempted() -> None:
    """Two finished, and two arrived too late to be admitted."""
    past = judge(FULL, reading(8, 2, 0.95, finished=2.0))

    assert past.inferred_total == 0


@pytest.mark.parametrize("waiting", [0, 3])
def test_clients_that_hang_up_were_not_preempted(waiting: float) -> None:
    """Whoever is in neither list has gone, with or without a queue."""
    past = judge(reading(10, waiting, 0.98), reading(7, waiting, 0.97))

    assert past.inferred_total == 0


def test_clients_that_scale_down_were_not_preempted() -> None:
    """Both lists shrink, poll by poll, and nothing is counted as finished."""
    past = judge(*(reading(10 - n, max(0, 6 - 2 * n), 0.98) for n in range(10)))

    assert past.inferred_total == 0


def test_at_a_pool_with_room_nobody_was_preempted() -> None:
    """Three hung up and three arrived while a long prompt takes all the steps."""
    past = judge(reading(10, 0, 0.5), reading(7, 3, 0.35))

    assert past.inferred_total == 0


def test_with_room_for_one_more_nobody_waits_preempted() -> None:
    """A tenth of the pool is free where ten requests share nine tenths: one would be back."""
    past = judge(FULL, reading(9, 1, 0.88))

    assert past.inferred_total == 0


def test_a_pool_far_from_full_has_preempted_nobody() -> None:
    """Of two requests in six tenths one hung up, and one arrived that needs more than is free."""
    past = judge(reading(2, 0, 0.6), reading(1, 1, 0.5))

    assert past.inferred_total == 0


def test_deferred_requests_were_not_preempted() -> None:
    """One hung up, and one arrived that waits for a LoRA slot."""
    deferred = reading(9, 1, 0.95, waiting_by_reason={"capacity": 0.0, "deferred": 1.0})

    assert judge(FULL, deferred).inferred_total == 0


def test_versions_without_the_reasons_are_judged_by_the_whole_queue() -> None:
    """Before 0.20 the page has no reasons."""
    past = judge(replace(FULL, waiting_by_reason={}), reading(8, 2, 0.95, waiting_by_reason={}))

    assert (past.preempted_now, past.inferred_total) == (2, 2)


def test_with_every_sequence_taken_nobody_waits_preempted() -> None:
    """A preempted request is first in the queue, so the last sequence would be its own."""
    before, now = reading(12, 5, 0.99), reading(10, 7, 0.97)

    assert judge(before, now, max_num_seqs=10).preempted_now == 0


def test_a_limit_that_more_requests_run_than_is_not_the_limit() -> None:
    """Ten run where at most four should: the flag was read from another server."""
    past = judge(FULL, reading(8, 2, 0.95), max_num_seqs=4)

    assert past.preempted_now == 2


def test_new_requests_are_admitted_past_no_preempted_one() -> None:
    """Three waited preempted; then a new one was admitted, so they are back or gone."""
    fresh = reading(8, 5, 0.99, prompt_tokens_total=1100.0, finished=1.0)

    past = judge(FULL, reading(7, 3, 0.95), fresh)

    assert past.preempted_now == 0


def test_a_burst_in_prefill_was_not_preempted() -> None:
    """Fifty arrive, are computed in chunks and admitted as the steps allow."""
    burst = [
        reading(10 + 4 * n, 50 - 4 * n, 0.3 + 0.05 * n, prompt_tokens_total=1000.0 + 400 * (n - 1))
        for n in range(1, 13)
    ]

    assert judge(reading(10, 0, 0.3), *burst).inferred_total == 0


def test_an_engine_that_restarted_has_preempted_nobody() -> None:
    """Its counters begin again; what was counted before stays."""
    past = judge(FULL, reading(8, 2, 0.95))

    past = observe_preemptions(
        past,
        reading(3, 0, 0.2, prompt_tokens_total=300.0),
        at_seconds=15.0,
        restarted=True,
    )

    assert (past.preempted_now, past.inferred_total) == (0, 2)


def test_preemptions_of_a_new_engine_count_from_its_start() -> None:
    """What its first page reports has happened since we last looked."""
    past = judge(FULL, reading(8, 2, 0.95))

    past = observe_preemptions(
        past, reading(3, 0, 0.9, preemptions_total=4.0), at_seconds=15.0, restarted=True
    )

    assert past.inferred_total == 6


def test_a_sleeping_engine_says_nothing() -> None:
    """Its gauges are those of the last step before it slept."""
    asleep = reading(4, 6, 0.98, sleep_state="weights_offloaded")

    past = judge(FULL, asleep)

    assert (past.preempted_now, past.inferred_total) == (None, 0)


def test_an_engine_that_woke_up_has_preempted_nobody() -> None:
    """Its running requests were aborted before it slept; others wait for it to warm up."""
    past = judge(FULL, replace(FULL, sleep_state="discard_all"), reading(0, 4, 0.0))

    assert (past.preempted_now, past.inferred_total) == (0, 0)


@pytest.mark.parametrize("missing", ["requests_running", "requests_waiting", "kv_used_ratio"])
def test_without_a_gauge_nothing_is_known(missing: str) -> None:
    """An unknown is no zero."""
    known: dict[str, Any] = {missing: None}

    past = observe_preemptions(PreemptionPast(), replace(FULL, **known), at_seconds=0.0)

    assert (past.preempted_now, past.inferred_total) == (None, None)


def test_without_any_count_of_finished_requests_nothing_is_known() -> None:
    """Whoever left the running list may have finished."""
    unknown = replace(FULL, finished_total={}, prompt_tokens=None)

    past = observe_preemptions(PreemptionPast(), unknown, at_seconds=0.0)

    assert (past.preempted_now, past.inferred_total) == (None, None)


def test_finished_requests_are_counted_by_their_prompts_where_the_counter_is_missing() -> None:
    """The histogram of prompts has each of them once."""
    now = replace(reading(8, 2, 0.95, finished=2.0), finished_total={})

    assert judge(replace(FULL, finished_total={}), now).inferred_total == 0


def test_a_gauge_that_is_missing_once_does_not_hide_what_happened() -> None:
    """The balance goes on over the gap."""
    blind = replace(FULL, kv_used_ratio=None)

    past = judge(FULL, blind, reading(8, 2, 0.95))

    assert (past.preempted_now, past.inferred_total) == (2, 2)


def test_a_gauge_that_is_missing_once_does_not_hide_who_waits() -> None:
    """Two waited preempted before the gap, and still do."""
    waiting = reading(8, 2, 0.95)

    past = judge(FULL, waiting, replace(waiting, requests_running=None), waiting)

    assert (past.preempted_now, past.inferred_total) == (2, 2)


def test_missed_polls_for_minutes_begin_a_new_balance() -> None:
    """In that time two may have hung up and two others arrived."""
    past = judge(FULL, reading(8, 2, 0.95), interval_seconds=90.0)

    assert (past.preempted_now, past.inferred_total) == (None, 0)


def test_a_preemption_reported_over_a_long_gap_is_added() -> None:
    """The counter is always believed."""
    past = judge(FULL, reading(8, 2, 0.95, preemptions_total=3.0), interval_seconds=90.0)

    assert past.inferred_total == 3


def test_a_queue_found_at_the_first_poll_may_hold_preempted_requests() -> None:
    """How many is unknown until the queue is empty or a new request is admitted."""
    past = observe_preemptions(PreemptionPast(), reading(8, 5, 0.95), at_seconds=0.0)

    assert (past.preempted_now, past.inferred_total) == (None, 0)

    past = observe_preemptions(past, reading(8, 0, 0.9, finished=5.0), at_seconds=5.0)

    assert past.preempted_now == 0


def test_a_new_balance_does_not_know_who_waits() -> None:
    """Two more were preempted since the first poll; of the seven that wait, the five may be too."""
    past = observe_preemptions(PreemptionPast(), reading(8, 5, 0.95), at_seconds=0.0)

    past = observe_preemptions(past, reading(6, 7, 0.95), at_seconds=5.0)

    assert (past.preempted_now, past.inferred_total) == (None, 2)


def test_a_first_output_after_the_first_poll_proves_no_admission() -> None:
    """The request may have been in its prefill all along, with preempted ones waiting."""
    past = observe_preemptions(PreemptionPast(), reading(8, 5, 0.95), at_seconds=0.0)

    answered = reading(8, 5, 0.95, prompt_tokens_total=1300.0)
    past = observe_preemptions(past, answered, at_seconds=5.0)

    assert past.preempted_now is None


def test_after_many_steps_nobody_found_running_is_in_its_prefill() -> None:
    """100 steps later, two that are back and two preempted in their place are told apart."""
    past = observe_preemptions(PreemptionPast(), reading(10, 0, 0.95), at_seconds=0.0)
    later = {"generation_tokens_total": 1000.0}
    pages = (
        reading(10, 0, 0.98, **later),
        reading(8, 2, 0.95, **later),
        reading(8, 2, 0.95, preemptions_total=2.0, **later),
    )
    for number, page in enumerate(pages, start=1):
        past = observe_preemptions(past, page, at_seconds=5.0 * number)

    assert (past.preempted_now, past.inferred_total) == (2, 4)


def test_whoever_hung_up_while_preempted_is_never_reported() -> None:
    """Two were preempted and hung up; the one reported later is another."""
    settled = {"prompt_tokens_total": 1000.0, "generation_tokens_total": 1000.0}
    past = judge(
        reading(10, 0, 0.98, **settled),
        reading(8, 2, 0.95, **settled),
        reading(8, 0, 0.9, **settled),
        reading(8, 0, 0.9, preemptions_total=1.0, **settled),
    )

    assert past.inferred_total == 3


@given(
    st.lists(
        st.tuples(
            st.integers(0, 40),
            st.integers(0, 40),
            st.floats(0, 1),
            st.integers(0, 5),
            st.integers(0, 5),
            st.integers(0, 500),
            st.floats(0.5, 20),
            st.booleans(),
        ),
        max_size=30,
    )
)
def test_the_total_never_falls_and_never_lags_behind_the_counter(
    polls: list[tuple[int, int, float, int, int, int, float, bool]],
) -> None:
    """Whatever the pages say; and no more wait preempted than wait."""
    past = observe_preemptions(PreemptionPast(), reading(0, 0, 0.0), at_seconds=0.0)
    at_seconds = 0.0
    finished = reported = tokens = reported_in_all = 0
    for running, waiting, used, ended, preempted, prompt, gap_seconds, restarted in polls:
        at_seconds += gap_seconds
        if restarted:
            finished = reported = tokens = 0
        finished, reported, tokens = finished + ended, reported + preempted, tokens + prompt
        reported_in_all += preempted
        page = reading(
            running,
            waiting,
            used,
            finished=float(finished),
            preemptions_total=float(reported),
            prompt_tokens_total=float(tokens),
        )
        total = past.inferred_total or 0
        past = observe_preemptions(past, page, at_seconds=at_seconds, restarted=restarted)

        assert past.inferred_total is not None
        assert past.inferred_total >= max(total, reported_in_all)
        assert past.preempted_now is None or 0 <= past.preempted_now <= waiting
