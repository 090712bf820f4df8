"""One simulated vLLM engine core, advanced step by step on a virtual clock."""

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass

from kvheadroom.demo.scheduler import Chunk, Limits, Request, Scheduler
from kvheadroom.demo.stats import EngineStats, new_stats, record_finished
from kvheadroom.demo.traffic import Arrival


@dataclass(frozen=True, slots=True)
class StepCost:
    """How long one step takes.

    Attributes:
        fixed_seconds: Whatever the step holds.
        prefill_token_seconds: For each prompt token.
        decode_request_seconds: For each request that generates.
    """

    fixed_seconds: float
    prefill_token_seconds: float
    decode_request_seconds: float

    def seconds(self, chunks: list[Chunk]) -> float:
        """Return the duration of a step that computes *chunks*."""
        decodes = sum(chunk.tokens == 1 for chunk in chunks)
        prefill_tokens = sum(chunk.tokens for chunk in chunks) - decodes
        return (
            self.fixed_seconds
            + self.prefill_token_seconds * prefill_tokens
            + self.decode_request_seconds * decodes
        )


@dataclass(frozen=True, slots=True)
class _Step:
    chunks: list[Chunk]
    starts_seconds: float
    ends_seconds: float


class Engine:
    """Serves the requests of one stream of arrivals; deterministic, without threads.

    What it has published depends only on the arrivals and the time it was advanced to, never on
    the stops made on the way.

    Attributes:
        limits: What bounds its scheduler.
        stats: What it publishes: the state after the last step that has ended.
    """

    def __init__(self, limits: Limits, cost: StepCost, arrivals: Iterator[Arrival]) -> None:
        self.limits = limits
        self.stats: EngineStats = new_stats(limits.max_model_len)
        self._cost = cost
        self._arrivals = arrivals
        self._next_arrival = next(arrivals, None)
        self._arrived = 0
        self._scheduler = Scheduler(limits)
        self._hang_ups: list[tuple[float, int, Request]] = []
        self._now_seconds = 0.0
        self._step: _Step | None = None
        self._busy_seconds = 0.0

    def advance(self, to_seconds: float) -> None:
        """Run every step that ends by *to_seconds* of virtual time."""
        while True:
            if self._step is None:
                self._step = self._begin_step(to_seconds)
            if self._step is None or self._step.ends_seconds > to_seconds:
                return
            self._end_step(self._step)
            self._step = None

    def busy_seconds(self, at_seconds: float) -> float:
        """Return the virtual time spent inside steps until *at_seconds*, where it has come to."""
        under_way = at_seconds - self._step.starts_seconds if self._step else 0.0
        return self._busy_seconds + max(0.0, under_way)

    @property
    def preemptions(self) -> int:
        """Every preemption so far, the ones that are on no page yet included."""
        return self._scheduler.preemptions

    @property
    def preempted_requests(self) -> int:
        """Requests that lost their blocks and wait to be resumed."""
        return sum(request.unreported_preemptions > 0 for request in self._scheduler.waiting)

    def _begin_step(self, to_seconds: float) -> _Step | None:
        while True:
            self._hear_clients()
            chunks = self._scheduler.schedule()
            if chunks:
                ends_seconds = self._now_seconds + self._cost.seconds(chunks)
                return _Step(chunks, self._now_seconds, ends_seconds)
            if self._next_arrival is None or self._next_arrival.at_seconds > to_seconds:
                return None
            self._now_seconds = self._next_arrival.at_seconds

    def _hear_clients(self) -> None:
        """Queue the requests that have arrived and drop those whose client hung up."""
        while self._next_arrival and self._next_arrival.at_seconds <= self._now_seconds:
            self._queue(self._next_arrival)
            self._next_arrival = next(self._arrivals, None)
        while self._hang_ups and self._hang_ups[0][0] <= self._now_seconds:
            _at_seconds, _number, request = heapq.heappop(self._hang_ups)
            if not request.finished:
                request.finished = True
                self._scheduler.remove(request)
                self._publish_gauges()

    def _queue(self, arrival: Arrival) -> None:
        # vLLM answers such a request with an error; its scheduler never sees it.
        if arrival.prompt_tokens + arrival.output_tokens > self.limits.max_model_len:
            return
        request = Request(arrival, self._arrived)
        self._arrived += 1
        self._scheduler.waiting.append(request)
        if math.isfinite(arrival.patience_seconds):
            hang_up_seconds = arrival.at_seconds + arrival.patience_seconds
            heapq.heappush(self._hang_ups, (hang_up_seconds, request.number, request))

    def _end_step(self, step: _Step) -> None:
        self._now_seconds = step.ends_seconds
        self._busy_seconds += step.ends_seconds - step.starts_seconds
        stats = self.stats
        steady_outputs = 0
        prompt_tokens_before = stats.prompt_tokens - stats.cached_prompt_tokens
        generated_before = stats.generation_tokens
        for request, tokens, first_admission in step.chunks:
            if first_admission:
                self._count_admission(request, step.starts_seconds)
            request.computed_tokens += tokens
            if request.computed_tokens < request.total_tokens:
                continue
            if request.last_token_seconds == step.starts_seconds:
                steady_outputs += 1
            else:
                self._count_output_after_a_gap(request, step.ends_seconds)
            request.last_token_seconds = step.ends_seconds
            if request.arrival.output_tokens:
                request.output_tokens += 1
                stats.generation_tokens += 1
            if request.output_tokens == request.arrival.output_tokens:
                self._finish(request)
        histograms = stats.histograms
        if steady_outputs:
            step_seconds = step.ends_seconds - step.starts_seconds
            histograms.token_interval_seconds.observe(step_seconds, steady_outputs)
        computed = stats.prompt_tokens - stats.cached_prompt_tokens - prompt_tokens_before
        histograms.iteration_tokens.observe(computed + stats.generation_tokens - generated_before)
        stats.steps += 1
        self._publish_gauges()

    def _count_admission(self, request: Request, at_seconds: float) -> None:
        request.scheduled_seconds = at_seconds
        self.stats.prefix_query_tokens += request.arrival.prompt_tokens
        self.stats.prefix_hit_tokens += request.cached_tokens

    def _count_output_after_a_gap(self, request: Request, at_seconds: float) -> None:
        """Count a first output, or the first one after a preemption."""
        stats = self.stats
        # vLLM's event travels with the request's next output: that is why its counter lags.
        stats.preemptions += request.unreported_preemptions
        request.unreported_preemptions = 0
        if request.last_token_seconds is not None:
            gap_seconds = at_seconds - request.last_token_seconds
            stats.histograms.token_interval_seconds.observe(gap_seconds)
            return
        request.first_token_seconds = at_seconds
        stats.prompt_tokens += request.arrival.prompt_tokens
        stats.cached_prompt_tokens += request.cached_tokens
        latency_seconds = at_seconds - request.arrival.at_seconds
        stats.histograms.first_token_seconds.observe(latency_seconds)

    def _finish(self, request: Request) -> None:
        request.finished = True
        self._scheduler.remove(request)
        record_finished(self.stats, request, self._now_seconds)

    def _publish_gauges(self) -> None:
        self.stats.requests_running = len(self._scheduler.running)
        self.stats.requests_waiting = len(self._scheduler.waiting)
        self.stats.kv_used_ratio = self._scheduler.pool.used_ratio
