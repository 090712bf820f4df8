import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from kvheadroom.errors import SourceError
from kvheadroom.live.engine_view import EngineFacts, ViewOptions
from kvheadroom.live.snapshot import Snapshot
from kvheadroom.poll.gpu_watch import GpuWatch
from kvheadroom.poll.node import NodeWatch, WatchedServer
from kvheadroom.poll.schedule import PollSchedule
from kvheadroom.poll.server_watch import ServerWatch
from kvheadroom.readings import (
    EngineReading,
    GpuReading,
    NvmlReading,
    ServerReading,
    SourceFailure,
    SourceHealth,
)


@dataclass
class ScriptedServer:
    """A server source that gives what the script says, the last entry for ever."""

    script: list[ServerReading | Exception]
    target: str = "h:1"
    closed: bool = field(default=False, init=False)

    def read(self) -> ServerReading:
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(step, Exception):
            raise step
        return step

    def close(self) -> None:
        self.closed = True


@dataclass
class ScriptedGpus:
    script: list[NvmlReading | Exception]

    def read(self) -> NvmlReading:
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(step, Exception):
            raise step
        return step

    def close(self) -> None: ...


def page(preemptions: float = 0, *, started: float = 1.0) -> ServerReading:
    engine = EngineReading(rank="0", preemptions_total=preemptions, generation_tokens_total=1.0)
    return ServerReading(engines=(engine,), started_unix_seconds=started)


def watch(*script: ServerReading | Exception) -> ServerWatch:
    return ServerWatch(
        ScriptedServer(list(script)), facts=lambda _: EngineFacts(), options=ViewOptions()
    )


def test_a_failed_poll_publishes_no_data() -> None:
    """The last good value is not served as if it were live."""
    server = watch(page(), SourceError("timeout", "GET http://h:1/metrics: no answer in 4 s"))
    server.poll()

    server.poll()

    assert not server.outcome.health.up
    assert server.outcome.engines == ()
    assert server.outcome.health.failures["timeout"] == 1
    assert server.outcome.health.last_success_unix_seconds is not None


def test_our_fault_is_a_failed_poll_and_no_more() -> None:
    """A bug while reading one source must not end the schedule; its text may hold a secret."""
    server = watch(ValueError("sk-secret"))

    server.poll()

    assert server.outcome.health.reason == "internal"
    assert "sk-secret" not in str(server.outcome.health.detail)


def test_preemptions_survive_a_restart() -> None:
    """45, then a restart and 3 more: 48, and one restart."""
    server = watch(page(45, started=1.0), page(3, started=99.0))
    server.poll()

    server.poll()

    (engine,) = server.outcome.engines
    assert (engine.preemptions_total, engine.restarts) == (48, 1)


def test_history_survives_an_outage() -> None:
    """A server that was away and comes back unrestarted goes on counting."""
    server = watch(page(45), SourceError("unreachable", "refused"), page(46))
    for _ in range(3):
        server.poll()

    assert server.outcome.engines[0].preemptions_total == 46
    assert server.outcome.engines[0].restarts == 0


def test_one_state_change_is_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
    """Down for an hour is one warning, not 720."""
    server = watch(SourceError("unreachable", "refused"))

    with caplog.at_level(logging.INFO):
        for _ in range(5):
            server.poll()

    assert len(caplog.records) == 1


def health_of(gpus: GpuWatch, target: str) -> SourceHealth:
    return next(health for health in gpus.outcome.health if health.target == target)


def card(index: str) -> GpuReading:
    return GpuReading(gpu=index, uuid=f"GPU-{index}")


def test_a_lost_gpu_is_down_alone() -> None:
    """The driver and the other card are up."""
    lost = NvmlReading("590", (card("0"),), (SourceFailure("1", "lost", "GPU is lost"),))
    gpus = GpuWatch(ScriptedGpus([NvmlReading("590", (card("0"), card("1"))), lost]))
    gpus.poll()

    gpus.poll()

    assert health_of(gpus, "1").reason == "lost"
    assert health_of(gpus, "0").up
    assert health_of(gpus, "driver").up


def test_a_lost_driver_takes_its_gpus_down() -> None:
    """Every card that was seen says why it cannot be read."""
    gone = SourceError("driver_not_loaded", "the driver is not loaded")
    gpus = GpuWatch(ScriptedGpus([NvmlReading("590", (card("0"),)), gone]))
    gpus.poll()

    gpus.poll()

    assert health_of(gpus, "0").reason == "driver_not_loaded"
    assert gpus.outcome.reading is None


def wait_until(condition: Callable[[], bool], seconds: float = 3.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def test_polls_that_still_run_are_skipped_and_counted() -> None:
    """A poll is never run twice at once."""
    schedule, release, entered = PollSchedule(), threading.Event(), threading.Semaphore(0)

    def hang() -> None:
        entered.release()
        release.wait(5)

    schedule.add("slow", hang, interval_seconds=0.05)
    schedule.start()
    wait_until(lambda: schedule.skipped >= 2)
    release.set()
    schedule.stop()

    assert schedule.missed == 0


def test_a_hanging_poll_delays_no_other() -> None:
    """Each source has a thread of its own."""
    schedule, release = PollSchedule(), threading.Event()
    polls: list[int] = []

    def hang() -> None:
        release.wait(5)

    schedule.add("hangs", hang, interval_seconds=0.05)
    schedule.add("lives", lambda: polls.append(1), interval_seconds=0.05)
    schedule.start()

    wait_until(lambda: len(polls) >= 5)

    release.set()
    schedule.stop()


def watched(source: ScriptedServer, connection: str = "c") -> WatchedServer:
    return WatchedServer(
        key=source.target, connection=connection, source=lambda: source,
        facts=lambda _: EngineFacts(),
    )  # fmt: skip


def configured(node: NodeWatch, *servers: WatchedServer) -> None:
    node.configure(gpus=None, servers=servers, options=ViewOptions(), interval_seconds=0.05)


def test_the_first_snapshot_has_every_source() -> None:
    """One cycle is one snapshot, not one for each source."""
    snapshots: list[Snapshot] = []
    node = NodeWatch(snapshots.append)
    configured(node, *(watched(ScriptedServer([page()], f"h:{n}")) for n in range(4)))

    node.start()
    wait_until(lambda: any(len(snapshot.engines) == 4 for snapshot in snapshots))
    node.stop()

    assert len(snapshots) <= 3


def test_a_reload_keeps_the_history_of_what_stays() -> None:
    """Counters go on; what left the configuration leaves the snapshot, its source closed."""
    snapshots: list[Snapshot] = []
    node = NodeWatch(snapshots.append)
    stays, goes = ScriptedServer([page(45), page(45)], "h:1"), ScriptedServer([page()], "h:2")
    configured(node, watched(stays), watched(goes))
    node.start()
    wait_until(lambda: any(len(snapshot.engines) == 2 for snapshot in snapshots))
    renewed = ScriptedServer([page(46)], "h:1")

    configured(node, watched(renewed, "another API key"))
    wait_until(lambda: any(_preemptions(snapshot) == 46 for snapshot in snapshots))
    node.stop()

    assert goes.closed
    assert stays.closed
    assert len(snapshots[-1].engines) == 1


def _preemptions(snapshot: Snapshot) -> float | None:
    return snapshot.engines[0].preemptions_total if snapshot.engines else None
