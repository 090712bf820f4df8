"""Tokens and blocks that vLLM printed at start, against the memory it printed beside them."""

from typing import Any

import pytest
from tests.unit.startup_capacity import CASES, judge

GOLD = tuple(case for case in CASES if case.get("gold"))
# What we cannot reproduce, and why: in each, a setting that decides is not in what was posted.
UNEXPLAINED = {
    "glm51-bf16-tp16-dcp8": "a fork's own attention backend; the posted config lacks index_topk",
    "qwen38-27b-fp8-l40s-util090-mambablocks": "states kept once: prefix caching must be off",
}


@pytest.mark.parametrize("case", GOLD, ids=lambda case: case["id"])
def test_the_printed_memory_makes_the_printed_tokens(case: dict[str, Any]) -> None:
    """From config.json, the posted flags and the printed GiB, give or take its rounding."""
    verdict = judge(case)

    if verdict is None:
        pytest.skip("prints no memory for the cache, or no tokens")
    if case["id"] in UNEXPLAINED:
        pytest.xfail(UNEXPLAINED[case["id"]])
    assert verdict.holds, verdict.reason


def test_most_of_the_rest_comes_out_too() -> None:
    """Posts with inferred settings: the report prints those that do not, and why."""
    judged = [verdict for case in CASES if (verdict := judge(case)) is not None]

    assert len(judged) >= 90
    assert sum(verdict.holds for verdict in judged) >= 77
