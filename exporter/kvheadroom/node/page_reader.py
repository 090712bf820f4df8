"""Read the wanted samples of a Prometheus text page, fast when pages resemble each other."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from kvheadroom.errors import SourceError

# What is remembered of earlier pages is thrown away beyond these, so that a server that invents
# new labels on every page cannot make us grow.
_MAX_REMEMBERED_BYTES: Final = 16 * 1024**2
_SERIES_OVERHEAD_BYTES: Final = 500
_MAX_REMEMBERED_FAMILIES: Final = 4096
_MAX_KEY_BYTES: Final = 16 * 1024
# float() takes 1_000, the format does not. An int, since `in` is three times faster with it.
_UNDERSCORE: Final = ord("_")
_ALWAYS_READ: Final = -1

# Lines read one by one on a single page; far above a server of hundreds of ranks.
_MAX_LINES: Final = 100_000

_FAMILY_START: Final = b"\n# HELP "
# Possessive quantifiers: a label value of many megabytes must cost no more than its length.
_SERIES: Final = re.compile(
    rb"""([a-zA-Z_:][a-zA-Z0-9_:]*+)[ \t]*+(?:\{((?:[^"}]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+)\})?+""",
    re.DOTALL,
)
_LABEL: Final = re.compile(
    r"""\s*+([a-zA-Z_][a-zA-Z0-9_]*+)\s*+=\s*+"([^"\\]*+(?:\\.[^"\\]*+)*+)"\s*+(?:,|$)""",
    re.DOTALL,
)
_ESCAPE: Final = re.compile(r'\\([\\n"])')


@dataclass(frozen=True, slots=True)
class Series:
    """A sample's name and labels; the same object on every page while it is remembered."""

    name: str
    labels: Mapping[str, str]


Sample = tuple[Series, float]


class PageReader:
    """Reads the wanted samples of one server's pages and remembers how earlier ones looked.

    Most of a page is of no interest, and what is changes only in its values. So the page is cut
    into families, families without a wanted name are passed over whole, and the labels of a line
    are looked up by the bytes before its value.
    """

    def __init__(self, wanted: Collection[str]) -> None:
        self._wanted: Final = frozenset(name.encode() for name in wanted)
        # A block found free of wanted lines is not searched again while its length stays this
        # close: even the shortest wanted line, "name 0", is twice as long and cannot hide in it.
        self._slack_bytes: Final = (min(map(len, wanted)) + len(" 0\n")) // 2
        # Bytes before the value → series, or None for a line that is of no interest.
        self._series_of: Final[dict[bytes, Series | None]] = {}
        self._remembered_bytes = 0
        self._lines_read = 0
        # Family → length of its block when last searched, or _ALWAYS_READ.
        self._families: Final[dict[bytes, int]] = {}

    def read(self, page: bytes) -> list[Sample]:
        """Return the wanted samples of *page* in its order.

        Args:
            page: Exposition in text format 0.0.4.

        Raises:
            SourceError: ``not_metrics`` when a line with a wanted name cannot be understood,
                ``too_large`` when there are far more lines than any server has.
        """
        samples: list[Sample] = []
        self._lines_read = 0
        families = self._families
        slack_bytes = self._slack_bytes
        first_block, *blocks = page.split(_FAMILY_START)
        self._read_lines(first_block.split(b"\n"), samples)
        for block in blocks:
            family, _, _ = block.partition(b" ")
            searched_bytes = families.get(family)
            if searched_bytes is None or (
                searched_bytes != _ALWAYS_READ
                and not -slack_bytes < len(block) - searched_bytes < slack_bytes
            ):
                searched_bytes = self._search(family, block)
            if searched_bytes == _ALWAYS_READ:
                lines = block.split(b"\n")
                del lines[0]  # the rest of the HELP line
                self._read_lines(lines, samples)
        return samples

    def _search(self, family: bytes, block: bytes) -> int:
        """Decide how to treat *family* from now on: pass over its block, or read every line."""
        own_lines = block.count(b"\n" + family)
        if block.startswith(b"\n# TYPE " + family, block.find(b"\n")):
            own_lines += 1
        foreign_lines = block.count(b"\n") - own_lines - block.endswith(b"\n")
        known = family in self._families
        wanted = not known and any(name.startswith(family) for name in self._wanted)
        verdict = _ALWAYS_READ if wanted or foreign_lines else len(block)
        if len(self._families) >= _MAX_REMEMBERED_FAMILIES:
            self._families.clear()
        if len(family) <= _MAX_KEY_BYTES:
            self._families[family] = verdict
        return verdict

    def _read_lines(self, lines: list[bytes], samples: list[Sample]) -> None:
        self._lines_read += len(lines)
        if self._lines_read > _MAX_LINES:
            raise SourceError("too_large", f"more than {_MAX_LINES} lines to be read")
        series_of = self._series_of
        for line in lines:
            head, _, value = line.rpartition(b" ")
            try:
                series = series_of[head]
                if series is not None:
                    samples.append((series, float(value if _UNDERSCORE not in value else b"")))
            except (KeyError, ValueError):
                sample = self._read_line(line, head)
                if sample is not None:
                    samples.append(sample)

    def _read_line(self, line: bytes, head: bytes) -> Sample | None:
        """Read *line* whole and remember what *head*, its bytes before the last space, means."""
        text = line.strip()
        match = _SERIES.match(text)
        if match is None or match[1] not in self._wanted:
            # Every line that begins like this is a comment or has the same unwanted name.
            if head.strip():
                self._remember(head, None)
            return None
        name = match[1].decode()
        series = Series(name, _labels(name, match[2] or b""))
        words = text[match.end() :].split()
        value = _value(name, words)
        if len(words) == 1 and text[: match.end()].rstrip() == head:
            self._remember(head, series)
        return series, value

    def _remember(self, head: bytes, series: Series | None) -> None:
        if len(head) > _MAX_KEY_BYTES:
            return
        if self._remembered_bytes > _MAX_REMEMBERED_BYTES:
            self._series_of.clear()
            self._remembered_bytes = 0
        self._remembered_bytes += len(head) + _SERIES_OVERHEAD_BYTES
        self._series_of[head] = series


def _value(name: str, words: list[bytes]) -> float:
    """Return the number in *words*, which are the value and perhaps a timestamp."""
    well_formed = len(words) in (1, 2) and not any(b"_" in word for word in words)
    try:
        numbers = [float(word) for word in words] if well_formed else []
    except ValueError:
        numbers = []
    if not numbers:
        raise SourceError("not_metrics", f"a sample of {name} has no number")
    return numbers[0]


def _labels(name: str, text: bytes) -> dict[str, str]:
    source = text.decode(errors="replace").strip()
    labels: dict[str, str] = {}
    position = 1 if source.startswith(",") else 0
    while position < len(source):
        match = _LABEL.match(source, position)
        if match is None or match[1] in labels:
            raise SourceError("not_metrics", f"the labels of {name} cannot be read")
        labels[match[1]] = _ESCAPE.sub(_unescape, match[2]) if "\\" in match[2] else match[2]
        position = match.end()
    return labels


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]
