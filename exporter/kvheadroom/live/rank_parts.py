"""What one engine rank's memory on a GPU is made of, each part by the best source there is."""

from dataclasses import dataclass
from typing import Final, Literal

from kvheadroom.engine import budget
from kvheadroom.readings import ProcessBoot
from kvheadroom.units import GIB

PartSource = Literal[
    "engine",  # the engine's own page
    "log",  # its startup log
    "computed",  # from its model and its settings
    "measured",  # the driver
    "estimated",  # what is usual
    "configured",  # what it was told
]

# A figure printed in GiB to two places lies within half a hundredth of what is meant.
LOG_ROUNDING_BYTES: Final = GIB // 200


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a rank's memory.

    Attributes:
        bytes: How large it is.
        source: Who says so.
    """

    bytes: int
    source: PartSource


@dataclass(frozen=True, slots=True)
class RankParts:
    """What one rank holds on its GPU; a part that nobody tells is ``None``.

    Attributes:
        weights: The model's weights on this rank.
        kv: The whole KV pool on this rank, used or not.
        context: CUDA context and NCCL buffers.
        non_torch: Memory that grew outside the tensor library while the model was loaded.
        cuda_graph: Captured graphs.
        activation: Peak of a profiling pass; between peaks a process may hold less.
    """

    weights: Part | None = None
    kv: Part | None = None
    context: Part | None = None
    non_torch: Part | None = None
    cuda_graph: Part | None = None
    activation: Part | None = None


def rank_parts(
    *,
    weights_bytes: int | None,
    kv_blocks: int | None,
    block_bytes: int | None,
    kv_configured_bytes: int | None = None,
    caches_kv: bool = True,
    captures_graphs: bool = True,
    log: ProcessBoot | None = None,
    log_states_pool: bool = True,
    is_asleep: bool = False,
) -> RankParts:
    """Return the parts of one rank.

    The log's figures replace what is computed or usual, except a pool in blocks that the log
    agrees with: that one is known to the byte.

    Args:
        weights_bytes: Weights of this rank, by its model; ``None`` while that is not known.
        kv_blocks: Blocks of its engine, the null block included, as the engine reports.
        block_bytes: Bytes of one block on this rank; ``None`` while the model is not known.
        kv_configured_bytes: ``--kv-cache-memory-bytes``.
        caches_kv: Whether the model has a KV cache at all; an encoder has none.
        captures_graphs: Not told to run without (``--enforce-eager``).
        log: What the rank's startup log says, of the start that runs now.
        log_states_pool: Its figure for the KV cache is the pool, and not only what was there for
            it: the engine has one rank and no ``--num-gpu-blocks-override``.
        is_asleep: The engine has given its weights and its pool away.

    Source:
        vLLM's sleep mode frees weights (moved to the host, or dropped) and pool alike.
    """
    log = log or ProcessBoot()
    weights = _part(log.weights_bytes, "log") or _part(weights_bytes, "computed")
    graphs = budget.CUDA_GRAPHS if captures_graphs else budget.NO_BYTES
    usual_activation = budget.activation_of(weights.bytes).bytes if weights else None
    return RankParts(
        weights=Part(0, "engine") if is_asleep else weights,
        kv=Part(0, "engine")
        if is_asleep
        else _kv(
            _product(kv_blocks, block_bytes),
            block_bytes or 0,
            _part(log.kv_bytes, "log") or _part(kv_configured_bytes, "configured"),
            checks=log_states_pool and log.kv_bytes is not None,
        )
        if caches_kv
        else Part(0, "computed"),
        context=Part(budget.CONTEXT.bytes, "estimated"),
        non_torch=_part(log.non_torch_bytes, "log") or Part(budget.NON_TORCH.bytes, "estimated"),
        cuda_graph=_part(log.graph_bytes, "log") or Part(graphs.bytes, "estimated"),
        activation=_part(log.activation_bytes, "log") or _part(usual_activation, "estimated"),
    )


def margin_bytes(parts: RankParts, managed_bytes: int) -> int | None:
    """Return what *parts* leave of the share a rank manages; ``None`` where one is not known.

    Blocks are whole and graphs differ from their estimate, so it is seldom 0; it is negative where
    a part takes more than was set aside. The context lies outside the share.

    Args:
        parts: What the rank holds.
        managed_bytes: ceil(GPU memory x utilization).
    """
    inside = (parts.weights, parts.kv, parts.non_torch, parts.cuda_graph, parts.activation)
    known = [part.bytes for part in inside if part is not None]
    return managed_bytes - sum(known) if len(known) == len(inside) else None


def _part(count: int | None, source: PartSource) -> Part | None:
    # A log may print less than nothing where memory was freed meanwhile.
    return None if count is None else Part(max(0, count), source)


def _product(blocks: int | None, block_bytes: int | None) -> int | None:
    return None if blocks is None or block_bytes is None else blocks * block_bytes


def _kv(
    pool_bytes: int | None, block_bytes: int, stated: Part | None, *, checks: bool
) -> Part | None:
    """Return the pool in blocks, unless it is not known or *stated* contradicts it."""
    if pool_bytes is None:
        return stated
    if stated is None or not checks:
        return Part(pool_bytes, "computed")
    # What is left over when memory is cut into blocks is less than one of them.
    over_bytes = stated.bytes - pool_bytes
    agrees = -LOG_ROUNDING_BYTES <= over_bytes < block_bytes + LOG_ROUNDING_BYTES
    return Part(pool_bytes, "computed") if agrees else stated
