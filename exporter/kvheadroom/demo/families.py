"""The families of a vLLM 0.32 page and the number behind each of their samples."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from kvheadroom.demo.histogram import Histogram
from kvheadroom.demo.stats import EngineStats, RequestHistograms


@dataclass(frozen=True, slots=True)
class NumberFamily:
    """A gauge or a counter.

    Attributes:
        name: Without the ``vllm:`` prefix and without ``_total``.
        kind: Prometheus type.
        help_text: Own words for what it counts.
        read: Label value to number; ``""`` is the only value of a family without a label.
        label: Name of the label beside ``engine`` and ``model_name``, ``""`` for none.
        set_at_start: The gauge is on a page of several API servers before the first step.
    """

    name: str
    kind: Literal["gauge", "counter"]
    help_text: str
    read: Callable[[EngineStats], Mapping[str, float]]
    label: str = ""
    set_at_start: bool = False


@dataclass(frozen=True, slots=True)
class HistogramFamily:
    """A histogram; the attributes are those of `NumberFamily`."""

    name: str
    help_text: str
    read: Callable[[RequestHistograms], Histogram]


_UNSIMULATED: Final = "Always 0 in this simulation."

NUMBERS: Final = (
    *(
        NumberFamily(name, "counter", _UNSIMULATED, lambda _stats: {"": 0})
        for name in (
            "estimated_flops_per_gpu",
            "estimated_read_bytes_per_gpu",
            "estimated_write_bytes_per_gpu",
        )
    ),
    NumberFamily(
        "num_requests_running",
        "gauge",
        "Requests in the running list.",
        lambda stats: {"": stats.requests_running},
    ),
    NumberFamily(
        "num_requests_waiting",
        "gauge",
        "Requests in the queue, preempted ones included.",
        lambda stats: {"": stats.requests_waiting},
    ),
    NumberFamily(
        "num_requests_waiting_by_reason",
        "gauge",
        "Requests in the queue by what they wait for.",
        lambda stats: {"capacity": stats.requests_waiting, "deferred": 0},
        label="reason",
    ),
    NumberFamily(
        "engine_sleep_state",
        "gauge",
        "1 for the state the engine is in.",
        lambda _stats: {"awake": 1, "weights_offloaded": 0, "discard_all": 0},
        label="sleep_state",
        set_at_start=True,
    ),
    NumberFamily(
        "kv_cache_usage_perc",
        "gauge",
        "Share of the KV blocks that requests refer to, 0 to 1.",
        lambda stats: {"": stats.kv_used_ratio},
    ),
    NumberFamily(
        "prefix_cache_queries",
        "counter",
        "Prompt tokens looked up in the prefix cache.",
        lambda stats: {"": stats.prefix_query_tokens},
    ),
    NumberFamily(
        "prefix_cache_hits",
        "counter",
        "Prompt tokens found in the prefix cache.",
        lambda stats: {"": stats.prefix_hit_tokens},
    ),
    *(
        NumberFamily(name, "counter", _UNSIMULATED, lambda _stats: {"": 0})
        for name in (
            "external_prefix_cache_queries",
            "external_prefix_cache_hits",
            "mm_cache_queries",
            "mm_cache_hits",
        )
    ),
    NumberFamily(
        "num_preemptions",
        "counter",
        "Preemptions, each counted with the next output of its request.",
        lambda stats: {"": stats.preemptions},
    ),
    NumberFamily(
        "prompt_tokens",
        "counter",
        "Prompt tokens of requests that had their first output.",
        lambda stats: {"": stats.prompt_tokens},
    ),
    NumberFamily(
        "prompt_tokens_by_source",
        "counter",
        "Prompt tokens by where their KV came from.",
        lambda stats: {
            "local_compute": stats.prompt_tokens - stats.cached_prompt_tokens,
            "local_cache_hit": stats.cached_prompt_tokens,
            "external_kv_transfer": 0,
        },
        label="source",
    ),
    NumberFamily(
        "prompt_tokens_cached",
        "counter",
        "Prompt tokens whose KV came from a cache.",
        lambda stats: {"": stats.cached_prompt_tokens},
    ),
    NumberFamily(
        "prompt_tokens_cached_by_source",
        "counter",
        "Prefix cache hits by tier.",
        lambda stats: {
            "device": stats.prefix_hit_tokens,
            **dict.fromkeys(("host", "p2p", "disk", "external_unspecified"), 0),
        },
        label="source",
    ),
    NumberFamily(
        "generation_tokens",
        "counter",
        "Generated tokens.",
        lambda stats: {"": stats.generation_tokens},
    ),
    NumberFamily(
        "request_success",
        "counter",
        "Finished requests; one whose client hung up is in none of them.",
        lambda stats: {
            "stop": stats.finished["stop"],
            "length": stats.finished["length"],
            **dict.fromkeys(("abort", "error", "repetition"), 0),
        },
        label="finished_reason",
    ),
)

HISTOGRAMS: Final = (
    HistogramFamily(
        "request_prompt_tokens", "Prompt tokens per finished request.", lambda h: h.prompt_tokens
    ),
    HistogramFamily(
        "request_generation_tokens",
        "Output tokens per finished request.",
        lambda h: h.generation_tokens,
    ),
    HistogramFamily("iteration_tokens_total", "Tokens per step.", lambda h: h.iteration_tokens),
    HistogramFamily(
        "request_max_num_generation_tokens",
        "Output tokens of a request's longest sibling.",
        lambda h: h.max_num_generation_tokens,
    ),
    HistogramFamily("request_params_n", "Siblings asked for.", lambda h: h.params_n),
    HistogramFamily(
        "request_params_max_tokens", "Output tokens allowed.", lambda h: h.params_max_tokens
    ),
    HistogramFamily(
        "time_to_first_token_seconds", "Arrival to first token.", lambda h: h.first_token_seconds
    ),
    HistogramFamily(
        "inter_token_latency_seconds", "Token to next token.", lambda h: h.token_interval_seconds
    ),
    HistogramFamily(
        "request_time_per_output_token_seconds",
        "Mean of token to next token, per request.",
        lambda h: h.mean_token_seconds,
    ),
    HistogramFamily("e2e_request_latency_seconds", "Arrival to end.", lambda h: h.latency_seconds),
    HistogramFamily(
        "request_queue_time_seconds", "Arrival to admission.", lambda h: h.queue_seconds
    ),
    HistogramFamily(
        "request_inference_time_seconds", "Admission to end.", lambda h: h.inference_seconds
    ),
    HistogramFamily(
        "request_prefill_time_seconds", "Admission to first token.", lambda h: h.prefill_seconds
    ),
    HistogramFamily(
        "request_decode_time_seconds", "First token to end.", lambda h: h.decode_seconds
    ),
    HistogramFamily(
        "request_num_preemptions", "Preemptions per finished request.", lambda h: h.preemptions
    ),
    HistogramFamily(
        "request_prefill_kv_computed_tokens",
        "Prompt tokens computed rather than found, per request.",
        lambda h: h.prefill_kv_computed_tokens,
    ),
)

REJECTION_REASONS: Final = ("max_num_queued_reqs", "max_num_queued_tokens")

CACHE_CONFIG_DEFAULTS: Final[Mapping[str, str]] = {
    "_block_size_resolved": "True",
    "cache_hit_alignment_tokens": "None",
    "enable_mamba_shared_prefix_checkpoint": "False",
    "hash_block_size": "None",
    "is_attention_free": "False",
    "kv_cache_dtype_skip_layers": "[]",
    "kv_cache_layout": "None",
    "kv_cache_memory_bytes": "None",
    "kv_offloading_backend": "native",
    "kv_offloading_size": "None",
    "kv_sharing_fast_prefill": "False",
    "mamba_block_size": "None",
    "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none",
    "mamba_page_size_padded": "None",
    "mamba_ssm_cache_dtype": "auto",
    "num_cpu_blocks": "None",
    "num_gpu_blocks_override": "None",
    "prefix_cache_retention_interval": "0",
    "prefix_caching_hash_algo": "sha256",
    "prefix_match_unit": "None",
    "replayssm_buffer_len": "16",
    "skip_page_size_padded": "None",
    "sliding_window": "None",
    "swa_bounded_replay": "True",
    "use_kda_recoverssm": "False",
    "use_replayssm": "False",
    "user_specified_block_size": "False",
}
"""Labels of ``cache_config_info`` that no simulated engine sets, as 0.32 shows them unset."""
