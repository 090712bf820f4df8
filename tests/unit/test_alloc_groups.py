"""Groups of mixed layers; expected values are what vLLM 0.32's planner makes of the same specs."""

import pytest

from kvheadroom.engine.backend_rules import choose_backend
from kvheadroom.engine.backends import Query
from kvheadroom.engine.groups import LayerGroup, group_layers
from kvheadroom.engine.pipeline import bytes_per_stage, stage_of_layers
from kvheadroom.engine.specs import CacheSpec, Placed
from kvheadroom.errors import ConfigError
from kvheadroom.model.layers import KernelTraits

FULL = CacheSpec("FullAttentionSpec", 16, 65536, (8, 128))
HALF = CacheSpec("FullAttentionSpec", 16, 32768, (4, 128))
WINDOW = CacheSpec("SlidingWindowSpec", 16, 65536, (8, 128), window=1024)
ODD_WINDOW = CacheSpec("SlidingWindowSpec", 16, 24576, (2, 192), window=128)
LATENT = CacheSpec("MLAAttentionSpec", 16, 18432, (576,))
STATE = CacheSpec("MambaSpec", 16, 60000, ("gdn",), state_blocks=2)


def groups(*specs: CacheSpec, hybrid: bool = True, packed: bool = False) -> tuple[LayerGroup, ...]:
    placed: list[Placed] = [(0, spec) for spec in specs]
    return group_layers(placed, version=(0, 32, 0), hybrid=hybrid, block_outermost=packed)


def shape(found: tuple[LayerGroup, ...]) -> list[tuple[str, int, int, int]]:
    return [
        (group.kind, len(group.members), group.first.block_size, group.page_bytes)
        for group in found
    ]


def test_smaller_pages_get_longer_blocks() -> None:
    """A page that divides the largest is stretched to it."""
    found = groups(HALF, WINDOW)

    assert shape(found) == [
        ("FullAttentionSpec", 1, 32, 65536),
        ("SlidingWindowSpec", 1, 16, 65536),
    ]


def test_a_page_that_does_not_divide_is_padded() -> None:
    """An attention page of 24,576 bytes beside one of 65,536 keeps its tokens and is padded."""
    found = groups(FULL, ODD_WINDOW)

    assert shape(found)[1] == ("SlidingWindowSpec", 1, 16, 65536)


def test_a_latent_page_that_does_not_divide_gives_up_the_windows() -> None:
    """Windows beside latent layers are then allocated like full attention, in one group."""
    found = groups(LATENT, LATENT, ODD_WINDOW)

    assert shape(found) == [("UniformTypeKVCacheSpecs", 3, 16, 2 * 18432 + 24576)]


def test_windows_of_two_sizes_need_the_hybrid_manager() -> None:
    """Without it vLLM cannot put them into one group and refuses to start."""
    with pytest.raises(ConfigError, match="window size"):
        groups(FULL, WINDOW, ODD_WINDOW, hybrid=False)


def test_a_state_cannot_be_promoted() -> None:
    """A state beside a window, without the hybrid manager, stops the start."""
    with pytest.raises(ConfigError, match="promote"):
        groups(FULL, WINDOW, STATE, hybrid=False)


def test_states_never_widen_a_packed_block() -> None:
    """Four states and two windows packed block by block: a group for each."""
    found = groups(WINDOW, STATE, STATE, STATE, STATE, WINDOW, packed=True)

    assert [len(group.members) for group in found] == [1] * 6


def test_a_stage_before_the_last_takes_what_does_not_divide() -> None:
    """80 layers on three stages: 27, 27 and 26 (vLLM's ``get_pp_indices``)."""
    stages = stage_of_layers(80, 3)

    assert [stages.count(stage) for stage in range(3)] == [27, 27, 26]


def test_the_poorest_rank_of_a_stage_counts() -> None:
    """Figures for every rank are reduced to the least of each stage."""
    assert bytes_per_stage([9, 8, 7, 6], stages=2, ranks_per_stage=2) == (8, 6)


def test_figures_for_other_ranks_are_refused() -> None:
    """Three figures for two stages of two ranks make no sense."""
    with pytest.raises(ValueError, match="3 memory figures"):
        bytes_per_stage([1, 2, 3], stages=2, ranks_per_stage=2)


@pytest.mark.parametrize(
    ("capability", "kv_dtype", "head_dim", "expected"),
    # The oracle's `resolved.backends` for models of these shapes.
    [
        ((9, 0), "auto", 128, "FLASH_ATTN"),
        ((8, 0), "auto", 128, "FLASH_ATTN"),
        ((8, 0), "fp8", 128, "FLASHINFER"),
        ((8, 9), "fp8", 96, "TRITON_ATTN"),
        ((10, 0), "auto", 128, "FLASHINFER"),
        ((7, 5), "auto", 128, "TRITON_ATTN"),
        ((9, 0), "nvfp4", 128, "FLASHINFER"),
        ((9, 0), "int8_per_token_head", 128, "TRITON_ATTN"),
        ((9, 0), "turboquant_k3v4_nc", 128, "TURBOQUANT"),
        ((7, 5), "nvfp4", 128, None),
    ],
)
def test_the_first_able_backend_serves(
    capability: tuple[int, int], kv_dtype: str, head_dim: int, expected: str | None
) -> None:
    """The backend depends on GPU, cache dtype and head size as vLLM's order has it."""
    query = Query(head_dim, "bfloat16", kv_dtype, capability, KernelTraits())

    found = choose_backend(query, None)

    assert (found.name if found else None) == expected
