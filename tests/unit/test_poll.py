import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from kvheadroom.errors import SourceError
from kvheadroom.live.engine_facts import EngineFacts
from kvheadroom.live.engine_view import ViewOptions
from kvheadroom.live.snapshot import Snapshot
from kvheadroom.poll import publisher
from kvheadroom.poll.health import Failed, Succeeded, attempt
from kvheadroom.poll.node import NodeWatch
from kvheadroom.poll.publisher import HOLD_SECONDS, Publisher
from kvheadroom.poll.schedule import PollSchedule
from kvheadroom.poll.server_set import WatchedServer
from kvheadroom.poll.server_watch import ServerWatch
from kvheadroom.readings import EngineReading, ServerReading


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


def test_an_attempt_gives_a_reading_or_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """A reading that is nothing is still a reading; a fault of ours names its type alone."""

    def fault() -> None:
        raise ValueError("sk-secret")

    nothing = attempt(lambda: None)
    with caplog.at_level(logging.INFO):
        failed = attempt(fault)

    assert isinstance(nothing, Succeeded)
    assert isinstance(failed, Failed)
    assert failed.error.reason == "internal"
    assert vars(caplog.records[0])["fields"] == {"error": "ValueError"}
    assert "sk-secret" not in f"{failed.error} {caplog.text}"


def wait_until(condition: Callable[[], bool], seconds: float = 3.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


# --- the schedule ---------------------------------------------------------------------------


def test_a_poll_that_still_runs_is_not_begun_again() -> None:
    """Those due meanwhile are counted as skipped, and polling goes on after it."""
    schedule, release = PollSchedule(), threading.Event()
    begun: list[int] = []

    def hang_once() -> None:
        begun.append(1)
        release.wait(5)

    schedule.add("slow", hang_once, interval_seconds=0.05)
    schedule.start()
    wait_until(lambda: schedule.skipped >= 2)
    begun_while_hanging = len(begun)
    release.set()
    wait_until(lambda: len(begun) >= 2)
    schedule.stop()

    assert begun_while_hanging == 1


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


# --- one snapshot a cycle -------------------------------------------------------------------


class Publications:
    """A publisher of sources a and b, and when it published, by ``time.monotonic()``."""

    def __init__(self) -> None:
        self._times: queue.SimpleQueue[float] = queue.SimpleQueue()
        self.publisher = Publisher(self.publish, lambda: {"a", "b"})

    def publish(self) -> None:
        self._times.put(time.monotonic())

    def next(self, timeout_seconds: float = 5.0) -> float | None:
        """Return the time of the next one, or ``None`` when none comes."""
        try:
            return self._times.get(timeout=timeout_seconds)
        except queue.Empty:
            return None


@pytest.fixture
def published() -> Iterator[Publications]:
    publications = Publications()
    publications.publisher.start()
    yield publications
    publications.publisher.stop()


def test_a_cycle_is_published_once_and_when_complete(
    published: Publications, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when the first source has reported and not for each, and the next cycle again."""
    monkeypatch.setattr(publisher, "HOLD_SECONDS", 60.0)
    for _ in range(3):
        published.publisher.report("a")
        assert published.next(0.05) is None
        published.publisher.report("b")
        assert published.next() is not None

    assert published.next(0.05) is None


def test_a_late_source_is_not_waited_for_and_published_when_it_comes(
    published: Publications,
) -> None:
    """The others wait as long as agreed and no longer; the late one's report is not lost."""
    reported = time.monotonic()
    published.publisher.report("a")
    without = published.next()
    published.publisher.report("b")

    assert without is not None
    assert HOLD_SECONDS <= without - reported < HOLD_SECONDS + 1.0
    assert published.next() is not None


def test_a_publication_that_fails_is_followed_by_the_next(
    published: Publications, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A page that cannot be made is logged and ends nothing."""
    failures = iter([ValueError("no page")])

    def publish_at_the_second_time() -> None:
        for failure in failures:
            raise failure
        published.publish()

    monkeypatch.setattr(published.publisher, "_publish", publish_at_the_second_time)
    for _ in range(2):
        for name in ("a", "b"):
            published.publisher.report(name)
        wait_until(lambda: not published.publisher._reported)

    assert published.next() is not None
    assert "publishing failed" in caplog.text


def test_a_stopped_publisher_publishes_no_more(published: Publications) -> None:
    """Reports of polls that were still running lead to nothing."""
    published.publisher.report("a")
    published.publisher.stop()
    published.publisher.report("b")

    assert published.next(2 * HOLD_SECONDS) is None
    assert not published.publisher._thread.is_alive()


# --- reloading ------------------------------------------------------------------------------


def watched(source: ScriptedServer, connection: str = "c") -> WatchedServer:
    return WatchedServer(
        key=source.target, connection=connection, source=source, facts=lambda _: EngineFacts()
    )


def configured(node: NodeWatch, *servers: WatchedServer) -> None:
    node.configure(gpus=None, servers=servers, options=ViewOptions(), interval_seconds=0.05)


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


def test_a_restart_is_seen_behind_a_front_end_that_lives_on() -> None:
    """The start time is the API server's; the engine behind it may be another all the same."""
    server = watch(page(45, started=1.0), page(3, started=1.0))
    server.poll()

    server.poll()

    (engine,) = server.outcome.engines
    assert (engine.preemptions_total, engine.restarts) == (48, 1)


def dp_page(*ranks: str) -> ServerReading:
    config = {"num_gpu_blocks": "400", "block_size": "128"}
    engines = tuple(EngineReading(rank=rank, cache_config=config) for rank in ranks)
    return ServerReading(engines=engines, started_unix_seconds=1.0)


def test_a_missing_rank_does_not_double_the_others_pool() -> None:
    """Two engines of 200 blocks report 400 in all, also on a page that lacks one of them."""
    server = watch(dp_page("0", "1"), dp_page("0"))
    server.poll()

    server.poll()

    (engine,) = server.outcome.engines
    assert engine.capacity is not None
    assert engine.capacity.blocks == 200


def test_replicas_of_ray_do_not_share_a_pool() -> None:
    """Each replica has a front end of its own, whose blocks are all its own."""
    config = {"num_gpu_blocks": "1000", "block_size": "16"}
    engines = tuple(
        EngineReading(rank=f"{replica}:0", replica=replica, cache_config=config)
        for replica in ("a", "b")
    )
    server = watch(ServerReading(engines=engines))

    server.poll()

    blocks = [engine.capacity and engine.capacity.blocks for engine in server.outcome.engines]
    assert blocks == [1000, 1000]


def test_a_sleeping_engine_has_no_headroom() -> None:
    """Its pool is given away, and its usage gauge keeps the last value."""
    config = {"num_gpu_blocks": "1000", "block_size": "16"}
    asleep = EngineReading(
        rank="0", kv_used_ratio=0.0, sleep_state="discard_all", cache_config=config
    )
    server = watch(ServerReading(engines=(asleep,)))

    server.poll()

    assert server.outcome.engines[0].headroom is None


def test_a_poll_that_never_ends_is_not_served_as_live() -> None:
    """What was read before it began is too old by then."""
    source, entered, release = ScriptedServer([page()]), threading.Event(), threading.Event()
    server = ServerWatch(source, facts=lambda _: EngineFacts(), options=ViewOptions())
    server.poll()

    def hang() -> ServerReading:
        entered.set()
        release.wait(5)
        return page()

    source.read = hang  # type: ignore[method-assign]
    thread = threading.Thread(target=server.poll)
    thread.start()
    entered.wait(5)
    stuck = server.outcome_unless_stuck(time.monotonic() + 1)
    release.set()
    thread.join(5)

    assert not stuck.health.up
    assert stuck.engines == ()
    assert server.outcome_unless_stuck(time.monotonic() + 1).health.up
