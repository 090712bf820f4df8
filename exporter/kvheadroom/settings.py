"""What the operator decided: one frozen record from flags, environment, file and defaults."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kvheadroom import defaults
from kvheadroom.errors import ConfigError
from kvheadroom.node.engine_url import engine_address
from kvheadroom.settings_file import EngineInFile, LogFormat, LogLevel, SettingsFile
from kvheadroom.strict_yaml import load_record
from kvheadroom.units import parse_duration, parse_token_count

# A poll must end before the next one is due; what is left is for judging and rendering.
_TIMEOUT_SHARE: Final = 0.8
_LONGEST_TIMEOUT_SECONDS: Final = 4.0

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class Flags:
    """The command line and the environment; ``None`` and empty mean not given."""

    config_file: Path | None = None
    engines: tuple[str, ...] = ()
    no_discovery: bool = False
    proc_root: str | None = None
    pod_logs: str | None = None
    target_files: tuple[str, ...] = ()
    target_urls: tuple[str, ...] = ()
    pod_selector: str | None = None
    pod_namespace: str | None = None
    pod_node: str | None = None
    startup_logs: tuple[str, ...] = ()
    state_file: Path | None = None
    no_nvml: bool = False
    api_key_file: Path | None = None
    poll_interval: str | None = None
    poll_timeout: str | None = None
    contexts: tuple[str, ...] = ()
    traffic_window: str | None = None
    model_configs: tuple[str, ...] = ()
    listen_addresses: tuple[str, ...] = ()
    telemetry_path: str | None = None
    web_config_file: Path | None = None
    log_level: LogLevel | None = None
    log_format: LogFormat | None = None


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """One vLLM server to watch.

    Attributes:
        url: Base URL, credentials included.
        address: The same server without them; no two engines share one.
        name: What its engines are called; ``None`` calls them by address.
        api_key: For its ``/v1/models``.
        ca_file: PEM certificates to trust instead of the usual authorities.
        model_config: The model's config.json.
        startup_log: Where its startup log goes: a file, a folder or ``journald:UNIT``.
        tensor_parallel: Ranks of one engine.
    """

    url: str = field(repr=False)
    address: str
    name: str | None = None
    api_key: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    model_config: Path | None = None
    startup_log: str | None = None
    tensor_parallel: int = 1


@dataclass(frozen=True, slots=True)
class PodSettings:
    """Which pods of a Kubernetes cluster are watched.

    Attributes:
        selector: Label selector, ``app=vllm``.
        namespace: Only pods in it; ``None`` takes every namespace.
        node: Only pods on that node; ``None`` takes every node's.
    """

    selector: str
    namespace: str | None = None
    node: str | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything the daemon is told.

    Attributes:
        engines: vLLM servers to watch.
        discovery: Find vLLM servers and their models on this machine.
        proc_root: Where ``/proc`` is.
        pod_logs: Where the kubelet keeps pods' logs, for the names of pods.
        target_files: Lists of servers in Prometheus' ``file_sd`` format.
        target_urls: The same over HTTP; may hold credentials.
        pods: Pods to watch through the cluster's API; ``None`` asks no cluster.
        state_file: Where engines' budgets are kept over our own restart.
        nvml: Read the GPUs.
        poll_interval_seconds: From one poll of a source to the next.
        poll_timeout_seconds: What one poll of one source may take.
        context_tokens: Request lengths that headroom is stated for.
        traffic_window_seconds: How far back the traffic's own request length reaches.
        listen_addresses: Host and port pairs; an empty host is every interface.
        telemetry_path: Where the exposition is served.
        web_config_file: TLS and basic auth, in exporter-toolkit's format.
        log_level: Least severe level that is logged.
        log_format: How a log line is written.
        files: Files whose change means a reload.
    """

    engines: tuple[EngineSettings, ...] = ()
    discovery: bool = True
    proc_root: str = defaults.PROC_ROOT
    pod_logs: str | None = None
    target_files: tuple[str, ...] = ()
    target_urls: tuple[str, ...] = field(default=(), repr=False)
    pods: PodSettings | None = None
    state_file: Path | None = None
    nvml: bool = True
    poll_interval_seconds: float = 5.0
    poll_timeout_seconds: float = _LONGEST_TIMEOUT_SECONDS
    context_tokens: tuple[int, ...] = (8192,)
    traffic_window_seconds: float = 900.0
    listen_addresses: tuple[tuple[str, int], ...] = (("", defaults.PORT),)
    telemetry_path: str = defaults.TELEMETRY_PATH
    web_config_file: Path | None = None
    log_level: LogLevel = "info"
    log_format: LogFormat = "logfmt"
    files: tuple[Path, ...] = ()


def resolve(flags: Flags, environment: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings that *flags*, their configuration file and the defaults add up to.

    Raises:
        ConfigError: A value, a file or a key in it cannot be honored; one line says which.
    """
    file = load_record(flags.config_file, SettingsFile) if flags.config_file else SettingsFile()
    interval = parse_duration(flags.poll_interval or file.poll.interval or defaults.POLL_INTERVAL)
    timeout_text = flags.poll_timeout or file.poll.timeout
    default_timeout = min(_LONGEST_TIMEOUT_SECONDS, interval * _TIMEOUT_SHARE)
    timeout = parse_duration(timeout_text) if timeout_text else default_timeout
    if timeout >= interval:
        raise ConfigError(
            f"poll timeout ({timeout:g} s) must be shorter than the poll interval ({interval:g} s)"
        )
    given_contexts = flags.contexts or tuple(str(context) for context in file.contexts)
    contexts = given_contexts or (defaults.CONTEXT,)
    listen = flags.listen_addresses or file.web.listen_addresses or (defaults.LISTEN_ADDRESS,)
    web_config = flags.web_config_file or _beside(flags.config_file, file.web.config_file)
    engines = _engines(flags, file, environment)
    window = flags.traffic_window or file.traffic_window or defaults.TRAFFIC_WINDOW
    watched = (
        flags.config_file,
        flags.api_key_file,
        web_config,
        *(engine.model_config for engine in engines),
        *(_beside(flags.config_file, engine.api_key_file) for engine in file.engines),
    )
    return Settings(
        engines=engines,
        discovery=file.discovery and not flags.no_discovery,
        proc_root=flags.proc_root or file.proc_root or defaults.PROC_ROOT,
        pod_logs=flags.pod_logs or file.pod_logs,
        target_files=flags.target_files or _all_beside(flags.config_file, file.targets.files),
        target_urls=flags.target_urls or file.targets.urls,
        pods=_pods(flags, file),
        state_file=flags.state_file or _beside(flags.config_file, file.state_file),
        nvml=file.nvml and not flags.no_nvml,
        poll_interval_seconds=interval,
        poll_timeout_seconds=timeout,
        context_tokens=tuple(dict.fromkeys(parse_token_count(context) for context in contexts)),
        traffic_window_seconds=parse_duration(window),
        listen_addresses=tuple(parse_listen_address(address) for address in listen),
        telemetry_path=flags.telemetry_path or file.web.telemetry_path or defaults.TELEMETRY_PATH,
        web_config_file=web_config,
        log_level=flags.log_level or file.log.level or "info",
        log_format=flags.log_format or file.log.format or "logfmt",
        files=tuple(path for path in watched if path is not None),
    )


def _pods(flags: Flags, file: SettingsFile) -> PodSettings | None:
    pods = file.targets.kubernetes
    selector = flags.pod_selector or (pods.selector if pods else None)
    if selector is None:
        return None
    return PodSettings(
        selector,
        flags.pod_namespace or (pods.namespace if pods else None),
        flags.pod_node or (pods.node if pods else None),
    )


def parse_listen_address(text: str) -> tuple[str, int]:
    """Return host and port of ``:10420``, ``127.0.0.1:10420`` or ``[::1]:10420``.

    Raises:
        ConfigError: No port, or not one.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535 or (":" in host) != ("[" in host):  # noqa: PLR2004
        raise ConfigError(f"not a listen address: {text!r} (write HOST:PORT, :PORT or [IPV6]:PORT)")
    return host.strip("[]"), int(port)


def _engines(
    flags: Flags, file: SettingsFile, environment: Mapping[str, str]
) -> tuple[EngineSettings, ...]:
    for_all, by_address = _model_configs(flags, file)
    logs = _startup_logs(flags)
    shared_key = _read_key(flags.api_key_file) or environment.get("KVHEADROOM_API_KEY") or None
    given = tuple(EngineInFile(url=url) for url in flags.engines) or file.engines
    engines = tuple(
        EngineSettings(
            url=_with_scheme(engine.url),
            address=(address := engine_address(_with_scheme(engine.url))),
            name=_checked_name(engine.name),
            api_key=_engine_key(engine, flags.config_file, environment) or shared_key,
            ca_file=_beside(flags.config_file, engine.ca_file),
            model_config=by_address.pop(address, None)
            or _beside(flags.config_file, engine.model_config)
            or for_all,
            startup_log=logs.pop(address, None)
            or _log_beside(flags.config_file, engine.startup_log),
            tensor_parallel=_positive("tensor_parallel_size", engine.tensor_parallel_size),
        )
        for engine in given
    )
    if not engines and (for_all or by_address):
        raise ConfigError("a model config is given, but no engine")
    if by_address:
        raise ConfigError(f"--model-config names no --engine: {next(iter(by_address))}")
    if logs:
        raise ConfigError(f"--startup-log names no --engine: {next(iter(logs))}")
    _refuse_repeats(engines)
    return engines


def _startup_logs(flags: Flags) -> dict[str, str]:
    """Return the place of each engine's startup log, by its address."""
    places: dict[str, str] = {}
    for given in flags.startup_logs:
        url, equals, place = given.partition("=")
        if not equals or not place or url.startswith(("/", ".")):
            raise ConfigError(f"--startup-log: write URL=PLACE, not {given!r}")
        places[engine_address(_with_scheme(url))] = place
    return places


def _model_configs(flags: Flags, file: SettingsFile) -> tuple[Path | None, dict[str, Path]]:
    for_all = _beside(flags.config_file, file.model_config)
    by_address: dict[str, Path] = {}
    for given in flags.model_configs:
        url, equals, path = given.partition("=")
        # A path may hold an equals sign; it then begins as a path does.
        if equals and not url.startswith(("/", ".")):
            by_address[engine_address(_with_scheme(url))] = Path(path)
        else:
            for_all = Path(given)
    return for_all, by_address


def _refuse_repeats(engines: tuple[EngineSettings, ...]) -> None:
    addresses = [engine.address for engine in engines]
    names = [engine.name for engine in engines if engine.name is not None]
    for kind, values in (("engine", addresses), ("engine name", names)):
        repeated = next((value for value in values if values.count(value) > 1), None)
        if repeated is not None:
            raise ConfigError(f"{kind} given twice: {repeated}")


def _checked_name(name: str | None) -> str | None:
    if name is not None and not _NAME.fullmatch(name):
        # A slash would make it look like a rank of another engine's.
        raise ConfigError(
            f"engine name {name!r}: use 1 to 128 letters, digits, dots, dashes and underscores"
        )
    return name


def _with_scheme(text: str) -> str:
    return text if "://" in text else f"http://{text}"


def _engine_key(
    engine: EngineInFile, config_file: Path | None, environment: Mapping[str, str]
) -> str | None:
    if engine.api_key_file is not None:
        return _read_key(_beside(config_file, engine.api_key_file))
    if engine.api_key_env is None:
        return None
    key = environment.get(engine.api_key_env)
    if not key:
        raise ConfigError(f"api_key_env: the environment has no {engine.api_key_env}")
    return key


def _read_key(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        key = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise ConfigError(f"API key file {path}: cannot be read: {reason}") from error
    if not key:
        raise ConfigError(f"API key file {path}: is empty")
    return key


def _beside(config_file: Path | None, text: str | None) -> Path | None:
    # Paths in a file are relative to that file, as exporter-toolkit reads its own.
    if text is None or config_file is None:
        return None
    return config_file.parent / text


def _all_beside(config_file: Path | None, texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(str(_beside(config_file, text)) for text in texts)


def _log_beside(config_file: Path | None, text: str | None) -> str | None:
    if text is None or text.startswith(("journald:", "journal:")):
        return text
    return str(_beside(config_file, text))


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise ConfigError(f"{name} must be 1 or more, not {value}")
    return value
