"""Turn the words given for one option into the value vLLM would store."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from kvheadroom.engine.human_numbers import (
    parse_human_int,
    parse_human_int_or_auto,
    parse_int,
    parse_number,
)
from kvheadroom.engine.option_names import Kind
from kvheadroom.errors import ConfigError

OptionValue = bool | int | float | str | list[Any] | dict[str, Any] | None

# Options that hold a JSON object, or any other text as it is.
_JSON_OR_TEXT: Final = frozenset(
    {"additional-config", "hf-overrides", "model-loader-extra-config", "pt-load-map-location"}
)
# Counts that may be given as `None`; the others must be numbers.
_NULLABLE_COUNTS: Final = frozenset(
    {
        *("kv-cache-memory-bytes", "mamba-block-size", "max-num-active-seqs"),
        *("max-num-queued-reqs", "max-num-queued-tokens", "max-num-scheduled-tokens"),
        *("num-gpu-blocks-override", "prefix-match-unit"),
    }
)
_COUNT_KINDS: Final = frozenset({"int", "tokens", "tokens_or_auto"})
_QUOTED: Final = re.compile(r'("(?:[^"\\]|\\.)*")')
_ABBREVIATED: Final = re.compile(r"\b\d+(?:\.\d+)?[kKmMgGtT]\b")
_MOST_JSON_CHARACTERS: Final = 1_000_000

_READERS: Final[Mapping[Kind, Callable[[str], OptionValue]]] = {
    "text": str,
    "optional_text": str,
    "int": parse_int,
    "tokens": parse_human_int,
    "tokens_or_auto": parse_human_int_or_auto,
    "number": parse_number,
}


def parse_value(name: str, kind: Kind, word: str) -> OptionValue:
    """Return the value of option *name* given as *word*; an empty word or ``None`` unsets it.

    Raises:
        ConfigError: *word* is not of *kind*; the text names the option and hides what may be a
            secret.
    """
    if word in ("", "None") and (kind not in _COUNT_KINDS or name in _NULLABLE_COUNTS):
        return None
    try:
        if kind == "json":
            is_text = name in _JSON_OR_TEXT and not word.lstrip().startswith("{")
            return word if is_text else parse_json(word)
        return _READERS[kind](word)
    except ConfigError as error:
        raise ConfigError(f"--{name}: {error}") from None


def parse_json(text: str) -> OptionValue:
    """Return the JSON value in *text*, whose bare numbers may be abbreviated as vLLM allows.

    Raises:
        ConfigError: Not JSON.
    """
    if len(text) > _MOST_JSON_CHARACTERS:
        raise ConfigError("not JSON of a sensible length")
    parts = _QUOTED.split(text)
    for index in range(0, len(parts), 2):
        parts[index] = _ABBREVIATED.sub(lambda m: str(parse_human_int(m[0])), parts[index])
    try:
        value: OptionValue = json.loads("".join(parts))
    except (ValueError, RecursionError):
        raise ConfigError("not JSON") from None
    return value


def parse_dotted_value(word: str, *, append: bool) -> OptionValue:
    """Return the value of ``--option.key WORD``, or of ``--option.key+ A,B`` with *append*."""
    if append:
        return word.split(",")
    try:
        value: OptionValue = json.loads(word)
    except (ValueError, RecursionError):
        pass
    else:
        return value
    try:
        return parse_human_int(word)
    except ConfigError:
        return word


def merge_into(target: dict[str, Any], update: Mapping[str, Any]) -> None:
    """Lay *update* over *target*: objects merge, lists grow, anything else is replaced."""
    for key, value in update.items():
        present = target.get(key)
        if isinstance(value, dict) and isinstance(present, dict):
            merge_into(present, value)
        elif isinstance(value, list) and isinstance(present, list):
            present.extend(value)
        else:
            target[key] = value
