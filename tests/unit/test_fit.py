from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.engine_views import QWEN3_8B, engine, facts, options

from kvheadroom.live.fit import Fit, fit
from kvheadroom.live.pressure import Pressure

# Of 9,102 blocks of 16 tokens 9,101 can be held; a request of 8,192 tokens takes 512 of them.
TAKES = 9_101 // 512


def asked(view: object, tokens: int = 8_192, requests: int = 10) -> Fit:
    return fit(view, context_tokens=tokens, requests=requests)  # type: ignore[arg-type]


def test_an_empty_engine_takes_as_many_as_its_blocks_hold() -> None:
    """9,101 blocks ÷ 512 blocks each = 17 requests of 8,192 tokens."""
    view = engine()

    assert asked(view, requests=17).fits is True
    assert asked(view, requests=18).fits is False
    assert asked(view).possible == TAKES == 17
    assert (asked(view).limit, asked(view).blocks_needed) == ("kv", 5_120)


def test_only_free_blocks_count() -> None:
    """Half of 9,101 blocks in use leaves 4,550 or 4,551, which is 8 requests of 512 blocks."""
    found = asked(engine(used_ratio=0.5, running=9), requests=9)

    assert (found.fits, found.possible) == (False, 8)
    assert found.blocks_free in {4_550, 4_551}


def test_places_run_out_before_blocks() -> None:
    """Of 12 places 7 are taken: 5 more can run, though 15 would find blocks."""
    known = facts(settings=options(max_num_seqs=12))

    found = asked(engine(known=known, used_ratio=0.1, running=7), requests=6)

    assert (found.fits, found.possible, found.limit) == (False, 5, "max_num_seqs")
    assert found.places_free == 5


def test_places_that_are_not_known_do_not_bind() -> None:
    """Without the server's command, blocks alone decide, and the places are said to be unknown."""
    found = asked(engine(known=facts(settings=None)))

    assert (found.fits, found.places_free) == (True, None)


def test_a_request_beyond_max_model_len_is_refused() -> None:
    """vLLM answers a request of more than max_model_len tokens with an error, however empty."""
    found = asked(engine(), tokens=40_961, requests=1)

    assert (found.fits, found.possible, found.limit) == (False, 0, "max_model_len")


def test_a_sleeping_engine_admits_nothing() -> None:
    """A sleeping engine has given its pool away."""
    found = asked(engine(sleep_state="discard_all"))

    assert (found.fits, found.limit) == (False, "asleep")


def test_a_stalled_engine_admits_nothing() -> None:
    """Free blocks behind a front end whose engine died serve nobody."""
    found = asked(replace(engine(), stalled=True, stall_evidence="/health says 503"))

    assert (found.fits, found.limit) == (False, "stalled")
    assert "/health says 503" in found.reason


@pytest.mark.parametrize("binding", ["kv", "max_num_seqs", None])
def test_a_queue_comes_first(binding: str | None) -> None:
    """vLLM admits in order: behind a queue that blocks or places hold up, all have to wait."""
    pressure = Pressure(binding=binding, evidence="3 wait")  # type: ignore[arg-type]

    found = asked(replace(engine(used_ratio=0.5, waiting=3, running=9), pressure=pressure))

    assert (found.fits, found.possible, found.limit) == (False, 0, "queue")


def test_a_queue_that_waits_for_its_step_keeps_its_blocks() -> None:
    """Four prompts that wait for their turn take 4 x 512 of 9,101 blocks: 13 more fit, not 17."""
    pressure = Pressure(binding="token_budget", evidence="4 wait")

    found = asked(replace(engine(waiting=4, running=1), pressure=pressure), requests=14)

    assert (found.fits, found.possible) == (False, 13)


def test_an_engine_that_reports_no_pool_is_unknown() -> None:
    """Before it has started, an engine's page says num_gpu_blocks="None"."""
    found = asked(engine(labels=QWEN3_8B | {"num_gpu_blocks": "None"}))

    assert (found.fits, found.possible, found.limit) == (None, None, None)
    assert found.reason


@pytest.mark.parametrize("missing", [{"used_ratio": None}, {"running": None}, {"waiting": None}])
def test_a_page_without_its_gauges_is_unknown(missing: dict[str, None]) -> None:
    """A server with several front ends shows its gauges with the first request only."""
    assert asked(engine(**missing)).fits is None  # type: ignore[arg-type]


def test_what_a_hybrid_of_an_unknown_model_takes_is_unknown() -> None:
    """A pool that groups share says what one full request takes, and nothing of shorter ones."""
    labels = QWEN3_8B | {"kv_cache_max_concurrency": "2.5"}

    found = asked(engine(labels=labels, known=facts(None)))

    assert (found.fits, found.blocks_each) == (None, None)


def test_an_encoder_has_places_only() -> None:
    """A model that caches nothing runs as many as max_num_seqs lets it."""
    labels = {"num_gpu_blocks": "1", "block_size": "128", "kv_cache_size_tokens": "None"}

    found = asked(engine(labels=labels, known=facts(None), running=250, used_ratio=None))

    assert (found.fits, found.possible, found.limit) == (False, 6, "max_num_seqs")
    assert found.restarts == ()


def test_windows_close_once_their_prompts_are_computed() -> None:
    """A request of 16,064 tokens takes 1,004 blocks of full attention and 9 of its window.

    Until then a window of 128 tokens holds its chunks as well: 10 such prompts at once, as the
    startup log says (10.66 requests of 16,384 tokens).

    Source: vLLM 0.32's real block manager on gpt-oss-120b with 12 GiB, 21,845 blocks.
    """
    labels = {
        "num_gpu_blocks": "21845",
        "block_size": "16",
        "cache_dtype": "auto",
        "kv_cache_size_tokens": "174674",
        "kv_cache_max_concurrency": str(21845 / 2049),
    }
    known = facts("gpt-oss-120b", settings=options(max_model_len=16_384))

    found = asked(engine(labels=labels, known=known, max_model_len=16_384), tokens=16_064)

    assert found.possible == 21_844 // 1_013 == 21
    assert found.admitted == 10


@settings(max_examples=60, deadline=None)
@given(
    used_ratio=st.floats(0.0, 1.0),
    running=st.integers(0, 300),
    waiting=st.integers(0, 300),
    tokens=st.tuples(st.integers(1, 60_000), st.integers(1, 60_000)),
    model=st.sampled_from(["qwen3-8b", None]),
)
def test_longer_requests_never_fit_better(
    used_ratio: float, running: int, waiting: int, tokens: tuple[int, int], model: str | None
) -> None:
    """Whatever the load, a longer request takes at least as much of everything."""
    view = engine(known=facts(model), used_ratio=used_ratio, running=running, waiting=waiting)
    shorter, longer = (asked(view, tokens=one, requests=1) for one in sorted(tokens))

    assert shorter.possible is not None
    assert longer.possible is not None
    assert shorter.possible >= longer.possible


@settings(max_examples=60, deadline=None)
@given(
    used_ratio=st.floats(0.0, 1.0),
    running=st.integers(0, 300),
    requests=st.integers(1, 300),
    tokens=st.integers(1, 40_960),
)
def test_as_many_as_are_possible_fit_and_no_more(
    used_ratio: float, running: int, requests: int, tokens: int
) -> None:
    """The verdict, the number and the blocks say the same."""
    found = asked(engine(used_ratio=used_ratio, running=running), tokens, requests)

    assert found.possible is not None
    assert found.blocks_needed is not None
    assert found.blocks_free is not None
    assert found.fits == (found.possible >= requests)
    if found.fits:
        assert found.blocks_needed <= found.blocks_free
        assert running + requests <= 256
