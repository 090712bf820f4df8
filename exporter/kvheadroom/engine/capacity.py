"""What vLLM allocates: groups, blocks, tokens and concurrency, or why it refuses to start."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kvheadroom.engine.groups import LayerGroup
from kvheadroom.engine.layout import HYBRID_SINCE, lay_out, own_drafts
from kvheadroom.engine.options import EngineOptions
from kvheadroom.engine.pipeline import bytes_per_stage
from kvheadroom.engine.refusal import (
    Refusal,
    auto_fit_impossible,
    no_cache_memory,
    request_does_not_fit,
    unsupported,
)
from kvheadroom.engine.specs import Demand, GroupKind, steady_blocks_of
from kvheadroom.engine.versions import Version
from kvheadroom.errors import ConfigError
from kvheadroom.model.layers import ModelLayers

# A model that names no longest context is served with this one.
_UNNAMED_LENGTH: Final = 2048
# Every version counts tokens by requests instead of blocks from here on …
_TOKENS_BY_CONCURRENCY_SINCE: Final[Version] = (0, 20, 1)
# … counts every step in flight …
_STEPS_IN_FLIGHT_SINCE: Final[Version] = (0, 26, 0)
# … holds the null block back when it checks …
_NULL_BLOCK_CHECKED_SINCE: Final[Version] = (0, 29, 0)
# … and lets the ranks that share a request's prompt multiply the tokens up to here.
_PROMPT_RANKS_UNTIL: Final[Version] = (0, 26, 0)


_NO_DEMAND: Final = Demand(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share a block table, as vLLM reports them.

    Attributes:
        kind: vLLM's name of the kind.
        layers: Layers in it, over all stages.
        block_size: Tokens of a block.
        page_bytes: Bytes of one layer for one block; of all layers where they differ.
    """

    kind: GroupKind
    layers: int
    block_size: int
    page_bytes: int


@dataclass(frozen=True, slots=True)
class Allocation:
    """What one engine allocates.

    Attributes:
        block_size: Tokens of the smallest group's block.
        groups: The groups, in vLLM's order; empty for an encoder.
        bytes_per_block: Bytes of one block id on a rank of each pipeline stage.
        num_blocks: Block ids, one of which (the null block) serves no request.
        max_model_len: Longest request, fitted where that was asked for, tokens.
        tokens: "KV cache size" as the version logs it; ``None`` for an encoder.
        max_concurrency: "Maximum concurrency" as the version logs it; ``None`` for an encoder.
        warning: What stops a later step of the start, or wastes memory; ``None`` without.
        layer_groups: The groups with every layer's own page.
        demand: What one request is reckoned with.
    """

    block_size: int
    groups: tuple[Group, ...]
    bytes_per_block: tuple[int, ...]
    num_blocks: int
    max_model_len: int
    tokens: int | None
    max_concurrency: float | None
    warning: str | None = None
    layer_groups: tuple[LayerGroup, ...] = ()
    demand: Demand = _NO_DEMAND


@dataclass(frozen=True, slots=True)
class _Plan:
    """Everything that does not depend on the memory there is."""

    groups: tuple[LayerGroup, ...]
    bytes_per_block: tuple[int, ...]
    block_size: int
    demand: Demand


def allocate(
    layers: ModelLayers,
    options: EngineOptions,
    available_bytes: Sequence[int] | int,
    *,
    draft: ModelLayers | None = None,
) -> Allocation | Refusal:
    """Return what vLLM allocates for a model, or why it refuses to start.

    Args:
        layers: The model.
        options: Of the server, defaults filled in.
        available_bytes: Cache memory of each rank: one number for all, or one per pipeline stage
            or rank, bytes.
        draft: The draft model, where speculation uses one.

    Raises:
        ValueError: The memory figures do not match the ranks.
    """
    memory = bytes_per_stage(
        available_bytes,
        stages=options.pipeline_parallel,
        ranks_per_stage=options.tensor_parallel,
    )
    try:
        plan = _plan(layers, options, draft)
    except ConfigError as error:
        return unsupported(str(error))
    if not any(plan.bytes_per_block):
        return _without_cache(plan, options)
    if options.num_gpu_blocks_override is not None:
        memory = tuple(options.num_gpu_blocks_override * size for size in plan.bytes_per_block)
    return _allocate_plan(plan, options, memory)


def _allocate_plan(
    plan: _Plan, options: EngineOptions, memory: tuple[int, ...]
) -> Allocation | Refusal:
    checks_null = options.version >= _NULL_BLOCK_CHECKED_SINCE
    usable = tuple(
        have - size * checks_null for have, size in zip(memory, plan.bytes_per_block, strict=True)
    )
    demand = plan.demand
    if options.max_model_len is None:
        fitted = _fit(plan, usable)
        if isinstance(fitted, Refusal):
            return fitted
        demand = _with_tokens(demand, fitted)
    refusal = _refusal(plan, demand, usable, memory)
    if refusal is not None:
        return refusal
    num_blocks = min(
        have // size for have, size in zip(memory, plan.bytes_per_block, strict=True) if size
    )
    concurrency = _concurrency(plan, options, num_blocks, demand)
    return Allocation(
        block_size=plan.block_size,
        groups=tuple(
            Group(group.kind, len(group.members), group.first.block_size, group.page_bytes)
            for group in plan.groups
        ),
        bytes_per_block=plan.bytes_per_block,
        num_blocks=num_blocks,
        max_model_len=demand.tokens,
        tokens=_tokens(plan, options, num_blocks, concurrency, demand.tokens),
        max_concurrency=concurrency,
        warning=_warning(plan, options, num_blocks),
        layer_groups=plan.groups,
        demand=demand,
    )


def _without_cache(plan: _Plan, options: EngineOptions) -> Allocation:
    return Allocation(
        block_size=plan.block_size,
        groups=(),
        bytes_per_block=(0,) * options.pipeline_parallel,
        num_blocks=1,
        max_model_len=plan.demand.tokens,
        tokens=None,
        max_concurrency=None,
    )


def _plan(layers: ModelLayers, options: EngineOptions, draft: ModelLayers | None) -> _Plan:
    """Return the groups, the cost of a block and the demand of a request.

    Raises:
        ConfigError: vLLM cannot lay out the model with these settings.
    """
    tokens = (
        options.max_model_len or options.auto_fit_ceiling or layers.max_position or _UNNAMED_LENGTH
    )
    layout = lay_out(layers, options, draft, tokens)
    return _Plan(
        groups=layout.groups,
        bytes_per_block=layout.bytes_per_block,
        block_size=layout.block_size,
        demand=_demand(layers, options, tokens),
    )


def _demand(layers: ModelLayers, options: EngineOptions, tokens: int) -> Demand:
    steps = options.concurrent_batches if options.version >= _STEPS_IN_FLIGHT_SINCE else 1
    modules = len(own_drafts(layers, options))
    drafts = options.speculation.tokens if options.speculation else 0
    return Demand(
        tokens=tokens,
        in_flight_tokens=options.max_num_batched_tokens * steps,
        encoder_tokens=options.max_num_batched_tokens,
        context_ranks=options.decode_context_parallel,
        retained_tokens=drafts - 1 if modules > 1 else 0,
    )


def _with_tokens(demand: Demand, tokens: int) -> Demand:
    return Demand(
        tokens,
        demand.in_flight_tokens,
        demand.encoder_tokens,
        demand.context_ranks,
        demand.retained_tokens,
    )


def _blocks_per_request(plan: _Plan, demand: Demand) -> int:
    return sum(group.blocks_for(demand) for group in plan.groups)


def _fit(plan: _Plan, usable: tuple[int, ...]) -> int | Refusal:
    """Return the longest request that fits every stage."""
    fitted = plan.demand.tokens
    for stage, (have, size) in enumerate(zip(usable, plan.bytes_per_block, strict=True)):
        longest = _longest(plan, have, size)
        if longest == 0:
            return auto_fit_impossible(have, stage)
        fitted = min(fitted, longest)
    return fitted


def _longest(plan: _Plan, have_bytes: int, block_bytes: int) -> int:
    """Return the longest request *have_bytes* can hold, tokens; 0 when not even one."""

    def fits(tokens: int) -> bool:
        blocks = _blocks_per_request(plan, _with_tokens(plan.demand, tokens))
        return blocks * block_bytes <= have_bytes

    return _largest(fits, plan.demand.tokens)


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """Return the largest number from 1 to *most* that *fits*, 0 if 1 does not."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _refusal(
    plan: _Plan, demand: Demand, usable: tuple[int, ...], memory: tuple[int, ...]
) -> Refusal | None:
    blocks = _blocks_per_request(plan, demand)
    for stage, (have, size) in enumerate(zip(usable, plan.bytes_per_block, strict=True)):
        if have <= 0:
            return no_cache_memory(memory[stage], size, stage)
        if blocks * size > have:
            longest = _longest(plan, have, size)
            return request_does_not_fit(demand.tokens, blocks * size, have, longest, stage)
    return None


def _concurrency(plan: _Plan, options: EngineOptions, num_blocks: int, demand: Demand) -> float:
    """Return the "Maximum concurrency" the version logs."""
    if options.version < HYBRID_SINCE:
        return num_blocks * plan.block_size / demand.tokens
    return num_blocks / _blocks_per_request(plan, demand)


def _tokens(
    plan: _Plan, options: EngineOptions, num_blocks: int, concurrency: float, max_model_len: int
) -> int:
    """Return the "KV cache size" the version logs."""
    if options.version >= _TOKENS_BY_CONCURRENCY_SINCE:
        return int(concurrency * max_model_len)
    ranks = options.decode_context_parallel
    if options.version < _PROMPT_RANKS_UNTIL:
        ranks *= options.prefill_context_parallel
    return num_blocks // len(plan.groups) * plan.block_size * ranks


def _warning(plan: _Plan, options: EngineOptions, num_blocks: int) -> str | None:
    has_states = any(group.kind == "MambaSpec" for group in plan.groups)
    if has_states and not options.enforce_eager and options.max_num_seqs > num_blocks:
        return (
            f"max_num_seqs ({options.max_num_seqs}) is above the {num_blocks} blocks for states: "
            "capturing full CUDA graphs would stop the start"
        )
    return None


def steady_blocks(allocation: Allocation, tokens: int) -> int:
    """Return the blocks a decoding request of *tokens* holds once its prompt is settled."""
    return sum(
        max(steady_blocks_of(spec, tokens, allocation.demand) for spec in group.specs())
        for group in allocation.layer_groups
    )


def steady_requests(allocation: Allocation, tokens: int) -> int | None:
    """Return how many decoding requests of *tokens* are resident at once; ``None`` if unbounded.

    Args:
        allocation: Of one engine.
        tokens: Length of each request, prompt and answer.
    """
    each = steady_blocks(allocation, tokens)
    return (allocation.num_blocks - 1) // each if each else None
