"""Read a YAML file into a frozen record, or say in one line what is wrong with it."""

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import yaml

from kvheadroom.errors import ConfigError

_UNKNOWN_FIELD: Final = re.compile(r"unknown field `(?P<name>[^`]*)`(?: - at `(?P<at>[^`]*)`)?")

# Quoted in a parser's message: kinds of token are in angle brackets, all else is from the file.
_FILE_WORDS: Final = re.compile(r"'(?!<)[^']{2,}'")


class FileRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mapping in a configuration file; a key that is not a field is an error."""


Record = TypeVar("Record", bound=FileRecord)


def load_mapping(path: Path) -> Mapping[str, Any]:
    """Return the mapping that the YAML file at *path* holds; an empty file is an empty one.

    Raises:
        ConfigError: The file cannot be read, is not YAML, or holds something else.
    """
    data = _load(path)
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: holds no mapping of keys to values")
    return {str(key): value for key, value in data.items()}


def load_value(path: Path) -> object:
    """Return whatever the YAML or JSON file at *path* holds; ``None`` for an empty one.

    Raises:
        ConfigError: The file cannot be read, or is not YAML.
    """
    return _load(path)


def load_record(path: Path, record: type[Record]) -> Record:
    """Return the *record* that the YAML file at *path* holds; an empty file is all defaults.

    Raises:
        ConfigError: The file cannot be read, is not YAML, or does not fit *record*.
    """
    data = _load(path)
    try:
        return msgspec.convert({} if data is None else data, record)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {_explain(str(error), record)}") from error


def _load(path: Path) -> Any:  # noqa: ANN401  (YAML holds anything)
    try:
        return yaml.load(path.read_bytes(), Loader=_StrictLoader)  # noqa: S506  (it is a safe one)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # A ValueError is a date that is none, or text that is not UTF-8.
        raise ConfigError(f"{path}: not YAML: {_one_line(error)}") from error


_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StrictLoader(_SafeLoader):  # type: ignore[misc]
    """Refuses a key given twice, where YAML would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value]
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            problem = f"key given twice: {repeated}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def _one_line(error: Exception) -> str:
    # The mark holds the file's text around the fault, which may be a secret; so may a tag.
    mark = getattr(error, "problem_mark", None)
    where = f" at line {mark.line + 1}" if mark else ""
    problem = _FILE_WORDS.sub("'…'", getattr(error, "problem", None) or type(error).__name__)
    return f"{problem}{where}"


def _explain(message: str, record: type[FileRecord]) -> str:
    """Return *message* with the nearest right key where the fault is an unknown one."""
    match = _UNKNOWN_FIELD.search(message)
    if match is None:
        # The library shows the place as `$.a[0].b`, which reads well without its root.
        return message.replace("`$.", "`").replace(" - at `$`", "")
    name = match["name"]
    path = (match["at"] or "$").removeprefix("$").removeprefix(".")
    where = f" in {path}" if path else ""
    nearest = difflib.get_close_matches(name, _field_names(record, path), n=1, cutoff=0.5)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    return f"unknown key {name!r}{where}{hint}"


def _field_names(record: type[FileRecord], path: str) -> list[str]:
    """Return the keys allowed at *path* (``engines[0]``) inside *record*."""
    kind: Any = msgspec.inspect.type_info(record)
    for step in (part for part in re.split(r"\.|(?=\[)", path) if part):
        kind = _inner(kind, step)
    kind = _struct(kind)
    return [field.encode_name for field in kind.fields] if kind is not None else []


def _inner(kind: Any, step: str) -> Any:  # noqa: ANN401  (msgspec's type tree has no common base)
    if step.startswith("["):
        return getattr(kind, "item_type", getattr(kind, "value_type", None))
    struct = _struct(kind)
    fields = struct.fields if struct is not None else ()
    found = next((field.type for field in fields if field.encode_name == step), None)
    return next((k for k in getattr(found, "types", ()) if hasattr(k, "fields")), found)


def _struct(kind: Any) -> Any:  # noqa: ANN401
    options = getattr(kind, "types", (kind,))
    return next((option for option in options if hasattr(option, "fields")), None)
