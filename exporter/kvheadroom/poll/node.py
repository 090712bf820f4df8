"""The node under watch: all sources, their schedule, and the snapshot they add up to."""

import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Final

from kvheadroom.live.engine_view import EngineFacts, ViewOptions
from kvheadroom.live.snapshot import Snapshot
from kvheadroom.poll.gpu_watch import GpuSource, GpuWatch
from kvheadroom.poll.publisher import Publisher
from kvheadroom.poll.schedule import PollSchedule
from kvheadroom.poll.server_watch import ServerSource, ServerWatch
from kvheadroom.readings import ServerReading

# Names under which polls are scheduled and reported; a server's is its address.
_GPUS: Final = "nvml"
_CONFIGURATION: Final = "configuration"


@dataclass(frozen=True, slots=True)
class WatchedServer:
    """One vLLM server to watch.

    Attributes:
        key: What makes it the same server after a reload, so that its history is kept.
        connection: How it is reached; while it is the same, the source in use is kept.
        source: The server, nothing sent to it yet.
        facts: What is known of its engines, given its latest answer.
    """

    key: str
    connection: Hashable
    source: ServerSource
    facts: Callable[[ServerReading], EngineFacts]


class NodeWatch:
    """Polls every source of a node and publishes snapshots.

    Args:
        publish: Takes each new snapshot, in a thread of the watch's own.
    """

    def __init__(self, publish: Callable[[Snapshot], object]) -> None:
        self._schedule = PollSchedule()
        self._gpus: GpuWatch | None = None
        self._resting_gpus: GpuWatch | None = None
        self._servers: Mapping[str, ServerWatch] = {}
        self._connections: dict[str, Hashable] = {}
        self._publisher = Publisher(lambda: publish(self.snapshot()), self._names)
        self._patience_seconds = 0.0
        self._config_refused = False
        self._config_read_unix_seconds: float | None = None

    def start(self) -> None:
        """Begin to poll and to publish."""
        self._publisher.start()
        self._schedule.start()

    def stop(self) -> None:
        """Begin no further poll, publish no more; close the sources without waiting for them."""
        self._schedule.stop()
        self._publisher.stop()
        # Closing waits where a call of the source hangs, and nobody needs to see it done.
        threading.Thread(target=self._close_sources, name="closer", daemon=True).start()

    def configure(
        self,
        *,
        gpus: GpuSource | None,
        servers: tuple[WatchedServer, ...],
        options: ViewOptions,
        interval_seconds: float,
    ) -> None:
        """Watch exactly these sources from now on; those already watched keep their history.

        Nothing here can fail, so a configuration is taken over whole or, by the caller, not at
        all. Called by one thread at a time.

        Args:
            gpus: The node's GPUs; ``None`` watches none.
            servers: Every vLLM server, by unique key.
            options: How engines are judged.
            interval_seconds: Seconds from one poll of a source to the next.
        """
        before = {_GPUS} & self._names() | set(self._servers)
        kept = {server.key: self._watch_server(server, options) for server in servers}
        # One reference each, swapped whole: a snapshot taken meanwhile sees the old or the new.
        gone, self._servers = self._servers, kept
        self._gpus = self._watch_gpus(gpus)
        polls = {key: watch.poll for key, watch in kept.items()}
        if self._gpus is not None:
            polls[_GPUS] = self._gpus.poll
        for name in before - polls.keys():
            self._schedule.remove(name)
        for key in gone.keys() - kept.keys():
            gone[key].source.close()
        for name, poll in polls.items():
            run = self._polling(name, poll)
            self._schedule.add(name, run, interval_seconds=interval_seconds)
        self._patience_seconds = 2 * interval_seconds
        self._config_refused = False
        self._config_read_unix_seconds = time.time()
        self._publisher.report(_CONFIGURATION)

    def refuse_config(self) -> None:
        """Say that the configuration on disk was refused and the one before stays in force."""
        self._config_refused = True
        self._publisher.report(_CONFIGURATION)

    def snapshot(self) -> Snapshot:
        """Return the latest outcome of every source as one picture."""
        gpus = self._gpus
        gpu_outcome = gpus.outcome if gpus else None
        reading = gpu_outcome.reading if gpu_outcome else None
        latest = time.monotonic() - self._patience_seconds
        outcomes = [watch.outcome_unless_stuck(latest) for watch in self._servers.values()]
        return Snapshot(
            sources=(
                *(gpu_outcome.health if gpu_outcome else ()),
                *(outcome.health for outcome in outcomes),
            ),
            gpus=reading.gpus if reading else (),
            servers=tuple(outcome.server for outcome in outcomes if outcome.server),
            engines=tuple(engine for outcome in outcomes for engine in outcome.engines),
            driver_version=reading.driver_version if reading else None,
            polls_missed=self._schedule.missed,
            polls_skipped=self._schedule.skipped,
            config_reloaded=not self._config_refused,
            config_read_unix_seconds=self._config_read_unix_seconds,
        )

    def _close_sources(self) -> None:
        for watch in self._servers.values():
            watch.source.close()
        if self._gpus is not None:
            self._gpus.source.close()

    def _watch_server(self, server: WatchedServer, options: ViewOptions) -> ServerWatch:
        watch = self._servers.get(server.key)
        if watch is None:
            watch = ServerWatch(server.source, facts=server.facts, options=options)
        elif self._connections[server.key] == server.connection:
            server.source.close()
        else:
            watch.source.close()
            watch.source = server.source
        self._connections[server.key] = server.connection
        watch.facts, watch.options = server.facts, options
        return watch

    def _watch_gpus(self, gpus: GpuSource | None) -> GpuWatch | None:
        watch = self._gpus or self._resting_gpus
        if watch is not None and gpus is not None and watch.source is gpus:
            return watch
        if watch is not None:
            watch.source.close()
        # Switched off and on again by reloads, the GPUs keep what was counted of them.
        self._resting_gpus = watch if gpus is None else None
        return None if gpus is None else GpuWatch(gpus)

    def _polling(self, name: str, poll: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            poll()
            self._publisher.report(name)

        return run

    def _names(self) -> set[str]:
        return set(self._servers) | ({_GPUS} if self._gpus else set())
