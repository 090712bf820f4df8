"""Which limit binds, against recorded pages, a recorded trace and a simulator that knows."""

import gzip
import json
from collections import Counter
from dataclasses import replace
from math import inf
from pathlib import Path
from random import Random

import pytest
from tests.unit.evidence import page

from kvheadroom.demo.engine import Engine
from kvheadroom.demo.histogram import Histogram
from kvheadroom.demo.plans import ServerPlan
from kvheadroom.demo.profiles import PROFILES
from kvheadroom.demo.scheduler import Chunk, Limits, Scheduler
from kvheadroom.demo.traffic import arrivals
from kvheadroom.live.admission import AdmissionRules
from kvheadroom.live.capacity import Capacity
from kvheadroom.live.pressure import Limit, Pressure, PressurePast, observe_pressure
from kvheadroom.live.traffic import TrafficLengths, TrafficWindow, lengths, observe
from kvheadroom.node.page_reader import PageReader
from kvheadroom.node.vllm_names import MEANING_OF
from kvheadroom.node.vllm_page import read_server_page
from kvheadroom.readings import EngineReading, HistogramReading

EVIDENCE = Path(__file__).parent.parent / "evidence"
READER = PageReader(MEANING_OF)

# 199 usable blocks of 128 tokens; prompts of 300 tokens take 3.
POOL = Capacity(layout="uniform", blocks=200, block_tokens=128, max_model_len=2048)
TRAFFIC = TrafficLengths(1800, 1900, 40, prompt_mean_tokens=300, prompt_p95_tokens=300)
RECENT = (0, 32, 0)
RULES = AdmissionRules(version=RECENT, max_num_seqs=64)


def engine(
    running: float,
    waiting: float,
    used_blocks: float,
    *,
    deferred: float | None = 0.0,
    finished: float = 0.0,
) -> EngineReading:
    reasons = {} if deferred is None else {"capacity": waiting - deferred, "deferred": deferred}
    return EngineReading(
        rank="0",
        requests_running=running,
        requests_waiting=waiting,
        waiting_by_reason=reasons,
        kv_used_ratio=used_blocks / 199,
        generation_tokens_total=finished * 100,
        finished_total={"length": finished},
    )


def seen(
    *readings: EngineReading,
    capacity: Capacity | None = POOL,
    traffic: TrafficLengths | None = TRAFFIC,
    rules: AdmissionRules = RULES,
    preempted_now: int | None = 0,
    paused: bool | None = None,
    every_seconds: float = 5.0,
) -> PressurePast:
    past = PressurePast()
    for number, reading in enumerate(readings):
        past = observe_pressure(
            past,
            reading,
            capacity=capacity,
            traffic=traffic,
            rules=rules,
            preempted_now=preempted_now,
            paused=paused,
            at_seconds=number * every_seconds,
            poll_interval_seconds=every_seconds,
        )
    return past


def binding(*readings: EngineReading, **how: object) -> Limit | None:
    return seen(*readings, **how).pressure.binding  # type: ignore[arg-type]


# --- one page ---------------------------------------------------------------------------------


def test_no_queue_is_no_limit_however_full_the_pool() -> None:
    """A full pool whose requests all run holds up nobody yet."""
    assert binding(engine(40, 0, 199)) == "none"


def test_a_plateau_below_one_is_full_when_the_next_prompt_does_not_fit() -> None:
    """Two blocks are free and 3 are needed, at 99 %; with prompts of 1,900 tokens 15 of 199 are."""
    long_prompts = replace(TRAFFIC, prompt_mean_tokens=1800, prompt_p95_tokens=1900)

    assert binding(engine(30, 5, 197)) == "kv"
    assert binding(engine(30, 5, 185), traffic=long_prompts) == "kv"
    assert binding(engine(30, 5, 185)) == "token_budget"


def test_every_place_taken_is_the_sequence_limit() -> None:
    """2 running, 4 waiting, 0.15 % used: seen on a real server with --max-num-seqs 2."""
    found = seen(engine(2, 4, 0.3), rules=replace(RULES, max_num_seqs=2)).pressure

    assert found.binding == "max_num_seqs"
    assert "2 running, 4 waiting" in found.evidence


def test_requests_that_are_not_ready_are_deferred() -> None:
    """LoRA slots or KV transfers: only a version that tells the reason shows it."""
    assert binding(engine(3, 5, 20, deferred=5.0)) == "deferred"
    assert binding(engine(3, 5, 20, deferred=1.0)) == "token_budget"
    untold = seen(engine(3, 5, 20, deferred=None)).pressure
    assert untold.binding == "token_budget"
    assert "does not tell" in untold.evidence


def test_requests_that_lost_their_blocks_are_evidence_for_the_pool() -> None:
    """Right after a preemption its blocks are free, and no prompt would need them all."""
    assert binding(engine(30, 2, 180), preempted_now=2) == "kv"


def test_a_watermark_is_not_free() -> None:
    """--watermark 0.05 keeps 10 of 200 blocks free."""
    assert binding(engine(30, 5, 189), rules=replace(RULES, watermark_ratio=0.05)) == "kv"
    assert binding(engine(30, 5, 189)) == "token_budget"


def test_before_0_19_only_the_next_chunk_must_fit() -> None:
    """A prompt of 1,900 tokens in chunks of 512 needs 4 blocks, not 15."""
    long_prompts = replace(TRAFFIC, prompt_mean_tokens=1800, prompt_p95_tokens=1900)
    rules = replace(RULES, version=(0, 18, 1), max_num_batched_tokens=512)

    assert binding(engine(30, 5, 194), traffic=long_prompts, rules=rules) == "token_budget"
    assert binding(engine(30, 5, 196), traffic=long_prompts, rules=rules) == "kv"


def test_an_encoder_is_never_short_of_blocks() -> None:
    """It holds none."""
    encoder = Capacity(layout="none", blocks=0)

    assert binding(engine(3, 200, 0), capacity=encoder, traffic=None) == "token_budget"


def test_a_pool_without_blocks_is_judged_by_its_share() -> None:
    """A page without cache_config_info: one running request holds a tenth, and 4 % are free."""
    unknown = {"capacity": None, "traffic": None, "preempted_now": None}

    assert binding(engine(10, 3, 191), **unknown) == "kv"
    assert binding(engine(10, 3, 100), **unknown) == "token_budget"


def test_what_is_not_known_settles_nothing() -> None:
    """No usage gauge, no limit known: unknown."""
    no_usage = replace(engine(10, 3, 0), kv_used_ratio=None)

    assert binding(no_usage, rules=AdmissionRules()) is None
    assert binding(EngineReading(rank="0")) is None


def test_a_paused_or_sleeping_engine_is_held_up_by_no_limit() -> None:
    """It admits nothing because it was told so."""
    assert binding(engine(0, 5, 0), paused=True) is None
    asleep = replace(engine(0, 5, 0), sleep_state="weights_offloaded")
    assert seen(asleep).pressure.admission == {}


def test_reasons_are_passed_on_where_the_version_tells() -> None:
    """As the page counts them."""
    told = seen(engine(3, 5, 20, deferred=2.0)).pressure
    assert told.waiting_by_reason == {"capacity": 3, "deferred": 2}
    assert seen(engine(3, 5, 20, deferred=None)).pressure.waiting_by_reason == {}


# --- from page to page ------------------------------------------------------------------------


def test_a_limit_holds_while_the_same_queue_waits() -> None:
    """A page after a step shows the blocks of whoever has just finished as free."""
    full, breath = engine(30, 5, 198), engine(29, 5, 180)

    assert binding(full, breath) == "kv"
    assert binding(full, *[breath] * 10) == "token_budget"
    assert binding(full, engine(30, 0, 198), breath) == "token_budget"


def test_an_unknown_sequence_limit_is_seen_to_repeat() -> None:
    """The same highest number again and again, each time of other requests."""
    full = [engine(16, 9, 50, finished=count) for count in range(5)]
    rules = AdmissionRules(version=RECENT)

    assert seen(*full, rules=rules).likely_max_num_seqs == 16
    assert binding(*full, rules=rules) == "max_num_seqs"
    assert binding(*full, engine(17, 9, 50, finished=9), rules=rules) == "token_budget"


def test_the_same_requests_seen_twice_are_no_repeat() -> None:
    """One long prefill: the count stands still because nothing has happened."""
    standing = [engine(3, 9, 50, finished=7)] * 10

    assert binding(*standing, rules=AdmissionRules(version=RECENT)) == "token_budget"


# --- how many would be admitted ---------------------------------------------------------------


def admission(reading: EngineReading, **how: object) -> dict[str, int]:
    return dict(seen(reading, **how).pressure.admission)  # type: ignore[arg-type]


def test_admission_is_by_prompts_and_places() -> None:
    """49 free blocks: 16 prompts of 300 tokens, 2 of 2,048; 14 places are left of 64."""
    found = admission(engine(50, 0, 150), rules=replace(RULES, max_num_seqs=None))

    assert found == {"observed": 16, "observed_p95": 16, "max": 3}
    assert admission(engine(50, 0, 150))["observed"] == 14


def test_a_prompt_that_fills_its_blocks_needs_one_more() -> None:
    """384 tokens are 3 blocks, and the first token of the answer begins a fourth."""
    traffic = replace(TRAFFIC, prompt_mean_tokens=384, prompt_p95_tokens=384)

    assert admission(engine(50, 0, 150), traffic=traffic)["observed"] == 12


def test_whoever_waits_comes_first() -> None:
    """Three prompts that wait for their step take their blocks before any new one."""
    assert admission(engine(20, 3, 150))["observed"] == 13
    assert admission(engine(20, 3, 199))["observed"] == 0


def test_admission_of_unknown_blocks_is_absent() -> None:
    """A hybrid model whose layers are not known answers for its longest request only."""
    hybrid = Capacity(layout="hybrid", blocks=200, max_model_len=2048, full_request_blocks=20)

    assert admission(engine(1, 0, 150), capacity=hybrid) == {"max": 2}


# --- a real server, and a simulated one that knows what held its queue up ---------------------


def test_the_recorded_trace_is_short_of_blocks_whenever_requests_wait() -> None:
    """40 requests outgrow 199 blocks; --max-num-seqs was 64 and the prompts of 300 tokens short."""
    lines = gzip.decompress((EVIDENCE / "preemption-trace.jsonl.gz").read_bytes()).splitlines()
    past, told = PressurePast(), Counter[str]()
    for line in lines:
        moment = json.loads(line)
        (reading,) = read_server_page(moment["page"].encode(), READER).engines
        past = observe_pressure(
            past,
            reading,
            capacity=POOL,
            traffic=TRAFFIC,
            rules=AdmissionRules(version=RECENT),
            preempted_now=None,
            paused=None,
            at_seconds=moment["t"],
            poll_interval_seconds=1.0,
        )
        if moment["t"] >= 20 and reading.requests_waiting:
            told[str(past.pressure.binding)] += 1

    assert told["kv"] / told.total() > 0.95
    assert told["max_num_seqs"] == 0


def test_a_recorded_page_of_preempted_requests_is_short_of_blocks() -> None:
    """Twenty of its requests had been preempted when it was taken."""
    (reading,) = read_server_page(page("pages/real-0.32.0-preempting-counter-lags"), READER).engines

    assert binding(reading, preempted_now=None) == "kv"


class TellingScheduler(Scheduler):
    """The simulator's scheduler, which also says what ended its last admissions."""

    reason: Limit = "none"

    def schedule(self) -> list[Chunk]:
        chunks = super().schedule()
        spent_tokens = sum(chunk.tokens for chunk in chunks)
        if not self.waiting:
            self.reason = "none"
        elif len(self.running) >= self.limits.max_num_seqs:
            self.reason = "max_num_seqs"
        elif spent_tokens >= self.limits.max_num_batched_tokens:
            self.reason = "token_budget"
        else:
            self.reason = "kv"
        return chunks


def simulated(plan: ServerPlan, *, seed: int, load: float, knows_limit: bool) -> Counter[str]:
    """Return what 10 minutes at 5 s showed: ``truth>told`` → polls."""
    blocks = plan.blocks(PROFILES["rack"].cards[plan.ranks[0][0]])
    limits = Limits(
        total_blocks=blocks,
        block_tokens=16,
        max_model_len=plan.max_model_len,
        max_num_seqs=plan.max_num_seqs,
        max_num_batched_tokens=plan.max_num_batched_tokens,
    )
    traffic = replace(plan.traffic, peak_per_second=plan.traffic.peak_per_second * load)
    engine = Engine(limits, plan.cost, arrivals(traffic, Random(seed)))
    engine._scheduler = scheduler = TellingScheduler(limits)
    capacity = Capacity(
        layout="uniform", blocks=blocks, block_tokens=16, max_model_len=plan.max_model_len
    )
    rules = AdmissionRules(version=RECENT, max_num_seqs=plan.max_num_seqs if knows_limit else None)
    past, window, told = PressurePast(), TrafficWindow(), Counter[str]()
    for at_seconds in range(5, 600, 5):
        engine.advance(at_seconds)
        reading = page_of(engine)
        window = observe(
            window,
            at_seconds=at_seconds,
            window_seconds=900,
            prompt=reading.prompt_tokens,
            generation=reading.generation_tokens,
        )
        past = observe_pressure(
            past,
            reading,
            capacity=capacity,
            traffic=lengths(window, max_model_len=plan.max_model_len),
            rules=rules,
            preempted_now=None,
            paused=None,
            at_seconds=at_seconds,
            poll_interval_seconds=5.0,
        )
        told[f"{scheduler.reason}>{past.pressure.binding}"] += 1
    return told


def page_of(engine: Engine) -> EngineReading:
    stats = engine.stats
    return EngineReading(
        rank="0",
        requests_running=float(stats.requests_running),
        requests_waiting=float(stats.requests_waiting),
        kv_used_ratio=stats.kv_used_ratio,
        generation_tokens_total=float(stats.generation_tokens),
        finished_total={reason: float(count) for reason, count in stats.finished.items()},
        prompt_tokens=published(stats.histograms.prompt_tokens),
        generation_tokens=published(stats.histograms.generation_tokens),
    )


def published(histogram: Histogram) -> HistogramReading:
    return HistogramReading(
        upper_bounds=(*histogram.upper_bounds, inf),
        cumulative_counts=tuple(map(float, histogram.cumulative_counts())),
        total=histogram.total,
        count=float(histogram.count),
    )


RACK = {plan.name: plan for plan in PROFILES["rack"].servers}


@pytest.mark.parametrize("name", ["qwen3-32b", "qwen3-4b"])
def test_a_simulated_engine_short_of_blocks_is_said_to_be(name: str) -> None:
    """At twice the load its own scheduler stops at blocks nearly always; so does the judgment."""
    told = simulated(RACK[name], seed=1, load=2.0, knows_limit=True)
    short = {key: count for key, count in told.items() if key.startswith("kv>")}

    assert sum(short.values()) > 40
    assert short["kv>kv"] / sum(short.values()) > 0.95


@pytest.mark.parametrize("knows_limit", [True, False])
def test_a_simulated_engine_short_of_places_is_said_to_be(knows_limit: bool) -> None:
    """16 places bind at a pool that is never full; unknown, the number is soon found out."""
    told = simulated(RACK["qwen3-30b-a3b"], seed=1, load=1.0, knows_limit=knows_limit)
    short = {key: count for key, count in told.items() if key.startswith("max_num_seqs>")}

    assert sum(short.values()) > 40
    assert short["max_num_seqs>max_num_seqs"] / sum(short.values()) > 0.9


def test_a_burst_at_a_pooling_engine_waits_for_its_step() -> None:
    """As many fit into each step, which is no limit on places."""
    told = simulated(RACK["embed"], seed=1, load=1.0, knows_limit=False)

    assert told["token_budget>token_budget"] > 0
    assert not any(key.endswith((">max_num_seqs", ">kv")) for key in told)


def test_a_pressure_of_nothing_is_unknown() -> None:
    """Before the first page."""
    assert Pressure().binding is None
    assert Pressure().admission == {}
