"""Read one line of a batch: a model, a command, a GPU and the bytes left for the cache."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from kvheadroom.engine.options import Device
from kvheadroom.engine.versions import Version, parse_version
from kvheadroom.errors import ConfigError
from kvheadroom.node.model_files import read_config
from kvheadroom.plan.checkpoint import Checkpoint, checkpoint_in, read_checkpoint

_LARGEST_BYTES: Final = 1 << 60
_CAPABILITY: Final = re.compile(r"(?:sm_?)?(\d{1,3})(?:\.(\d{1,2}))?[af]?", re.ASCII)
# No GPU of a major number like this is served; 90 is 9.0 without its point.
_LEAST_WITHOUT_POINT: Final = 30


@dataclass(frozen=True, slots=True)
class Setup:
    """A server without its memory: what many lines of a batch have in common.

    Attributes:
        config: config.json as canonical JSON text.
        arguments: What ``vllm serve`` was told.
        version: vLLM's version; ``None`` leaves it to the command.
        device: The GPU of every rank.
        folders: Where a draft model's folder is looked for.
        checkpoint: Bytes of each dtype in the model's files, for a class whose parameters are not
            known by name; ``None`` where nothing tells them.
    """

    config: str
    arguments: str | tuple[str, ...]
    version: Version | None
    device: Device
    folders: tuple[Path, ...]
    checkpoint: tuple[tuple[str, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """One line: a server and the bytes left for the cache.

    Attributes:
        setup: The server.
        available_bytes: Cache memory, one number or one per rank.
    """

    setup: Setup
    available_bytes: int | tuple[int, ...]


def read_record(line: str) -> Mapping[str, Any]:
    """Return the JSON object in *line*, numbers that JSON does not have as their names.

    Raises:
        ConfigError: It is none.
    """
    try:
        record = json.loads(line.removeprefix("\ufeff"), parse_constant=str)
    except (ValueError, RecursionError):
        raise ConfigError("the line is not JSON") from None
    if not isinstance(record, dict):
        raise ConfigError("the line is not a JSON object")
    return record


def read_question(record: Mapping[str, Any], folders: Sequence[Path]) -> Question:
    """Return the question in *record*.

    Args:
        record: A line's object.
        folders: Where a relative ``path`` is looked for, in this order.

    Raises:
        ConfigError: A field is missing, or holds what it cannot.
    """
    config, home = _config(record, folders)
    checkpoint = _checkpoint(record.get("weights_from"), folders)
    setup = Setup(
        config=config,
        arguments=_arguments(record.get("args")),
        version=_version(record.get("vllm_version")),
        device=_device(record.get("gpu")),
        folders=(*folders, home, *home.parents[:2]) if home else tuple(folders),
        checkpoint=None if checkpoint is None else tuple(checkpoint.items()),
    )
    return Question(setup, _available(record.get("available_bytes")))


def _version(given: object) -> Version | None:
    if given is None or given == "":
        return None
    version = parse_version(str(given))
    if version is None:
        raise ConfigError("vllm_version: must be a version such as 0.32.0")
    return version


def _config(record: Mapping[str, Any], folders: Sequence[Path]) -> tuple[str, Path | None]:
    """Return the model's config as canonical text, and the folder it came from."""
    config, path = record.get("config"), record.get("path")
    if isinstance(config, dict):
        return json.dumps(config, sort_keys=True), None
    if isinstance(path, str) and path and "\0" not in path:
        found = _found(path, folders)
        return _config_at(found), found.parent
    raise ConfigError("give the model as config (an object) or path (a file or folder)")


def _found(path: str, folders: Sequence[Path]) -> Path:
    candidates = [folder / path for folder in folders]
    return next((file for file in candidates if file.exists()), candidates[0])


def _checkpoint(given: object, folders: Sequence[Path]) -> Checkpoint | None:
    if given is None:
        return None
    if isinstance(given, dict):
        return checkpoint_in(given, "weights_from")
    if isinstance(given, str) and given and "\0" not in given:
        return _checkpoint_at(_found(given, folders))
    raise ConfigError("weights_from: must be a path, or the hub's answer or an index as an object")


_checkpoint_at: Final = lru_cache(maxsize=512)(read_checkpoint)


@lru_cache(maxsize=512)
def _config_at(path: Path) -> str:
    return json.dumps(read_config(path), sort_keys=True)


def _arguments(args: object) -> str | tuple[str, ...]:
    if args is None:
        return ()
    if isinstance(args, str):
        return args.strip()
    if isinstance(args, list) and all(isinstance(word, str | int | float) for word in args):
        return tuple(str(word) for word in args)
    raise ConfigError("args: must be a command line or a list of its words")


def _available(given: object) -> int | tuple[int, ...]:
    if isinstance(given, list) and given:
        return tuple(_bytes("available_bytes", one) for one in given)
    return _bytes("available_bytes", given)


def _bytes(name: str, value: object) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name}: must be a whole number of bytes")
    if abs(value) > _LARGEST_BYTES:
        raise ConfigError(f"{name}: more than 2^60 bytes (1 EiB), which no GPU has")
    return value


def _device(gpu: object) -> Device:
    if gpu is None:
        return Device()
    if not isinstance(gpu, dict):
        raise ConfigError("gpu: must be an object with total_bytes and compute_capability")
    total, name = gpu.get("total_bytes"), gpu.get("name")
    total_bytes = None if total is None else _bytes("gpu.total_bytes", total)
    if total_bytes is not None and total_bytes <= 0:
        raise ConfigError("gpu.total_bytes: must be above 0")
    return Device(
        total_bytes=total_bytes,
        capability=_capability(gpu.get("compute_capability")),
        name=name if isinstance(name, str) else None,
    )


def _capability(given: object) -> tuple[int, int] | None:
    """Return ``(9, 0)`` for ``"9.0"``, ``9.0``, ``[9, 0]``, ``90`` and ``"sm_90"``."""
    if given is None:
        return None
    text = ".".join(str(part) for part in given) if isinstance(given, list) else str(given)
    match = _CAPABILITY.fullmatch(text)
    if match is None:
        raise ConfigError('gpu.compute_capability: must be as in "9.0"')
    major, minor = int(match[1]), match[2]
    if minor is None and major >= _LEAST_WITHOUT_POINT:
        return divmod(major, 10)
    return major, int(minor or 0)
