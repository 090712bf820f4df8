"""Read the arguments of `vllm serve` as vLLM's own parser would, and keep no secret of them."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from kvheadroom.engine.command_line import VllmArguments, find_vllm_arguments
from kvheadroom.engine.config_words import words_of_config
from kvheadroom.engine.option_names import ALIASES, CURRENT_OPTIONS, OPTIONS, SHORT_FORMS, Kind
from kvheadroom.engine.option_values import (
    OptionValue,
    merge_into,
    parse_dotted_value,
    parse_value,
)
from kvheadroom.errors import ConfigError
from kvheadroom.redaction import is_secret_option, without_secrets

DEFAULT_PORT: Final = 8000

# Stands for a word that no option takes: it may be a secret someone forgot to attach.
STRAY_WORD: Final = "<word>"

ReadConfig = Callable[[str], Mapping[str, Any]]

_MOST_CANDIDATES: Final = 6
_NEGATIVE_NUMBER: Final = re.compile(r"-\d+|-\d*\.\d+", re.ASCII)
_PLAIN_OPTION: Final = re.compile(r"--?[A-Za-z][\w.+-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class ServeCommand:
    """What ``vllm serve`` was told.

    Attributes:
        model: Path or id; ``None`` when the command names none.
        served_names: Names clients use; empty means the model's.
        options: Value of every option given, by its full name without dashes; the last one wins.
        unknown: Options this version of the reader does not know, names only.
        port: Where the server listens.
        environment: Variables before the command that change sizing.
        image_version: Tag of the container's vLLM image, ``v0.8.5``; ``None`` without one.
    """

    model: str | None
    served_names: tuple[str, ...] = ()
    options: Mapping[str, OptionValue] = field(default_factory=lambda: MappingProxyType({}))
    unknown: tuple[str, ...] = ()
    port: int = DEFAULT_PORT
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    image_version: str | None = None


def parse_serve_command(
    command: str | Sequence[str], *, read_config: ReadConfig | None = None
) -> ServeCommand:
    """Return what *command* tells vLLM.

    Args:
        command: A shell line, a container's command, a manifest's ``command`` and ``args``, or
            vLLM's arguments alone.
        read_config: Returns the mapping in the YAML file that ``--config`` names.

    Raises:
        ConfigError: vLLM would refuse the line: an ambiguous prefix, a value that is missing or
            of the wrong kind; or ``--config`` is given and *read_config* is not; or the line is
            empty.

    Source:
        vLLM 0.32, the parser of ``vllm serve`` (argparse with prefixes, dotted JSON options).
    """
    found = find_vllm_arguments(command)
    words = _with_config(list(found.words), read_config)
    words, dotted = _split_dotted(_normalized(words))
    parsed = _Parsed()
    _read_options(words, parsed)
    for option, value in dotted.items():
        _store_dotted(option, value, parsed)
    return _command(parsed, found)


@dataclass(slots=True)
class _Parsed:
    options: dict[str, OptionValue] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    positional: list[str] = field(default_factory=list)


def _command(parsed: _Parsed, found: VllmArguments) -> ServeCommand:
    options = parsed.options
    named = options.pop("model", None)
    model = parsed.positional[0] if parsed.positional else named
    names = options.pop("served-model-name", None)
    port = options.pop("port", None)
    return ServeCommand(
        model=without_secrets(model) if isinstance(model, str) else None,
        served_names=tuple(names) if isinstance(names, list) else (),
        options=MappingProxyType(options),
        unknown=(*parsed.unknown, *(STRAY_WORD for _ in parsed.positional[1:])),
        port=port if isinstance(port, int) else DEFAULT_PORT,
        environment=found.environment,
        image_version=found.image_version,
    )


def _with_config(words: list[str], read_config: ReadConfig | None) -> list[str]:
    """Return *words* with the YAML file's options where vLLM puts them: before the others."""
    # vLLM looks for the bare word only: `--config=FILE` is taken and never read.
    if "--config" not in words:
        return words
    index = words.index("--config")
    if index + 1 == len(words):
        raise ConfigError("--config: needs a value")
    if read_config is None:
        raise ConfigError("--config: the file's content is not at hand")
    given = words_of_config(read_config(words[index + 1]))
    rest = words[:index] + words[index + 2 :]
    first_option = 1 if rest and not rest[0].startswith("-") else 0
    return rest[:first_option] + given + rest[first_option:]


def _normalized(words: list[str]) -> list[str]:
    """Return *words* with dashes for underscores in option names, and ``-O`` written out."""
    normal: list[str] = []
    for index, word in enumerate(words):
        following = words[index + 1] if index + 1 < len(words) else ""
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            head, dot, tail = name.partition(".")
            normal.append(head.replace("_", "-") + dot + tail + equals + value)
        elif word.startswith("-O") and word != "-O":
            normal += ["--optimization-level", word[2:].removeprefix("=")]
        elif word == "-O" and following in {"0", "1", "2", "3"}:
            normal.append("--optimization-level")
        else:
            normal.append(word)
    return normal


def _split_dotted(words: list[str]) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Return the words without ``--option.key VALUE``, and those by option, merged."""
    plain: list[str] = []
    dotted: dict[str, dict[str, Any]] = {}
    remaining = iter(words)
    for word in remaining:
        name, equals, value = word.partition("=")
        if "." not in name or not _PLAIN_OPTION.fullmatch(name):
            plain.append(word)
            continue
        if not equals:
            following = next(remaining, None)
            if following is None:
                raise ConfigError(f"{name}: needs a value")
            value = following
        option, *keys = name.removesuffix("+").split(".")
        nested: Any = parse_dotted_value(value, append=name.endswith("+"))
        for key in reversed(keys):
            nested = {key: nested}
        merge_into(dotted.setdefault(option, {}), nested)
    return plain, dotted


def _store_dotted(option: str, value: dict[str, Any], parsed: _Parsed) -> None:
    found = _resolve(option)
    if found is None:
        parsed.unknown.append(_safe_name(option))
        return
    name, _ = found
    if OPTIONS[name] != "json":
        raise ConfigError(f"--{name}: takes no keys")
    parsed.options[name] = without_secrets(value)


def _read_options(words: list[str], parsed: _Parsed) -> None:
    remaining = _Words(words)
    for word in remaining:
        if not _looks_like_option(word):
            if word != "--":
                parsed.positional.append(word)
            continue
        written, equals, attached = word.partition("=")
        found = _resolve(written)
        if found is None and not written.startswith("--"):
            # A short option may carry its value without a space: -n2.
            found, equals, attached = _resolve(word[:2]), "=", word[2:]
        if found is None:
            parsed.unknown.append(_safe_name(written))
            remaining.take_value()
            continue
        name, is_on = found
        value = _value(name, is_on, attached if equals else None, remaining)
        if is_secret_option(name):
            continue
        parsed.options[name] = without_secrets(value)


def _value(name: str, is_on: bool, attached: str | None, remaining: "_Words") -> OptionValue:
    """Return the value of option *name*, taking from *remaining* what belongs to it."""
    kind: Kind = OPTIONS[name]
    if kind in ("flag", "switch"):
        if attached is not None:
            raise ConfigError(f"--{name}: takes no value")
        return is_on
    if kind == "texts":
        words = [attached] if attached is not None else remaining.take_values()
        if not words:
            raise ConfigError(f"--{name}: needs a value")
        return list(words)
    word = attached if attached is not None else remaining.take_value()
    if word is None:
        if kind == "optional_text":
            return True
        raise ConfigError(f"--{name}: needs a value")
    return parse_value(name, kind, word)


class _Words:
    """Words still to be read; a value is a word that does not look like an option."""

    def __init__(self, words: list[str]) -> None:
        self._words = words
        self._next = 0

    def __iter__(self) -> Iterator[str]:
        while self._next < len(self._words):
            self._next += 1
            yield self._words[self._next - 1]

    def take_value(self) -> str | None:
        if self._next == len(self._words) or _looks_like_option(self._words[self._next]):
            return None
        self._next += 1
        return self._words[self._next - 1]

    def take_values(self) -> list[str]:
        values: list[str] = []
        while (value := self.take_value()) is not None:
            values.append(value)
        return values


def _safe_name(written: str) -> str:
    """Return the unknown option's name, unless it may be a secret with a dash in front."""
    is_name = _PLAIN_OPTION.fullmatch(written) and (written[:2] == "--" or len(written) <= 4)  # noqa: PLR2004
    return written if is_name else STRAY_WORD


def _looks_like_option(word: str) -> bool:
    if len(word) <= 1 or not word.startswith("-") or _NEGATIVE_NUMBER.fullmatch(word):
        return False
    return " " not in word.partition("=")[0]


@lru_cache(maxsize=4096)
def _resolve(written: str) -> tuple[str, bool] | None:
    """Return the option that *written* (``--max-model``) means, and whether it switches on.

    Raises:
        ConfigError: A prefix of several options.
    """
    if not written.startswith("--"):
        name = SHORT_FORMS.get(written)
        return (name, True) if name is not None else None
    word = written[2:]
    exact = _SPELLINGS.get(word) or _RETIRED_SPELLINGS.get(word)
    if exact is not None or not word:
        return exact
    candidates = [spelling for spelling in _SPELLINGS if spelling.startswith(word)]
    if len(candidates) > 1:
        named = ", ".join(f"--{candidate}" for candidate in sorted(candidates)[:_MOST_CANDIDATES])
        more = " …" if len(candidates) > _MOST_CANDIDATES else ""
        raise ConfigError(f"{written}: may mean {named}{more}")
    return _SPELLINGS[candidates[0]] if candidates else None


def _spellings(options: Mapping[str, Kind]) -> dict[str, tuple[str, bool]]:
    on = {name: (name, True) for name in options}
    off = {f"no-{name}": (name, False) for name, kind in options.items() if kind == "switch"}
    return on | off


_SPELLINGS: Final = _spellings(CURRENT_OPTIONS) | {
    alias: (name, True) for alias, name in ALIASES.items()
}
_RETIRED_SPELLINGS: Final = _spellings(
    {name: kind for name, kind in OPTIONS.items() if name not in CURRENT_OPTIONS}
)
