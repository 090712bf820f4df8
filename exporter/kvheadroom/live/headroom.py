"""What is left of an engine's KV pool now: blocks, tokens, bytes and requests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvheadroom.engine import versions
from kvheadroom.engine.versions import Version
from kvheadroom.live.capacity import Capacity
from kvheadroom.live.traffic import TrafficLengths

MAX_CONTEXT = "max"
OBSERVED_CONTEXT = "observed"
OBSERVED_P95_CONTEXT = "observed_p95"


@dataclass(frozen=True, slots=True)
class Headroom:
    """What is left of one engine's pool.

    Attributes:
        free_blocks: Blocks an admission can take now; cached blocks nobody uses are free.
        used_blocks: Blocks that live requests hold, shared ones once.
        free_tokens: The free share of the pool's tokens.
        free_bytes: Free blocks in bytes over all ranks.
        used_bytes: Used blocks in bytes over all ranks.
        requests: Context → how many more requests of that length fit into the free blocks, and
            the free places to run in, now.
        context_tokens: Context → the tokens it stands for.
    """

    free_blocks: int
    used_blocks: int
    free_tokens: int | None
    free_bytes: int | None
    used_bytes: int | None
    requests: Mapping[str, int]
    context_tokens: Mapping[str, int]


def free_blocks(capacity: Capacity, used_ratio: float, version: Version | None) -> int:
    """Return the blocks that vLLM's usage gauge leaves free.

    The gauge is 1 - free / usable; up to 0.10.1.1 it was 1 - free / all blocks, so that an idle
    engine showed the null block as used.
    """
    counts_null_block = version is not None and version < versions.USAGE_WITHOUT_NULL_BLOCK
    base = capacity.blocks if counts_null_block else capacity.usable_blocks
    return min(capacity.usable_blocks, max(0, round((1 - used_ratio) * base)))


def named_contexts(
    context_tokens: Sequence[int], capacity: Capacity, traffic: TrafficLengths | None
) -> dict[str, int]:
    """Return every context that headroom is stated for, with the tokens it stands for.

    Args:
        context_tokens: The configured lengths; one the engine would refuse is left out.
        capacity: The engine's pool, whose ``max_model_len`` is the context ``max``.
        traffic: The traffic's own lengths, which never exceed ``max_model_len``.
    """
    longest = capacity.max_model_len
    contexts = {
        str(tokens): tokens for tokens in context_tokens if longest is None or tokens <= longest
    }
    if longest is not None:
        contexts[MAX_CONTEXT] = longest
    if traffic is not None:
        for name, tokens in (
            (OBSERVED_CONTEXT, traffic.mean_tokens),
            (OBSERVED_P95_CONTEXT, traffic.p95_tokens),
        ):
            if tokens is not None:
                contexts[name] = tokens if longest is None else min(tokens, longest)
    return contexts


def engine_headroom(
    capacity: Capacity,
    *,
    used_ratio: float,
    version: Version | None,
    context_tokens: Sequence[int],
    traffic: TrafficLengths | None,
    free_places: int | None = None,
) -> Headroom:
    """Return what is left of *capacity* while *used_ratio* of it is in use.

    Args:
        capacity: The engine's pool.
        used_ratio: The engine's usage gauge, 0-1.
        version: The server's version.
        context_tokens: Configured lengths to state headroom for.
        traffic: Lengths of the engine's own requests.
        free_places: Requests that may run beside those that do (``max_num_seqs``); ``None`` where
            that is not known, and then only blocks count.
    """
    free = free_blocks(capacity, used_ratio, version)
    used = capacity.usable_blocks - free
    contexts = named_contexts(context_tokens, capacity, traffic)
    needs = {name: capacity.blocks_for(tokens) for name, tokens in contexts.items()}
    per_block = capacity.bytes_per_block
    return Headroom(
        free_blocks=free,
        used_blocks=used,
        free_tokens=None if capacity.tokens is None else capacity.tokens * free // capacity.blocks,
        free_bytes=None if per_block is None else free * per_block,
        used_bytes=None if per_block is None else used * per_block,
        requests={
            name: fitting if free_places is None else min(fitting, free_places)
            for name, need in needs.items()
            if need
            for fitting in (free // need,)
        },
        context_tokens=contexts,
    )
