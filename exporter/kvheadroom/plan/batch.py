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
from kvheadroom.engine.flags import ReadConfig, ServeCommand, parse_serve_command
from kvheadroom.engine.options import EngineOptions
from kvheadroom.engine.overrides import with_overrides
from kvheadroom.engine.rank_weights import even_bytes, rank_weights
from kvheadroom.engine.refusal import Refusal
from kvheadroom.engine.speculation import WEIGHTLESS_METHODS
from kvheadroom.engine.unknown_options import unknown_option_warnings
from kvheadroom.engine.versions import Version, parse_version
from kvheadroom.errors import ConfigError, KvHeadroomError, ModelConfigError
from kvheadroom.model.config import read_model
from kvheadroom.model.facts import ModelFacts, read_facts
from kvheadroom.model.layers import ModelLayers
from kvheadroom.node.model_files import find_config, read_config
from kvheadroom.plan.question import Question, Setup, read_question, read_record

DEFAULT_VERSION: Final[Version] = (0, 32, 0)

# Releases whose rules are known, first and last minor one.
_OLDEST: Final[Version] = (0, 8, 0)
_NEWEST: Final[Version] = (0, 33, 0)
# A hostile config may trip code that never expected it; the other lines still get their answers.
_UNFORESEEN: Final = (
    *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
)


def answer_file(name: str, *, read_yaml: ReadConfig | None = None) -> Iterator[str]:
    """Yield the answers to the questions in the file *name*, or on standard input for ``-``.

    Args:
        name: A file of JSON lines.
        read_yaml: Returns the mapping in the YAML file that a command's ``--config`` names;
            without it such a command is an error.

    Raises:
        ConfigError: The file cannot be read.
    """
    if name == "-":
        yield from answer_lines(sys.stdin, folders=(Path(),), read_yaml=read_yaml)
        return
    path = Path(name)
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as lines:
            yield from answer_lines(lines, folders=(Path(), path.parent), read_yaml=read_yaml)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error


def answer_lines(
    lines: Iterable[str],
    *,
    folders: Sequence[Path] = (Path(),),
    read_yaml: ReadConfig | None = None,
) -> Iterator[str]:
    """Yield one answer for every question in *lines*; blank lines are skipped.

    Args:
        lines: JSON objects, one a line.
        folders: Where a relative ``path`` or draft model is looked for, in this order.
        read_yaml: As `answer_file` takes it.
    """
    for line in lines:
        if not line.strip("\ufeff \t\r\n"):
            continue
        found = answer(line, folders=folders, read_yaml=read_yaml)
        try:
            yield _encode(found)
        except (ValueError, RecursionError):
            # An id that no JSON can hold, an infinity or a nesting without end.
            yield _encode({**found, "id": None})


_encode: Final = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def answer(
    line: str, *, folders: Sequence[Path] = (Path(),), read_yaml: ReadConfig | None = None
) -> dict[str, Any]:
    """Return the answer to the question in *line*, with an ``error`` where there is none."""
    identity: Any = None
    try:
        record = read_record(line)
        identity = record.get("id")
        result: Mapping[str, Any] = _answer(read_question(record, folders), read_yaml)
    except ModelConfigError as error:
        result = _failed("model_config", str(error))
    except KvHeadroomError as error:
        result = _failed("config", str(error))
    except _UNFORESEEN as error:
        result = _failed("internal", f"the question could not be computed ({type(error).__name__})")
    return {"id": identity, **result}


@dataclass(frozen=True, slots=True)
class _Settled:
    """Everything about a server that does not depend on the memory there is.

    Attributes:
        layers: The model's.
        options: Of the server, defaults filled in.
        draft: The draft model's layers; ``None`` without.
        weights: Of each stage's rank; ``None`` where they are not known.
        warnings: What is to be said with every answer.
    """

    layers: ModelLayers
    options: EngineOptions
    draft: ModelLayers | None
    weights: tuple[int, ...] | None
    warnings: tuple[str, ...]


# A batch asks the same of many models and the same model many times over.
@lru_cache(maxsize=16384)
def _answer(question: Question, read_yaml: ReadConfig | None) -> Mapping[str, Any]:
    settled = _settled(question.setup, read_yaml)
    memory = _memory(question.available_bytes, settled.options)
    outcome = allocate(settled.layers, settled.options, memory, draft=settled.draft)
    found = _refused(outcome) if isinstance(outcome, Refusal) else _allocated(outcome)
    told = outcome.warning if isinstance(outcome, Allocation) else None
    weights = None if settled.weights is None else list(settled.weights)
    warnings = [*settled.warnings, *([told] if told else [])]
    return {**found, "weights_bytes": weights, "warnings": warnings}


@lru_cache(maxsize=4096)
def _settled(setup: Setup, read_yaml: ReadConfig | None) -> _Settled:
    command = _command(setup.arguments, read_yaml)
    version = setup.version or parse_version(command.image_version) or DEFAULT_VERSION
    model = _model_of(setup.config, command)
    options = resolve_options(command, model.facts, version=version, device=setup.device)
    weights, unknown_weights = _weights(model, options, command, setup)
    warnings = (*unknown_option_warnings(command), _age(version), unknown_weights)
    return _Settled(
        model.layers,
        options,
        _draft(options, setup.folders),
        weights,
        tuple(line for line in warnings if line),
    )


def _command(arguments: str | tuple[str, ...], read_yaml: ReadConfig | None) -> ServeCommand:
    if not arguments:
        # The question itself holds the model.
        return ServeCommand(model=None)
    return parse_serve_command(arguments, read_config=_checked(read_yaml) if read_yaml else None)


def _checked(read_yaml: ReadConfig) -> ReadConfig:
    """Return *read_yaml* for files that end and that are there at once."""

    def read(name: str) -> Mapping[str, Any]:
        if "\0" in name or not Path(name).is_file():
            raise ConfigError("--config: no such file")
        return read_yaml(name)

    return read


def _age(version: Version) -> str | None:
    """Return a warning of a *version* whose rules are not known."""
    if _OLDEST[:2] <= version[:2] <= _NEWEST[:2]:
        return None
    age = "older" if version < _OLDEST else "newer"
    told = ".".join(str(part) for part in version)
    return f"vLLM {told} is {age} than the releases the rules cover, 0.8 to 0.33"


def _memory(available: int | tuple[int, ...], options: EngineOptions) -> int | tuple[int, ...]:
    """Return *available* for one engine: of several alike, the poorest of each rank.

    Raises:
        ConfigError: As many figures as neither ranks, stages nor engines' ranks.
    """
    if isinstance(available, int):
        return available
    stages, engines = options.pipeline_parallel, options.data_parallel
    ranks = stages * options.tensor_parallel
    if len(available) in {1, stages, ranks}:
        return available
    if len(available) == engines * ranks:
        return tuple(min(available[rank::ranks]) for rank in range(ranks))
    if len(available) == engines:
        return min(available)
    each = f"{ranks} ranks" + (f" in each of {engines} engines" if engines > 1 else "")
    raise ConfigError(
        f"available_bytes: {len(available)} figures for {each} and {stages} pipeline stages; "
        "give one number, or one for each rank or stage"
    )


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
    return {**_NOTHING_KNOWN, "warnings": [], **known}


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


def _model_of(config: str, command: ServeCommand) -> _Model:
    """Return the model in *config*, as *command* overrides it."""
    model = _model(config)
    overridden = with_overrides(model.config, command)
    if overridden is model.config:
        return model
    return _model(json.dumps(overridden, sort_keys=True))


# Reading a model takes longer than any question about it.
@lru_cache(maxsize=512)
def _model(config: str) -> _Model:
    mapping = json.loads(config)
    return _Model(read_model(mapping), read_facts(mapping), mapping)


def _weights(
    model: _Model, options: EngineOptions, command: ServeCommand, setup: Setup
) -> tuple[tuple[int, ...] | None, str | None]:
    """Return the weights of each stage's rank, or ``None`` and why they are not known."""
    if options.speculation and options.speculation.method not in WEIGHTLESS_METHODS:
        return None, "weights_bytes: what the draft adds to the weights is not known"
    quantization = command.options.get("quantization")
    try:
        stages = rank_weights(
            model.config,
            options,
            quantization=quantization if isinstance(quantization, str) else None,
        )
    except ModelConfigError as error:
        if setup.checkpoint is None:
            # The cache is known all the same.
            return None, f"weights_bytes: {error}"
        each = even_bytes(dict(setup.checkpoint), options)
        said = "weights_bytes: the checkpoint's, cut evenly, since its class is not known by name"
        return (each,) * options.pipeline_parallel, said
    return stages, None


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
