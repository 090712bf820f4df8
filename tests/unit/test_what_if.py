from dataclasses import replace

import pytest
from tests.unit.engine_views import HOPPER, QWEN3_8B, cards, engine, facts, options

from kvheadroom.live.engine_view import EngineView
from kvheadroom.live.what_if import WhatIf, what_ifs


def changes(view: EngineView, tokens: int = 8_192, requests: int = 10) -> dict[str, WhatIf]:
    found = what_ifs(view, (), (view,), context_tokens=tokens, requests=requests)
    return {one.change: one for one in found}


def fp8(view: EngineView, **asked: int) -> WhatIf:
    return changes(view, **asked)["--kv-cache-dtype fp8"]


def test_an_fp8_cache_doubles_a_plain_pool() -> None:
    """vLLM plans Qwen3-8B on 20 GiB as 145,632 tokens, and as 291,264 with an fp8 cache.

    Source: vLLM 0.32's own get_kv_cache_configs.
    """
    found = fp8(engine())

    assert (found.tokens_now, found.tokens) == (145_632, 291_264)
    assert (found.requests_now, found.requests) == (9_101 // 512, 18_203 // 512)
    assert found.gain_ratio == pytest.approx(1.0, abs=1e-3)


def test_an_fp8_cache_doubles_a_pool_with_windows() -> None:
    """gpt-oss-120b on 12 GiB for 131,072 tokens: 310,381 tokens, and 620,762 with an fp8 cache.

    Source: vLLM 0.32's own get_kv_cache_configs.
    """
    labels = {
        "num_gpu_blocks": "21845",
        "block_size": "16",
        "cache_dtype": "auto",
        "kv_cache_size_tokens": "310381",
        "kv_cache_max_concurrency": str(21845 / (8192 + 1033)),
    }
    known = facts("gpt-oss-120b", settings=options(max_model_len=131_072))

    found = fp8(engine(labels=labels, known=known, max_model_len=131_072))

    assert (found.tokens_now, found.tokens) == (310_381, 620_762)


@pytest.mark.parametrize("is_told", [True, False], ids=["command known", "labels only"])
def test_a_block_that_follows_its_states_is_chosen_anew(is_told: bool) -> None:
    """Qwen3.6-35B-A3B on 20 GiB: 992 blocks of 1,056 tokens become 1,000 of 2,096 with fp8.

    That is 1,019,791 tokens and 1,985,939, of which one block is lost here: the memory that 992
    whole blocks leave over is not known.

    Source: vLLM 0.32's own get_kv_cache_configs.
    """
    labels = {
        "num_gpu_blocks": "992",
        "block_size": "1056",
        "cache_dtype": "auto",
        "kv_cache_size_tokens": "1019791",
        "kv_cache_max_concurrency": str(992 / 255),
        "enable_prefix_caching": "True",
        "mamba_cache_mode": "align",
    }
    settings = options(max_model_len=262_144, mamba_cache_mode="align")
    known = facts("qwen3.6-35b-a3b", settings=settings if is_told else None)

    found = fp8(engine(labels=labels, known=known, max_model_len=262_144))

    assert found.tokens_now == 1_019_791
    assert found.tokens == pytest.approx(1_985_939, rel=1.1e-3)


@pytest.mark.parametrize("dtype", ["fp8", "fp8_e4m3", "fp8_e5m2"])
def test_a_quantized_cache_is_not_quantized_again(dtype: str) -> None:
    """What is asked about is a change."""
    known = facts(settings=options(kv_cache_dtype=dtype))
    labels = QWEN3_8B | {"cache_dtype": dtype}

    assert "--kv-cache-dtype fp8" not in changes(engine(labels=labels, known=known))


def test_a_model_that_is_not_known_is_unknown_with_its_reason() -> None:
    """Without the model's layers nothing can be said of another cache type."""
    found = fp8(engine(known=facts(None)))

    assert (found.fits, found.tokens) == (None, None)
    assert "model" in (found.reason or "")


def test_a_model_that_contradicts_its_engine_is_not_reckoned_with() -> None:
    """A pool that the rules do not reproduce is another one than they know."""
    labels = QWEN3_8B | {"kv_cache_max_concurrency": "3.9"}

    found = fp8(engine(labels=labels))

    assert (found.tokens, found.fits) == (None, None)
    assert found.reason


def test_blocks_that_are_given_are_not_reckoned_with() -> None:
    """--num-gpu-blocks-override gives as many blocks whatever one takes."""
    known = facts(settings=options(num_gpu_blocks_override=9_102))

    assert "--num-gpu-blocks-override" in (fp8(engine(known=known)).reason or "")


def test_the_load_of_now_is_set_beside_what_would_be_there() -> None:
    """Blocks of 16 tokens stay, so the used half of 9,101 blocks leaves 13,652 of 18,203 free.

    26 requests of 512 blocks fit into those.
    """
    found = fp8(engine(used_ratio=0.5, running=9), requests=26)

    assert (found.more_requests, found.fits) == (26, True)
    assert fp8(engine(used_ratio=0.5, running=9), requests=27).fits is False


def test_those_who_wait_come_first_after_a_restart_too() -> None:
    """Two requests of 8,192 tokens that wait take 2 of the 26 that would fit."""
    assert fp8(engine(used_ratio=0.5, running=9, waiting=2)).more_requests == 24


def test_places_bind_after_a_restart_too() -> None:
    """Of 12 places 9 are taken, however many blocks there are."""
    known = facts(settings=options(max_num_seqs=12))

    found = fp8(engine(known=known, used_ratio=0.5, running=9))

    assert (found.requests, found.more_requests, found.fits) == (12, 3, False)


def test_a_sleeping_engine_has_no_load_to_set_beside() -> None:
    """What a sleeping engine will be asked is not known; what its pool would hold is."""
    found = fp8(engine(sleep_state="discard_all"))

    assert (found.requests, found.more_requests, found.fits) == (35, None, None)


def test_a_longer_request_needs_a_longer_limit() -> None:
    """Of 9,102 blocks one request of 32,768 tokens takes 2,048: four are resident."""
    labels = QWEN3_8B | {"kv_cache_max_concurrency": str(9102 / 1024)}
    known = facts(settings=options(max_model_len=16_384))

    found = changes(engine(labels=labels, known=known, max_model_len=16_384), tokens=32_768)

    assert list(found) == ["--max-model-len 32768"]
    assert found["--max-model-len 32768"].requests == 4


def test_a_request_longer_than_the_pool_stops_the_start() -> None:
    """9,101 blocks of 16 tokens hold 145,616, and vLLM refuses to start for more."""
    model = facts().layers
    assert model is not None
    known = facts(settings=options())
    known = replace(known, layers=replace(model, max_position=200_000))

    found = changes(engine(known=known), tokens=160_000)["--max-model-len 160000"]

    assert (found.fits, found.tokens) == (False, None)
    assert "145,616" in (found.reason or "")


def test_no_model_is_stretched_beyond_what_it_was_made_for() -> None:
    """Qwen3-8B's config.json ends at 40,960 positions."""
    found = changes(engine(), tokens=50_000)["--max-model-len 50000"]

    assert "40,960" in (found.reason or "")


def test_a_shorter_limit_adds_no_request_where_windows_share_the_pool() -> None:
    """Gemma-3-27B for 8,192 instead of 131,072 tokens prints 74,773 tokens instead of 291,658.

    Its 32,768 blocks, and what a request of 8,064 tokens takes of them, stay as they are: 504 of
    full attention and 6 x 65 of windows.

    Source: vLLM 0.32's own get_kv_cache_configs, 40 GiB.
    """
    labels = {
        "num_gpu_blocks": "32768",
        "block_size": "16",
        "cache_dtype": "auto",
        "kv_cache_size_tokens": "291658",
        "kv_cache_max_concurrency": str(32768 / 14726),
    }
    known = facts("gemma-3-27b-text", settings=options(max_model_len=131_072))
    view = engine(labels=labels, known=known, max_model_len=131_072)

    found = changes(view, tokens=8_192)["--max-model-len 8192"]

    assert (found.tokens_now, found.tokens) == (291_658, 74_773)
    assert found.gain_ratio == 0


def test_a_larger_share_adds_what_the_gpu_has_to_spare() -> None:
    """40 GiB of 80 are managed and 0.3 for the context; 1.6 (2 %) stay free as a margin.

    The share can rise to 0.97 at most: 0.47 x 80 GiB are 37.6 GiB, 17,112 blocks of 2.25 MiB.
    """
    view = engine()
    found = what_ifs(
        view,
        cards((view,), held_gib={view.engine: 40.3}),
        (view,),
        context_tokens=8_192,
        requests=10,
    )

    share = found[-1]

    assert share.change == "--gpu-memory-utilization 0.97"
    assert share.tokens == (9_102 + 17_112) * 16
    assert share.fits is True


def test_the_gpu_of_an_fp8_cache_is_named_where_it_has_no_units_for_it() -> None:
    """An A100 (8.0) stores such numbers and widens them; Ada (8.9) and Hopper compute with them."""
    old = replace(HOPPER, capability=(8, 0))

    assert "8.0" in (fp8(engine(known=facts(settings=options(device=old)))).evidence or "")
    assert fp8(engine()).evidence is None
