"""Requests that come as a day's traffic does: in tides and bursts, with shared prefixes."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request as a client sends it.

    Attributes:
        at_seconds: When, on the virtual clock.
        prompt_tokens: Length of the prompt, shared prefix included.
        output_tokens: Tokens until it ends; 0 for a pooling model.
        stops: It ends by itself; else it runs into its ``max_tokens``.
        prefix: Name of the shared prefix its prompt starts with, ``""`` for none.
        prefix_tokens: Length of that prefix.
        patience_seconds: The client hangs up when it has no whole answer by then.
    """

    at_seconds: float
    prompt_tokens: int
    output_tokens: int
    stops: bool = True
    prefix: str = ""
    prefix_tokens: int = 0
    patience_seconds: float = math.inf


@dataclass(frozen=True, slots=True)
class Lengths:
    """A log-normal distribution of lengths, cut off at both ends.

    Attributes:
        median_tokens: Half of the draws are below.
        spread: Standard deviation of the logarithm; 0 draws the median every time.
        least_tokens: No draw is below.
        most_tokens: No draw is above.
    """

    median_tokens: int
    spread: float
    least_tokens: int
    most_tokens: int

    def draw(self, random: Random) -> int:
        """Return one length in tokens."""
        tokens = round(self.median_tokens * math.exp(random.gauss(0.0, self.spread)))
        return min(max(tokens, self.least_tokens), self.most_tokens)


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one engine is asked.

    Attributes:
        quiet_per_second: Requests per second at the bottom of the tide.
        peak_per_second: Requests per second at its top.
        period_seconds: From one bottom to the next; the first is at time 0.
        prompt: Prompt lengths, the shared prefix included.
        output: Output lengths; ``None`` for a pooling model.
        prefix_tokens: Length of each shared prefix, 0 for none.
        prefixes: How many different prefixes there are.
        burst_every_seconds: Mean time between bursts, ``inf`` for none.
        burst_requests: Requests that arrive at once in a burst.
        hurried_ratio: Share of clients that hang up early, 0-1.
        patience_seconds: After how long those hang up.
        until_seconds: No request comes later.
    """

    quiet_per_second: float
    peak_per_second: float
    period_seconds: float
    prompt: Lengths
    output: Lengths | None = None
    prefix_tokens: int = 0
    prefixes: int = 1
    burst_every_seconds: float = math.inf
    burst_requests: int = 0
    hurried_ratio: float = 0.0
    patience_seconds: float = 30.0
    until_seconds: float = math.inf

    def rate_per_second(self, at_seconds: float) -> float:
        """Return the arrival rate at a time, bursts left out."""
        tide = (1 - math.cos(2 * math.pi * at_seconds / self.period_seconds)) / 2
        return self.quiet_per_second + (self.peak_per_second - self.quiet_per_second) * tide


def arrivals(traffic: Traffic, random: Random) -> Iterator[Arrival]:
    """Yield requests by time, without end unless the traffic has one.

    Source:
        Thinning: draw at the peak rate, keep each with the odds of the rate of its moment
        (Lewis and Shedler, 1979).
    """
    at_seconds = 0.0
    burst_seconds = _next_burst(traffic, 0.0, random)
    while True:
        at_seconds += random.expovariate(traffic.peak_per_second)
        if at_seconds >= traffic.until_seconds:
            return
        while burst_seconds <= at_seconds:
            for _ in range(traffic.burst_requests):
                yield _draw_request(traffic, burst_seconds, random)
            burst_seconds = _next_burst(traffic, burst_seconds, random)
        if random.random() * traffic.peak_per_second < traffic.rate_per_second(at_seconds):
            yield _draw_request(traffic, at_seconds, random)


def _next_burst(traffic: Traffic, after_seconds: float, random: Random) -> float:
    if math.isinf(traffic.burst_every_seconds):
        return math.inf
    return after_seconds + random.expovariate(1 / traffic.burst_every_seconds)


def _draw_request(traffic: Traffic, at_seconds: float, random: Random) -> Arrival:
    prompt_tokens = traffic.prompt.draw(random)
    output_tokens = traffic.output.draw(random) if traffic.output else 0
    hurried = random.random() < traffic.hurried_ratio
    return Arrival(
        at_seconds=at_seconds,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        stops=not traffic.output or output_tokens < traffic.output.most_tokens,
        prefix=f"prefix {random.randrange(traffic.prefixes)}" if traffic.prefix_tokens else "",
        prefix_tokens=min(traffic.prefix_tokens, prompt_tokens),
        patience_seconds=traffic.patience_seconds if hurried else math.inf,
    )
