"""Read the integers vLLM lets people abbreviate: 32k is 32,000 and 32K is 32,768."""

import re
from typing import Final

from kvheadroom.errors import ConfigError

AUTO: Final = -1

_DECIMAL: Final = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY: Final = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_ABBREVIATED: Final = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)([kKmMgGtT])", re.ASCII)
_PLAIN: Final = re.compile(r"[+-]?\d{1,18}(?:_\d{1,18})*", re.ASCII)


def parse_human_int(text: str) -> int:
    """Return the integer in ``8192``, ``32k``, ``32K`` or ``25.6k``.

    Raises:
        ConfigError: Not an integer, or a fraction of a binary unit (``1.5K``).

    Source:
        vLLM 0.32, the type of ``--max-num-batched-tokens`` and its like.
    """
    word = text.strip()
    match = _ABBREVIATED.fullmatch(word)
    if match is None:
        return parse_int(word)
    number, suffix = match.groups()
    if suffix in _DECIMAL:
        return int(float(number) * _DECIMAL[suffix])
    if "." in number:
        raise ConfigError(
            f"{word!r}: {suffix} is binary and takes no fraction (write {word.lower()})"
        )
    return int(number) * _BINARY[suffix]


def parse_human_int_or_auto(text: str) -> int:
    """Return the integer in *text*, or ``AUTO`` for ``auto`` and ``-1``.

    Raises:
        ConfigError: As `parse_human_int` raises it.
    """
    return AUTO if text.strip().lower() in ("-1", "auto") else parse_human_int(text)


def parse_int(text: str) -> int:
    """Return the integer in *text*.

    Raises:
        ConfigError: Not an integer.
    """
    word = text.strip()
    if not _PLAIN.fullmatch(word):
        raise ConfigError(f"not an integer{shown(word)}")
    return int(word)


def parse_number(text: str) -> float:
    """Return the number in *text*.

    Raises:
        ConfigError: Not a finite number.
    """
    try:
        number = float(text)
    except ValueError:
        raise ConfigError(f"not a number{shown(text)}") from None
    if not float("-inf") < number < float("inf"):
        raise ConfigError(f"not a finite number{shown(text)}")
    return number


def shown(word: str) -> str:
    """Return *word* for an error's text, if it looks like a number and so like no secret."""
    looks_numeric = re.fullmatch(r"[-+.\d][-+.\w]{0,15}", word, re.ASCII)
    return f": {word!r}" if looks_numeric else ""
