"""Read the headers of a checkpoint's safetensors files, never their tensors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kvheadroom.errors import ConfigError
from kvheadroom.node.model_files import parse_json_object, read_json_object

INDEX_NAME: Final = "model.safetensors.index.json"

# The format's own limit on a header; an index or an answer of the hub is smaller still.
_MOST_HEADER_BYTES: Final = 100_000_000
_LENGTH_BYTES: Final = 8
# Mistral publishes every tensor twice, once more under this name.
_SECOND_COPY: Final = "consolidated"


def read_headers(folder: Path) -> tuple[Mapping[str, Any], ...]:
    """Return the header of every safetensors file that makes up the model in *folder*.

    Args:
        folder: A model's folder, or a snapshot in the Hugging Face cache.

    Raises:
        ConfigError: There is none, one cannot be read, or one is no safetensors file.

    Source:
        Format: eight bytes of little-endian length, then that many bytes of JSON.
    """
    return tuple(read_header(file) for file in _files(folder))


def read_header(file: Path) -> Mapping[str, Any]:
    """Return the header of one safetensors file.

    Raises:
        ConfigError: It cannot be read, is cut off, or is no safetensors file.
    """
    try:
        with file.open("rb") as stream:
            stated = stream.read(_LENGTH_BYTES)
            length = int.from_bytes(stated, "little")
            room = file.stat().st_size - _LENGTH_BYTES
            if len(stated) < _LENGTH_BYTES or length > room:
                raise ConfigError(f"{file}: cut off, or not a safetensors file")
            if length > _MOST_HEADER_BYTES:
                raise ConfigError(f"{file}: a header of {length} bytes is too large")
            text = stream.read(length)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    return parse_json_object(file, text)


def read_json(file: Path) -> Mapping[str, Any]:
    """Return a JSON object: an index of shards, or the hub's saved answer about a model.

    Raises:
        ConfigError: It cannot be read, is too large, or is no JSON object.
    """
    return read_json_object(file, _MOST_HEADER_BYTES, "a description of a checkpoint")


def _files(folder: Path) -> list[Path]:
    if (folder / INDEX_NAME).is_file():
        return _indexed_files(folder)
    try:
        files = sorted(folder.glob("*.safetensors"))
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be read: {error.strerror}") from error
    own = [file for file in files if not file.name.startswith(_SECOND_COPY)]
    if not files:
        raise ConfigError(f"{folder}: holds no safetensors file")
    return own or files


def _indexed_files(folder: Path) -> list[Path]:
    """Return the files that the index names, none of them outside *folder*."""
    index = folder / INDEX_NAME
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ConfigError(f"{index}: weight_map is missing")
    names = {str(name) for name in weight_map.values()}
    for name in names:
        if Path(name).name != name or name in {".", ".."}:
            raise ConfigError(f"{index}: weight_map names {name[:60]!r}, not a file beside it")
    return [folder / name for name in sorted(names)]
