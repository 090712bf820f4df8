"""The worked cases: three services on one card, 24 GiB and four requests, four tiers."""

import io
from math import floor

import pytest

from kvheadroom.engine.budget import (
    LLAMA_CPP_ELEMENT_BYTES,
    NO_BYTES,
    CardBudget,
    Demand,
    Estimate,
    budget_card,
    budget_instance,
    exactly,
    fails_to_start,
    kv_slots,
)
from kvheadroom.node.startup_log import read_boots
from kvheadroom.units import GIB, KIB, MIB, parse_bytes


def gib(amount: float) -> int:
    return round(amount * GIB)


def demand(
    name: str,
    utilization: float,
    weights_gib: float,
    runtime_gib: float,
    *,
    context_gib: float = 0.28,
    caches_kv: bool = True,
) -> Demand:
    return Demand(
        name=name,
        utilization=utilization,
        kv_cache_memory_bytes=None,
        weights=exactly(gib(weights_gib)),
        activation=exactly(gib(runtime_gib)),
        non_torch=NO_BYTES,
        cuda_graphs=NO_BYTES,
        context=exactly(gib(context_gib)),
        caches_kv=caches_kv,
    )


LLM = demand("llm", 0.60, 5.68, 0.80)
EMBEDDER = demand("embed", 0.16, 1.11, 0.50)
RERANKER = demand("rerank", 0.14, 1.06, 0.50, caches_kv=False)


def card_a() -> CardBudget:
    return budget_card(12_288 * MIB, (LLM, EMBEDDER, RERANKER))


@pytest.mark.parametrize(
    ("position", "managed_gib", "remainder_gib"),
    [(0, 7.20, 0.72), (1, 1.92, 0.31), (2, 1.68, 0.12)],
)
def test_case_a_each_service(position: int, managed_gib: float, remainder_gib: float) -> None:
    """Case A, 12 GiB card: shares 7.20, 1.92 and 1.68 GiB leave 0.72, 0.31 and 0.12."""
    instance = card_a().instances[position]

    assert instance.managed_bytes / GIB == pytest.approx(managed_gib, abs=1e-6)
    assert instance.remainder.bytes / GIB == pytest.approx(remainder_gib, abs=1e-6)


def test_case_a_the_whole_card() -> None:
    """0.90 of the card is claimed, contexts take 0.07 more, 0.36 GiB stay unallocated."""
    card = card_a()

    assert card.claimed_ratio == pytest.approx(0.90)
    assert card.unallocated_bytes / GIB == pytest.approx(0.36, abs=1e-6)


def test_case_a_one_full_sequence_fits_in_fp8_and_not_in_fp16() -> None:
    """8K tokens are 0.5625 GiB at 72 KiB and 1.125 GiB at 144 KiB; 0.72 GiB are left."""
    left = card_a().instances[0].remainder.bytes

    assert floor(kv_slots(left, token_bytes=72 * KIB, context_tokens=8192)) == 1
    assert floor(kv_slots(left, token_bytes=144 * KIB, context_tokens=8192)) == 0
    assert floor(kv_slots(left, token_bytes=144 * KIB, context_tokens=4096)) == 1


def test_case_a_the_embedder_holds_2_8_sequences() -> None:
    """0.31 GiB at 112 KiB a token are about 2.8 sequences of 1K."""
    left = card_a().instances[1].remainder.bytes

    assert kv_slots(left, token_bytes=112 * KIB, context_tokens=1024) == pytest.approx(
        2.83, abs=0.01
    )


def test_case_a_on_8_gib_no_sharing_out_helps() -> None:
    """0.60 x 8 GiB is 4.8, below the LLM's 5.68 GiB of weights alone."""
    assert budget_instance(8 * GIB, LLM).remainder.bytes < 0


def test_two_servers_with_the_default_share_cannot_both_start() -> None:
    """0.92 twice is more than the card; the second one refuses."""
    twice = (demand("a", 0.92, 5, 1), demand("b", 0.92, 5, 1))

    assert fails_to_start(budget_card(24 * GIB, twice)) == (1,)


def test_contexts_lie_outside_every_share() -> None:
    """Shares of 0.50 and 0.50 fill the card on paper; the contexts make the second refuse."""
    halves = (demand("a", 0.5, 5, 1), demand("b", 0.5, 5, 1))

    assert fails_to_start(budget_card(24 * GIB, halves)) == (1,)
    assert fails_to_start(card_a()) == ()


def test_case_b_the_third_32k_request_no_longer_fits() -> None:
    """24 GiB x 0.9 - 15 - 2 leaves 4.6 GiB; requests of 1.75 GiB: two fit, four lack 2.4."""
    left = budget_instance(24 * GIB, demand("qwen2.5-7b", 0.9, 15, 2)).remainder.bytes
    request = 56 * KIB * 32_768

    assert left / GIB == pytest.approx(4.6, abs=1e-6)
    assert request / GIB == 1.75
    assert left // request == 2
    assert (4 * request - left) / GIB == pytest.approx(2.4, abs=1e-6)


def test_bytes_for_the_pool_replace_the_share() -> None:
    """--kv-cache-memory-bytes and the utilization are not added."""
    given = Demand(
        name="x", utilization=0.9, kv_cache_memory_bytes=7 * GIB, weights=exactly(15 * GIB),
        activation=exactly(2 * GIB), non_torch=NO_BYTES, cuda_graphs=NO_BYTES, context=NO_BYTES,
    )  # fmt: skip

    assert budget_instance(80 * GIB, given).remainder.bytes == 7 * GIB


def test_a_range_turns_round_in_the_remainder() -> None:
    """The most that activations may take leaves the least for the cache."""
    unsure = Demand(
        name="x", utilization=1.0, kv_cache_memory_bytes=None, weights=exactly(4),
        activation=Estimate(1, 2, 5, "table"), non_torch=NO_BYTES, cuda_graphs=NO_BYTES,
        context=NO_BYTES,
    )  # fmt: skip

    remainder = budget_instance(10, unsure).remainder

    assert (remainder.low_bytes, remainder.bytes, remainder.high_bytes) == (1, 4, 5)


LLAMA_TOKEN_FP16 = 320 * KIB


@pytest.mark.parametrize(
    ("kv_gib", "token_bytes", "context_tokens", "slots"),
    [
        (107.52 - 39.60 - 2.8, LLAMA_TOKEN_FP16, 8192, 26),
        (107.52 - 39.60 - 2.8, LLAMA_TOKEN_FP16 / 2 * LLAMA_CPP_ELEMENT_BYTES["q8_0"], 8192, 49),
        (107.52 - 39.60 - 2.8, LLAMA_TOKEN_FP16, 131_072, 1),
        (96 * 0.92 - 39.60 - 2.8, LLAMA_TOKEN_FP16 / 2, 8192, 36),
        (96 * 0.92 - 39.60 - 2.8, LLAMA_TOKEN_FP16 / 2, 32_768, 9),
        (80 * 0.92 - 67.67 - 2.8, LLAMA_TOKEN_FP16 / 2, 8192, 2),
    ],
    ids=["T1 8K", "T1 q8_0", "T1 128K", "T3 8K", "T3 32K", "T4 8K"],
)
def test_case_c_llama_on_four_tiers(
    kv_gib: float, token_bytes: float, context_tokens: int, slots: int
) -> None:
    """Case C, Llama 3.3 70B: KV is the memory less weights less 2.8 GiB."""
    found = kv_slots(kv_gib * GIB, token_bytes=token_bytes, context_tokens=context_tokens)

    assert floor(found) == slots


def test_case_c_gpt_oss_has_a_fixed_part() -> None:
    """gpt-oss-120b, 60.8 GiB on 96 GiB: 18 KiB a token and 2.25 MiB a request make 173 slots."""
    kv = (96 * 0.92 - 60.8 - 2.8) * GIB
    slots = kv_slots(kv, token_bytes=18 * KIB, context_tokens=8192, fixed_bytes=2.25 * MIB)

    assert floor(slots) == 173


def test_case_c_eight_requests_meet_the_wall_at_36_7k() -> None:
    """45.92 GiB over eight requests of 160 KiB a token is a context of about 36.7K tokens."""
    kv = (96 * 0.92 - 39.60 - 2.8) * GIB

    assert kv / 8 / (160 * KIB) / 1024 == pytest.approx(36.7, abs=0.05)


def test_case_c_t2_the_weights_alone_do_not_fit() -> None:
    """39.60 GiB of weights on a 12 GiB card: vLLM refuses; llama.cpp would offload and be slow."""
    instance = budget_instance(12 * GIB, demand("llama-3.3-70b", 0.92, 39.60, 2.8))

    assert instance.remainder.bytes < 0


def test_case_c_t4_two_ranks_and_two_groups_of_them() -> None:
    """Two H100 leave 73.9 GiB between them: 59 requests of 8K; two such groups serve 118."""
    kv_gib = 2 * 80 * 0.92 - 67.67 - 2 * 2.8
    slots = floor(kv_slots(kv_gib * GIB, token_bytes=160 * KIB, context_tokens=8192))

    assert kv_gib == pytest.approx(73.9, abs=0.05)
    assert (slots, 2 * slots) == (59, 118)


def test_case_c_decimal_and_binary_gigabytes_differ_by_2_9() -> None:
    """A checkpoint of 42.52 GB is 39.60 GiB; taking one for the other costs 2.9 GiB."""
    assert parse_bytes("42.52GB") / GIB == pytest.approx(39.60, abs=0.005)
    assert 42.52 - parse_bytes("42.52GB") / GIB == pytest.approx(2.9, abs=0.05)


def test_case_d_the_three_lines_of_the_log() -> None:
    """The capacity dashboard of a start: 8.42 GiB, 4,631 blocks of 16 or 74,096 tokens, 9.04x."""
    log = io.BytesIO(
        b"INFO 06-01 10:00:00 [gpu_worker.py:1] Available KV cache memory: 8.42 GiB\n"
        b"INFO 06-01 10:00:01 [kv_cache_utils.py:1] GPU KV cache size: 74,096 tokens\n"
        b"INFO 06-01 10:00:01 [kv_cache_utils.py:2] Maximum concurrency for 8,192 tokens per "
        b"request: 9.04x\n"
    )

    (boot,) = read_boots(log)

    found = {figure.name: figure.value for figure in boot.figures}
    assert found["available_kv_bytes"] / GIB == pytest.approx(8.42, abs=0.005)
    assert 74_096 in found.values()
    assert 9.04 in found.values()
