"""Units: parse the durations and lengths a person types, print the bytes they read."""

import re
from typing import Final

from kvheadroom.errors import ConfigError

KIB: Final = 1024
MIB: Final = 1024**2
GIB: Final = 1024**3

_DURATION_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION: Final = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)(ms|s|m|h|d)", re.ASCII)
_LENGTH_FACTOR: Final = {"": 1, "k": 1000, "K": KIB, "m": 1000**2, "M": MIB}
_LENGTH: Final = re.compile(r"(\d{1,12})([kKmM]?)", re.ASCII)
_BYTES: Final = re.compile(r"(\d{1,15}(?:\.\d{1,9})?) ?(B|KiB|MiB|GiB|TiB|KB|MB|GB|TB|)", re.ASCII)
_BYTE_FACTOR: Final = {
    "": 1,
    "B": 1,
    "KiB": KIB,
    "MiB": MIB,
    "GiB": GIB,
    "TiB": 1024 * GIB,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
_LONGEST_SECONDS: Final = 366 * 86400.0


def parse_duration(text: str) -> float:
    """Return the seconds in ``500ms``, ``5s``, ``1m`` or ``1m30s``.

    Raises:
        ConfigError: Not a duration, zero, or more than a year.
    """
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text.strip():
        raise ConfigError(f"not a duration: {text!r} (write 500ms, 5s or 1m)")
    seconds = sum(float(number) * _DURATION_SECONDS[unit] for number, unit in parts)
    if not 0 < seconds <= _LONGEST_SECONDS:
        raise ConfigError(f"a duration must be above zero and at most a year: {text!r}")
    return seconds


def parse_token_count(text: str) -> int:
    """Return the tokens in ``8192``, ``8K`` (8192) or ``8k`` (8000), as vLLM reads its own flags.

    Raises:
        ConfigError: Not a whole number of tokens, or zero.
    """
    match = _LENGTH.fullmatch(text.strip())
    tokens = int(match[1]) * _LENGTH_FACTOR[match[2]] if match else 0
    if tokens <= 0:
        raise ConfigError(f"not a number of tokens: {text!r} (write 8192, 8K = 8192 or 8k = 8000)")
    return tokens


def parse_bytes(text: str) -> int:
    """Return the bytes in ``12GiB``, ``800MiB``, ``24GB`` (decimal) or ``7516192768``.

    Raises:
        ConfigError: Not an amount of memory.
    """
    match = _BYTES.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"not an amount of memory: {text!r} (write 12GiB, 800MiB or 24GB)")
    return round(float(match[1]) * _BYTE_FACTOR[match[2]])


def format_bytes(count: float) -> str:
    """Return *count* bytes in the largest binary unit that keeps it at 1 or above."""
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(count) >= size:
            return f"{count / size:,.2f} {unit}"
    return f"{count:,.0f} B"


def format_duration(seconds: float) -> str:
    """Return *seconds* as a person reads them: ``45s``, ``2m 10s``, ``1h 05m``."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60
    if hours:
        return f"{hours}h {minutes % 60:02d}m"
    return f"{minutes}m {whole % 60:02d}s" if minutes else f"{whole}s"
