"""Find the container that runs vLLM in a pasted piece of a Kubernetes or compose file."""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kvheadroom.engine.yaml_lists import list_words, scalar, unquoted
from kvheadroom.errors import ConfigError

# In the order in which their words are run.
_RUN_KEYS: Final = ("entrypoint", "command", "args")
_KEYS: Final = frozenset({"image", "env", "environment", *_RUN_KEYS})
_ENTRY: Final = re.compile(r"([ \t]*+(?:-[ \t]++)*+)([\w./-]+):(?:[ \t]+(.*))?")
_SERVER: Final = "vllm"


@dataclass(frozen=True, slots=True)
class Container:
    """What a manifest says of one container.

    Attributes:
        words: ``NAME=value`` for each variable that is set, then the command.
        image: As the manifest names it; ``None`` without one.
    """

    words: tuple[str, ...]
    image: str | None = None


def read_container(text: str) -> Container | None:
    """Return the container in *text* that runs vLLM, ``None`` if *text* is no manifest.

    Args:
        text: ``["--model", "m"]``, a YAML list, such lists after ``command:`` and ``args:``, or
            those with what stands around them. Of several containers the first that names vLLM.

    Raises:
        ConfigError: A command's quote is not closed.
    """
    lines = [line for line in text.splitlines() if line.strip() and line.strip()[0] != "#"]
    if lines and (lines[0].strip() == "---" or _ENTRY.fullmatch(lines[0])):
        found = [_container(mapping) for mapping in _mappings(lines)]
        if found:
            named = (one for one in found if _SERVER in " ".join([one.image or "", *one.words]))
            return next(named, found[0])
    words = list_words(text)
    return None if words is None else Container(tuple(words))


def _mappings(lines: list[str]) -> Iterator[Mapping[str, str]]:
    """Yield the known keys, with their values' text, of each mapping that has any."""
    known: dict[str, str] = {}
    column = -1
    index = 0
    while index < len(lines):
        line = lines[index]
        index += 1
        match = _ENTRY.fullmatch(line)
        starts_item = match is not None and "-" in match[1]
        if known and (_indent(line) < column or starts_item):
            yield known
            known = {}
        if match is None or match[2] not in _KEYS or (known and len(match[1]) != column):
            continue
        column = len(match[1])
        end = index
        while end < len(lines) and _belongs(lines[end], column):
            end += 1
        own = "" if (match[3] or "").startswith("#") else match[3] or ""
        known[match[2]] = "\n".join([own, *lines[index:end]])
        index = end
    if known:
        yield known


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _belongs(line: str, column: int) -> bool:
    """Return whether *line* goes on with the value of a key in *column*."""
    indent = _indent(line)
    return indent > column or (indent == column and line.lstrip().startswith("-"))


def _container(values: Mapping[str, str]) -> Container:
    variables = [*_variables(values.get("env", "")), *_variables(values.get("environment", ""))]
    run = [word for key in _RUN_KEYS for word in _words(values.get(key, ""))]
    return Container((*variables, *run), _image(values["image"]) if "image" in values else None)


def _words(value: str) -> list[str]:
    """Return the words of a list, or of a string, which compose splits as a shell does."""
    words = list_words(value)
    if words is not None:
        return words
    try:
        return shlex.split(scalar(value))
    except ValueError:
        raise ConfigError("a quote is not closed in the manifest's command") from None


def _image(value: str) -> str:
    """Return the image's name: given whole, or as a chart's ``repository`` and ``tag``."""
    parts = _pairs(value)
    if "repository" in parts:
        return f"{parts['repository']}:{parts.get('tag', '')}"
    return scalar(value)


def _variables(value: str) -> list[str]:
    """Return ``NAME=value`` for each variable, however the manifest spells the list."""
    pairs = _pairs(value)
    if pairs and "name" not in pairs:
        return [f"{name}={text}" for name, text in pairs.items()]
    assigned: list[str] = []
    name = None
    for line in value.splitlines():
        match = _ENTRY.fullmatch(line)
        if match is None:
            assigned += [word for word in list_words(line) or () if "=" in word]
        elif match[2] == "name":
            name = unquoted(match[3] or "")
        elif match[2] == "value" and name:
            assigned.append(f"{name}={unquoted(match[3] or '')}")
            name = None
    return assigned


def _pairs(value: str) -> dict[str, str]:
    """Return the keys and scalars of a mapping without lists."""
    matches = [_ENTRY.fullmatch(line) for line in value.splitlines()]
    return {match[2]: unquoted(match[3] or "") for match in matches if match}
