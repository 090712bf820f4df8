"""The ways vLLM refuses to start for want of cache, with the figures it prints."""

from dataclasses import dataclass
from typing import Literal

from kvheadroom.units import format_bytes

RefusalKind = Literal[
    "no_cache_memory",  # nothing is left for blocks
    "request_does_not_fit",  # one request of max_model_len needs more than there is
    "auto_fit_impossible",  # not even one token fits
    "unsupported",  # vLLM cannot lay out this model with these settings
]


@dataclass(frozen=True, slots=True)
class Refusal:
    """vLLM would stop at start.

    Attributes:
        kind: Why.
        message: One line for a person.
        needed_bytes: What one request of the full length takes, per rank.
        available_bytes: What the check compares that with, per rank; where nothing is left, what
            there was before the null block is held back.
        estimated_max_model_len: Longest request that would fit, tokens; ``None`` when none would.
        stage: Pipeline stage that refuses.
    """

    kind: RefusalKind
    message: str
    needed_bytes: int | None = None
    available_bytes: int | None = None
    estimated_max_model_len: int | None = None
    stage: int = 0


def no_cache_memory(available_bytes: int, block_bytes: int, stage: int) -> Refusal:
    """Return the refusal of a rank with nothing left for blocks.

    Args:
        available_bytes: All there is for the cache; below 0 where the rest takes more than its
            share.
        block_bytes: What the one block takes that serves no request.
        stage: Pipeline stage of the rank.
    """
    if available_bytes < 0:
        reason = f"{format_bytes(-available_bytes)} are missing"
    elif available_bytes == 0:
        reason = "nothing is there"
    else:
        reason = (
            f"{format_bytes(available_bytes)} is there and the block that serves no request "
            f"takes {format_bytes(block_bytes)}"
        )
    return Refusal(
        kind="no_cache_memory",
        message=f"no memory is left for cache blocks: {reason}",
        available_bytes=available_bytes,
        stage=stage,
    )


def request_does_not_fit(
    tokens: int, needed_bytes: int, available_bytes: int, longest: int, stage: int
) -> Refusal:
    """Return the refusal of a rank that cannot hold one request of *tokens*."""
    advice = f"; {longest:,} tokens would fit" if longest else "; not even one token would fit"
    return Refusal(
        kind="request_does_not_fit",
        message=(
            f"one request of {tokens:,} tokens needs {format_bytes(needed_bytes)} of cache and "
            f"{format_bytes(available_bytes)} is there{advice}"
        ),
        needed_bytes=needed_bytes,
        available_bytes=available_bytes,
        estimated_max_model_len=longest or None,
        stage=stage,
    )


def auto_fit_impossible(available_bytes: int, stage: int) -> Refusal:
    """Return the refusal of a server asked to fit its own length that can fit none."""
    return Refusal(
        kind="auto_fit_impossible",
        message=f"not even one token fits in {format_bytes(available_bytes)} of cache",
        available_bytes=available_bytes,
        stage=stage,
    )


def unsupported(reason: str) -> Refusal:
    """Return the refusal of settings vLLM cannot lay out."""
    return Refusal(kind="unsupported", message=reason)
