import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.unit.engine_views import HOPPER, QWEN3_8B, cards, engine, facts, options, pressed

from kvheadroom.faces.node_document import node_document
from kvheadroom.faces.notes import notes
from kvheadroom.live.advice import Advice, AdviceKind, advise, advise_all
from kvheadroom.live.card_view import CardView
from kvheadroom.live.engine_view import EngineView
from kvheadroom.live.snapshot import Snapshot
from kvheadroom.units import GIB


def advice(
    view: EngineView, on: Sequence[CardView] = (), engines: Sequence[EngineView] = ()
) -> dict[AdviceKind, Advice]:
    return {one.kind: one for one in advise(view, on, engines or (view,))}


def flags(one: Advice) -> dict[str, str]:
    words = one.change.split()
    return dict(zip(words[::2], words[1::2], strict=True))


# --- an engine without trouble ----------------------------------------------------------------


@pytest.mark.parametrize("binding", ["none", "token_budget", "deferred", None])
def test_an_engine_that_lacks_nothing_gets_no_advice(binding: str | None) -> None:
    """An fp8 cache would double its pool, and nobody waits for that."""
    view = pressed(engine(), binding)  # type: ignore[arg-type]

    assert advice(view, cards((view,), held_gib={view.engine: 40.3})) == {}


def test_a_sleeping_engine_gets_no_advice() -> None:
    """It has given its pool away on purpose."""
    view = pressed(engine(sleep_state="discard_all"))

    assert advice(view, cards((view,), held_gib={view.engine: 2.0})) == {}


def test_a_stalled_engine_is_not_told_to_change_its_settings() -> None:
    """Its frozen gauges say nothing of what binds."""
    view = pressed(engine(used_ratio=0.99), stalled=True)

    assert advice(view) == {}


def test_only_engines_with_advice_are_listed() -> None:
    """One of two is short of blocks."""
    quiet = engine(target="127.0.0.1:8001")
    short = pressed(engine(used_ratio=0.99))

    assert list(advise_all((), (quiet, short))) == [short.engine]


def test_every_face_shows_the_advice_of_an_engine() -> None:
    """Page, terminal and JSON are made from one document."""
    short, quiet = pressed(engine(used_ratio=0.99)), engine(target="127.0.0.1:8001")
    views = (short, quiet)

    node = node_document("1", Snapshot(engines=views))

    assert [one.advice for one in node.engines] == [
        tuple(one.text for one in advise(short, (), views)),
        (),
    ]
    assert [note.subject for note in notes(node) if note.weight == "advice"] == [short.engine]


# --- an fp8 cache ----------------------------------------------------------------------------


def test_a_full_pool_is_told_what_an_fp8_cache_would_hold() -> None:
    """vLLM plans Qwen3-8B on 20 GiB as 145,632 tokens, and as 291,264 with an fp8 cache.

    A request of 2,000 tokens takes 125 blocks of 9,101, and of 18,203.

    Source: vLLM 0.32's own get_kv_cache_configs.
    """
    view = pressed(engine(used_ratio=0.99, running=70, waiting=6))

    found = advice(view)["quantize_cache"]

    assert flags(found) == {"--kv-cache-dtype": "fp8"}
    assert (found.tokens_now, found.tokens) == (145_632, 291_264)
    assert (found.requests_now, found.requests) == (72, 145)
    assert "precision" in found.cost
    assert re.findall(r"\d+", found.evidence) == ["70", "6"]


@pytest.mark.parametrize(
    "shown", [{"requests_preempted": 3}, {"exhaustion_seconds": 120.0}, {"exhaustion_seconds": 0.0}]
)
def test_lost_blocks_and_a_pool_about_to_fill_are_a_shortage(shown: dict[str, float]) -> None:
    """Waiting for the queue to form would be late."""
    view = pressed(engine(used_ratio=0.9), "none", **shown)

    assert "quantize_cache" in advice(view)


def test_a_pool_that_fills_in_an_hour_is_no_shortage() -> None:
    """Traffic has its tides."""
    assert advice(pressed(engine(used_ratio=0.5), "none", exhaustion_seconds=3600.0)) == {}


def test_a_server_with_an_fp8_cache_is_not_told_to_take_one() -> None:
    """It has it."""
    known = facts(settings=options(kv_cache_dtype="fp8"))
    labels = QWEN3_8B | {"cache_dtype": "fp8"}

    assert advice(pressed(engine(labels=labels, known=known, used_ratio=0.99))) == {}


@pytest.mark.parametrize("capability", [None, (7, 5), (8, 0), (8, 6)])
def test_a_gpu_without_units_for_fp8_is_not_told_to_use_them(
    capability: tuple[int, int] | None,
) -> None:
    """They came with compute capability 8.9."""
    known = facts(settings=options(device=replace(HOPPER, capability=capability)))

    assert advice(pressed(engine(known=known, used_ratio=0.99))) == {}


def test_a_backend_that_was_asked_for_is_not_second_guessed() -> None:
    """Whether it serves such a cache is not known."""
    known = facts(settings=options(attention_backend="FLASH_ATTN"))

    assert advice(pressed(engine(known=known, used_ratio=0.99))) == {}


def test_a_model_that_is_not_known_gets_no_advice() -> None:
    """Its pool after a change cannot be computed."""
    view = pressed(engine(known=facts(None), used_ratio=0.99))

    assert advice(view, cards((view,), held_gib={view.engine: 40.3})) == {}


def test_a_pool_cannot_help_where_all_places_are_taken_by_its_length() -> None:
    """16 places, and 72 requests of the observed 2,000 tokens find blocks already."""
    known = facts(settings=options(max_num_seqs=16))

    assert "quantize_cache" not in advice(pressed(engine(known=known, used_ratio=0.9)))


# --- a larger share ---------------------------------------------------------------------------


def test_a_full_pool_is_told_of_memory_that_nobody_claims() -> None:
    """Of 80 GiB 0.5 is claimed and the rest free: 0.97 adds 37.6 GiB, 17,112 blocks."""
    view = pressed(engine(used_ratio=0.99))

    found = advice(view, cards((view,), held_gib={view.engine: 40.3}))["larger_share"]

    assert flags(found) == {"--gpu-memory-utilization": "0.97"}
    assert found.tokens == (9_102 + 17_112) * 16
    assert "GPU 0" in found.evidence


def test_memory_that_another_program_holds_is_not_promised() -> None:
    """A program holds 38 of the 39.7 GiB that the engine leaves."""
    view = pressed(engine(used_ratio=0.99))

    assert "larger_share" not in advice(
        view, cards((view,), held_gib={view.engine: 40.3}, others_gib=38.0)
    )


# --- places -----------------------------------------------------------------------------------


def test_places_that_bind_while_blocks_are_free_can_be_more() -> None:
    """16 of 16 run and 8,191 of 9,101 blocks are free.

    36 requests of 4,000 tokens, 250 blocks, stay resident; doubling is as far as it goes.
    """
    known = facts(settings=options(max_num_seqs=16))
    view = pressed(engine(known=known, used_ratio=0.1, running=16, waiting=5), "max_num_seqs")

    found = advice(view)["more_places"]

    assert flags(found) == {"--max-num-seqs": "32"}
    assert (found.requests_now, found.requests) == (16, 32)


def test_more_places_than_stay_resident_are_not_advised() -> None:
    """Twice 24 are 48, and 9,101 blocks hold 36 requests of 4,000 tokens."""
    known = facts(settings=options(max_num_seqs=24))
    view = pressed(engine(known=known, used_ratio=0.1, running=24, waiting=5), "max_num_seqs")

    assert flags(advice(view)["more_places"]) == {"--max-num-seqs": "36"}


def test_places_that_the_pool_could_not_fill_are_left_alone() -> None:
    """With 35 places for 36 residents, one more is not worth a restart."""
    known = facts(settings=options(max_num_seqs=35))
    view = pressed(engine(known=known, used_ratio=0.9, running=35, waiting=5), "max_num_seqs")

    assert advice(view) == {}


def test_places_whose_number_is_not_known_are_left_alone() -> None:
    """What the past suggests is no setting to change."""
    view = pressed(engine(known=facts(settings=None), used_ratio=0.1), "max_num_seqs")

    assert "more_places" not in advice(view)


def test_preempted_requests_lower_the_places_to_what_stays_resident() -> None:
    """9,101 blocks hold 36 requests of 4,000 tokens (95 %), and 256 are let in."""
    view = pressed(engine(used_ratio=1.0, running=60, waiting=9), requests_preempted=9)

    found = advice(view)["fewer_places"]

    assert flags(found) == {"--max-num-seqs": "36"}
    assert (found.requests_now, found.requests) == (256, 36)
    assert "9" in found.evidence


def test_places_that_all_stay_resident_are_not_lowered() -> None:
    """36 stay resident and 30 are let in: something else took the blocks."""
    known = facts(settings=options(max_num_seqs=30))
    view = pressed(engine(known=known, used_ratio=1.0, running=30), requests_preempted=1)

    assert "fewer_places" not in advice(view)


# --- data-parallel ranks ----------------------------------------------------------------------


def test_a_full_rank_beside_an_idle_one_is_told_to_share() -> None:
    """The other rank has all of its 9,101 blocks free: 72 requests of 2,000 tokens."""
    known = facts(settings=options(data_parallel=2))
    labels = QWEN3_8B | {"num_gpu_blocks": "18204"}
    full = pressed(engine(labels=labels, known=known, used_ratio=0.97, waiting=4, engines=2))
    idle = engine(labels=labels, known=known, used_ratio=0.0, rank="1", engines=2)
    headroom = idle.headroom
    assert headroom is not None
    idle = replace(idle, headroom=replace(headroom, requests={"observed": 72}))

    found = advice(full, (), (full, idle))["rebalance"]

    assert (found.requests_now, found.requests) == (0, 72)
    assert idle.engine in found.effect
    assert advice(idle, (), (full, idle)) == {}


def test_a_rank_of_another_server_is_no_rank_to_share_with() -> None:
    """Servers may serve different models, and no vLLM spreads requests over them."""
    full = pressed(engine(used_ratio=0.97, waiting=4))
    idle = engine(target="127.0.0.1:8001")

    assert "rebalance" not in advice(full, (), (full, idle))


# --- a pinned pool ----------------------------------------------------------------------------


def test_a_server_that_would_not_start_again_is_told_what_would() -> None:
    """Half of 80 GiB is claimed; another program has taken 45 and leaves 35 less the context.

    vLLM compares the share with what is free even where the pool is given in bytes, so both come
    down: to 0.43, and by some 5.5 GiB of 20.
    """
    view = engine()
    on = cards((view,), held_gib={view.engine: 35.0}, others_gib=45.0)

    found = advice(view, on)["pin_pool"]
    change = flags(found)

    assert float(change["--gpu-memory-utilization"]) * 80 <= 35.0 - 0.29
    assert 14.2 * GIB < int(change["--kv-cache-memory-bytes"]) < 14.7 * GIB
    assert found.tokens == int(change["--kv-cache-memory-bytes"]) // (144 * 1024 * 16) * 16
    assert re.search("would not start again on GPU 0", found.evidence)


def test_claims_beyond_the_gpu_pin_the_largest() -> None:
    """0.5 and 0.5 of 80 GiB and two contexts are 0.6 GiB too much; both hold less for now."""
    first = engine(target="127.0.0.1:8000", known=facts(settings=_with_share(0.49)))
    second = engine(target="127.0.0.1:8001", known=facts(settings=_with_share(0.51)))
    on = cards((first, second), held_gib={first.engine: 38.0, second.engine: 38.0})

    assert "pin_pool" not in advice(first, on)
    found = advice(second, on)["pin_pool"]

    # 0.6 GiB over the GPU, and 64 MiB for what printed figures are off by.
    lost = 9_102 * 144 * 1024 * 16 - int(flags(found)["--kv-cache-memory-bytes"])
    assert lost == pytest.approx((0.586 + 0.0625) * GIB, rel=0.01)


def test_a_pinned_pool_is_not_pinned_again() -> None:
    """It has it."""
    view = engine(known=facts(settings=options(kv_cache_memory_bytes=20 * GIB)))
    on = cards((view,), held_gib={view.engine: 35.0}, others_gib=45.0)

    assert advice(view, on) == {}


def test_a_pool_too_small_for_one_request_is_not_advised() -> None:
    """40,960 tokens take 5.6 GiB, and the other program leaves less: vLLM would not start."""
    view = engine()
    on = cards((view,), held_gib={view.engine: 24.0}, others_gib=56.0)

    assert advice(view, on) == {}


def test_one_line_says_all_of_it() -> None:
    """The change comes first, then what it gives, what it costs and what was seen."""
    one = advice(pressed(engine(used_ratio=0.99)))["quantize_cache"]

    assert one.text.startswith("--kv-cache-dtype fp8: 291,264 tokens instead of 145,632")
    assert one.cost in one.text
    assert one.text.endswith(one.evidence)
    assert "\n" not in one.text


def _with_share(ratio: float) -> object:
    return options(gpu_memory_utilization=ratio)
