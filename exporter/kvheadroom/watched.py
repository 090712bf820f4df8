"""How each kind of vLLM server is watched: configured, listed, or found on this machine."""

from collections.abc import Hashable
from pathlib import Path

from kvheadroom.live.engine_view import ViewOptions
from kvheadroom.live.found_servers import FoundServer
from kvheadroom.node.engine_url import parse_engine_url
from kvheadroom.node.kubernetes_pods import KubernetesPods
from kvheadroom.node.log_follow import LogFollower, open_log
from kvheadroom.node.log_place import find_log
from kvheadroom.node.nvml import NvmlSource
from kvheadroom.node.target_lists import ListedServer, TargetFiles, TargetUrl
from kvheadroom.node.vllm import EngineTarget, VllmSource
from kvheadroom.poll.discovery import Discovery
from kvheadroom.poll.facts import EngineFactsSource
from kvheadroom.poll.gpu_watch import GpuSource
from kvheadroom.poll.log_watch import LogWatch
from kvheadroom.poll.node import FoundServers, ListedServers, NodeWatch
from kvheadroom.poll.process_watch import ProcessSource
from kvheadroom.poll.server_set import WatchedServer
from kvheadroom.poll.target_watch import TargetList
from kvheadroom.settings import EngineSettings, Settings
from kvheadroom.strict_yaml import load_mapping, load_value


def watch_node(
    watch: NodeWatch,
    settings: Settings,
    *,
    gpus: GpuSource,
    processes: ProcessSource | None,
    are_named: bool = False,
) -> None:
    """Watch what the settings say from now on, whole or, where something is refused, not at all.

    Args:
        watch: The node.
        settings: Of the operator.
        gpus: The node's GPUs: one source for life, since a driver call that hangs outlives any
            configuration.
        processes: Where servers are found; ``None`` finds none.
        are_named: Found servers are called by names for people, rather than by address.

    Raises:
        ConfigError: A setting or one of its files cannot be used.
    """
    # Everything that can be refused is made before anything in use is touched.
    servers = tuple(configured_server(engine, settings) for engine in settings.engines)
    lists = target_lists(settings)
    if isinstance(gpus, NvmlSource):
        gpus.deadline_seconds = settings.poll_timeout_seconds

    def found(server_id: str, server: FoundServer) -> WatchedServer:
        return found_server(server_id, server, settings, is_name=are_named)

    watch.configure(
        gpus=gpus if settings.nvml else None,
        servers=servers,
        options=ViewOptions(
            settings.context_tokens,
            settings.traffic_window_seconds,
            settings.poll_interval_seconds,
        ),
        interval_seconds=settings.poll_interval_seconds,
        found=FoundServers(processes, found) if processes else None,
        listed=_listed(lists, settings) if lists else None,
    )


def _listed(lists: tuple[TargetList, ...], settings: Settings) -> ListedServers:
    return ListedServers(
        lists,
        lambda one: listed_server(one, settings),
        made_of=(
            settings.target_files,
            settings.target_urls,
            settings.pods,
            settings.poll_timeout_seconds,
        ),
    )


def process_source(settings: Settings, known: ProcessSource | None = None) -> ProcessSource | None:
    """Return where processes are found; the *known* one as long as it looks there.

    It remembers who was who, so it is kept over a reload.
    """
    if not settings.discovery:
        return None
    if known is not None and known.target == settings.proc_root:
        return known
    return Discovery(read_yaml=load_mapping, proc=settings.proc_root, pod_logs=settings.pod_logs)


def configured_server(engine: EngineSettings, settings: Settings) -> WatchedServer:
    """Return how an engine of the configuration is watched.

    Raises:
        ConfigError: One of its files cannot be used.
    """
    url = parse_engine_url(engine.url)
    log = None if engine.startup_log is None else _log(engine.address, engine.startup_log)
    facts = EngineFactsSource(
        name=engine.name,
        model_config=engine.model_config,
        tensor_parallel=engine.tensor_parallel,
        discovery=settings.discovery and url.is_loopback,
        boots=None if log is None else (lambda: log.outcome),
    )
    target = EngineTarget(
        url=engine.url,
        api_key=engine.api_key,
        ca_file=None if engine.ca_file is None else str(engine.ca_file),
    )
    return WatchedServer(
        key=engine.address,
        connection=(target, settings.poll_timeout_seconds),
        source=VllmSource(target, deadline_seconds=settings.poll_timeout_seconds),
        facts=facts,
        notice=facts.notice,
        log=log,
        made_of=(
            engine,
            settings.discovery,
            settings.poll_timeout_seconds,
            _stamp(engine.model_config),
        ),
    )


def _stamp(file: Path | None) -> Hashable:
    """Return what changes when *file* is written or replaced."""
    if file is None:
        return None
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def listed_server(listed: ListedServer, settings: Settings) -> WatchedServer:
    """Return how a server on a list of targets is watched."""
    return configured_server(EngineSettings(url=listed.url, address=listed.address), settings)


def target_lists(settings: Settings) -> tuple[TargetList, ...]:
    """Return the lists of servers that the settings name.

    Raises:
        ConfigError: One of them cannot be asked.
    """
    files = settings.target_files
    in_files = (TargetFiles(files, load=load_value),) if files else ()
    asked = tuple(
        TargetUrl(url, deadline_seconds=settings.poll_timeout_seconds)
        for url in settings.target_urls
    )
    pods = settings.pods
    if pods is None:
        return (*in_files, *asked)
    in_cluster = KubernetesPods(
        pods.selector,
        namespace=pods.namespace,
        node=pods.node,
        deadline_seconds=settings.poll_timeout_seconds,
    )
    return (*in_files, *asked, in_cluster)


def found_server(
    server_id: str, found: FoundServer, settings: Settings, *, is_name: bool = False
) -> WatchedServer:
    """Return how a server that was found on this machine is watched.

    Args:
        server_id: What its engines are called by, for as long as it is the same server.
        found: Its process; its address has a URL.
        settings: Of the daemon.
        is_name: The id is a name for people, rather than an address.
    """
    target = EngineTarget(
        url=found.address.url or "",
        api_key=found.api_key.reveal() if found.api_key else None,
    )
    log = _found_log(server_id, found, settings)
    facts = EngineFactsSource(
        name=server_id if is_name else None,
        server=server_id,
        discovery=False,
        boots=None if log is None else (lambda: log.outcome),
    )
    return WatchedServer(
        key=server_id,
        connection=(target, settings.poll_timeout_seconds),
        source=VllmSource(target, deadline_seconds=settings.poll_timeout_seconds),
        facts=facts,
        notice=facts.notice,
        log=log,
        made_of=(target, found.pid, found.started_ticks, settings.poll_timeout_seconds),
    )


def _found_log(server_id: str, found: FoundServer, settings: Settings) -> LogWatch | None:
    place = find_log(
        found.pid,
        container_id=found.container_id,
        unit=found.systemd_unit,
        proc=Path(settings.proc_root),
    )
    return None if place is None else _log(server_id, place)


def _log(name: str, place: str) -> LogWatch:
    return LogWatch(name, LogFollower(open_log(place)))
