"""Figures that real servers logged about their own pools."""

import pytest
from tests.unit.oracle import model_at

from kvheadroom.engine.capacity import Allocation, allocate
from kvheadroom.engine.options import Device, EngineOptions
from kvheadroom.engine.versions import Version
from kvheadroom.units import GIB


def served(name: str, version: Version, blocks: int) -> Allocation:
    """Return the allocation of a server on a CPU: blocks of 128, one step of 2,048 in flight."""
    found = allocate(
        model_at(f"served/{name}.json"),
        EngineOptions(
            version=version,
            device=Device(),
            max_model_len=2048,
            max_num_batched_tokens=2048,
            max_num_seqs=64,
            block_size=128,
            num_gpu_blocks_override=blocks,
            enforce_eager=True,
        ),
        GIB,
    )
    assert isinstance(found, Allocation)
    return found


def test_a_hybrid_served_has_the_tokens_it_logged() -> None:
    """Gemma 3 of six layers on 0.32.0: six groups of 128, 2,636 tokens, 1.2871287128712872x."""
    found = served("0.32.0-gemma3", (0, 32, 0), 130)

    assert [group.block_size for group in found.groups] == [128] * 6
    assert found.tokens == 2_636
    assert found.max_concurrency == 1.2871287128712872


@pytest.mark.parametrize(
    ("version", "blocks", "tokens", "concurrency"),
    [
        ((0, 10, 2), 160, 20_480, 10.0),
        ((0, 11, 0), 160, 20_480, 10.0),
        ((0, 18, 1), 40, 5_120, 2.5),
        ((0, 28, 0), 40, 5_120, 2.5),
    ],
)
def test_a_dense_model_served_has_the_tokens_it_logged(
    version: Version, blocks: int, tokens: int, concurrency: float
) -> None:
    """Llama of four layers has what each version's server logged for its forced blocks."""
    found = served("0.18.1", version, blocks)

    assert (found.tokens, found.max_concurrency) == (tokens, concurrency)
