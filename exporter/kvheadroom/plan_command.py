"""``kvheadroom plan``: flags and files into a plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from kvheadroom.engine.budget import LLAMA_CPP_ELEMENT_BYTES, Estimate, exactly
from kvheadroom.engine.flags import ServeCommand, parse_serve_command
from kvheadroom.engine.options import Device, EngineOptions
from kvheadroom.engine.overrides import with_overrides
from kvheadroom.engine.request_bytes import request_bytes
from kvheadroom.engine.versions import Version, parse_version
from kvheadroom.errors import ConfigError
from kvheadroom.model.config import read_model
from kvheadroom.node.model_files import find_config, read_config
from kvheadroom.plan.checkpoint import Checkpoint, checkpoint_beside, read_checkpoint
from kvheadroom.plan.explain_log import explain_file
from kvheadroom.plan.gpus import find_gpu
from kvheadroom.plan.log_pins import pins_from_log
from kvheadroom.plan.plan import Pins, Plan, Service, make_plan
from kvheadroom.strict_yaml import load_mapping
from kvheadroom.units import parse_bytes, parse_token_count

# Configs that ship with the demo, by the last part of the model's name.
_SHIPPED: Final = files("kvheadroom.demo") / "models"


# What is planned for when neither a flag nor an image says.
NEWEST_VERSION: Final = "0.32.0"

# One rank, 16 bits an element: what other cache types are a fraction of.
SIXTEEN_BITS: Final = EngineOptions(
    version=(0, 32, 0),
    device=Device(),
    max_model_len=None,
    max_num_batched_tokens=1,
    max_num_seqs=1,
    dtype="float16",
)

# A config.json, and the checkpoint beside it where there is one.
_Model = tuple[Mapping[str, Any], Checkpoint | None]


@dataclass(frozen=True, slots=True)
class SlotFlags:
    """The command line of ``slots``."""

    memory: str
    weights: str
    model_config: Path
    context: str
    other: str = "0"
    kv_dtype: str = "f16"


def slots_from(flags: SlotFlags) -> tuple[float, int, int]:
    """Return slots (not rounded down), bytes for the cache and bytes of one request.

    For a runtime without a share or a profile, such as llama.cpp: what is left after weights and
    everything else is cache.

    Raises:
        ConfigError: A flag or the model's config.json cannot be used.
        ModelConfigError: The model is not known.
    """
    element_bytes = LLAMA_CPP_ELEMENT_BYTES.get(flags.kv_dtype)
    if element_bytes is None:
        known = ", ".join(LLAMA_CPP_ELEMENT_BYTES)
        raise ConfigError(f"no such cache type: {flags.kv_dtype!r} (write {known})")
    layers = read_model(read_config(flags.model_config))
    tokens = parse_token_count(flags.context)
    whole = request_bytes(layers, SIXTEEN_BITS, tokens)
    left = parse_bytes(flags.memory) - parse_bytes(flags.weights) - parse_bytes(flags.other)
    each = round(whole * element_bytes / LLAMA_CPP_ELEMENT_BYTES["f16"])
    return left / each, left, each


@dataclass(frozen=True, slots=True)
class PlanFlags:
    """The command line of ``plan``; what is given once per server may be given once for all."""

    gpu: str
    serve: tuple[str, ...]
    model_configs: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    weights_from: tuple[str, ...] = ()
    activation: tuple[str, ...] = ()
    non_torch: tuple[str, ...] = ()
    cuda_graphs: tuple[str, ...] = ()
    context_memory: tuple[str, ...] = ()
    startup_logs: tuple[str, ...] = ()
    reserved: str | None = None
    vllm_version: str | None = None
    context: str | None = None
    requests: int | None = None
    gpus: int | None = None


def plan_from(flags: PlanFlags) -> Plan:
    """Return the plan that *flags* ask for.

    Raises:
        ConfigError: A flag, a file or a server's command cannot be used.
        ModelConfigError: A model is not known.
    """
    if not flags.serve:
        raise ConfigError('nothing to plan: give --serve "vllm serve MODEL …" at least once')
    device = find_gpu(flags.gpu)
    commands = [parse_serve_command(line, read_config=read_yaml) for line in flags.serve]
    configs = _configs(commands, flags.model_configs)
    checkpoints = _chosen("--weights-from", commands, flags.weights_from)
    pins = _pins(flags, commands)
    services = [
        Service(
            name,
            command,
            with_overrides(config, command),
            pin,
            beside if path is None else read_checkpoint(Path(path)),
            None if flags.vllm_version else parse_version(command.image_version),
        )
        for name, command, (config, beside), path, pin in zip(
            _names(commands), commands, configs, checkpoints, pins, strict=True
        )
    ]
    return make_plan(
        device,
        services,
        version=_version(flags.vllm_version or NEWEST_VERSION),
        context_tokens=parse_token_count(flags.context) if flags.context else None,
        requests=flags.requests,
        reserved_bytes=parse_bytes(flags.reserved) if flags.reserved else 0,
        cards=flags.gpus,
    )


def read_yaml(path: str) -> Mapping[str, Any]:
    """Return the mapping in the YAML file that a server's ``--config`` names."""
    return load_mapping(Path(path))


def _version(text: str) -> Version:
    version = parse_version(text)
    if version is None:
        raise ConfigError(f"not a version of vLLM: {text!r} (write 0.32.0)")
    return version


def _names(commands: Sequence[ServeCommand]) -> list[str]:
    names: list[str] = []
    for position, command in enumerate(commands, 1):
        served = command.served_names or (command.model or f"server {position}",)
        name = served[0].rstrip("/").rpartition("/")[2]
        names.append(name if name not in names else f"{name} ({position})")
    return names


def _configs(commands: Sequence[ServeCommand], given: tuple[str, ...]) -> list[_Model]:
    """Return each server's model: given, found, or shipped."""
    paths = _chosen("--model-config", commands, given)
    return [
        _model(Path(path)) if path is not None else _find(command.model)
        for path, command in zip(paths, commands, strict=True)
    ]


def _chosen(
    flag: str, commands: Sequence[ServeCommand], given: tuple[str, ...]
) -> list[str | None]:
    """Return each server's path: given in order, once for all, or as MODEL=PATH."""
    named = dict(text.split("=", 1) for text in given if "=" in text)
    in_order = [text for text in given if "=" not in text]
    if in_order and len(in_order) not in {1, len(commands)}:
        raise ConfigError(
            f"{flag} is given {len(in_order)} times for {len(commands)} servers: give it "
            "once, once for each in their order, or as MODEL=PATH"
        )
    if len(in_order) <= 1:
        in_order = [*(in_order or [""])] * len(commands)
    return [
        named.get(command.model or "") or path or None
        for command, path in zip(commands, in_order, strict=True)
    ]


def _find(model: str | None) -> _Model:
    if model is None:
        raise ConfigError("a server's command names no model; give --model-config")
    found = find_config(model) or find_config(str(Path(model).absolute()))
    if found is not None:
        return _model(found)
    shipped = Path(str(_SHIPPED)) / f"{model.rpartition('/')[2].lower()}.json"
    if shipped.is_file():
        return _model(shipped)
    raise ConfigError(f"no config.json known for {model!r}: give --model-config {model}=PATH")


def _model(path: Path) -> _Model:
    """Return the config.json at *path* and the checkpoint beside it, if there is one."""
    return read_config(path), checkpoint_beside(path if path.is_dir() else path.parent)


def _pins(flags: PlanFlags, commands: Sequence[ServeCommand]) -> list[Pins]:
    servers = len(commands)
    columns = {
        "weights": _amounts("--weights", flags.weights, servers),
        "activation": _amounts("--activation", flags.activation, servers),
        "non_torch": _amounts("--non-torch", flags.non_torch, servers),
        "cuda_graphs": _amounts("--cuda-graphs", flags.cuda_graphs, servers),
        "context": _amounts("--context-memory", flags.context_memory, servers),
    }
    logs = _per_server("--startup-log", flags.startup_logs, servers)
    logged = [
        Pins() if path is None else _pins_of(path, command)
        for path, command in zip(logs, commands, strict=True)
    ]
    return [
        Pins(**{name: column[row] for name, column in columns.items()}).over(logged[row])
        for row in range(servers)
    ]


def _pins_of(path: str, command: ServeCommand) -> Pins:
    boot = explain_file(path).boots[-1]
    logged, planned = _last_part(boot.fact("model")), _last_part(command.model)
    if logged and planned and logged != planned:
        raise ConfigError(f"--startup-log {path} is of {logged}, not of {planned}")
    return pins_from_log(boot)


def _last_part(model: str | None) -> str:
    return (model or "").rstrip("/").rpartition("/")[2].lower()


def _amounts(flag: str, given: tuple[str, ...], servers: int) -> list[Estimate | None]:
    texts = _per_server(flag, given, servers)
    return [None if text is None else exactly(parse_bytes(text)) for text in texts]


def _per_server(flag: str, given: tuple[str, ...], servers: int) -> list[str | None]:
    if len(given) not in {0, 1, servers}:
        raise ConfigError(
            f"{flag} is given {len(given)} times for {servers} servers: give it once, or once "
            "for each in their order"
        )
    if not given:
        return [None] * servers
    return list(given) if len(given) == servers else [given[0]] * servers
