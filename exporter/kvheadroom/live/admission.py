"""How many requests an engine can admit now: blocks for their prompts, and places to run in."""

from dataclasses import dataclass
from typing import Final

from kvheadroom.engine.capacity import Allocation
from kvheadroom.engine.specs import CacheSpec, blocks_for_request, ceil_div
from kvheadroom.engine.versions import Version
from kvheadroom.live.capacity import Capacity

# From here on a whole prompt must fit before its first chunk is computed (vLLM 0.19.0).
_WHOLE_PROMPTS_SINCE: Final[Version] = (0, 19, 0)
# The V0 engine, default before 0.8.0, kept a hundredth of the pool free; V1 keeps nothing unless
# --watermark (0.24.0 and later) says so.
_V1_ENGINE: Final[Version] = (0, 8, 0)
_V0_WATERMARK_RATIO: Final = 0.01

_WINDOWED: Final = frozenset(
    {"SlidingWindowSpec", "SlidingWindowMLASpec", "ChunkedLocalAttentionSpec"}
)


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """By what an engine admits a waiting request, as far as its flags are known.

    Attributes:
        version: The server's version; ``None`` is read as a recent one.
        max_num_seqs: Most requests that run at once: ``--max-num-active-seqs`` where that is
            given, else ``--max-num-seqs``; ``None`` while not known.
        max_num_batched_tokens: Tokens of one step; ``None`` while not known.
        reserves_whole_prompts: ``--scheduler-reserve-full-isl`` where it is given.
        watermark_ratio: ``--watermark`` where it is given, 0-1.
    """

    version: Version | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    reserves_whole_prompts: bool | None = None
    watermark_ratio: float | None = None

    def tokens_to_fit(self, prompt_tokens: int) -> int:
        """Return how many tokens of a prompt must find room for it to be admitted.

        The token that the prompt yields is counted: without room for it the request would be
        preempted, or preempt another, in the step after.
        """
        whole = self.reserves_whole_prompts
        if whole is None:
            whole = self.version is None or self.version >= _WHOLE_PROMPTS_SINCE
        chunk = self.max_num_batched_tokens
        if whole or chunk is None or prompt_tokens < chunk:
            return prompt_tokens + 1
        return chunk

    def watermark_blocks(self, blocks: int) -> int:
        """Return how many of an engine's *blocks* stay free when a request is admitted."""
        ratio = self.watermark_ratio
        if ratio is None:
            is_v0 = self.version is not None and self.version < _V1_ENGINE
            ratio = _V0_WATERMARK_RATIO if is_v0 else 0.0
        return int(ratio * blocks)


def admission_blocks(capacity: Capacity, prompt_tokens: int, rules: AdmissionRules) -> int | None:
    """Return the free blocks that admitting a prompt takes; ``None`` where that is not known.

    Nothing of it is taken to be cached, so a shared prefix makes it pessimistic.

    Source:
        vLLM 0.32: every group reserves the whole prompt, windows at most what they can hold at
        once with their chunks in flight.
    """
    longest = capacity.max_model_len
    if longest is not None and prompt_tokens > longest:
        return None
    tokens = rules.tokens_to_fit(prompt_tokens)
    if longest is not None:
        tokens = min(tokens, longest)
    if capacity.block_tokens is not None:
        return ceil_div(tokens, capacity.block_tokens)
    if capacity.pool is not None:
        return _group_blocks(capacity.pool.allocation, tokens)
    return capacity.full_request_blocks if tokens == longest else None


def admission_requests(
    capacity: Capacity,
    *,
    free_blocks: int,
    prompt_tokens: int,
    running: int,
    rules: AdmissionRules,
) -> int | None:
    """Return how many requests with prompts of that length can be admitted now.

    Their answers are not reserved, so they can outgrow the pool later: headroom at full length is
    what stays resident. Free places bound it where ``max_num_seqs`` is known, the blocks alone
    where it is not.

    Args:
        capacity: The engine's pool.
        free_blocks: Blocks of it that an admission can take.
        prompt_tokens: Length of each prompt.
        running: Requests that run now.
        rules: By what it admits.

    Returns:
        A number of requests, none of them waiting; ``None`` where the blocks are not known.
    """
    need = admission_blocks(capacity, prompt_tokens, rules)
    if not need:
        return None
    kept_free = rules.watermark_blocks(capacity.blocks)
    fitting = max(0, free_blocks - kept_free) // need
    # Nothing is kept free from the first request of an engine that runs none.
    if running == 0 and fitting == 0 and free_blocks >= need:
        fitting = 1
    if rules.max_num_seqs is None:
        return fitting
    return min(fitting, max(0, rules.max_num_seqs - running))


def _group_blocks(allocation: Allocation, tokens: int) -> int:
    return sum(
        max(_layer_blocks(spec, tokens, allocation) for spec in group.specs())
        for group in allocation.layer_groups
    )


def _layer_blocks(spec: CacheSpec, tokens: int, allocation: Allocation) -> int:
    demand = allocation.demand
    most = blocks_for_request(spec, demand)
    match spec.kind:
        case "MambaSpec" | "CrossAttentionSpec":
            return most
        case kind if kind in _WINDOWED:
            return min(ceil_div(tokens, spec.block_size), most)
        case _:
            return ceil_div(ceil_div(tokens, demand.context_ranks), spec.block_size)
