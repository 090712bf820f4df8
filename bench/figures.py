"""One measured figure and the limit it is held to."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """What a benchmark found.

    Attributes:
        what: What was measured, for a reader who has not seen the code.
        value: The figure.
        unit: Unit of the value and of its limits.
        at_least: Smallest value that is good enough; ``None`` without such a limit.
        at_most: Largest one; ``None`` likewise.
    """

    what: str
    value: float
    unit: str
    at_least: float | None = None
    at_most: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the value is within its limits."""
        return (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )

    def __str__(self) -> str:
        """Return one line of a table."""
        limits = [
            f"at {side} {limit:g}"
            for side, limit in (("least", self.at_least), ("most", self.at_most))
            if limit is not None
        ]
        verdict = [] if self.holds else ["MISSED"]
        return f"{self.what:<72}{self.value:>12,.2f} {self.unit:<5} {', '.join(limits + verdict)}"
