"""An engine's pool as its model's rules make it, to be asked what other settings would give."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from kvheadroom.engine.capacity import Allocation, allocate, steady_blocks
from kvheadroom.engine.options import EngineOptions
from kvheadroom.engine.refusal import Refusal, unsupported
from kvheadroom.errors import KvHeadroomError
from kvheadroom.live.capacity import Capacity
from kvheadroom.live.engine_view import EngineView
from kvheadroom.model.layers import ModelLayers

# Ada, Hopper, Blackwell and its desktop form: kernels, and with them layouts, differ. Hopper is
# the one that most servers have.
_CAPABILITIES: Final = ((9, 0), (8, 9), (10, 0), (12, 0))


@dataclass(frozen=True, slots=True)
class KnownPool:
    """A pool that the rules reproduce block for block from its model and settings.

    Attributes:
        layers: The model.
        draft: The draft model, where speculation uses one.
        options: Of its server; blocks are what the memory gives.
        stage_bytes: The pool on one rank of each pipeline stage, shape ``(stages,)``.
        today: What the rules make of it.
        elsewhere: Where the GPU is not known, the same on other GPUs that would report the same.
    """

    layers: ModelLayers
    draft: ModelLayers | None
    options: EngineOptions
    stage_bytes: tuple[int, ...]
    today: Allocation
    elsewhere: tuple["KnownPool", ...] = ()

    def with_settings(self, *, more_bytes: int = 0, **changed: Any) -> Allocation | Refusal:  # noqa: ANN401
        """Return what a start with some of the options changed would allocate.

        Args:
            more_bytes: What every rank has beside the pool of today.
            changed: Fields of the options and their values.
        """
        memory = [stage + more_bytes for stage in self.stage_bytes]
        return self._allocated(replace(self.options, **changed), memory)

    def with_rank_bytes(self, rank_bytes: int) -> Allocation | Refusal:
        """Return what a start with a pool of *rank_bytes* on every rank would allocate."""
        return self._allocated(self.options, [rank_bytes] * len(self.stage_bytes))

    def _allocated(self, options: EngineOptions, memory: list[int]) -> Allocation | Refusal:
        try:
            return allocate(self.layers, options, memory, draft=self.draft)
        except KvHeadroomError as error:
            return unsupported(str(error))


def known_pool(view: EngineView) -> KnownPool | str:
    """Return the pool of *view*, or why nothing can be reckoned with it.

    Where the server's command is not known, the engine's own labels stand for it.
    """
    capacity, facts = view.capacity, view.facts
    if capacity is None or capacity.usable_blocks == 0:
        return "the engine has reported no pool" if capacity is None else "it has no KV cache"
    if facts.layers is None or capacity.max_model_len is None:
        return "the model, or its longest request, is not known"
    options = facts.options or (capacity.pool.options if capacity.pool else None)
    if options is not None and facts.options is not None:
        if options.num_gpu_blocks_override is not None:
            return "--num-gpu-blocks-override fixes the blocks, whatever one takes"
        if options.speculation is not None and options.speculation.model and facts.draft is None:
            return "the draft model is not known"
    for candidate in _candidates(options, capacity, is_told=facts.options is not None):
        made = [
            pool
            for settings in _on_gpus(candidate)
            if (pool := _pool(facts.layers, settings, facts.draft, capacity)) is not None
        ]
        if made:
            return replace(made[0], elsewhere=tuple(made[1:]))
    return "the rules do not reproduce what the engine reports"


def resident_requests(found: Allocation, context_tokens: int) -> float:
    """Return how many decoding requests of *context_tokens* the blocks hold, not rounded down."""
    if context_tokens > found.max_model_len:
        return 0.0
    each = steady_blocks(found, context_tokens)
    return max(0, found.num_blocks - 1) / each if each else 0.0


def _candidates(
    options: EngineOptions | None, capacity: Capacity, *, is_told: bool
) -> Iterator[EngineOptions]:
    """Yield the settings without the blocks, first with the block size left to the backend."""
    if options is None:
        return
    free = replace(options, num_gpu_blocks_override=None)
    yield free if is_told else replace(free, block_size=None)
    if capacity.label_block_tokens is not None:
        yield replace(free, block_size=capacity.label_block_tokens)


def _on_gpus(options: EngineOptions) -> Iterator[EngineOptions]:
    """Yield the settings on every kind of GPU that the server's may be."""
    device = options.device
    if device.capability is not None:
        yield options
        return
    for capability in _CAPABILITIES:
        yield replace(options, device=replace(device, capability=capability))


def _pool(
    layers: ModelLayers,
    options: EngineOptions,
    draft: ModelLayers | None,
    capacity: Capacity,
) -> KnownPool | None:
    """Return the pool that *options* make of the engine's own blocks, if it reports that one."""
    settled = replace(
        options,
        num_gpu_blocks_override=capacity.blocks,
        max_model_len=capacity.max_model_len or options.max_model_len,
    )
    try:
        found = allocate(layers, settled, 0, draft=draft)
    except (KvHeadroomError, ValueError):
        return None
    if not isinstance(found, Allocation) or not found.groups or not found.max_concurrency:
        return None
    label, need = capacity.label_block_tokens, capacity.full_request_blocks
    if capacity.layout != "hybrid" and label is not None and found.block_size != label:
        return None
    if need is not None and round(found.num_blocks / found.max_concurrency) != need:
        return None
    stage_bytes = tuple(capacity.blocks * size for size in found.bytes_per_block)
    return KnownPool(layers, draft, options, stage_bytes, found)
