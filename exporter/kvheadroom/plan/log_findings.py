"""Red flags in a start that went well, and what changed between two starts."""

from collections.abc import Iterator
from typing import Final

from kvheadroom.node.boot_record import BootRecord, Figure
from kvheadroom.plan.log_remedies import utilization
from kvheadroom.units import GIB, format_bytes

_RISKY_UTILIZATION: Final = 0.98
_FEW_REQUESTS: Final = 2.0
_MANY_REQUESTS: Final = 8.0
_LONG_TOKENS: Final = 32_768
_SMALL_POOL_RATIO: Final = 0.10
_UNEVEN_RATIO: Final = 0.02
_WRONG_ESTIMATE_BYTES: Final = GIB
_HIGH_USE: Final = 0.95
# Arguments whose change explains a change of capacity.
_TELLING_ARGUMENTS: Final = (
    "model",
    "max_model_len",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "kv_cache_dtype",
    "max_num_seqs",
    "max_num_batched_tokens",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "num_gpu_blocks_override",
    "block_size",
    "quantization",
    "enforce_eager",
    "speculative_config",
    "enable_prefix_caching",
)


def red_flags(record: BootRecord) -> tuple[str, ...]:
    """Return what will bite later though *record* started, with its line where it has one."""
    return (
        *_budget_flags(record),
        *_length_flags(record),
        *_rank_flags(record),
        *_traffic_flags(record),
    )


def changes(before: BootRecord, after: BootRecord) -> tuple[str, ...]:
    """Return what differs in *after*, capacity first."""
    found = [
        *_capacity_change(before.least("kv_tokens"), after.least("kv_tokens"), "tokens"),
        *_capacity_change(
            before.least("available_kv_bytes"), after.least("available_kv_bytes"), None
        ),
    ]
    old, new = before.fact("version"), after.fact("version")
    if old and new and old != new:
        found.append(f"vLLM {old} → {new}")
    for name in _TELLING_ARGUMENTS:
        was, now = before.arguments.get(name), after.arguments.get(name)
        if was != now and before.arguments and after.arguments:
            found.append(f"{name}: {_shown(was)} → {_shown(now)}")
    return tuple(found)


def _budget_flags(record: BootRecord) -> Iterator[str]:
    share = utilization(record)
    if share is not None and share >= _RISKY_UTILIZATION:
        yield (
            f"--gpu-memory-utilization {share:g} leaves nothing for the driver, CUDA contexts and "
            "late allocations: expect an out-of-memory error under load. Use 0.95 or less."
        )
    pool, total = record.least("available_kv_bytes"), record.last("total_bytes")
    if pool and total and 0 < pool.value < _SMALL_POOL_RATIO * total.value:
        yield (
            f"The KV cache is {pool.value / total.value:.0%} of the card ({pool.printed}, line "
            f"{pool.line}): weights and activations take the rest."
        )
    override, profiled = record.last("override_blocks"), record.last("profiled_blocks")
    if override:
        of = f" instead of {profiled.value:,.0f}" if profiled else ""
        yield (
            f"--num-gpu-blocks-override sets {override.value:,.0f} blocks{of} (line "
            f"{override.line}): a flag for tests; the profiled pool is not used."
        )
    actual, estimate = record.last("graph_bytes"), record.last("graph_estimate_bytes")
    if actual and estimate and estimate.value - actual.value > _WRONG_ESTIMATE_BYTES:
        yield (
            f"CUDA graphs took {actual.printed} (line {actual.line}) of {estimate.printed} set "
            "aside: the difference is not used for the KV cache."
        )
    if "graphs_not_counted" in record.notes:
        yield (
            f"CUDA graph memory is not subtracted (line {record.notes['graphs_not_counted']}): it "
            "comes on top of --gpu-memory-utilization."
        )


def _length_flags(record: BootRecord) -> Iterator[str]:
    reduced, full = record.last("auto_fit_tokens"), record.last("auto_fit_from_tokens")
    if reduced and full:
        yield (
            f"max-model-len was cut from {full.value:,.0f} to {reduced.value:,.0f} to fit (line "
            f"{reduced.line}): one request of that length fills the pool."
        )
        return
    concurrency, length = record.least("concurrency"), record.last("concurrency_tokens")
    if not concurrency or not length:
        return
    longest = f"{length.value:,.0f} tokens"
    if concurrency.value < _FEW_REQUESTS:
        yield (
            f"Only {concurrency.printed} requests of {longest} fit (line {concurrency.line}): a "
            "second long one waits or is preempted."
        )
    is_model_maximum = bool(record.arguments) and record.arguments.get("max_model_len") is None
    if is_model_maximum and length.value >= _LONG_TOKENS and concurrency.value < _MANY_REQUESTS:
        yield (
            f"--max-model-len is not set, so the model's own maximum of {longest} holds: try one "
            "that fits your traffic first."
        )


def _rank_flags(record: BootRecord) -> Iterator[str]:
    pools = record.by_process("available_kv_bytes")
    if len(pools) < 2:  # noqa: PLR2004
        return
    least = min(pools, key=lambda figure: figure.value)
    most = max(pools, key=lambda figure: figure.value)
    if most.value - least.value > _UNEVEN_RATIO * most.value:
        yield (
            f"Ranks differ: {_who(least)} has {least.printed} (line {least.line}), {_who(most)} "
            f"{most.printed}. The smallest binds; {format_bytes(most.value - least.value)} stays "
            "unused."
        )


def _traffic_flags(record: BootRecord) -> Iterator[str]:
    preempted, load = record.last("preemptions"), record.load
    if preempted:
        yield (
            f"{preempted.value:,.0f} preemptions by line {preempted.line}: the pool is too small "
            "for the traffic; each one computes a prompt again."
        )
    if load and load.peak_kv_used_ratio >= _HIGH_USE and load.peak_waiting:
        yield (
            f"The KV cache was {load.peak_kv_used_ratio:.0%} full while up to {load.peak_waiting} "
            "requests waited: it is what limits this server."
        )


def _capacity_change(
    before: Figure | None, after: Figure | None, unit: str | None
) -> Iterator[str]:
    if before is None or after is None or before.value <= 0 or before.value == after.value:
        return
    change = after.value / before.value - 1
    if unit:
        yield f"KV cache {before.value:,.0f} → {after.value:,.0f} {unit} ({change:+.1%})"
    else:
        yield f"available KV memory {before.printed} → {after.printed} ({change:+.1%})"


def _who(figure: Figure) -> str:
    if figure.rank is not None:
        return f"rank {figure.rank}"
    return figure.process or "another"


def _shown(value: object) -> str:
    return "default" if value is None else str(value)
