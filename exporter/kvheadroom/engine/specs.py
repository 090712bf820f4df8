"""What one layer asks of the block pool: its page, its block and what a request may hold."""

from dataclasses import dataclass
from typing import Literal

SpecKind = Literal[
    "FullAttentionSpec",
    "SlidingWindowSpec",
    "ChunkedLocalAttentionSpec",
    "MLAAttentionSpec",
    "SlidingWindowMLASpec",
    "MambaSpec",
    "CrossAttentionSpec",
    "SinkFullAttentionSpec",
    "CircularBufferSpec",
]
GroupKind = SpecKind | Literal["UniformTypeKVCacheSpecs"]


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """One layer's part of the pool, on one rank.

    Attributes:
        kind: vLLM's name of the kind.
        block_size: Tokens of one block.
        page_bytes: Bytes of this layer for one block.
        content: What must be equal for two layers to share one spec, beside the fields here.
        window: Tokens a sliding window keeps.
        chunk: Tokens of a chunk attended locally.
        state_blocks: Blocks of states one request holds at most.
        resident_states: Blocks of states one request holds while it decodes.
        replicated: The state is whole on every rank.
        stride_bytes: What the distance between blocks must be a multiple of, where one block holds
            the pages of all layers.
    """

    kind: SpecKind
    block_size: int
    page_bytes: int
    content: tuple[object, ...] = ()
    window: int | None = None
    chunk: int | None = None
    state_blocks: int = 0
    resident_states: int = 0
    replicated: bool = False
    stride_bytes: int = 1


# A stage of the pipeline, and what one of its layers asks for.
Placed = tuple[int, CacheSpec]


@dataclass(frozen=True, slots=True)
class Demand:
    """What decides how many blocks one request may hold.

    Attributes:
        tokens: Length of the request.
        in_flight_tokens: Tokens scheduled and not yet settled.
        encoder_tokens: Encoder tokens a request may bring.
        context_ranks: Ranks that share a request's tokens.
        retained_tokens: Tokens kept behind a window for the draft modules.
    """

    tokens: int
    in_flight_tokens: int
    encoder_tokens: int
    context_ranks: int = 1
    retained_tokens: int = 0


def blocks_for_request(spec: CacheSpec, demand: Demand) -> int:
    """Return the blocks vLLM reserves for one request of *demand*, worst case.

    Source:
        vLLM's ``max_memory_usage_bytes`` of each kind, divided by the page.
    """
    match spec.kind:
        case "MambaSpec":
            return spec.state_blocks
        case "CircularBufferSpec":
            return 1
        case "CrossAttentionSpec":
            return ceil_div(demand.encoder_tokens, spec.block_size)
        case "SlidingWindowSpec" | "SlidingWindowMLASpec":
            reach = (spec.window or 0) - 1 + demand.retained_tokens + demand.in_flight_tokens
            # A window seldom begins where a block does.
            return ceil_div(min(reach, demand.tokens), spec.block_size) + 1
        case "ChunkedLocalAttentionSpec":
            reach = (spec.chunk or 0) + demand.in_flight_tokens
            return ceil_div(min(reach, demand.tokens), spec.block_size)
        case _:
            return ceil_div(ceil_div(demand.tokens, demand.context_ranks), spec.block_size)


def steady_blocks_of(spec: CacheSpec, tokens: int, demand: Demand) -> int:
    """Return the blocks a decoding request of *tokens* holds, nothing else in flight."""
    match spec.kind:
        case "MambaSpec":
            return spec.resident_states
        case "CircularBufferSpec":
            return 1
        case "CrossAttentionSpec":
            return ceil_div(demand.encoder_tokens, spec.block_size)
        case "SlidingWindowSpec" | "SlidingWindowMLASpec":
            kept = ceil_div((spec.window or 1) - 1, spec.block_size) + 1
            return min(ceil_div(tokens, spec.block_size), kept)
        case "ChunkedLocalAttentionSpec":
            return ceil_div(min(tokens, spec.chunk or tokens), spec.block_size)
        case _:
            return ceil_div(ceil_div(tokens, demand.context_ranks), spec.block_size)


def ceil_div(dividend: int, divisor: int) -> int:
    """Return *dividend* / *divisor*, rounded up."""
    return -(-dividend // divisor)


def round_up(value: int, multiple: int) -> int:
    """Return the smallest multiple of *multiple* that is not below *value*."""
    return ceil_div(value, multiple) * multiple
