"""Work out what a server's files and command make of it: layers, settings, weights."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kvheadroom.engine.defaults import resolve_options
from kvheadroom.engine.flags import ServeCommand
from kvheadroom.engine.options import Device, EngineOptions
from kvheadroom.engine.overrides import with_overrides
from kvheadroom.engine.rank_weights import even_bytes, rank_weights
from kvheadroom.engine.versions import Version, parse_version
from kvheadroom.errors import KvHeadroomError
from kvheadroom.live.admission import AdmissionRules
from kvheadroom.model.config import read_model
from kvheadroom.model.facts import read_facts
from kvheadroom.model.layers import ModelLayers
from kvheadroom.model.weights import bytes_by_dtype
from kvheadroom.node.model_files import find_config, read_config
from kvheadroom.node.safetensors_files import read_headers

# Read as the newest version that was compared with the real thing.
_ASSUMED_VERSION: Final[Version] = (0, 32, 0)


@dataclass(frozen=True, slots=True)
class ServerQuestion:
    """Everything that decides what a server's model and settings are.

    Attributes:
        config: The model's config.json; ``None`` while none is known.
        command: What the server was told; ``None`` while that is not known.
        version: vLLM's, as the server reports it.
        device: The GPU of its ranks.
        started_unix_seconds: Its start: files may have changed since the one before.
    """

    config: Path | None
    command: ServeCommand | None
    version: str | None
    device: Device
    started_unix_seconds: float | None


@dataclass(frozen=True, slots=True)
class ServerModel:
    """What the files and the command make of a server; see ``EngineFacts``."""

    layers: ModelLayers | None = None
    draft: ModelLayers | None = None
    options: EngineOptions | None = None
    rules: AdmissionRules = field(default_factory=AdmissionRules)
    stage_weights_bytes: tuple[int, ...] | None = None
    problem: str | None = None


def work_out(question: ServerQuestion) -> ServerModel:
    """Return what can be known, and the first reason why something cannot; never raises."""
    version = parse_version(question.version)
    command = question.command
    if question.config is None:
        return ServerModel(rules=_rules(command, None, version))
    try:
        config = read_config(question.config)
        if command is not None:
            config = with_overrides(config, command)
        layers = read_model(config)
    except KvHeadroomError as error:
        return ServerModel(rules=_rules(command, None, version), problem=str(error))
    if command is None:
        return ServerModel(layers, rules=_rules(None, None, version))
    return _with_command(question, command, config, layers)


def _with_command(
    question: ServerQuestion, command: ServeCommand, config: Mapping[str, Any], layers: ModelLayers
) -> ServerModel:
    version = parse_version(question.version)
    try:
        options = resolve_options(
            command,
            read_facts(config),
            version=version or _ASSUMED_VERSION,
            device=question.device,
        )
    except KvHeadroomError as error:
        return ServerModel(layers, rules=_rules(command, None, version), problem=str(error))
    weights, problem = _weights(question, config, options, command)
    speculation = options.speculation
    return ServerModel(
        layers=layers,
        draft=_draft(speculation.model) if speculation and speculation.model else None,
        options=options,
        rules=_rules(command, options, version),
        stage_weights_bytes=weights,
        problem=problem,
    )


def _weights(
    question: ServerQuestion,
    config: Mapping[str, Any],
    options: EngineOptions,
    command: ServeCommand,
) -> tuple[tuple[int, ...] | None, str | None]:
    """Return the weights of one rank of each stage, or why they are not known."""
    asked = command.options.get("quantization")
    try:
        quantization = asked if isinstance(asked, str) else None
        return rank_weights(config, options, quantization=quantization), None
    except KvHeadroomError as error:
        if question.config is None:
            return None, str(error)
        reason = str(error)
    try:
        on_disk = bytes_by_dtype(read_headers(question.config.parent))
    except KvHeadroomError:
        return None, reason
    # Near enough where the parameters are not known by name.
    return (even_bytes(on_disk, options),) * options.pipeline_parallel, None


def _draft(model: str) -> ModelLayers | None:
    path = find_config(model)
    try:
        return None if path is None else read_model(read_config(path))
    except KvHeadroomError:
        return None


def _rules(
    command: ServeCommand | None, options: EngineOptions | None, version: Version | None
) -> AdmissionRules:
    """Return by what the server admits, as far as it was told or its defaults are known."""
    told = command.options if command is not None else {}
    active, seqs = told.get("max-num-active-seqs"), told.get("max-num-seqs")
    if options is not None:
        seqs = options.max_num_seqs
    whole, watermark = told.get("scheduler-reserve-full-isl"), told.get("watermark")
    return AdmissionRules(
        version=version,
        max_num_seqs=_least(active, seqs),
        max_num_batched_tokens=options.max_num_batched_tokens if options else None,
        reserves_whole_prompts=whole if isinstance(whole, bool) else None,
        watermark_ratio=float(watermark) if isinstance(watermark, int | float) else None,
    )


def _least(*limits: object) -> int | None:
    return min((one for one in limits if isinstance(one, int) and one > 0), default=None)
