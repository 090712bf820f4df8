"""What the dashboards' tests share: one recording and the Prometheus servers that hold it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.grafana.recording import DAY_SECONDS, DAYS, PAGE_SECONDS, PAGES, record
from tests.grafana.served import StoredPrometheus
from tests.parts.needs import require


@dataclass(frozen=True, slots=True)
class Stored:
    """The recording: minutes for the boards that are about now, days for planning."""

    live: StoredPrometheus
    planning: StoredPrometheus
    ends_unix_seconds: float

    def prometheus(self, board: str) -> StoredPrometheus:
        return self.planning if board == "planning" else self.live

    def span_seconds(self, board: str) -> float:
        return DAYS * DAY_SECONDS if board == "planning" else PAGES * PAGE_SECONDS

    def series(self, board: str, expression: str) -> list[Any]:
        span = self.span_seconds(board)
        return self.prometheus(board).series(
            expression,
            start=self.ends_unix_seconds - span * 0.9,
            end=self.ends_unix_seconds,
            step=span / 60,
        )


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    """Record both demo nodes once (half a minute) and load what they said."""
    require("prometheus")
    require("promtool")
    folder = tmp_path_factory.mktemp("recording")
    recording = record(folder)
    with (
        # Just above the distance of the samples, so that what is gone is seen to be gone.
        StoredPrometheus(recording.live, folder / "live", lookback="30s") as live,
        StoredPrometheus(recording.planning, folder / "planning", lookback="3h") as planning,
    ):
        yield Stored(live, planning, recording.ends_unix_seconds)
