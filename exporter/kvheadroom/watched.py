"""How each kind of vLLM server is watched: configured, listed, or found on this machine."""

from pathlib import Path

from kvheadroom.live.found_servers import FoundServer
from kvheadroom.node.engine_url import parse_engine_url
from kvheadroom.node.log_follow import LogFollower, open_log
from kvheadroom.node.log_place import find_log
from kvheadroom.node.target_lists import ListedServer, TargetFiles, TargetUrl
from kvheadroom.node.vllm import EngineTarget, VllmSource
from kvheadroom.poll.facts import EngineFactsSource
from kvheadroom.poll.log_watch import LogWatch
from kvheadroom.poll.server_set import WatchedServer
from kvheadroom.poll.target_watch import TargetList
from kvheadroom.settings import EngineSettings, Settings
from kvheadroom.strict_yaml import load_value


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
    )


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
    return (*in_files, *asked)


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
