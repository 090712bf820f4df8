"""Understand what a vLLM server says on its small endpoints."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvheadroom.errors import SourceError
from kvheadroom.readings import HealthAnswer

VERSION_PATH: Final = "/version"
MODELS_PATH: Final = "/v1/models"
HEALTH_PATH: Final = "/health"
PAUSED_PATH: Final = "/is_paused"

_HEALTH_BY_STATUS: Final[Mapping[int, HealthAnswer]] = {200: "ok", 503: "dead"}

# What is shown as a label, or compared with tokens, must stay within reason.
_MAX_TEXT_CHARACTERS: Final = 512
_MAX_TOKENS: Final = 2**40


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The base model a server serves.

    Attributes:
        name: First ``--served-model-name``.
        root: Path or hub id; ``None`` where the server does not say.
        max_model_len: Tokens; ``None`` where the server does not say.
    """

    name: str
    root: str | None
    max_model_len: int | None


def parse_version(body: bytes) -> str:
    """Return the version in the answer of ``/version``.

    Raises:
        SourceError: ``not_metrics`` when the answer is of another shape.
    """
    match _parsed(body):
        case {"version": str(version)} if _is_presentable(version):
            return version
    raise _unexpected()


def parse_models(body: bytes) -> ServedModel:
    """Return the first model that is no adapter of another.

    Raises:
        SourceError: ``not_metrics`` when the answer is of another shape.
    """
    match _parsed(body):
        case {"data": list(entries)}:
            for entry in entries:
                if isinstance(entry, dict) and entry.get("parent") is None:
                    return _served_model(entry)
    raise _unexpected()


def health_of(status: int) -> HealthAnswer | None:
    """Return what the status of ``/health`` says; ``None`` for one that vLLM does not answer."""
    return _HEALTH_BY_STATUS.get(status)


def parse_paused(body: bytes) -> bool:
    """Return whether ``/is_paused`` says that no request is scheduled.

    Raises:
        SourceError: ``not_metrics`` when the answer is of another shape.
    """
    match _parsed(body):
        case {"is_paused": bool(paused)}:
            return paused
    raise _unexpected()


def _served_model(entry: dict[str, object]) -> ServedModel:
    match entry.get("id"), entry.get("root"), entry.get("max_model_len"):
        case str(name), str() | None as root, (int() | None) as max_model_len if (
            _is_presentable(name)
            and (root is None or _is_presentable(root))
            and not isinstance(max_model_len, bool)
            and (max_model_len is None or 0 < max_model_len <= _MAX_TOKENS)
        ):
            return ServedModel(name, root, max_model_len)
    raise _unexpected()


def _parsed(body: bytes) -> object:
    try:
        parsed: object = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise SourceError("not_metrics", "the answer is no JSON") from error
    return parsed


def _is_presentable(text: str) -> bool:
    return 0 < len(text) <= _MAX_TEXT_CHARACTERS and text.isprintable()


def _unexpected() -> SourceError:
    return SourceError("not_metrics", "the answer is not what vLLM answers")
