"""The daemon: wire settings, sources, the node's watch and the web server; live until a signal."""

import logging
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

from kvheadroom import __version__
from kvheadroom.demo.node import build_node
from kvheadroom.errors import ConfigError
from kvheadroom.faces import landing
from kvheadroom.faces.document import encode
from kvheadroom.faces.exposition import Exposition
from kvheadroom.faces.fit import FIT_PATH, answer_fit
from kvheadroom.faces.negotiation import RenderedPage
from kvheadroom.faces.node_document import node_document
from kvheadroom.faces.server import WebServer
from kvheadroom.faces.web import Answer, make_app
from kvheadroom.faces.web_options import WebOptions, format_address, reloaded_options
from kvheadroom.live.snapshot import Snapshot
from kvheadroom.logs import set_up_logs
from kvheadroom.node.nvml import NvmlSource
from kvheadroom.poll.boot_book import BootBook
from kvheadroom.poll.gpu_watch import GpuSource
from kvheadroom.poll.node import NodeWatch
from kvheadroom.poll.process_watch import ProcessSource
from kvheadroom.settings import Flags, Settings, resolve
from kvheadroom.watched import configured_server, process_source, target_lists, watch_node
from kvheadroom.web_config import web_options

_log = logging.getLogger(__name__)

_SIGNALS: Final = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_FILE_CHECK_SECONDS: Final = 2.0


class _Latest:
    """The latest snapshot and its page: one reference each, swapped by the publisher."""

    def __init__(self) -> None:
        self.snapshot = Snapshot()
        self.is_ready = False
        self._exposition = Exposition()
        self.page = self._rendered(self.snapshot)

    def publish(self, snapshot: Snapshot) -> None:
        page = self._rendered(snapshot)
        # Scrapers ask for the same format every time, so it is made here, once per poll, and not
        # on the event loop while they wait.
        page.make_like(self.page)
        self.snapshot, self.page = snapshot, page
        # Once for all: an engine that is found later makes nothing else less ready.
        self.is_ready = self.is_ready or snapshot.is_complete

    def app(self, options: WebOptions) -> Any:  # noqa: ANN401  (ASGI has no type both sides share)
        return make_app(
            latest=lambda: self.page,
            landing=lambda: landing.render(__version__, options.telemetry_path, self.snapshot),
            ready=lambda: self.is_ready,
            options=options,
            api={
                "/api/v1/snapshot": self._node,
                FIT_PATH: lambda query: answer_fit(query, self.snapshot),
            },
        )

    def _node(self, _query: Mapping[str, str]) -> Answer:
        body = encode(node_document(__version__, self.snapshot))
        return Answer(200, "application/json", body)

    def _rendered(self, snapshot: Snapshot) -> RenderedPage:
        return RenderedPage(
            lambda: self._exposition.text(snapshot),
            lambda: self._exposition.openmetrics(snapshot),
        )


class _Daemon:
    """A node under watch and what it shows.

    Args:
        flags: The command line, read again with its files at every reload.
        gpus: The node's GPUs: one source for life, since a driver call that hangs outlives any
            configuration.
        processes: The node's processes, their servers called by name; ``None`` looks at this
            machine's.

    Raises:
        ConfigError: The settings cannot be honored, or an address cannot be listened on.
    """

    def __init__(
        self, flags: Flags, gpus: GpuSource, processes: ProcessSource | None = None
    ) -> None:
        self._flags = flags
        self._gpus = gpus
        self._given_processes = processes
        self._settings = resolve(flags)
        set_up_logs(self._settings.log_level, self._settings.log_format)
        self._options = web_options(self._settings)
        self._latest = _Latest()
        self._processes: ProcessSource | None = processes
        self._watch = NodeWatch(self._latest.publish, BootBook(self._settings.state_file))
        self._watch_nodes(self._settings)
        self._server = WebServer(self._latest.app(self._options), self._options)

    def live(self) -> NoReturn:
        """Serve until a signal says to end, then end the process."""
        self._server.start()
        for host, port in self._server.addresses:
            scheme = "http" if self._options.tls is None else "https"
            url = f"{scheme}://{format_address(host, port)}"
            _log.info("listening", extra={"fields": {"url": url, "version": __version__}})
        self._watch.start()
        asked = self._wait_for_the_end()
        self._watch.stop()
        self._server.stop()
        logging.shutdown()
        # A poll may hang in the driver or a socket; there is nothing left of it worth waiting for.
        os._exit(0 if asked else 1)

    def _wait_for_the_end(self) -> bool:
        """Reload on SIGHUP or when a file has changed; return whether the end was asked for."""
        stamps = _stamps(self._settings.files)
        while self._server.is_serving:
            received = _received_signal()
            if received is not None and received != signal.SIGHUP:
                _log.info("stopping", extra={"fields": {"signal": received.name}})
                return True
            now = _stamps(self._settings.files)
            if received is not None or now != stamps:
                self._reload()
                # A change made while reloading shows at the next look; a file that is new to the
                # configuration is watched from here on.
                stamps = _stamps(self._settings.files) | now
                stamps = {file: stamps[file] for file in self._settings.files}
        _log.error("the web server ended by itself; a supervisor should start kvheadroom again")
        return False

    def _reload(self) -> None:
        """Take over what flags and files say now, whole or not at all; never raises."""
        try:
            settings = resolve(self._flags)
            options = reloaded_options(self._options, web_options(settings))
            app = self._latest.app(options)
            self._watch_nodes(settings)
        except ConfigError as error:
            self._refuse(str(error))
            return
        except Exception as error:  # noqa: BLE001  (a bad file must not end a good daemon)
            _log.debug("traceback of the refused reload", exc_info=True)
            self._refuse(f"internal error: {type(error).__name__}")
            return
        self._server.replace_app(app, options.headers)
        set_up_logs(settings.log_level, settings.log_format)
        for name in ("listen_addresses", "telemetry_path"):
            if getattr(settings, name) != getattr(self._settings, name):
                fields = {"setting": name}
                _log.warning("takes effect at the next start", extra={"fields": fields})
        self._settings, self._options = settings, options
        fields = {"engines": str(len(settings.engines))}
        _log.info("configuration reloaded", extra={"fields": fields})

    def _refuse(self, detail: str) -> None:
        fields = {"detail": detail}
        _log.error("reload refused, the older configuration stays", extra={"fields": fields})
        self._watch.refuse_config()

    def _watch_nodes(self, settings: Settings) -> None:
        processes = self._given_processes or process_source(settings, self._processes)
        watch_node(
            self._watch,
            settings,
            gpus=self._gpus,
            processes=processes,
            are_named=self._given_processes is not None,
        )
        self._processes = processes


def serve_node(flags: Flags) -> NoReturn:
    """Watch this node until SIGTERM or SIGINT.

    Raises:
        ConfigError: The settings cannot be honored, or an address cannot be listened on.
    """
    _take_signals()
    # Its deadline is set with every configuration.
    _Daemon(flags, NvmlSource(deadline_seconds=1.0)).live()


def serve_demo(flags: Flags, *, profile: str, seed: int, speed: float) -> NoReturn:
    """Watch a simulated node until SIGTERM or SIGINT.

    Raises:
        ConfigError: As :func:`serve_node`.
    """
    _take_signals()
    node = build_node(profile, seed=seed, speed=speed)
    daemon = _Daemon(flags, node.gpus, node.processes)
    node.start()
    daemon.live()


def describe_settings(flags: Flags) -> Iterator[str]:
    """Yield what *flags* and their files mean, one line each, secrets left out.

    Raises:
        ConfigError: As :func:`serve_node`, but nothing is listened on.
    """
    settings = resolve(flags)
    options = web_options(settings)
    servers = [configured_server(engine, settings) for engine in settings.engines]
    listed = _listed(settings)
    _Latest().app(options)
    yield "configuration is valid"
    yield f"poll every {settings.poll_interval_seconds:g} s"
    yield f"gpus: {'NVML' if settings.nvml else 'not read'}"
    yield (
        f"servers: found in {settings.proc_root}"
        if settings.discovery
        else "servers: not looked for"
    )
    for server in servers:
        yield f"engine: {server.key}"
    for address in listed:
        yield f"listed: {address}"
    scheme = "http" if options.tls is None else "https"
    for host, port in options.listen:
        yield f"listen: {scheme}://{format_address(host, port)}{options.telemetry_path}"


def _listed(settings: Settings) -> list[str]:
    """Return the servers on the lists, as far as they can be read now.

    Raises:
        ConfigError: A list in a file cannot be used.
    """
    addresses: list[str] = []
    with _quiet():
        for one in target_lists(settings):
            addresses += [server.address for server in one.servers()]
            problems = getattr(one, "problems", None)
            if problems:
                raise ConfigError(next(iter(problems.values())))
    return addresses


@contextmanager
def _quiet() -> Iterator[None]:
    """Log nothing: what is wrong is said once, by the error."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(before)


def _take_signals() -> None:
    # Signals are taken where we wait for them and nowhere else. Blocked before the first thread
    # is made, since threads inherit the mask.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def _received_signal() -> signal.Signals | None:
    """Wait for a signal until the files are to be looked at again; ``None`` when none came."""
    received = signal.sigtimedwait(_SIGNALS, _FILE_CHECK_SECONDS)
    # Stopped and continued, or looked at by a debugger, meanwhile, CPython may make one up.
    found = [one for one in _SIGNALS if received is not None and one == received.si_signo]
    return found[0] if found else None


def _stamps(files: tuple[Path, ...]) -> dict[Path, tuple[int, int] | None]:
    return {file: _stamp(file) for file in files}


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
