"""Which requests run in the next step: vLLM's admission, growth and preemption rules."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kvheadroom.demo.blocks import BlockPool, Content
from kvheadroom.demo.traffic import Arrival
from kvheadroom.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a scheduler.

    Attributes:
        total_blocks: KV blocks including the null block; 1 for an encoder, which holds no KV.
        block_tokens: Tokens per block.
        max_model_len: Longest prompt plus output, tokens.
        max_num_seqs: Most requests running at once.
        max_num_batched_tokens: Most tokens computed in one step.
        prefix_caching: Full blocks are found again by their content.
    """

    total_blocks: int
    block_tokens: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    prefix_caching: bool = True

    def __post_init__(self) -> None:
        if self.holds_kv and (self.total_blocks - 1) * self.block_tokens < self.max_model_len:
            raise ConfigError(
                f"simulate {self.max_model_len} tokens of context:"
                f" {self.total_blocks} blocks of {self.block_tokens} do not hold one request"
            )
        if not self.holds_kv and self.max_num_batched_tokens < self.max_model_len:
            raise ConfigError(
                f"simulate an encoder of {self.max_model_len} tokens:"
                f" a step of {self.max_num_batched_tokens} does not hold one prompt"
            )

    @property
    def holds_kv(self) -> bool:
        """Whether requests need blocks at all."""
        return self.total_blocks > 1


@dataclass(slots=True, eq=False)
class Request:
    """One request inside the engine.

    Attributes:
        arrival: What the client sent.
        number: Order of arrival.
        computed_tokens: Tokens whose KV is in blocks.
        output_tokens: Tokens generated so far.
        cached_tokens: Prompt tokens found in the prefix cache when first admitted.
        blocks: Blocks it refers to, in order.
        preemptions: How often it lost its blocks.
        unreported_preemptions: Of those, how many since its last output.
        scheduled_seconds: When first admitted.
        first_token_seconds: When the first token came out.
        last_token_seconds: When the latest token came out.
        finished: It ended, or its client hung up.
    """

    arrival: Arrival
    number: int
    computed_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    blocks: list[int] = field(default_factory=list)
    preemptions: int = 0
    unreported_preemptions: int = 0
    scheduled_seconds: float | None = None
    first_token_seconds: float | None = None
    last_token_seconds: float | None = None
    finished: bool = False

    @property
    def total_tokens(self) -> int:
        """Prompt and output so far: what a recompute has to go through."""
        return self.arrival.prompt_tokens + self.output_tokens


class Chunk(NamedTuple):
    """The part of a request that one step computes."""

    request: Request
    tokens: int
    first_admission: bool = False


class Scheduler:
    """The waiting queue, the running list and the block pool of one engine core.

    Source:
        vLLM 0.32, first come first served: running requests first, each with what it needs next;
        short of blocks, the last running request is preempted; the queue is admitted only in a
        step without preemption, head first, and only whole prompts that fit.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.pool = BlockPool(limits.total_blocks)
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.preemptions = 0
        self._caches_prefixes = limits.prefix_caching and limits.holds_kv

    def schedule(self) -> list[Chunk]:
        """Take blocks for the next step and return what it computes."""
        chunks: list[Chunk] = []
        budget_tokens = self.limits.max_num_batched_tokens
        running_before = len(self.running)
        budget_tokens = self._continue_running(chunks, budget_tokens)
        if len(self.running) == running_before:
            self._admit_waiting(chunks, budget_tokens)
        return chunks

    def remove(self, request: Request) -> None:
        """Forget a request that finished or was aborted; its blocks become free."""
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self.pool.release(request.blocks)
        request.blocks = []

    def _continue_running(self, chunks: list[Chunk], budget_tokens: int) -> int:
        position = 0
        while position < len(self.running) and budget_tokens > 0:
            request = self.running[position]
            tokens = min(request.total_tokens - request.computed_tokens, budget_tokens)
            while not (grown := self._grow(request, tokens)):
                victim = self._preempt_last()
                if victim is request:
                    break
            if not grown:
                break
            chunks.append(Chunk(request, tokens))
            budget_tokens -= tokens
            position += 1
        return budget_tokens

    def _admit_waiting(self, chunks: list[Chunk], budget_tokens: int) -> None:
        limits = self.limits
        while self.waiting and budget_tokens > 0 and len(self.running) < limits.max_num_seqs:
            request = self.waiting[0]
            cached = self._cached_blocks(request)
            tokens = request.total_tokens - len(cached) * limits.block_tokens
            if not limits.holds_kv and tokens > budget_tokens:
                return  # an encoder attends to the whole prompt, so it cannot be cut
            whole = self._blocks_for(request.total_tokens) - len(cached)
            if not self.pool.fits(whole, cached):
                return
            tokens = min(tokens, budget_tokens)
            self.waiting.popleft()
            self.pool.share(cached)
            request.blocks = cached
            request.computed_tokens = len(cached) * limits.block_tokens
            self._grow(request, tokens)
            self.running.append(request)
            first_admission = request.scheduled_seconds is None
            if first_admission:
                request.cached_tokens = request.computed_tokens
            chunks.append(Chunk(request, tokens, first_admission))
            budget_tokens -= tokens

    def _grow(self, request: Request, tokens: int) -> bool:
        """Give *request* room for *tokens* more; False when the pool is too short."""
        size = self.limits.block_tokens
        start, end = request.computed_tokens, request.computed_tokens + tokens
        if start // size == end // size and end <= len(request.blocks) * size:
            return True  # the usual decode: one more token in the last block
        missing = self._blocks_for(end) - len(request.blocks)
        if missing > self.pool.free_blocks:
            return False
        if missing > 0:
            request.blocks += self.pool.take(missing)
        if self._caches_prefixes:
            for index in range(start // size, end // size):
                self.pool.remember(request.blocks[index], self._content(request, index))
        return True

    def _preempt_last(self) -> Request:
        victim = self.running.pop()
        self.pool.release(victim.blocks)
        victim.blocks = []
        victim.computed_tokens = 0
        victim.preemptions += 1
        self.preemptions += 1
        victim.unreported_preemptions += 1
        self.waiting.appendleft(victim)
        return victim

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_tokens) if self.limits.holds_kv else 0

    def _cached_blocks(self, request: Request) -> list[int]:
        if not self._caches_prefixes:
            return []
        return self.pool.cached_run(self._contents(request))

    def _contents(self, request: Request) -> Iterator[Content]:
        # The last token is always computed anew: without it there is no next token.
        for index in range((request.total_tokens - 1) // self.limits.block_tokens):
            yield self._content(request, index)

    def _content(self, request: Request, index: int) -> Content:
        arrival = request.arrival
        if (index + 1) * self.limits.block_tokens <= arrival.prefix_tokens:
            return arrival.prefix, index
        return f"request {request.number}", index
