from typing import Any

import pytest
from tests.unit.oracle import Case, cases, draft_of, model_of, options_of

from kvheadroom.engine.capacity import Allocation, allocate
from kvheadroom.engine.refusal import Refusal
from kvheadroom.units import GIB

CASES = cases()
ALLOCATED = [case for case in CASES if "groups" in case]
REFUSED = [case for case in CASES if "groups" not in case]


def answer(case: Case) -> Allocation | Refusal:
    options = options_of(case)
    return allocate(model_of(case), options, case["avail_bytes"], draft=draft_of(options))


def gib(count: int | None) -> float | None:
    return None if count is None else round(count / GIB, 2)


@pytest.mark.parametrize("case", ALLOCATED, ids=lambda case: case["id"])
def test_the_allocation_is_vllms_own(case: Case) -> None:
    """Block size, groups, bytes, blocks, tokens and concurrency are what vLLM's code answers."""
    found = answer(case)

    assert isinstance(found, Allocation), found
    groups = [
        {
            "kind": group.kind,
            "layers": group.layers,
            "block_size": group.block_size,
            "page_bytes": group.page_bytes,
        }
        for group in found.groups
    ]
    told: dict[str, Any] = {
        "block_size": found.block_size,
        "groups": groups,
        "bytes_per_block": list(found.bytes_per_block),
        "num_blocks": found.num_blocks,
        "tokens": found.tokens,
        "max_concurrency": found.max_concurrency,
    }
    assert told == {name: case[name] for name in told}


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["id"])
def test_the_refusal_has_vllms_figures(case: Case) -> None:
    """A refused start shows the needed GiB and the estimated length that vLLM prints."""
    found = answer(case)

    assert isinstance(found, Refusal)
    assert gib(found.needed_bytes) == case["needed_gib"]
    assert found.estimated_max_model_len == case["estimated_max_model_len"]


@pytest.mark.parametrize("case", ALLOCATED, ids=lambda case: case["id"])
def test_a_start_that_fails_later_is_warned_of(case: Case) -> None:
    """Too many requests for the blocks of states is told where vLLM's worker would stop."""
    found = answer(case)

    assert isinstance(found, Allocation)
    assert (found.warning is not None) == ("later_refusal" in case)


def test_every_fitted_length_is_vllms_own() -> None:
    """A length fitted to the memory is the one vLLM settles on."""
    fitted = [case for case in ALLOCATED if options_of(case).max_model_len is None]

    for case in fitted:
        found = answer(case)
        assert isinstance(found, Allocation)
        assert found.tokens == int(case["max_concurrency"] * found.max_model_len), case["id"]
    assert fitted
