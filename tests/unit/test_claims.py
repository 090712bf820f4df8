from dataclasses import replace
from itertools import permutations
from random import Random

import pytest

from kvheadroom.engine.budget import Start, refused_starts, start_order
from kvheadroom.live.claims import CardClaims, Claim, cannot_restart, card_claims
from kvheadroom.live.rank_parts import Part, RankParts
from kvheadroom.readings import GpuReading
from kvheadroom.units import GIB, MIB

CONTEXT_GIB = 0.28


def gib(amount: float) -> int:
    return round(amount * GIB)


def claim(
    name: str,
    utilization: float,
    weights_gib: float,
    runtime_gib: float,
    held_gib: float | None,
    **changed: object,
) -> Claim:
    found = Claim(
        engine=name,
        server=name,
        utilization=utilization,
        kv_cache_memory_bytes=None,
        held_bytes=None if held_gib is None else gib(held_gib),
        parts=RankParts(
            weights=Part(gib(weights_gib), "log"),
            context=Part(gib(CONTEXT_GIB), "estimated"),
            activation=Part(gib(runtime_gib), "log"),
        ),
        version=(0, 32, 0),
    )
    return replace(found, **changed)  # type: ignore[arg-type]


# Three services on a card of 12,288 MiB: shares of 7.37, 1.97 and 1.72 GB, contexts of 0.28 GiB.
# The encoder holds what it uses: 1.06 weights, 0.50 beside them and its context.
LLM = claim("llm", 0.60, 5.68, 0.80, 7.48)
EMBEDDER = claim("embed", 0.16, 1.11, 0.50, 2.20)
RERANKER = claim("rerank", 0.14, 1.06, 0.50, 1.84, caches_kv=False)


def card(*claims: Claim, total_gib: float = 12.0, others_gib: float = 0.0) -> CardClaims:
    held = sum(one.held_bytes or 0 for one in claims)
    gpu = GpuReading(
        gpu="0",
        uuid="GPU-1",
        total_bytes=gib(total_gib),
        reserved_bytes=0,
        used_bytes=held + gib(others_gib),
        free_bytes=gib(total_gib) - held - gib(others_gib),
    )
    found = card_claims(gpu, claims)
    assert found is not None
    return found


def starts(found: CardClaims) -> dict[str, bool | None]:
    return {one.server: one.starts for one in found.restarts}


def test_the_shares_of_one_card_add_up() -> None:
    """0.60 + 0.16 + 0.14 of 12 GiB, three contexts of 0.28 and 0.36 GiB left."""
    found = card(LLM, EMBEDDER, RERANKER)

    assert found.claimed_ratio == pytest.approx(0.90)
    assert [share.ratio for share in found.shares] == pytest.approx([0.60, 0.16, 0.14])
    assert [share.context_bytes for share in found.shares] == [gib(0.28)] * 3
    assert found.unallocated_bytes == pytest.approx(gib(0.36), abs=8)
    assert not found.is_overcommitted


def test_two_servers_with_the_default_share_cannot_both_start() -> None:
    """Twice 0.92: the second one got in while the first was asleep, and neither would again."""
    first = claim("a", 0.92, 8, 1, 11)
    second = claim("b", 0.92, 0.5, 0.2, 0.9)

    found = card(first, second, total_gib=12)

    assert found.claimed_ratio == pytest.approx(1.84)
    assert found.is_overcommitted
    assert starts(found)["b"] is False


def test_a_share_is_of_what_the_driver_leaves() -> None:
    """A card of 24,564 MiB with 354 in reserve: CUDA sees 23.64 GiB, and 0.92 of it is 21.75."""
    gpu = GpuReading(
        gpu="0",
        uuid="GPU-1",
        total_bytes=24_564 * MIB,
        reserved_bytes=354 * MIB,
        used_bytes=0,
        free_bytes=24_210 * MIB,
    )

    found = card_claims(gpu, [claim("a", 0.92, 8, 1, 0)])

    assert found is not None
    assert found.claimed_ratio == pytest.approx(0.92)
    assert found.restarts[0].asked_bytes == pytest.approx(gib(21.75), abs=5 * MIB)


def test_who_fills_the_card_finds_its_own_memory_again() -> None:
    """Its own memory is free once it has stopped."""
    assert starts(card(claim("a", 0.92, 8, 1, 11.3)))["a"] is True


def test_an_encoder_asks_for_a_share_it_never_fills() -> None:
    """0.30 of 24 GiB is 7.2, found are 3.4: it must start before what fills the card."""
    llm = claim("llm", 0.85, 15, 1, 20.6)
    embed = claim("embed", 0.30, 1.1, 0.5, 1.9, caches_kv=False)

    found = card(llm, embed, total_gib=24)

    assert starts(found) == {"llm": True, "embed": False}
    [embedder] = [one for one in found.restarts if one.server == "embed"]
    assert embedder.asked_bytes == pytest.approx(gib(7.2), abs=1)
    assert embedder.found_bytes == pytest.approx(gib(3.4 - CONTEXT_GIB), abs=1)
    assert found.start_order == ("embed", "llm")
    assert "embed, then llm" in found.explanation


def test_a_stranger_takes_the_room_to_start_again() -> None:
    """A notebook with 3 GiB leaves 9.28 for a share of 11.04; what runs goes on running."""
    found = card(claim("a", 0.92, 6, 1, 8.5), others_gib=3)

    assert starts(found)["a"] is False
    assert found.start_order is None
    assert "in no order" in found.explanation


def test_a_pool_in_bytes_still_asks_for_the_share() -> None:
    """vLLM checks the share in any case: 0.92 of 12 GiB, though 6.4 would do."""
    given = claim("a", 0.92, 4, 0.4, 6.5, kv_cache_memory_bytes=2 * GIB)

    found = card(given, others_gib=3)

    assert starts(found)["a"] is False
    assert found.restarts[0].asked_bytes == pytest.approx(gib(11.04), abs=1)
    assert found.claimed_ratio == pytest.approx(6.4 / 12)


def test_a_pool_in_bytes_above_the_share_needs_all_of_it() -> None:
    """A share of 0.3 passes the check, but 10.4 GiB do not fit beside 3."""
    given = claim("a", 0.3, 4, 0.4, None, kv_cache_memory_bytes=6 * GIB)

    assert card(given, others_gib=3).restarts[0].asked_bytes == pytest.approx(gib(10.4), abs=1)


def test_a_start_that_hangs_on_the_context_is_left_open() -> None:
    """0.29 GiB are left for a context, which takes 0.27 at least and 0.31 here."""
    parts = RankParts(context=Part(gib(0.31), "estimated"))

    assert starts(card(claim("a", 0.5, 4, 1, 6, parts=parts), others_gib=5.71)) == {"a": None}


def test_without_its_bytes_a_process_is_not_judged() -> None:
    """WSL tells no bytes per process; what is free now may be too little and yet not all."""
    unknown = claim("a", 0.6, 5, 1, None)

    [restart] = card(unknown, others_gib=7.5).restarts

    assert (restart.starts, restart.found_bytes) == (None, None)
    assert "driver" in restart.reason


def test_room_enough_needs_no_bytes_of_the_process() -> None:
    """What is free already suffices."""
    assert starts(card(claim("a", 0.3, 3, 1, None), others_gib=4)) == {"a": True}


def test_a_version_without_the_check_is_not_judged() -> None:
    """vLLM looks at what is free since 0.9.1."""
    assert starts(card(claim("a", 0.9, 4, 1, 5, version=(0, 9, 0)), others_gib=6)) == {"a": None}


def test_engines_of_one_server_start_together() -> None:
    """Two data-parallel engines of 0.4 each on one card need twice the share."""
    twins = [claim(f"a/{n}", 0.4, 3, 1, 5.1, server="a") for n in (0, 1)]

    found = card(*twins, others_gib=1.5)

    assert [one.server for one in found.restarts] == ["a"]
    assert found.restarts[0].asked_bytes == pytest.approx(gib(5.1 + 4.8 - 0.28), abs=1)


def test_a_sleeping_engine_is_counted_awake_where_all_start_anew() -> None:
    """It holds 1 GiB now and its share once it is up."""
    sleeper = claim("a", 0.6, 5, 1, 1, is_asleep=True)
    other = claim("b", 0.5, 4, 1, 6.28)

    assert card(sleeper, other).start_order is None


def test_a_server_is_named_once_for_all_its_cards() -> None:
    """One card that refuses stops it."""
    bad = card(claim("a", 0.92, 6, 1, 8.5), others_gib=3)
    good = card(claim("a", 0.92, 6, 1, 8.5))

    assert cannot_restart([good, bad, bad]) == ("a",)


def test_without_memory_there_are_no_claims() -> None:
    """Unified memory, or a GPU without engines."""
    blank = GpuReading(gpu="0", uuid="GPU-1")

    assert card_claims(blank, [LLM]) is None
    assert card_claims(replace(blank, total_bytes=GIB, free_bytes=GIB), []) is None


def test_an_order_is_found_exactly_where_one_exists() -> None:
    """Every order of up to five servers tried out: 300 random cards of 80 GiB."""
    random = Random(7)
    found = 0
    for _ in range(300):
        some = [
            Start(random.randrange(75 * GIB), 300 * MIB, random.randrange(45 * GIB))
            for _ in range(random.randrange(1, 6))
        ]
        works = [order for order in permutations(range(len(some)))
                 if not refused_starts(80 * GIB, [some[n] for n in order])]  # fmt: skip

        order = start_order(80 * GIB, some)

        assert (order in works) if works else (order is None)
        found += bool(works)
    assert 50 < found < 250
