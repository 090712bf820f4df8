"""Follow the log of one vLLM server and keep what its last two starts said."""

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from kvheadroom.errors import ConfigError
from kvheadroom.node.boot_reading import boot_reading
from kvheadroom.node.boot_record import BootRecord
from kvheadroom.node.log_file import LogFile
from kvheadroom.node.log_journal import JournalUnit
from kvheadroom.node.log_lines import is_piece, read_numbered
from kvheadroom.node.startup_log import BootScanner
from kvheadroom.readings import BootReading
from kvheadroom.units import MIB

# What one poll may read: some 30,000 lines.
_MOST_BYTES: Final = 4 * MIB
# A line that does not end is taken as it is.
_LONGEST_LINE_BYTES: Final = MIB
_JOURNAL: Final = re.compile(r"journald?:(?://)?(?P<unit>.*)", re.DOTALL)


class LogPieces(Protocol):
    """Where a log's bytes come from."""

    @property
    def problem(self) -> str | None:
        """Why nothing can be read now, one line; ``None`` while it can."""
        ...

    def read(self, most_bytes: int) -> Iterator[bytes]:
        """Yield what is new; an empty piece where what follows does not continue a line."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


@dataclass(frozen=True, slots=True)
class FollowedBoots:
    """What a followed log says.

    Attributes:
        latest: The last start; ``None`` before one is found.
        previous: The last start before that one that got as far as a KV cache.
        problem: Why the log cannot be read now; ``None`` while it can.
    """

    latest: BootReading | None = None
    previous: BootReading | None = None
    problem: str | None = None


def open_log(place: str) -> LogPieces:
    """Return the log at *place*: a file, a container's log folder, or ``journald:UNIT``.

    Nothing is opened yet.

    Raises:
        ConfigError: *place* is neither.
    """
    if match := _JOURNAL.fullmatch(place):
        return JournalUnit(match["unit"])
    if not place.strip() or "\0" in place:
        raise ConfigError("a startup log is a file, a folder or journald:UNIT")
    return LogFile(Path(place))


class LogFollower:
    """One log under watch; whoever reads it does so one call at a time.

    Args:
        pieces: The log.
        service: Which of several services the log holds; ``None`` takes whichever started last.
    """

    def __init__(self, pieces: LogPieces, *, service: str | None = None) -> None:
        self._pieces = pieces
        self._service = service
        self._scanner = BootScanner()
        self._held = b""
        self._lines = 0
        self._over: BootRecord | None = None
        self._seen_telling_lines = -1
        self._boots = FollowedBoots()

    def read(self) -> FollowedBoots:
        """Return what the log says after everything that is new, up to 4 MiB, has been read."""
        for piece in self._pieces.read(_MOST_BYTES):
            if piece:
                self._take(piece)
            else:
                self._end_line()
        if self._scanner.telling_lines != self._seen_telling_lines:
            self._seen_telling_lines = self._scanner.telling_lines
            self._boots = self._judged()
        problem = self._pieces.problem
        return FollowedBoots(self._boots.latest, self._boots.previous, problem)

    def close(self) -> None:
        """Let go of the log."""
        self._pieces.close()

    def _take(self, piece: bytes) -> None:
        data = self._held + piece
        end = _whole_lines_end(data)
        if not end and len(data) > _LONGEST_LINE_BYTES:
            end = len(data)
        self._held = data[end:]
        self._feed(data[:end])

    def _end_line(self) -> None:
        rest, self._held = self._held, b""
        self._feed(rest)

    def _feed(self, lines: bytes) -> None:
        number = 0
        for number, raw in read_numbered(io.BytesIO(lines)):
            for record in self._scanner.feed(self._lines + number, raw):
                if _is_sized(record) and self._is_ours(record):
                    self._over = record
        self._lines += number

    def _is_ours(self, record: BootRecord) -> bool:
        return self._service is None or record.source == self._service

    def _judged(self) -> FollowedBoots:
        latest = [
            boot_reading(record) for record in self._scanner.latest() if self._is_ours(record)
        ]
        # Without its opening, a log holds what a server says while it serves.
        begun = [boot for boot in latest if boot.version or boot.processes]
        previous = boot_reading(self._over) if self._over else None
        return FollowedBoots(begun[-1] if begun else None, previous)


def _is_sized(record: BootRecord) -> bool:
    return record.last("kv_tokens", "gpu_blocks") is not None


def _whole_lines_end(data: bytes) -> int:
    """Return where the last whole line ends; pieces of a line a runtime cut are none."""
    end = data.rfind(b"\n") + 1
    while end:
        begin = data.rfind(b"\n", 0, end - 1) + 1
        if not is_piece(data[begin:end]):
            break
        end = begin
    return end
