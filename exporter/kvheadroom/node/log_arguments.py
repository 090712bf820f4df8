"""Read the arguments a log prints as Python text, without running any of it and without secrets."""

import ast
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Final

from kvheadroom.redaction import names_a_secret

_LONGEST_TEXT: Final = 400
_OPENING: Final = {"(": ")", "[": "]", "{": "}", "<": ">"}
_CLOSING: Final = frozenset(_OPENING.values())
# Beyond this a text is not looked at; what is shown of it is far shorter.
_MOST_TEXT_READ: Final = 4_000
# A key, token or password inside a longer text: a header, a JSON string, a command line.
_INLINE_SECRET: Final = re.compile(
    r"(?i)((?:api[-_]?key|access[-_]?key|token|secret|passw(?:or)?d|authorization)"
    r"(?:[\"']{0,2}\s{0,3}[:=]\s{0,3}|(?<=-key)\s{1,3}|(?<=-token)\s{1,3}))"
    r"(?:Bearer\s{1,3})?[\"']?[^\s\"',;}\])]+"
)
_BARE_SECRET: Final = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{8,}|sk-[\w-]{8,}|AKIA[A-Z0-9]{12,}|eyJ[\w-]{8,}\.[\w.-]+)"
    r"|(?i:\bBearer\s{1,3})[^\s\"',;]+"
)
_URL_USER: Final = re.compile(r"(\b[a-z][a-z0-9+.-]{1,20}://)[^@\s'\"]+@")
_URL_QUERY: Final = re.compile(r"(\b[a-z][a-z0-9+.-]{1,20}://[^?#\s'\"]+)[?#][^\s'\"]*")


def without_secrets(text: str) -> str:
    """Return *text* on one line, cut to 400 characters, keys and URL credentials struck out."""
    text = _BARE_SECRET.sub("…", text[:_MOST_TEXT_READ])
    text = _URL_QUERY.sub(r"\1", _URL_USER.sub(r"\1", text))
    text = _INLINE_SECRET.sub(r"\1…", text)
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1]}…"


def parse_dict(text: str) -> Mapping[str, object]:
    """Return the entries of a printed ``{'name': value, …}``; what is no literal stays text."""
    body = text.strip().removeprefix("{").removesuffix("}")
    return _entries(body, ":")


def parse_pairs(text: str) -> Mapping[str, object]:
    """Return the entries of ``name=value, name=value``, as an engine's config or a Namespace."""
    body = text.strip()
    if body.startswith("Namespace("):
        body = body.removeprefix("Namespace(").removesuffix(")")
    return _entries(body, "=")


def _entries(body: str, separator: str) -> Mapping[str, object]:
    found: dict[str, object] = {}
    for piece in _top_level_pieces(body):
        name, is_pair, printed = piece.partition(separator)
        name = name.strip().strip("'\"")
        if is_pair and name and len(name) <= 100 and not names_a_secret(name):  # noqa: PLR2004
            found[name] = _clean(_literal(printed.strip()), depth=5)
    return found


def _top_level_pieces(body: str) -> Iterator[str]:
    """Yield the parts of *body* between commas that no bracket or quote encloses."""
    start, depth, quote, escaped = 0, 0, "", False
    for position, char in enumerate(body):
        if quote:
            if char == quote and not escaped:
                quote = ""
            escaped = char == "\\" and not escaped
        elif char in "'\"":
            quote = char
        elif char in _OPENING:
            depth += 1
        elif char in _CLOSING:
            depth = max(0, depth - 1)
        elif char == "," and depth == 0:
            yield body[start:position]
            start = position + 1
    yield body[start:]


def _literal(printed: str) -> object:
    try:
        # Text that is almost a literal ("8B", "\\d") would be warned about.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.literal_eval(printed)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return printed


def _clean(value: object, depth: int) -> object:
    """Return *value* made of plain types only, its texts without secrets."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return without_secrets(value)
    if depth and isinstance(value, dict):
        return {
            without_secrets(str(key)): _clean(entry, depth - 1)
            for key, entry in value.items()
            if not names_a_secret(str(key))
        }
    if depth and isinstance(value, list | tuple | set):
        return [_clean(entry, depth - 1) for entry in value]
    return without_secrets(str(value))
