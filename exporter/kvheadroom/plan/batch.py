"""Answer capacity questions in bulk: a JSON line in, a JSON line out, in the same order."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from kvheadroom.engine.capacity import Allocation, allocate, steady_requests
from kvheadroom.engine.defaults import resolve_options
from kvheadroom.engine.flags import parse_serve_command
from kvheadroom.engine.options import Device, EngineOptions
from kvheadroom.engine.rank_weights import rank_weights
from kvheadroom.engine.refusal import Refusal
from kvheadroom.engine.speculation import WEIGHTLESS_METHODS
from kvheadroom.engine.versions import Version, parse_version
from kvheadroom.errors import ConfigError, KvHeadroomError, ModelConfigError
from kvheadroom.model.config import read_model
from kvheadroom.model.facts import ModelFacts, read_facts
from kvheadroom.model.layers import ModelLayers
from kvheadroom.node.model_files import find_config, read_config

DEFAULT_VERSION: Final = "0.32.0"

_LARGEST_BYTES: Final = 1 << 60
# A hostile config may trip code that never expected it; the other lines still get their answers.
_UNFORESEEN: Final = (
    *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
)


@dataclass(frozen=True, slots=True)
class Question:
    """One line: a model, a command, a GPU and the bytes left for the cache.

    Attributes:
        config: config.json as canonical JSON text.
        arguments: What ``vllm serve`` was told.
        version: vLLM's version.
        device: The GPU of every rank.
        available_bytes: Cache memory, one number or one per rank.
        folders: Where a draft model's folder is looked for.
    """

    config: str
    arguments: str | tuple[str, ...]
    version: Version
    device: Device
    available_bytes: int | tuple[int, ...]
    folders: tuple[Path, ...]


def answer_file(name: str) -> Iterator[str]:
    """Yield the answers to the questions in the file *name*, or on standard input for ``-``.

    Raises:
        ConfigError: The file cannot be read.
    """
    if name == "-":
        yield from answer_lines(sys.stdin, folders=(Path(),))
        return
    path = Path(name)
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as lines:
            yield from answer_lines(lines, folders=(Path(), path.parent))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error


def answer_lines(lines: Iterable[str], *, folders: Sequence[Path] = (Path(),)) -> Iterator[str]:
    """Yield one answer for every question in *lines*; blank lines are skipped.

    Args:
        lines: JSON objects, one a line.
        folders: Where a relative ``path`` or draft model is looked for, in this order.
    """
    for line in lines:
        if line.strip():
            yield json.dumps(answer(line, folders=folders), separators=(",", ":"))


def answer(line: str, *, folders: Sequence[Path] = (Path(),)) -> dict[str, Any]:
    """Return the answer to the question in *line*, with an ``error`` where there is none."""
    identity: Any = None
    try:
        record = _record(line)
        identity = record.get("id")
        result: Mapping[str, Any] = _answer(_question(record, folders))
    except ModelConfigError as error:
        result = _failed("model_config", str(error))
    except KvHeadroomError as error:
        result = _failed("config", str(error))
    except _UNFORESEEN as error:
        result = _failed("internal", f"the question could not be computed ({type(error).__name__})")
    return {"id": identity, **result}


# A batch asks the same of many models and the same model many times over.
@lru_cache(maxsize=16384)
def _answer(question: Question) -> Mapping[str, Any]:
    model = _model(question.config)
    server = _server(question.config, question.arguments, question.version, question.device)
    draft = _draft(server.options, question.folders)
    outcome = allocate(model.layers, server.options, question.available_bytes, draft=draft)
    found = _refused(outcome) if isinstance(outcome, Refusal) else _allocated(outcome)
    return {**found, "weights_bytes": _weights(model, server)}


def _allocated(found: Allocation) -> dict[str, Any]:
    return _result(
        block_size=found.block_size,
        bytes_per_block=list(found.bytes_per_block),
        groups=[
            {
                "kind": group.kind,
                "layers": group.layers,
                "block_size": group.block_size,
                "page_bytes": group.page_bytes,
            }
            for group in found.groups
        ],
        num_blocks=found.num_blocks,
        tokens=found.tokens,
        max_concurrency=found.max_concurrency,
        steady_requests=steady_requests(found, found.max_model_len),
    )


def _refused(refusal: Refusal) -> dict[str, Any]:
    return _result(
        error=_error(
            refusal.kind,
            refusal.message,
            needed_bytes=refusal.needed_bytes,
            available_bytes=refusal.available_bytes,
            estimated_max_model_len=refusal.estimated_max_model_len,
        )
    )


def _failed(kind: str, message: str) -> dict[str, Any]:
    return _result(error=_error(kind, message))


def _error(
    kind: str,
    message: str,
    *,
    needed_bytes: int | None = None,
    available_bytes: int | None = None,
    estimated_max_model_len: int | None = None,
) -> dict[str, Any]:
    return {
        "kind": kind,
        "message": message,
        "needed_bytes": needed_bytes,
        "available_bytes": available_bytes,
        "estimated_max_model_len": estimated_max_model_len,
    }


def _result(**known: Any) -> dict[str, Any]:  # noqa: ANN401  (JSON values)
    return {**_NOTHING_KNOWN, **known}


_NOTHING_KNOWN: Final[Mapping[str, Any]] = dict.fromkeys(
    (
        *("block_size", "bytes_per_block", "groups", "num_blocks", "tokens", "max_concurrency"),
        *("weights_bytes", "steady_requests", "error"),
    )
)


@dataclass(frozen=True, slots=True)
class _Model:
    layers: ModelLayers
    facts: ModelFacts
    config: Mapping[str, Any]


@lru_cache(maxsize=512)
def _model(config: str) -> _Model:
    mapping = json.loads(config)
    return _Model(read_model(mapping), read_facts(mapping), mapping)


@dataclass(frozen=True, slots=True)
class _Server:
    options: EngineOptions
    quantization: str | None


@lru_cache(maxsize=4096)
def _server(
    config: str, arguments: str | tuple[str, ...], version: Version, device: Device
) -> _Server:
    command = parse_serve_command(arguments)
    options = resolve_options(command, _model(config).facts, version=version, device=device)
    quantization = command.options.get("quantization")
    return _Server(options, quantization if isinstance(quantization, str) else None)


def _weights(model: _Model, server: _Server) -> list[int] | None:
    """Return the weights of each stage's rank; ``None`` where they are not known."""
    options = server.options
    if options.speculation and options.speculation.method not in WEIGHTLESS_METHODS:
        # What a draft adds is not known.
        return None
    try:
        stages = rank_weights(model.config, options, quantization=server.quantization)
    except ModelConfigError:
        # The cache is known all the same.
        return None
    return list(stages)


def _draft(options: EngineOptions, folders: Sequence[Path]) -> ModelLayers | None:
    """Return the draft model that *options* names, ``None`` when the target drafts for itself."""
    name = options.speculation.model if options.speculation else None
    if name is None:
        return None
    for folder in folders:
        if (folder / name / "config.json").is_file():
            return _draft_at(folder / name)
    cached = find_config(name)
    if cached is None:
        raise ConfigError("the draft model's config.json is not at hand")
    return _draft_at(cached)


@lru_cache(maxsize=64)
def _draft_at(folder: Path) -> ModelLayers:
    return read_model(read_config(folder))


def _record(line: str) -> Mapping[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise ConfigError("the line is not JSON") from None
    if not isinstance(record, dict):
        raise ConfigError("the line is not a JSON object")
    return record


def _question(record: Mapping[str, Any], folders: Sequence[Path]) -> Question:
    config, home = _config(record, folders)
    version = parse_version(str(record.get("vllm_version") or DEFAULT_VERSION))
    if version is None:
        raise ConfigError("vllm_version: must be a version such as 0.32.0")
    return Question(
        config=config,
        arguments=_arguments(record.get("args")),
        version=version,
        device=_device(record.get("gpu")),
        available_bytes=_available(record.get("available_bytes")),
        folders=(*folders, home, *home.parents[:2]) if home else tuple(folders),
    )


def _config(record: Mapping[str, Any], folders: Sequence[Path]) -> tuple[str, Path | None]:
    """Return the model's config as canonical text, and the folder it came from."""
    config, path = record.get("config"), record.get("path")
    if isinstance(config, dict):
        return json.dumps(config, sort_keys=True), None
    if isinstance(path, str) and path and "\0" not in path:
        candidates = [folder / path for folder in folders]
        found = next((file for file in candidates if file.exists()), candidates[0])
        return _config_at(found), found.parent
    raise ConfigError("give the model as config (an object) or path (a file or folder)")


@lru_cache(maxsize=512)
def _config_at(path: Path) -> str:
    return json.dumps(read_config(path), sort_keys=True)


def _arguments(args: object) -> str | tuple[str, ...]:
    if args is None:
        return ()
    if isinstance(args, str):
        return args
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
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _LARGEST_BYTES:
        raise ConfigError(f"{name}: must be a whole number of bytes")
    return value


def _device(gpu: object) -> Device:
    if gpu is None:
        return Device()
    if not isinstance(gpu, dict):
        raise ConfigError("gpu: must be an object with total_bytes and compute_capability")
    total, name = gpu.get("total_bytes"), gpu.get("name")
    return Device(
        total_bytes=None if total is None else _bytes("gpu.total_bytes", total),
        capability=_capability(gpu.get("compute_capability")),
        name=name if isinstance(name, str) else None,
    )


def _capability(given: object) -> tuple[int, int] | None:
    if given is None:
        return None
    text = ".".join(str(part) for part in given) if isinstance(given, list) else str(given)
    major, _, minor = text.partition(".")
    if not (major.isascii() and major.isdecimal()) or not (minor or "0").isdecimal():
        raise ConfigError('gpu.compute_capability: must be as in "9.0"')
    return int(major), int(minor or "0")
