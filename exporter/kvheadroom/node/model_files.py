"""Find and read a model's config.json on this machine."""

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kvheadroom.errors import ConfigError

# A config.json is a few kilobytes; what is larger is something else.
_MOST_BYTES: Final = 4 * 1024 * 1024


def read_config(path: Path) -> Mapping[str, Any]:
    """Return the config.json at *path*, or inside it when *path* is a folder.

    Raises:
        ConfigError: It is no regular file, cannot be read, or is not a JSON object.
    """
    try:
        file = path / "config.json" if path.is_dir() else path
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    return read_json_object(file, _MOST_BYTES, "a config.json")


def read_json_object(file: Path, most_bytes: int, kind: str) -> Mapping[str, Any]:
    """Return the JSON object that *file* holds.

    Args:
        file: A regular file.
        most_bytes: The size above which it is refused.
        kind: What it should be, for the message that refuses it.

    Raises:
        ConfigError: It is no regular file, cannot be read, is too large, or is no JSON object.
    """
    try:
        require_regular_file(file)
        with file.open("rb") as stream:
            content = stream.read(most_bytes + 1)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{file}: not a file name: {error}") from error
    if len(content) > most_bytes:
        raise ConfigError(f"{file}: too large for {kind}")
    return parse_json_object(file, content)


def parse_json_object(file: Path, content: bytes) -> Mapping[str, Any]:
    """Return the JSON object in *content*, which was read from *file*.

    Raises:
        ConfigError: It is no JSON, or no object.
    """
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: not JSON: {str(error)[:80]}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{file}: not a JSON object")
    return data


def require_regular_file(file: Path) -> None:
    """Refuse a device or a pipe, whose content may never end or never come.

    Raises:
        ConfigError: *file* is there and is no regular file.
        OSError: It is not there.
    """
    if not stat.S_ISREG(file.stat().st_mode):
        raise ConfigError(f"{file}: not a regular file")


def find_config(root: str, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the config.json of the model that a vLLM server calls *root*, or ``None``.

    Args:
        root: ``root`` of ``/v1/models``: an absolute folder, or a hub id such as ``Qwen/Qwen3-8B``.
        environment: Where ``HF_HUB_CACHE``, ``HF_HOME`` and ``HOME`` are looked up.

    Source:
        Layout of the Hugging Face cache: models--ORG--NAME/refs/main names a folder of snapshots.
    """
    if root.startswith("/"):
        return _existing(Path(root) / "config.json")
    cached = _hub_cache(environment) / f"models--{root.replace('/', '--')}"
    try:
        revision = (cached / "refs" / "main").read_text().strip()
    except (OSError, ValueError):
        return None
    return _existing(cached / "snapshots" / revision / "config.json")


def _hub_cache(environment: Mapping[str, str]) -> Path:
    if cache := environment.get("HF_HUB_CACHE"):
        return Path(cache)
    home = environment.get("HF_HOME") or Path(environment.get("HOME", "/")) / ".cache/huggingface"
    return Path(home) / "hub"


def _existing(path: Path) -> Path | None:
    try:
        return path if path.is_file() else None
    except (OSError, ValueError):
        return None
