"""Checkpoint bytes from files that hold no tensors, and from hostile ones."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvheadroom.errors import ConfigError, ModelConfigError
from kvheadroom.model.weights import bytes_by_dtype, bytes_of_hub_answer, bytes_of_index
from kvheadroom.node.safetensors_files import INDEX_NAME, read_header, read_headers, read_json


def tensor(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def write(file: Path, header: object) -> Path:
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text)
    return file


def test_bytes_are_counted_for_each_dtype(tmp_path: Path) -> None:
    """Two shards add up by dtype, and metadata is no tensor (2·3·4 B, then 8 B, then 5 B)."""
    first = {"a": tensor("F32", [2, 3], 0, 24), "__metadata__": {"format": "pt"}}
    write(tmp_path / "model-00001-of-00002.safetensors", first)
    second = {"b": tensor("BF16", [4], 0, 8), "c": tensor("F8_E4M3", [5], 8, 13)}
    write(tmp_path / "model-00002-of-00002.safetensors", second)
    assert bytes_by_dtype(read_headers(tmp_path)) == {"F32": 24, "BF16": 8, "F8_E4M3": 5}


def test_only_files_that_the_index_names_are_counted(tmp_path: Path) -> None:
    """A file beside the shards that no weight belongs to is left out."""
    write(tmp_path / "model-1.safetensors", {"a": tensor("F16", [2], 0, 4)})
    write(tmp_path / "adapter.safetensors", {"x": tensor("F16", [9], 0, 18)})
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))
    assert bytes_by_dtype(read_headers(tmp_path)) == {"F16": 4}


def test_a_second_copy_is_not_counted_twice(tmp_path: Path) -> None:
    """Mistral's consolidated file repeats the shards."""
    write(tmp_path / "model.safetensors", {"a": tensor("F16", [2], 0, 4)})
    write(tmp_path / "consolidated.safetensors", {"a": tensor("F16", [2], 0, 4)})
    assert bytes_by_dtype(read_headers(tmp_path)) == {"F16": 4}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x10\x00\x00",
        (1 << 62).to_bytes(8, "little") + b"{}",
        (50).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (3).to_bytes(8, "little") + b"{,}",
        (4).to_bytes(8, "little") + b"\xff\xfe\xfd\xfc",
        (100_000).to_bytes(8, "little") + b"[" * 100_000,
    ],
    ids=["empty", "cut", "vast", "longer-than-file", "list", "not-json", "not-text", "deep"],
)
def test_what_is_no_safetensors_file_is_one_line(tmp_path: Path, content: bytes) -> None:
    """A hostile or broken file is an error of one line that names it."""
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        read_header(file)
    assert str(file) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_header_above_the_formats_limit_is_not_read(tmp_path: Path) -> None:
    """The format allows 100 MB of header; a sparse file that states more is refused unread."""
    file = tmp_path / "model.safetensors"
    with file.open("wb") as stream:
        stream.write((200_000_000).to_bytes(8, "little"))
        stream.truncate(300_000_000)
    with pytest.raises(ConfigError, match="too large"):
        read_header(file)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "..", "sub/model.safetensors"])
def test_an_index_cannot_lead_outside_its_folder(tmp_path: Path, name: str) -> None:
    """A shard's name with a path in it is refused."""
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(ConfigError, match="not a file beside it"):
        read_headers(tmp_path)


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    """A folder that holds no checkpoint is an error that names it."""
    with pytest.raises(ConfigError, match="no safetensors file"):
        read_headers(tmp_path)


@pytest.mark.parametrize(
    "entry",
    [
        None,
        {},
        tensor("F32", [2], 0, 7),
        tensor("F32", [2], 8, 0),
        {"dtype": "F32", "shape": "2", "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [0]},
        {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [2] * 100_000, "data_offsets": [0, 8]},
        {"dtype": 4, "shape": [2], "data_offsets": [0, 8]},
    ],
)
def test_a_tensor_that_contradicts_itself_is_refused(entry: object) -> None:
    """An entry whose offsets, shape or dtype are malformed or disagree is an error."""
    with pytest.raises(ModelConfigError):
        bytes_by_dtype([{"a": entry}])


def test_the_index_states_the_total(tmp_path: Path) -> None:
    """total_size of Llama-3.1-8B's published index: 16,060,522,496 bytes."""
    file = tmp_path / INDEX_NAME
    file.write_text('{"metadata": {"total_size": 16060522496}, "weight_map": {}}')
    assert bytes_of_index(read_json(file)) == 16_060_522_496


@pytest.mark.parametrize("size", [None, 0, -1, True, "16", float("inf")])
def test_an_index_without_a_total_is_refused(size: object) -> None:
    """A total that is no number above zero is an error, not zero bytes."""
    with pytest.raises(ModelConfigError):
        bytes_of_index({"metadata": {"total_size": size}})


def test_the_hub_counts_parameters_of_each_dtype() -> None:
    """The hub counts values, so 8,030,261,248 in BF16 are twice as many bytes."""
    answer = {"safetensors": {"parameters": {"BF16": 8_030_261_248}, "total": 8_030_261_248}}
    assert bytes_of_hub_answer(answer) == {"BF16": 16_060_522_496}


@pytest.mark.parametrize("parameters", [None, {}, {"BF16": -1}, {"BF16": "8"}, {"Q4": 8}])
def test_a_hub_answer_without_counts_is_refused(parameters: object) -> None:
    """A missing or absurd count is an error, not zero bytes."""
    with pytest.raises(ModelConfigError):
        bytes_of_hub_answer({"safetensors": {"parameters": parameters}})
