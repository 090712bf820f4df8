"""Expected values follow from vLLM 0.32's rules for its block pool."""

import pytest

from kvheadroom.demo.blocks import BlockPool


def test_the_null_block_is_never_handed_out() -> None:
    """Of n blocks, n - 1 can be used."""
    pool = BlockPool(5)

    assert sorted(pool.take(4)) == [1, 2, 3, 4]
    assert pool.used_ratio == 1.0


def test_a_pool_without_usable_blocks_shows_no_usage() -> None:
    """An encoder's single block reads as 0 used, as on a real encoder's page."""
    assert BlockPool(1).used_ratio == 0.0


def test_taking_more_than_is_free_takes_nothing() -> None:
    """A refused allocation leaves the pool as it was."""
    pool = BlockPool(4)

    with pytest.raises(IndexError, match="3 are free"):
        pool.take(4)

    assert pool.free_blocks == 3


def test_a_shared_block_counts_once_and_stays_until_its_last_user_goes() -> None:
    """Ten requests on one prefix use the prefix's blocks once."""
    pool = BlockPool(10)
    blocks = pool.take(2)
    pool.share(blocks)

    pool.release(blocks)
    assert pool.free_blocks == 7
    pool.release(blocks)
    assert pool.free_blocks == 9


def test_a_released_block_is_free_and_still_found_by_its_content() -> None:
    """A warm cache with no request shows 0 used, and its blocks can be shared again."""
    pool = BlockPool(3)
    blocks = pool.take(1)
    pool.remember(blocks[0], ("prefix", 0))
    pool.release(blocks)

    assert pool.used_ratio == 0.0
    assert pool.cached_run([("prefix", 0), ("prefix", 1)]) == blocks


def test_reused_blocks_lose_their_content() -> None:
    """Evicted content is not found any more."""
    pool = BlockPool(2)
    blocks = pool.take(1)
    pool.remember(blocks[0], ("prefix", 0))
    pool.release(blocks)
    pool.take(1)

    assert pool.cached_run([("prefix", 0)]) == []


def test_the_tail_of_a_sequence_is_reused_before_its_start() -> None:
    """Blocks are reused by release order, and a sequence is released from its end."""
    pool = BlockPool(4)
    sequence = pool.take(3)
    pool.release(sequence)

    assert pool.take(3) == sequence[::-1]


def test_cached_but_free_blocks_need_room_of_their_own() -> None:
    """Sharing a free cached block takes it out of what is free, so both together must fit."""
    pool = BlockPool(4)
    cached = pool.take(1)
    pool.remember(cached[0], ("prefix", 0))
    pool.release(cached)

    assert pool.fits(2, cached)
    assert not pool.fits(3, cached)
