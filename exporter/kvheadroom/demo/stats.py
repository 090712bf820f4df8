"""The numbers one simulated engine publishes, as vLLM keeps them."""

from dataclasses import dataclass, field
from typing import Literal

from kvheadroom.demo.histogram import (
    FIRST_TOKEN_SECONDS,
    PREEMPTIONS,
    REQUEST_SECONDS,
    SIBLINGS,
    STEP_TOKENS,
    TOKEN_INTERVAL_SECONDS,
    Histogram,
    token_bounds,
)
from kvheadroom.demo.scheduler import Request

FinishedReason = Literal["stop", "length"]


@dataclass(slots=True)
class RequestHistograms:
    """Histograms that take one value per finished request, or per token."""

    prompt_tokens: Histogram
    generation_tokens: Histogram
    max_num_generation_tokens: Histogram
    params_max_tokens: Histogram
    prefill_kv_computed_tokens: Histogram
    params_n: Histogram = field(default_factory=lambda: Histogram(SIBLINGS))
    iteration_tokens: Histogram = field(default_factory=lambda: Histogram(STEP_TOKENS))
    first_token_seconds: Histogram = field(default_factory=lambda: Histogram(FIRST_TOKEN_SECONDS))
    token_interval_seconds: Histogram = field(
        default_factory=lambda: Histogram(TOKEN_INTERVAL_SECONDS)
    )
    mean_token_seconds: Histogram = field(default_factory=lambda: Histogram(TOKEN_INTERVAL_SECONDS))
    latency_seconds: Histogram = field(default_factory=lambda: Histogram(REQUEST_SECONDS))
    queue_seconds: Histogram = field(default_factory=lambda: Histogram(REQUEST_SECONDS))
    inference_seconds: Histogram = field(default_factory=lambda: Histogram(REQUEST_SECONDS))
    prefill_seconds: Histogram = field(default_factory=lambda: Histogram(REQUEST_SECONDS))
    decode_seconds: Histogram = field(default_factory=lambda: Histogram(REQUEST_SECONDS))
    preemptions: Histogram = field(default_factory=lambda: Histogram(PREEMPTIONS))


@dataclass(slots=True)
class EngineStats:
    """Gauges of the last finished step, counters and histograms since the start.

    Attributes:
        steps: Finished steps; a gauge means nothing before the first.
        requests_running: The running list.
        requests_waiting: The queue, preempted requests included.
        kv_used_ratio: Blocks referred to by requests divided by usable blocks, 0-1.
        prefix_query_tokens: Prompt tokens looked up at first admissions.
        prefix_hit_tokens: Of those, tokens found.
        preemptions: Preemptions of requests that have had an output since.
        prompt_tokens: Prompt tokens of requests that had their first output.
        cached_prompt_tokens: Of those, tokens that came from the prefix cache.
        generation_tokens: Generated tokens.
        finished: Finished requests by reason; an abort by the client is in none.
        histograms: Distributions.
    """

    histograms: RequestHistograms
    steps: int = 0
    requests_running: int = 0
    requests_waiting: int = 0
    kv_used_ratio: float = 0.0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: dict[FinishedReason, int] = field(default_factory=lambda: {"stop": 0, "length": 0})


def new_stats(max_model_len: int) -> EngineStats:
    """Return the numbers of an engine that has not run yet."""
    bounds = token_bounds(max_model_len)
    histograms = RequestHistograms(
        prompt_tokens=Histogram(bounds),
        generation_tokens=Histogram(bounds),
        max_num_generation_tokens=Histogram(bounds),
        params_max_tokens=Histogram(bounds),
        prefill_kv_computed_tokens=Histogram(bounds),
    )
    return EngineStats(histograms)


def record_finished(stats: EngineStats, request: Request, at_seconds: float) -> None:
    """Count one request that ended by itself or by its ``max_tokens``."""
    arrival = request.arrival
    scheduled = arrival.at_seconds if (s := request.scheduled_seconds) is None else s
    first = at_seconds if (f := request.first_token_seconds) is None else f
    stats.finished["stop" if arrival.stops else "length"] += 1
    histograms = stats.histograms
    histograms.prompt_tokens.observe(arrival.prompt_tokens)
    histograms.generation_tokens.observe(request.output_tokens)
    histograms.max_num_generation_tokens.observe(request.output_tokens)
    histograms.prefill_kv_computed_tokens.observe(arrival.prompt_tokens - request.cached_tokens)
    histograms.params_n.observe(1)
    if arrival.output_tokens:
        histograms.params_max_tokens.observe(arrival.output_tokens)
    decode_seconds = at_seconds - first
    gaps = request.output_tokens - 1
    histograms.mean_token_seconds.observe(decode_seconds / gaps if gaps > 0 else 0.0)
    histograms.latency_seconds.observe(at_seconds - arrival.at_seconds)
    histograms.queue_seconds.observe(scheduled - arrival.at_seconds)
    histograms.inference_seconds.observe(at_seconds - scheduled)
    histograms.prefill_seconds.observe(first - scheduled)
    histograms.decode_seconds.observe(decode_seconds)
    histograms.preemptions.observe(request.preemptions)
