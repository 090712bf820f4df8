"""The flags that several sub-commands share, each with its environment twin."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from kvheadroom import defaults

Command = TypeVar("Command", bound=Callable[..., Any])


def _option(flag: str, name: str, **settings: Any) -> Callable[[Command], Command]:  # noqa: ANN401
    """Return a click option whose environment twin is ``KVHEADROOM_`` and the flag's own name."""
    twin = flag.removeprefix("--").replace(".", "_").replace("-", "_").upper()
    return click.option(flag, name, envvar=f"KVHEADROOM_{twin}", show_envvar=True, **settings)


FILE: Final = click.Path(dir_okay=False, path_type=Path)


def options(*given: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that gives a command all these options, in their order."""

    def decorate(command: Command) -> Command:
        for option in reversed(given):
            command = option(command)
        return command

    return decorate


POLL_OPTIONS: Final = (
    _option(
        "--poll.interval",
        "poll_interval",
        help=f"Between two polls of a source.  [default: {defaults.POLL_INTERVAL}]",
    ),
    _option(
        "--poll.timeout",
        "poll_timeout",
        help="For one poll of one source.  [default: 80% of the interval, at most 4s]",
    ),
    _option(
        "--context",
        "contexts",
        multiple=True,
        help="State headroom for requests of this many tokens; repeatable.  "
        f"[default: {defaults.CONTEXT}]",
    ),
    _option(
        "--traffic.window",
        "traffic_window",
        help="How far back the traffic's own request length reaches.  "
        f"[default: {defaults.TRAFFIC_WINDOW}]",
    ),
)
WEB_OPTIONS: Final = (
    _option(
        "--web.listen-address",
        "listen_addresses",
        multiple=True,
        help=f"HOST:PORT or :PORT to serve on; repeatable.  [default: {defaults.LISTEN_ADDRESS}]",
    ),
    _option("--web.telemetry-path", "telemetry_path", help=f"[default: {defaults.TELEMETRY_PATH}]"),
    _option(
        "--web.config.file",
        "web_config_file",
        type=FILE,
        help="TLS and basic auth, in the format of Prometheus' exporters.",
    ),
    _option("--log.level", "log_level", type=click.Choice(["debug", "info", "warning", "error"])),
    _option("--log.format", "log_format", type=click.Choice(["logfmt", "json"])),
)
ENGINE_OPTIONS: Final = (
    _option("--config.file", "config_file", type=FILE, help="YAML; a flag beats it."),
    _option("--engine", "engines", multiple=True, help="Base URL of a vLLM server; repeatable."),
    _option(
        "--no-discovery",
        "no_discovery",
        is_flag=True,
        help="Do not look for vLLM servers and their models on this machine.",
    ),
    _option(
        "--proc.root",
        "proc_root",
        help="Where the node's /proc is, /host/proc in a container.  "
        f"[default: {defaults.PROC_ROOT}]",
    ),
    _option(
        "--pod-logs", "pod_logs", help="The node's /var/log/pods, to name the pods of servers."
    ),
    _option(
        "--targets.file",
        "target_files",
        multiple=True,
        help="Servers to watch, in Prometheus' file_sd format (JSON or YAML, may be a pattern); "
        "repeatable.",
    ),
    _option(
        "--targets.url",
        "target_urls",
        multiple=True,
        help="The same over HTTP, in Prometheus' http_sd format; repeatable.",
    ),
    _option(
        "--kubernetes.selector",
        "pod_selector",
        help="Watch the running pods with these labels (app=vllm), through the cluster's API.",
    ),
    _option("--kubernetes.namespace", "pod_namespace", help="Only pods in this namespace."),
    _option("--kubernetes.node", "pod_node", help="Only pods on this node."),
    _option(
        "--startup-log",
        "startup_logs",
        multiple=True,
        help="Where an engine's startup log goes, as URL=PLACE: a file, a container's log folder "
        "or journald:UNIT; repeatable.",
    ),
    _option(
        "--state.file",
        "state_file",
        type=FILE,
        help="Remember engines' KV budgets here, to tell what an upgrade changed while "
        "kvheadroom itself restarted.",
    ),
    _option("--no-nvml", "no_nvml", is_flag=True, help="Do not read GPUs."),
    _option(
        "--api-key-file",
        "api_key_file",
        type=FILE,
        help="Holds the API key of engines that have none of their own. "
        "KVHEADROOM_API_KEY may hold the key itself.",
    ),
    _option(
        "--model-config",
        "model_configs",
        multiple=True,
        help="The model's config.json, as PATH for all engines or URL=PATH; repeatable.",
    ),
)
