"""The node under watch: all sources, their schedule, and the snapshot they add up to."""

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

from kvheadroom.live.engine_view import ViewOptions
from kvheadroom.live.snapshot import Snapshot
from kvheadroom.poll.boot_book import BootBook
from kvheadroom.poll.discovery import Discovered
from kvheadroom.poll.gpu_watch import GpuSource, GpuWatch
from kvheadroom.poll.judge import NodeJudge
from kvheadroom.poll.process_watch import ProcessSource, ProcessWatch
from kvheadroom.poll.publisher import Publisher
from kvheadroom.poll.schedule import PollSchedule
from kvheadroom.poll.server_set import ListServer, MakeServer, ServerSet, WatchedServer
from kvheadroom.poll.target_watch import TargetList, TargetWatch
from kvheadroom.readings import GpuReading

# Names under which polls are scheduled and reported; a server's is its key.
_GPUS: Final = "nvml"
_PROCESSES: Final = "proc"
_CONFIGURATION: Final = "configuration"
_LISTS: Final = "lists"
_LOG: Final = "log "

_Poll = Callable[[], None]


@dataclass(frozen=True, slots=True)
class FoundServers:
    """Servers that are found among the processes.

    Attributes:
        source: Where they are found.
        watched: How one of them is watched; ``None`` only tells what they are.
    """

    source: ProcessSource
    watched: MakeServer | None


@dataclass(frozen=True, slots=True)
class ListedServers:
    """Servers on lists that others keep.

    Attributes:
        lists: Files, URLs, clusters.
        watched: How one of them is watched.
        made_of: What the lists were made of: while it is the same, those in use are kept with
            what they said last; ``None`` reads them anew.
    """

    lists: tuple[TargetList, ...]
    watched: ListServer
    made_of: Hashable = None


class NodeWatch:
    """Polls every source of a node and publishes snapshots.

    Args:
        publish: Takes each new snapshot, in a thread of the watch's own.
        boots: Where engines' budgets are remembered from start to start.
    """

    def __init__(
        self, publish: Callable[[Snapshot], object], boots: BootBook | None = None
    ) -> None:
        self._schedule = PollSchedule()
        self._gpus: GpuWatch | None = None
        self._resting_gpus: GpuWatch | None = None
        self._processes: ProcessWatch | None = None
        self._lists: TargetWatch | None = None
        self._listed: ListedServers | None = None
        self._servers = ServerSet()
        self._judge = NodeJudge(boots or BootBook())
        self._publisher = Publisher(lambda: publish(self.snapshot()), self._names)
        self._interval_seconds = 0.0
        self._scheduled: dict[str, object] = {}
        # Who is watched changes by configuration and by what is found.
        self._changing = threading.Lock()
        self._judging = threading.Lock()
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
        found: FoundServers | None = None,
        listed: ListedServers | None = None,
    ) -> None:
        """Watch exactly these sources from now on; those already watched keep their history.

        Nothing here can fail, so a configuration is taken over whole or, by the caller, not at
        all. Called by one thread at a time.

        Args:
            gpus: The node's GPUs; ``None`` watches none.
            servers: Every configured vLLM server, by unique key.
            options: How engines are judged.
            interval_seconds: Seconds from one poll of a source to the next.
            found: Servers that are found on this machine; ``None`` finds none.
            listed: Servers on lists that others keep; ``None`` reads none.
        """
        with self._changing:
            if interval_seconds != self._interval_seconds:
                self._scheduled = dict.fromkeys(self._scheduled)
            self._interval_seconds = interval_seconds
            self._gpus = self._watch_gpus(gpus)
            self._processes = self._watch_processes(found.source if found else None)
            self._servers.configure(
                servers,
                found.watched if found else None,
                options,
                listed.watched if listed else None,
            )
            self._lists = self._watch_lists(listed)
            self._listed = listed
            self._reschedule()
        self._config_refused = False
        self._config_read_unix_seconds = time.time()
        self._publisher.report(_CONFIGURATION)

    def refuse_config(self) -> None:
        """Say that the configuration on disk was refused and the one before stays in force."""
        self._config_refused = True
        self._publisher.report(_CONFIGURATION)

    def snapshot(self) -> Snapshot:
        """Return the latest outcome of every source as one picture."""
        gpus, processes = self._gpus, self._processes
        gpu_outcome = gpus.outcome if gpus else None
        reading = gpu_outcome.reading if gpu_outcome else None
        looked = processes.outcome if processes else None
        discovered = looked.discovered if looked else Discovered()
        latest = time.monotonic() - 2 * self._interval_seconds
        watches, found = self._servers.watches, self._servers.found
        outcomes = {key: watch.outcome_unless_stuck(latest) for key, watch in watches.items()}
        with self._judging:
            engines = self._judge.engines(outcomes)
            listed = reading.gpus if reading else ()
            cards = self._judge.cards(listed, outcomes, found, discovered)
        return Snapshot(
            sources=(
                *(gpu_outcome.health if gpu_outcome else ()),
                *((looked.health,) if looked else ()),
                *(outcome.health for outcome in outcomes.values()),
            ),
            cards=cards,
            servers=tuple(outcome.server for outcome in outcomes.values() if outcome.server),
            engines=engines,
            discovered=discovered.servers,
            driver_version=reading.driver_version if reading else None,
            polls_missed=self._schedule.missed,
            polls_skipped=self._schedule.skipped,
            config_reloaded=not self._config_refused,
            config_read_unix_seconds=self._config_read_unix_seconds,
        )

    # --- processes and what is found there ---

    def _poll_gpus(self) -> None:
        gpus, processes = self._gpus, self._processes
        if gpus is None:
            return
        gpus.poll()
        # Whoever is new on a GPU is looked up before anyone is told of it: it may be an engine
        # that starts, or a stranger.
        if processes is not None and not processes.outcome.has_seen(self._listed_gpus()):
            self._look()

    def _look(self) -> None:
        processes = self._processes
        if processes is None:
            return
        gpus = self._listed_gpus()
        processes.poll(gpus)
        with self._changing:
            if self._processes is processes:
                self._servers.notice(processes.outcome.discovered, gpus)
                self._reschedule()

    def _read_lists(self) -> None:
        lists, listed = self._lists, self._listed
        if lists is None or listed is None:
            return
        lists.poll()
        with self._changing:
            if self._lists is lists:
                self._servers.take_list(lists.listed, listed.watched)
                self._reschedule()

    def _listed_gpus(self) -> tuple[GpuReading, ...]:
        reading = self._gpus.outcome.reading if self._gpus else None
        return reading.gpus if reading else ()

    # --- the schedule ---

    def _reschedule(self) -> None:
        """Poll exactly what is watched now."""
        polls = self._polls()
        for name in self._scheduled.keys() - polls.keys():
            self._schedule.remove(name)
            del self._scheduled[name]
        for name, (owner, poll) in polls.items():
            if self._scheduled.get(name) is not owner:
                run = self._polling(name, poll)
                self._schedule.add(name, run, interval_seconds=self._interval_seconds)
                self._scheduled[name] = owner

    def _polls(self) -> dict[str, tuple[object, _Poll]]:
        """Return by name every poll there should be, and whose it is."""
        polls: dict[str, tuple[object, _Poll]] = {}
        if self._gpus is not None:
            polls[_GPUS] = (self._gpus, self._poll_gpus)
        if self._processes is not None:
            polls[_PROCESSES] = (self._processes, self._look)
        if self._lists is not None:
            polls[_LISTS] = (self._lists, self._read_lists)
        for key, watch in self._servers.watches.items():
            # One that has moved is asked at once.
            polls[key] = (watch.source, watch.poll)
        for key, log in self._servers.logs.items():
            polls[_LOG + key] = (log, log.poll)
        return polls

    def _polling(self, name: str, poll: _Poll) -> _Poll:
        def run() -> None:
            poll()
            # What a log or a list says is in the picture with the next answer of its servers.
            if name in self._names():
                self._publisher.report(name)

        return run

    def _names(self) -> set[str]:
        """Return whose polls make up a cycle; a log's figures are there when they are there."""
        return {
            *self._servers.watches,
            *({_GPUS} if self._gpus else ()),
            *({_PROCESSES} if self._processes else ()),
        }

    # --- sources ---

    def _close_sources(self) -> None:
        self._servers.close()
        if self._lists is not None:
            self._lists.close()
        if self._gpus is not None:
            self._gpus.source.close()

    def _watch_processes(self, source: ProcessSource | None) -> ProcessWatch | None:
        if self._processes is not None and self._processes.source is source:
            return self._processes
        return None if source is None else ProcessWatch(source)

    def _watch_lists(self, listed: ListedServers | None) -> TargetWatch | None:
        watch = None if listed is None else TargetWatch(listed.lists)
        before, known = self._lists, self._listed
        if before is None or known is None:
            return watch
        is_same = listed is not None and None is not listed.made_of == known.made_of
        if watch is not None and is_same:
            watch.close()
            return before
        before.close()
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
