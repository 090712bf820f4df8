import logging
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest
from tests.e2e.alerting import (
    Message,
    Webhook,
    free_address,
    shorten_windows,
    start_alertmanager,
    start_prometheus,
)
from tests.e2e.exporter import Exporter
from tests.parts.prometheus_builds import Find, installed, trixie

from kvheadroom.demo.engine import Engine
from kvheadroom.demo.profiles import PROFILES
from kvheadroom.demo.traffic import arrivals

pytestmark = pytest.mark.parts

_log = logging.getLogger(__name__)

SEED = 2
ALERT = "KvHeadroomPreemptionSpike"
SPIKE = "increase({}[5m]) >= 3"
INFERRED = "kvheadroom_engine_preemptions_inferred_total"
REPORTED = "kvheadroom_engine_preemptions_total"


class Stack:
    """One Prometheus, one Alertmanager and their receiver."""

    def __init__(self, build: Find, folder: Path, target: str, stack: ExitStack) -> None:
        folder.mkdir()
        self.name, self.folder = build.__name__, folder
        self.webhook = stack.enter_context(Webhook())
        self.alertmanager = stack.enter_context(start_alertmanager(build, folder, self.webhook))
        self.prometheus = stack.enter_context(
            start_prometheus(
                build, folder, targets=[target], alertmanager=self.alertmanager.address
            )
        )

    def first_time(self, expression: str, since_unix: float) -> float | None:
        """Return when an expression first had a value, to a second."""
        found = self.prometheus.get(
            "/api/v1/query_range", query=expression, start=since_unix, end=time.time(), step=1
        )["data"]["result"]
        return min((float(one["values"][0][0]) for one in found), default=None)


def true_preemptions() -> Iterator[float]:
    """Seconds after the start of the surge at which its engine preempts, to a tenth."""
    plan = PROFILES["surge"]
    server = plan.servers[0]
    requests = arrivals(server.traffic, Random(f"{SEED} {server.name} 0"))
    engine = Engine(server.limits(plan.cards[0]), server.cost, requests)
    for tenths in range(900):
        before = engine.preemptions
        engine.advance(tenths / 10)
        yield from [tenths / 10] * (engine.preemptions - before)


def test_a_preemption_is_told_within_thirty_seconds_and_its_end_too(tmp_path: Path) -> None:
    """Load rises into preemption and falls; the receiver reads which engine, how bad, what to do.

    Truth is the demo's own scheduler, run again with the same seed. Rules, routes and intervals up
    to the notification are the shipped ones; to see the end without waiting five minutes for the
    window to pass, the durations are shortened once the alert has fired.
    """
    first_seconds = next(true_preemptions())
    address = free_address()
    with ExitStack() as stack:
        stacks = [
            Stack(build, tmp_path / build.__name__, address, stack) for build in (installed, trixie)
        ]
        for one in stacks:
            one.prometheus.wait_for("up == 0")
        surge = ("demo", "--profile", "surge", "--seed", str(SEED), "--web.listen-address", address)
        stack.enter_context(Exporter(*surge))
        began, began_unix = time.monotonic(), time.time()
        for one in stacks:
            told = one.webhook.wait_for(ALERT, "firing", seconds=first_seconds + 45)
            took_seconds = told.at_seconds - began - first_seconds
            _log.info("%s: told %.1f s after the first preemption", one.name, took_seconds)

            assert 0 < took_seconds <= 30
            check_text(told)
            shorten_windows(one.folder, one.prometheus, divisor=20)
        for one in stacks:
            ended = one.webhook.wait_for(ALERT, "resolved", seconds=90)
            _log.info("%s: resolved after %.0f s", one.name, ended.at_seconds - began)
            inferred = one.first_time(SPIKE.format(INFERRED), began_unix)
            reported = one.first_time(SPIKE.format(REPORTED), began_unix)
            _log.info("on vLLM's counter: %s s later", (reported or 0) - (inferred or 0))

            assert ended.labels["engine"] == "chat"
            assert inferred is not None
            assert reported is not None
            assert reported > inferred


def check_text(told: Message) -> None:
    """The engine, figures that fit the demo's 655 blocks of 16 tokens, and flags to turn."""
    text = told.annotations["description"]
    _log.info("%s", text)

    assert told.receiver == "chat"
    assert told.labels["severity"] == "warning"
    assert text.startswith(f"chat on {told.labels['instance']} preempted ")
    assert int(re.findall(r"preempted (\d+) requests", text)[0]) >= 3
    assert 80 < float(re.findall(r"KV cache is ([\d.]+)% full", text)[0]) <= 100
    assert "holds 10480 tokens" in text
    assert re.search(r"; \d+ run and 32 may\.", text)
    assert "--max-num-seqs" in text
    assert "--gpu-memory-utilization" in text
    assert "<no value>" not in text
