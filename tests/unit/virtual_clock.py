"""A clock for the simulated node that stands where a test puts it."""


class VirtualClock:
    """Callable like ``time.monotonic``.

    Attributes:
        now_seconds: The time it tells.
    """

    def __init__(self) -> None:
        self.now_seconds = 0.0

    def __call__(self) -> float:
        """Return its time in seconds."""
        return self.now_seconds
