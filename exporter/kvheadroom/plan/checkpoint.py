"""The bytes of a checkpoint, as its files, their index or the hub's saved answer tell them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvheadroom.errors import ConfigError
from kvheadroom.model.weights import bytes_by_dtype, bytes_of_hub_answer, bytes_of_index
from kvheadroom.node.safetensors_files import INDEX_NAME, read_header, read_headers, read_json

Checkpoint = Mapping[str, int]
"""Bytes of each dtype, by the name safetensors gives it; an index tells none: ``""``."""


def read_checkpoint(path: Path) -> Checkpoint:
    """Return the bytes in the model's folder, safetensors file, index or saved answer at *path*.

    Raises:
        ConfigError: It cannot be read, or is none of them.
        ModelConfigError: It is one of them and contradicts itself.
    """
    if path.is_dir():
        found = checkpoint_beside(path)
        if not found:
            raise ConfigError(f"{path}: holds neither safetensors files nor their index")
        return found
    if path.suffix == ".safetensors":
        return bytes_by_dtype([read_header(path)])
    return checkpoint_in(read_json(path), str(path))


def checkpoint_beside(folder: Path) -> Checkpoint | None:
    """Return the bytes of the checkpoint in *folder*, ``None`` where there is none.

    Raises:
        ConfigError: A file of it cannot be read.
        ModelConfigError: A file of it contradicts itself.
    """
    if any(folder.glob("*.safetensors")):
        return bytes_by_dtype(read_headers(folder))
    # People copy the index without its shards.
    index = folder / INDEX_NAME
    return checkpoint_in(read_json(index), str(index)) if index.is_file() else None


def checkpoint_in(record: Mapping[str, Any], name: str) -> Checkpoint:
    """Return the bytes that *record* tells: the hub's answer about a model, or an index of shards.

    Args:
        record: The parsed JSON.
        name: What to call it in an error.

    Raises:
        ConfigError: It is neither.
        ModelConfigError: It is one of them and tells no bytes.
    """
    if "safetensors" in record:
        return bytes_of_hub_answer(record)
    if "metadata" in record:
        return {"": bytes_of_index(record)}
    raise ConfigError(
        f"{name}: neither the hub's answer about a model (safetensors.parameters) nor an index of "
        "shards (metadata.total_size)"
    )
