import pytest

from kvheadroom.live.rank_parts import Part, RankParts, margin_bytes, rank_parts
from kvheadroom.readings import ProcessBoot
from kvheadroom.units import GIB, MIB

# Qwen3-8B in bf16: 144 KiB a token, 16 tokens a block.
BLOCK = 16 * 144 * 1024
WEIGHTS = 16_381_470_720


def gib(amount: float) -> int:
    return round(amount * GIB)


def test_without_a_log_the_model_and_what_is_usual_are_used() -> None:
    """1,000 blocks of 2.25 MiB; the medians of public logs, a larger peak for larger models."""
    parts = rank_parts(weights_bytes=WEIGHTS, kv_blocks=1_000, block_bytes=BLOCK)

    assert parts.weights == Part(WEIGHTS, "computed")
    assert parts.kv == Part(2_250 * MIB, "computed")
    assert parts.activation == Part(int(2.4 * GIB), "estimated")
    assert parts.context == Part(300 * MIB, "estimated")


def test_the_log_replaces_what_is_computed_or_usual() -> None:
    """What was measured at start is labeled as such."""
    log = ProcessBoot(
        weights_bytes=gib(15.27),
        activation_bytes=gib(1.39),
        non_torch_bytes=gib(0.05),
        graph_bytes=gib(0.63),
    )

    parts = rank_parts(weights_bytes=WEIGHTS, kv_blocks=1_000, block_bytes=BLOCK, log=log)

    assert parts.weights == Part(gib(15.27), "log")
    assert parts.activation == Part(gib(1.39), "log")
    assert parts.non_torch == Part(gib(0.05), "log")
    assert parts.cuda_graph == Part(gib(0.63), "log")


def test_a_pool_the_log_agrees_with_is_known_to_the_byte() -> None:
    """2.2 GiB printed is 2,250 MiB and a rest below one block, as far as two places tell."""
    log = ProcessBoot(kv_bytes=gib(2.2))

    assert rank_parts(weights_bytes=None, kv_blocks=1_000, block_bytes=BLOCK, log=log).kv == Part(
        2_250 * MIB, "computed"
    )


def test_a_pool_the_log_contradicts_is_the_logs() -> None:
    """A checkpoint may set an 8-bit cache that no label shows: half the bytes."""
    log = ProcessBoot(kv_bytes=gib(1.1))

    assert rank_parts(weights_bytes=None, kv_blocks=1_000, block_bytes=BLOCK, log=log).kv == Part(
        gib(1.1), "log"
    )


def test_more_memory_than_the_pool_takes_contradicts_nothing_on_one_rank_of_several() -> None:
    """The rank with the least memory decides for all."""
    log = ProcessBoot(kv_bytes=gib(9))

    assert rank_parts(
        weights_bytes=None, kv_blocks=1_000, block_bytes=BLOCK, log=log, log_states_pool=False
    ).kv == Part(2_250 * MIB, "computed")


def test_an_unknown_model_has_the_pool_of_its_log_or_its_settings() -> None:
    """Without the bytes of a block."""
    settings = rank_parts(
        weights_bytes=None, kv_blocks=1_000, block_bytes=None, kv_configured_bytes=7 * GIB
    )
    log = rank_parts(
        weights_bytes=None,
        kv_blocks=1_000,
        block_bytes=None,
        kv_configured_bytes=7 * GIB,
        log=ProcessBoot(kv_bytes=6 * GIB),
    )

    assert settings.kv == Part(7 * GIB, "configured")
    assert log.kv == Part(6 * GIB, "log")
    assert settings.weights is None
    assert settings.activation is None


def test_an_encoder_has_no_pool() -> None:
    """It is known to hold none, which is not the same as unknown."""
    assert rank_parts(
        weights_bytes=GIB, kv_blocks=None, block_bytes=None, caches_kv=False
    ).kv == Part(0, "computed")


def test_without_graphs_none_are_expected() -> None:
    """``--enforce-eager``."""
    parts = rank_parts(weights_bytes=GIB, kv_blocks=None, block_bytes=None, captures_graphs=False)

    assert parts.cuda_graph == Part(0, "estimated")


def test_a_sleeping_engine_holds_neither_weights_nor_pool() -> None:
    """Its context and graphs stay."""
    parts = rank_parts(weights_bytes=WEIGHTS, kv_blocks=1_000, block_bytes=BLOCK, is_asleep=True)

    assert (parts.weights, parts.kv) == (Part(0, "engine"), Part(0, "engine"))
    assert parts.context is not None
    assert parts.context.bytes > 0


@pytest.mark.parametrize("printed", [-0.51, -0.01])
def test_less_than_nothing_is_nothing(printed: float) -> None:
    """Real logs print negative non-torch memory where another process freed some meanwhile."""
    log = ProcessBoot(non_torch_bytes=gib(printed))

    assert rank_parts(
        weights_bytes=None, kv_blocks=None, block_bytes=None, log=log
    ).non_torch == Part(0, "log")


def test_the_margin_is_what_the_share_leaves() -> None:
    """A public log (0.26, 16 GB): 13.99 less 0.93, 0.07, 1.06 and 11.94; graphs inside the peak."""
    parts = RankParts(
        *(Part(gib(amount), "log") for amount in (0.93, 11.94, 0.3, 0.07, 0.4, 1.06 - 0.4))
    )

    assert margin_bytes(parts, gib(13.99)) == pytest.approx(gib(-0.01), abs=8)
    assert margin_bytes(RankParts(kv=Part(1, "log")), gib(13.99)) is None
