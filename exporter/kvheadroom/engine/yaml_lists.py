"""Read a list of words, or one scalar, as YAML and JSON write them in a pasted manifest."""

import json
import re
from collections.abc import Iterator
from typing import Final

_FLOW_LIST: Final = re.compile(r"\[.*\]", re.DOTALL)
_FLOW_ITEM: Final = re.compile(
    r"""\s*+(?:"(?:[^"\\]|\\.)*+"\s*+|'(?:[^']|'')*+'\s*+|[^,"'\[\]]++)(?:,|$)""", re.DOTALL
)
_BLOCK_ITEM: Final = re.compile(r"^([ \t]*)-[ \t]+(\S.*)$")
_TRAILING_COMMENT: Final = re.compile(r"(?<=\s)#.*$")
_BLOCK_SCALAR: Final = re.compile(r"[|>][-+]?")


def list_words(text: str) -> list[str] | None:
    """Return the words of the list in *text*, ``None`` where it is no list.

    Args:
        text: ``["--model", "m"]``, or a YAML list in brackets or with a dash a line.
    """
    stripped = text.strip()
    if _FLOW_LIST.fullmatch(stripped):
        return _flow_words(stripped)
    return _block_words(text)


def _flow_words(text: str) -> list[str] | None:
    try:
        words = json.loads(text)
    except (ValueError, RecursionError):
        return _yaml_flow_words(text[1:-1].strip().removesuffix(","))
    is_flat = all(isinstance(word, str | int | float) for word in words)
    return [_as_word(word) for word in words] if is_flat else None


def _as_word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _yaml_flow_words(inside: str) -> list[str] | None:
    words: list[str] = []
    end = 0
    while end < len(inside):
        match = _FLOW_ITEM.match(inside, end)
        if match is None:
            return None
        words.append(unquoted(match[0].strip().removesuffix(",").strip()))
        end = match.end()
    return words


def _block_words(text: str) -> list[str] | None:
    """Return the items of a list with a dash a line; ``None`` when a line is anything else."""
    lines = [line for line in text.splitlines() if line.strip() and line.strip()[0] != "#"]
    first = _BLOCK_ITEM.match(lines[0]) if lines else None
    if first is None:
        return None
    words: list[str] = []
    for own, deeper in _items(lines):
        if own is None:
            return None
        if _BLOCK_SCALAR.fullmatch(own):
            words.append("\n".join(line.strip() for line in deeper))
        else:
            words.append(unquoted(" ".join([own, *(line.strip() for line in deeper)])))
    return words


def _items(lines: list[str]) -> Iterator[tuple[str | None, list[str]]]:
    """Yield each item's first line and its further ones; ``None`` for a line of no item."""
    own: str | None = None
    deeper: list[str] = []
    indent = 0
    for line in lines:
        match = _BLOCK_ITEM.match(line)
        depth = len(line) - len(line.lstrip())
        if match is None or (own is not None and depth > indent):
            if own is None or depth <= indent:
                yield None, []
                return
            deeper.append(line)
            continue
        if own is not None:
            yield own, deeper
        own, deeper, indent = match[2].strip(), [], depth
    yield own, deeper


def scalar(text: str) -> str:
    """Return the text of the YAML scalar that is a key's whole value."""
    first, *deeper = [line.strip() for line in text.strip().splitlines()] or [""]
    if _BLOCK_SCALAR.fullmatch(first):
        return "\n".join(deeper)
    return unquoted(" ".join([first, *deeper]))


def unquoted(item: str) -> str:
    """Return the text of a YAML scalar of one line, its quotes or its comment taken off."""
    if item.startswith("'"):
        return item[1 : item.rfind("'")].replace("''", "'") if item.rfind("'") else item
    if item.startswith('"') and item.rfind('"'):
        inner = item[: item.rfind('"') + 1]
        try:
            return str(json.loads(inner))
        except ValueError:
            return inner[1:-1]
    return _TRAILING_COMMENT.sub("", item).strip()
