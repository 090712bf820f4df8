"""Find the figures in a message of vLLM's startup, whichever version worded it."""

import re
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from kvheadroom.units import GIB

Unit = Literal["bytes", "tokens", "blocks", "ratio", "requests", "layers", "seconds", "count"]

# What a startup log can tell, in the order of a ledger.
UNIT_OF: Final[dict[str, Unit]] = {
    "total_bytes": "bytes",
    "free_bytes": "bytes",
    "utilization_ratio": "ratio",
    "requested_bytes": "bytes",
    "weights_bytes": "bytes",
    "profiled_weights_bytes": "bytes",
    "consumed_bytes": "bytes",
    "non_torch_bytes": "bytes",
    "activation_bytes": "bytes",
    "peak_torch_bytes": "bytes",
    "non_kv_bytes": "bytes",
    "graph_estimate_bytes": "bytes",
    "graph_bytes": "bytes",
    "available_kv_bytes": "bytes",
    "reserved_kv_bytes": "bytes",
    "kv_in_use_bytes": "bytes",
    "fitting_kv_bytes": "bytes",
    "fullest_kv_bytes": "bytes",
    "free_after_profiling_bytes": "bytes",
    "free_within_requested_bytes": "bytes",
    "utilization_without_graphs_ratio": "ratio",
    "utilization_for_same_kv_ratio": "ratio",
    "host_kv_bytes": "bytes",
    "host_total_bytes": "bytes",
    "max_model_len_tokens": "tokens",
    "max_num_batched_tokens": "tokens",
    "block_tokens": "tokens",
    "kernel_block_tokens": "tokens",
    "profiled_blocks": "blocks",
    "override_blocks": "blocks",
    "gpu_blocks": "blocks",
    "cpu_blocks": "blocks",
    "mamba_blocks": "blocks",
    "padding_layers": "layers",
    "padding_waste_ratio": "ratio",
    "mamba_padding_ratio": "ratio",
    "context_parallel_ranks": "count",
    "kv_tokens": "tokens",
    "concurrency_tokens": "tokens",
    "concurrency": "requests",
    "auto_fit_from_tokens": "tokens",
    "auto_fit_tokens": "tokens",
    "needed_kv_bytes": "bytes",
    "refused_tokens": "tokens",
    "estimated_max_tokens": "tokens",
    "startup_plan_kv_bytes": "bytes",
    "preemptions": "count",
    "init_seconds": "seconds",
    "compilation_seconds": "seconds",
    "load_seconds": "seconds",
}

_N: Final = r"-?[\d,]{0,18}\.?\d{1,18}"
_GIB: Final = r" ?Gi?B\b"


class _Wording(NamedTuple):
    """One way a version says one or more figures.

    ``needle`` is a lower-case part that every such message has. Groups are named after the
    figure; a suffix ``_g`` is GiB, ``_p`` percent, none the figure's own unit.
    """

    needle: str
    pattern: re.Pattern[str]


def _wording(needle: str, pattern: str) -> _Wording:
    spelled = re.sub(r"<(\w+)>", lambda name: rf"(?P<{name[1]}>{_N})", pattern)
    return _Wording(needle, re.compile(spelled.replace("GIB", _GIB), re.IGNORECASE))


_WORDINGS: Final = (
    # The budget: 0.10.2 and later in one line, before it in the profile.
    _wording(
        "free memory on device",
        r"Free memory on device:?(?: [\w:]{1,20})? \(?<free_bytes_g>/<total_bytes_g>GIB",
    ),
    _wording(
        "desired gpu memory utilization",
        r"desired GPU memory utilization (?:is )?\(<utilization_ratio>, <requested_bytes_g>GIB",
    ),
    _wording(
        "total_gpu_memory (",
        r"total_gpu_memory \(<total_bytes_g>GIB\) x gpu_memory_utilization "
        r"\(<utilization_ratio>\) = <requested_bytes_g>GIB",
    ),
    _wording("instance can use  ", r"instance can use {2,40}<requested_bytes_g>GIB"),
    _wording("total_gpu_memory  ", r"total_gpu_memory {2,40}<total_bytes_g>GIB"),
    _wording(
        "memory profiling results",
        r"total_gpu_memory=<total_bytes_g>GIB.{0,80}?peak_torch_memory=<peak_torch_bytes_g>GIB"
        r".{0,80}?non_torch_memory=<non_torch_bytes_g>GIB kv_cache_size=<available_kv_bytes_g>GIB"
        r"(?: gpu_memory_utilization=<utilization_ratio>)?",
    ),
    _wording(
        "requested memory:",
        r"Initial free memory:? <free_bytes_g>GIB; Requested memory: <utilization_ratio> \(util\), "
        r"<requested_bytes_g>GIB",
    ),
    _wording("initial free memory:", r"Initial free memory: <free_bytes_g>GIB"),
    # What the model and the profile run took.
    _wording("weights took", r"Loading model weights took <weights_bytes_g>GIB"),
    _wording(
        "model loading took",
        r"Model loading took:? <weights_bytes_g>GIB(?: memory)?(?: and <load_seconds> seconds)?",
    ),
    _wording("weights take", r"model weights take\s{0,40}<profiled_weights_bytes_g>GIB"),
    _wording("weights memory:", r"weights memory: <profiled_weights_bytes_g>GIB"),
    _wording("for weight", r"<profiled_weights_bytes_g>GIB for weight"),
    _wording("for consumed memory", r"<consumed_bytes_g>GIB for consumed memory"),
    _wording("total consumed", r"total consumed \(from mem_get_info\): <consumed_bytes_g>GIB"),
    _wording("non_torch_memory", r"non_torch_memory (?:takes)?\s{0,40}<non_torch_bytes_g>GIB"),
    _wording("for non-torch memory", r"<non_torch_bytes_g>GIB for non-torch memory"),
    _wording("non-torch", r"non-torch (?:forward increase memory:)? ?<non_torch_bytes_g>GIB"),
    _wording(
        "pytorch activation peak memory",
        r"PyTorch activation peak memory (?:takes)?\s{0,40}<activation_bytes_g>GIB",
    ),
    _wording("peak activation", r"<activation_bytes_g>GIB for peak activation"),
    _wording("peak activation ", r"peak activation <activation_bytes_g>GIB"),
    _wording("torch peak memory increase", r"torch peak memory increase: <activation_bytes_g>GIB"),
    _wording("non kv cache memory", r"non KV cache memory:? <non_kv_bytes_g>GIB"),
    _wording(
        "free memory after profiling",
        r"Free memory after profiling: <free_after_profiling_bytes_g>GIB \(total\), "
        r"<free_within_requested_bytes_g>GIB",
    ),
    # CUDA graphs.
    _wording("cuda graph memory:", r"Estimated CUDA graph memory: <graph_estimate_bytes_g>GIB"),
    _wording(
        "graph pool memory",
        r"CUDA graph pool memory: <graph_bytes_g>GIB \(actual\)[,/ ]{1,4}"
        r"<graph_estimate_bytes_g>GIB \(estimated\)",
    ),
    _wording("graph capturing", r"Graph capturing (?:finished )?.{0,40}?took <graph_bytes_g>GIB"),
    _wording("for cudagraph memory", r"<graph_bytes_g>GIB for CUDAGraph memory"),
    _wording(
        "is equivalent to",
        r"gpu-memory-utilization=<utilization_ratio> is equivalent to "
        r"(?:--gpu-memory-utilization=)?<utilization_without_graphs_ratio>",
    ),
    _wording(
        "--gpu-memory-utilization from",
        r"increas(?:e|ing) --gpu-memory-utilization from <utilization_ratio> to "
        r"<utilization_for_same_kv_ratio>",
    ),
    _wording(
        "increase --gpu-memory-utilization to",
        r"increase --gpu-memory-utilization to <utilization_for_same_kv_ratio>",
    ),
    # The KV cache, in bytes.
    _wording("available kv cache memory:", r"Available KV cache memory: <available_kv_bytes_g>GIB"),
    _wording(
        "available_kv_cache_memory", r"available_kv_cache_memory\s{1,40}<available_kv_bytes_g>GIB"
    ),
    _wording("reserved for kv cache", r"reserved for KV Cache is <available_kv_bytes_g>GIB"),
    _wording(
        "as specified by kv_cache_memory_bytes",
        r"Initial free memory <free_bytes_g>GIB, reserved <reserved_kv_bytes_g>GIB",
    ),
    _wording("in use is", r"kv cache memory in use is <kv_in_use_bytes_g>GIB"),
    _wording("in use is", r"kv cache memory in use is <kv_in_use_bytes> bytes"),
    _wording(
        "to fit into requested",
        r"--kv-cache-memory=<fitting_kv_bytes>`?(?: \([^()]{0,40}\))? to fit into",
    ),
    _wording(
        "to fully utilize",
        r"--kv-cache-memory=<fullest_kv_bytes>`?(?: \([^()]{0,40}\))? to fully utilize",
    ),
    _wording(
        "for kv cache on node", r"\(<host_kv_bytes_g>/<host_total_bytes_g>\) GiB for KV cache"
    ),
    _wording("persisted startup plan", r"kv_cache_memory_bytes=<startup_plan_kv_bytes>"),
    _wording(
        "available memory:",
        r"Available memory: <available_kv_bytes>, total memory: "
        r"<total_bytes>",
    ),
    # The KV cache, in blocks and tokens.
    _wording(
        " blocks: ", r"# (?!CPU)\w{2,8} blocks: <gpu_blocks>(?:, # CPU blocks: <cpu_blocks>)?"
    ),
    _wording("block_shape", r"num_blocks: <gpu_blocks>, block_shape"),
    _wording("after num_gpu_blocks", r"after num_gpu_blocks is: <gpu_blocks>"),
    _wording(
        "overriding num_gpu_blocks",
        r"num_gpu_blocks=<profiled_blocks> with num_gpu_blocks_override=<override_blocks>",
    ),
    _wording("mamba cache blocks", r"available Mamba cache blocks \(<mamba_blocks>\)"),
    _wording("kv cache size:", r"KV cache size: <kv_tokens> tokens"),
    _wording(
        "maximum concurrency for",
        r"Maximum concurrency for <concurrency_tokens> tokens ?(?:/|per )request: <concurrency>x",
    ),
    _wording("cp_world_size", r"by the cp_world_size <context_parallel_ranks>"),
    _wording("attention block size to", r"Setting attention block size to <block_tokens> tokens"),
    _wording("kv cache block size to", r"kv cache block size to <kernel_block_tokens>"),
    _wording(
        "padding layers",
        r"Add <padding_layers> padding layers(?:, may waste at most <padding_waste_ratio_p>%)?",
    ),
    _wording("mamba page size by", r"Padding mamba page size by <mamba_padding_ratio_p>%"),
    # Requests.
    _wording("max model len", r"Using max model len <max_model_len_tokens>"),
    _wording("max_num_batched_tokens=", r"max_num_batched_tokens=<max_num_batched_tokens>"),
    _wording(
        "auto-fit max_model_len: reduced",
        r"reduced from <auto_fit_from_tokens> to <auto_fit_tokens> to fit",
    ),
    _wording("auto-fit max_model_len: full", r"full model context length <auto_fit_tokens> fits"),
    _wording("kv cache is needed", r"max seq len \(<refused_tokens>\)"),
    _wording("kv cache is needed", r"<needed_kv_bytes_g>GIB KV cache is needed"),
    _wording(
        "available kv cache memory (", r"available KV cache memory \(<available_kv_bytes_g>GIB\)"
    ),
    _wording(
        "maximum model length is", r"estimated maximum model length is <estimated_max_tokens>"
    ),
    _wording(
        "that can be stored in kv cache",
        r"max seq len \(<refused_tokens>\).{0,80}?KV cache \(<kv_tokens>\)",
    ),
    _wording(
        "cumulative_preemption", r"total_(?:num_)?cumulative_preemption(?:_cnt)?=<preemptions>"
    ),
    _wording("init engine", r"init engine .{0,80}?took <init_seconds> s"),
    _wording("(compilation:", r"\(compilation: <compilation_seconds> s"),
)


class FoundFigure(NamedTuple):
    """A figure in a message: its name in `UNIT_OF`, its value in that unit, its text as printed."""

    name: str
    value: float
    printed: str


def figures_in(text: str) -> Iterator[FoundFigure]:
    """Yield the figures *text* holds, GiB as bytes and percent as ratios."""
    lowered = text.lower()
    for needle, pattern in _WORDINGS:
        if needle in lowered and (match := pattern.search(text)):
            for group, printed in match.groupdict().items():
                if printed is not None and (found := _figure(group, printed)):
                    yield found


def _figure(group: str, printed: str) -> FoundFigure | None:
    try:
        # A sentence may end right behind the number.
        number = float(printed.rstrip(".").replace(",", ""))
    except ValueError:
        return None
    if group.endswith("_g"):
        return FoundFigure(group[:-2], round(number * GIB), f"{printed} GiB")
    if group.endswith("_p"):
        return FoundFigure(group[:-2], number / 100, f"{printed}%")
    return FoundFigure(group, int(number) if number.is_integer() else number, printed)
