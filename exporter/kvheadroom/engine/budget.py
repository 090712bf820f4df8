"""What a GPU's memory is meant for: one server's budget, and several servers on one card."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final, Literal

from kvheadroom.units import GIB, MIB

EstimateSource = Literal["given", "computed", "files", "log", "table"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes that are known, or lie in a range.

    Attributes:
        low_bytes: At least this much, as a rule.
        bytes: What to reckon with.
        high_bytes: At most this much, as a rule.
        source: Where the figure came from.
    """

    low_bytes: int
    bytes: int
    high_bytes: int
    source: EstimateSource


def exactly(count: int, source: EstimateSource = "given") -> Estimate:
    """Return an estimate that is none: *count* bytes."""
    return Estimate(count, count, count, source)


def _from_logs(low_gib: float, median_gib: float, high_gib: float) -> Estimate:
    return Estimate(int(low_gib * GIB), int(median_gib * GIB), int(high_gib * GIB), "table")


# 10th, 50th and 90th percentile of what vLLM 0.6 to 0.29 printed at start, in public logs of
# models from 0.1 to 160 GiB: 34 activation peaks (10 of them of models below 4 GiB), 27 non-torch
# figures, 34 graph captures. They depend on model, batch size and driver more than on anything
# that is known beforehand.
_SMALL_ACTIVATION: Final = _from_logs(0.25, 0.76, 1.63)
_LARGE_ACTIVATION: Final = _from_logs(0.76, 2.4, 6.5)
_SMALL_WEIGHTS_BYTES: Final = 4 * GIB
NON_TORCH: Final = _from_logs(0.02, 0.13, 2.18)
CUDA_GRAPHS: Final = _from_logs(0.04, 0.58, 3.06)
NO_BYTES: Final = exactly(0, "computed")

# A process' CUDA context and NCCL buffers lie outside its share; sizes of 0.3 GiB and more are
# reported, none is documented.
CONTEXT: Final = Estimate(280 * MIB, 300 * MIB, 1024 * MIB, "table")

# Beyond it nothing is left for what vLLM does not count.
LARGEST_SHARE: Final = 0.97


def activation_of(weights_bytes: int) -> Estimate:
    """Return the activation peak that is usual for a model of that size."""
    small = weights_bytes < _SMALL_WEIGHTS_BYTES
    return _SMALL_ACTIVATION if small else _LARGE_ACTIVATION


@dataclass(frozen=True, slots=True)
class Demand:
    """What one server asks of one GPU.

    Attributes:
        name: What to call it.
        utilization: Share of the whole GPU that it manages, 0-1.
        kv_cache_memory_bytes: Exact pool instead of a share; ``None`` uses the share.
        weights: Weights on this rank.
        activation: Peak of a profiling pass.
        non_torch: Memory that grew outside the tensor library.
        cuda_graphs: What is set aside for captured graphs.
        context: CUDA context and NCCL buffers, outside the share.
        caches_kv: Whether the model has a KV cache at all; an encoder has none.
    """

    name: str
    utilization: float
    kv_cache_memory_bytes: int | None
    weights: Estimate
    activation: Estimate
    non_torch: Estimate
    cuda_graphs: Estimate
    context: Estimate
    caches_kv: bool = True

    @property
    def parts(self) -> tuple[Estimate, ...]:
        """Everything inside the share that is not KV cache."""
        return self.weights, self.activation, self.non_torch, self.cuda_graphs


@dataclass(frozen=True, slots=True)
class InstanceBudget:
    """One server's budget on one GPU.

    Attributes:
        demand: What it asks for.
        managed_bytes: The share it manages, or all it needs where the pool is given in bytes.
        remainder: What the share leaves for KV cache; negative where the rest does not fit. The
            low end goes with the high end of everything else.
    """

    demand: Demand
    managed_bytes: int
    remainder: Estimate

    @property
    def held_bytes(self) -> int:
        """Everything it will hold on the GPU: its share, or what an encoder uses, and the context.

        Source:
            Since vLLM 0.11 the context is created before the budget is measured.
        """
        return self.managed_bytes + self.demand.context.bytes


@dataclass(frozen=True, slots=True)
class CardBudget:
    """Several servers on one GPU.

    Attributes:
        total_bytes: Memory as the driver reports it.
        instances: Each server's budget, in the order of their start.
        unallocated_bytes: What none of them claims; negative where together they claim too much.
    """

    total_bytes: int
    instances: tuple[InstanceBudget, ...]
    unallocated_bytes: int

    @property
    def claimed_ratio(self) -> float:
        """Sum of the shares: servers on one GPU do not know of each other."""
        return sum(one.managed_bytes for one in self.instances) / self.total_bytes


def budget_instance(total_bytes: int, demand: Demand) -> InstanceBudget:
    """Return the budget of one server on a GPU of *total_bytes*.

    Source:
        managed = ceil(total x utilization); KV = managed - weights - activation - non-torch -
        graphs: the pool is the remainder, not a quota. ``--kv-cache-memory-bytes`` replaces the
        whole subtraction.
    """
    given = demand.kv_cache_memory_bytes
    if given is not None:
        used = sum(part.bytes for part in demand.parts)
        return InstanceBudget(demand, used + given, exactly(given))
    managed = ceil(total_bytes * demand.utilization)
    remainder = Estimate(
        low_bytes=managed - sum(part.high_bytes for part in demand.parts),
        bytes=managed - sum(part.bytes for part in demand.parts),
        high_bytes=managed - sum(part.low_bytes for part in demand.parts),
        source="computed",
    )
    return InstanceBudget(demand, managed, remainder)


def budget_card(
    total_bytes: int, demands: Sequence[Demand], *, reserved_bytes: int = 0
) -> CardBudget:
    """Return the budget of servers that share one GPU.

    Args:
        total_bytes: Memory as the driver reports it.
        demands: The servers, in the order of their start.
        reserved_bytes: What a desktop or another tenant holds.
    """
    instances = tuple(budget_instance(total_bytes, demand) for demand in demands)
    held = sum(instance.held_bytes for instance in instances)
    return CardBudget(total_bytes, instances, total_bytes - reserved_bytes - held)


@dataclass(frozen=True, slots=True)
class Start:
    """What one server needs on a GPU to start, and what it holds once it has.

    Attributes:
        asked_bytes: What must be free once its context exists.
        context_bytes: Its CUDA context and NCCL buffers.
        held_bytes: Everything it then holds, the context included.
    """

    asked_bytes: int
    context_bytes: int
    held_bytes: int


def refused_starts(free_bytes: int, starts: Sequence[Start]) -> tuple[int, ...]:
    """Return the positions of servers that would refuse to start, each after those before it.

    Source:
        vLLM's check at start since 0.9.1: free < ceil(total x utilization), made after the
        context exists.
    """
    refused: list[int] = []
    for position, start in enumerate(starts):
        if free_bytes - start.context_bytes < start.asked_bytes:
            refused.append(position)
        else:
            free_bytes -= start.held_bytes
    return tuple(refused)


def start_order(free_bytes: int, starts: Sequence[Start]) -> tuple[int, ...] | None:
    """Return the positions of *starts* in an order in which all start, ``None`` if there is none.

    Who asks for the most above what it will hold goes first: of two neighbors, the second one's
    need is the smaller that way round, so if any order works this one does.
    """

    def surplus_bytes(position: int) -> int:
        start = starts[position]
        return start.asked_bytes + start.context_bytes - start.held_bytes

    order = tuple(sorted(range(len(starts)), key=surplus_bytes, reverse=True))
    refused = refused_starts(free_bytes, [starts[position] for position in order])
    return None if refused else order


def fails_to_start(card: CardBudget, *, reserved_bytes: int = 0) -> tuple[int, ...]:
    """Return the positions of servers that would refuse to start, each after those before it.

    Those already running hold their share and their context.
    """
    starts = [
        Start(one.managed_bytes, one.demand.context.bytes, one.held_bytes) for one in card.instances
    ]
    return refused_starts(card.total_bytes - reserved_bytes, starts)


# --- llama.cpp: no share, no profile; the cache is what is asked for --------------------------

# q8_0 stores 32 one-byte elements and one two-byte scale.
LLAMA_CPP_ELEMENT_BYTES: Final = {"f16": 2.0, "q8_0": 34 / 32}


def kv_slots(
    kv_bytes: float, *, token_bytes: float, context_tokens: int, fixed_bytes: float = 0.0
) -> float:
    """Return how many requests of *context_tokens* fit into *kv_bytes*, not rounded down.

    Args:
        kv_bytes: Memory for KV cache.
        token_bytes: Bytes one token adds.
        context_tokens: Tokens of one request.
        fixed_bytes: Bytes a request costs whatever its length (windows, recurrent state).
    """
    return kv_bytes / (token_bytes * context_tokens + fixed_bytes)
