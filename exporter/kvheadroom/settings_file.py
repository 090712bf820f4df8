"""The configuration file, key by key."""

from typing import Literal

from kvheadroom.strict_yaml import FileRecord

LogFormat = Literal["logfmt", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


class EngineInFile(FileRecord, frozen=True, forbid_unknown_fields=True):
    """One entry of ``engines`` in the configuration file."""

    url: str
    name: str | None = None
    api_key_file: str | None = None
    api_key_env: str | None = None
    ca_file: str | None = None
    model_config: str | None = None
    startup_log: str | None = None
    tensor_parallel_size: int = 1


class PollInFile(FileRecord, frozen=True, forbid_unknown_fields=True):
    """``poll`` in the configuration file."""

    interval: str | None = None
    timeout: str | None = None


class WebInFile(FileRecord, frozen=True, forbid_unknown_fields=True):
    """``web`` in the configuration file."""

    listen_addresses: tuple[str, ...] = ()
    telemetry_path: str | None = None
    config_file: str | None = None


class PodsInFile(FileRecord, frozen=True, forbid_unknown_fields=True):
    """``targets.kubernetes`` in the configuration file."""

    selector: str
    namespace: str | None = None
    node: str | None = None


class TargetsInFile(FileRecord, frozen=True, forbid_unknown_fields=True):
    """``targets`` in the configuration file."""

    files: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()
    kubernetes: PodsInFile | None = None


class LogInFile(FileRecord, frozen=True, forbid_unknown_fields=True):
    """``log`` in the configuration file."""

    level: LogLevel | None = None
    format: LogFormat | None = None


class SettingsFile(FileRecord, frozen=True, forbid_unknown_fields=True):
    """The whole configuration file; a flag beats it, it beats a default."""

    engines: tuple[EngineInFile, ...] = ()
    discovery: bool = True
    proc_root: str | None = None
    pod_logs: str | None = None
    targets: TargetsInFile = TargetsInFile()
    state_file: str | None = None
    nvml: bool = True
    contexts: tuple[str | int, ...] = ()
    traffic_window: str | None = None
    model_config: str | None = None
    poll: PollInFile = PollInFile()
    web: WebInFile = WebInFile()
    log: LogInFile = LogInFile()
