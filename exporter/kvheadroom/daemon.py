"""The daemon: wire settings, sources, the node's watch and the web server; live until a signal."""

import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from kvheadroom import __version__
from kvheadroom.demo.node import build_node
from kvheadroom.errors import ConfigError
from kvheadroom.faces import landing
from kvheadroom.faces.exposition import Exposition
from kvheadroom.faces.negotiation import RenderedPage
from kvheadroom.faces.server import WebServer
from kvheadroom.faces.web import make_app
from kvheadroom.faces.web_options import WebOptions
from kvheadroom.live.engine_view import ViewOptions
from kvheadroom.live.snapshot import Snapshot
from kvheadroom.logs import set_up_logs
from kvheadroom.node.engine_url import engine_address
from kvheadroom.node.nvml import NvmlSource
from kvheadroom.node.vllm import EngineTarget, VllmSource
from kvheadroom.poll.facts import EngineFactsSource
from kvheadroom.poll.gpu_watch import GpuSource
from kvheadroom.poll.node import NodeWatch, WatchedServer
from kvheadroom.settings import EngineSettings, Flags, Settings, resolve
from kvheadroom.web_config import web_options

_log = logging.getLogger(__name__)

_SIGNALS: Final = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_FILE_CHECK_SECONDS: Final = 2.0


class _Latest:
    """The latest snapshot and its page: one reference each, swapped by the publisher."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self._exposition = Exposition()
        self.page = self._rendered(Snapshot())

    def publish(self, snapshot: Snapshot) -> None:
        page = self._rendered(snapshot)
        # Scrapers ask for the same format every time, so it is made here, once per poll, and not
        # on the event loop while they wait.
        page.make_like(self.page)
        self.snapshot, self.page = snapshot, page

    def landing(self, telemetry_path: str) -> str:
        snapshot = self.snapshot or Snapshot()
        return landing.render(__version__, telemetry_path, snapshot)

    def _rendered(self, snapshot: Snapshot) -> RenderedPage:
        return RenderedPage(
            lambda: self._exposition.text(snapshot),
            lambda: self._exposition.openmetrics(snapshot),
        )


def serve_node(flags: Flags) -> int:
    """Watch this node until SIGTERM or SIGINT; return the exit status.

    Raises:
        ConfigError: The settings cannot be honoured, or an address cannot be listened on.
    """
    settings = resolve(flags)
    set_up_logs(settings.log_level, settings.log_format)
    latest = _Latest()
    watch = NodeWatch(latest.publish)
    _configure(watch, settings, _gpu_source)
    return _live(
        settings, latest, watch, reload=lambda: _reload(flags, settings, watch, _gpu_source)
    )


def serve_demo(flags: Flags, *, profile: str, seed: int, speed: float) -> int:
    """Watch a simulated node until SIGTERM or SIGINT; return the exit status.

    Raises:
        ConfigError: As :func:`serve_node`.
    """
    node = build_node(profile, seed=seed, speed=speed)
    engines = tuple(
        EngineSettings(
            url=server.url,
            address=engine_address(server.url),
            name=server.name,
            model_config=server.model_config_path,
        )
        for server in node.servers
    )
    settings = resolve(flags)
    set_up_logs(settings.log_level, settings.log_format)
    latest = _Latest()
    watch = NodeWatch(latest.publish)
    node.start()
    try:
        _configure(watch, settings, lambda _: node.gpus, engines)
        return _live(settings, latest, watch, reload=lambda: None)
    finally:
        node.close()


def describe_settings(flags: Flags) -> Iterator[str]:
    """Yield what *flags* and their files mean, one line each, secrets left out.

    Raises:
        ConfigError: As :func:`serve_node`, but nothing is listened on.
    """
    settings = resolve(flags)
    options = web_options(settings)
    servers = tuple(_watched(engine, settings) for engine in settings.engines)
    make_app(latest=lambda: _Latest().page, landing=str, ready=lambda: True, options=options)
    yield "configuration is valid"
    yield f"poll every {settings.poll_interval_seconds:g} s"
    yield f"gpus: {'NVML' if settings.nvml else 'not read'}"
    for server in servers:
        yield f"engine: {server.key}"
    scheme = "http" if options.tls is None else "https"
    for host, port in options.listen:
        yield f"listen: {scheme}://{host or '*'}:{port}{options.telemetry_path}"


def _gpu_source(settings: Settings) -> GpuSource:
    return NvmlSource(deadline_seconds=settings.poll_timeout_seconds)


def _configure(
    watch: NodeWatch,
    settings: Settings,
    open_gpus: Callable[[Settings], GpuSource],
    engines: tuple[EngineSettings, ...] = (),
) -> None:
    servers = tuple(_watched(engine, settings) for engine in (*settings.engines, *engines))
    watch.configure(
        gpus=(lambda: open_gpus(settings)) if settings.nvml else None,
        servers=servers,
        options=ViewOptions(settings.context_tokens, settings.traffic_window_seconds),
        interval_seconds=settings.poll_interval_seconds,
    )


def _watched(engine: EngineSettings, settings: Settings) -> WatchedServer:
    target = EngineTarget(url=engine.url, api_key=engine.api_key)

    def open_source() -> VllmSource:
        return VllmSource(target, deadline_seconds=settings.poll_timeout_seconds)

    return WatchedServer(
        key=engine.address,
        connection=(target, settings.poll_timeout_seconds),
        source=open_source,
        facts=EngineFactsSource(
            name=engine.name,
            model_config=engine.model_config,
            tensor_parallel=engine.tensor_parallel,
            discovery=settings.discovery,
        ),
    )


def _reload(
    flags: Flags,
    started_with: Settings,
    watch: NodeWatch,
    open_gpus: Callable[[Settings], GpuSource],
) -> None:
    try:
        settings = resolve(flags)
        _configure(watch, settings, open_gpus)
    except ConfigError as error:
        _log.error("reload refused, the older configuration stays", extra=_detail(error))
        watch.refuse_config()
        return
    for name in ("listen_addresses", "telemetry_path", "web_config_file", "log_format"):
        if getattr(settings, name) != getattr(started_with, name):
            _log.warning("takes effect at the next start", extra={"fields": {"setting": name}})
    _log.info("configuration reloaded", extra={"fields": {"engines": len(settings.engines)}})


def _detail(error: ConfigError) -> dict[str, dict[str, str]]:
    return {"fields": {"detail": str(error)}}


def _live(
    settings: Settings, latest: _Latest, watch: NodeWatch, *, reload: Callable[[], None]
) -> int:
    # Signals are taken where we wait for them and nowhere else; threads inherit the mask.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    options = web_options(settings)
    server = _start_server(latest, options)
    watch.start()
    asked = _wait_for_the_end(settings.files, reload, lambda: server.is_serving)
    watch.stop()
    server.stop()
    logging.shutdown()
    # A poll may hang in the driver or a socket; there is nothing left of it worth waiting for.
    os._exit(0 if asked else 1)


def _start_server(latest: _Latest, options: WebOptions) -> WebServer:
    app = make_app(
        latest=lambda: latest.page,
        landing=lambda: latest.landing(options.telemetry_path),
        ready=lambda: latest.snapshot is not None,
        options=options,
    )
    server = WebServer(app, options)
    server.start()
    for host, port in server.addresses:
        scheme = "http" if options.tls is None else "https"
        shown = f"[{host}]" if ":" in host else host
        fields = {"url": f"{scheme}://{shown}:{port}", "version": __version__}
        _log.info("listening", extra={"fields": fields})
    return server


def _wait_for_the_end(
    files: tuple[Path, ...], reload: Callable[[], None], serving: Callable[[], bool]
) -> bool:
    """Reload on SIGHUP or when a file has changed; return whether the end was asked for."""
    stamps = _stamps(files)
    while serving():
        received = signal.sigtimedwait(_SIGNALS, _FILE_CHECK_SECONDS)
        if received is not None and received.si_signo != signal.SIGHUP:
            name = signal.Signals(received.si_signo).name
            _log.info("stopping", extra={"fields": {"signal": name}})
            return True
        now = _stamps(files)
        if received is not None or now != stamps:
            stamps = now
            reload()
    _log.error("the web server ended by itself; a supervisor should start kvheadroom again")
    return False


def _stamps(files: tuple[Path, ...]) -> tuple[tuple[int, int] | None, ...]:
    return tuple(_stamp(file) for file in files)


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
