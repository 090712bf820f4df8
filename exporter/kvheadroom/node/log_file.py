"""Follow one log file across rotation, from the last starts found near its end."""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from kvheadroom.units import KIB, MIB

# How far back a start is looked for: half a million lines under load.
_LOOK_BACK_BYTES: Final = 64 * MIB
_CHUNK_BYTES: Final = MIB
# A start prints its front end's lines this far before its engine's, and its figures this far after.
_LEAD_IN_BYTES: Final = 256 * KIB
_START_BYTES: Final = 2 * MIB
# How a server's last words are kept in view, whatever it said while it served.
_END_BYTES: Final = MIB
_HEAD_BYTES: Final = 256
_ENGINE: Final = b"LLM engine (v"
_FRONTS: Final = (
    b"API server version",
    b"  version ",
    b"non-default args:",
    b"args: Namespace(",
)
_LONGEST_NEEDLE_BYTES: Final = 64
# The start before the last one shows what the last one changed.
_STARTS_WANTED: Final = 2

_CRI_LOG: Final = re.compile(r"(\d{1,9})\.log", re.ASCII)
_COMPRESSED: Final = (".gz", ".zst", ".bz2", ".xz", ".lz4", ".zip")


class LogFile:
    """One log file, or the newest ``N.log`` of a container's folder, as its writer goes on.

    A file that was renamed away is read to its end before the one that took its name; one that was
    cut to nothing is read from its beginning; one that is missing is waited for.

    Attributes:
        path: File or folder.
        problem: Why nothing can be read now, one line; ``None`` while it can.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem: str | None = None
        self._descriptor: int | None = None
        self._offset = 0
        self._head = b""
        self._began = False

    def read(self, most_bytes: int) -> Iterator[bytes]:
        """Yield what was written since the last call, at most about *most_bytes* of it.

        Where a piece ends, a line may end too early: pieces of one file follow each other, and an
        empty one says that what follows does not continue the line before it.
        """
        try:
            yield from self._read(most_bytes)
        except OSError as error:
            self._fail(error)

    def close(self) -> None:
        """Let go of the file; reading again opens it anew, where it was left."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _read(self, most_bytes: int) -> Iterator[bytes]:
        if not self._began:
            yield from self._begin()
        while most_bytes > 0 and self._descriptor is not None:
            if self._was_cut(self._descriptor):
                self._offset = _first_data(self._descriptor)
                self._head = b""
                yield b""
            data = os.pread(self._descriptor, min(most_bytes, _CHUNK_BYTES), self._offset)
            if not data:
                if not self._move_on():
                    break
                yield b""
                continue
            self._offset += len(data)
            most_bytes -= len(data)
            yield data
        self._remember_head()

    def _begin(self) -> Iterator[bytes]:
        """Open the file and yield its last starts, and where they are not there, those before."""
        path = self._current()
        if path is None:
            return
        descriptor = _open(path)
        self._began = True
        size = os.fstat(descriptor).st_size
        starts = _starts(descriptor, size)
        if not starts:
            yield from _starts_before(path)
        yield from _stretches(descriptor, starts, size)
        self._descriptor, self._offset, self.problem = descriptor, size, None

    def _current(self) -> Path | None:
        """Return the file to read; ``None`` where a folder has none, which is then the problem."""
        if not self.path.is_dir():
            return self.path
        numbered = {
            int(match[1]): entry
            for entry in self.path.iterdir()
            if (match := _CRI_LOG.fullmatch(entry.name))
        }
        if not numbered:
            self.problem = f"{self.path}: the folder has no N.log"
            return None
        return numbered[max(numbered)]

    def _was_cut(self, descriptor: int) -> bool:
        if os.fstat(descriptor).st_size < self._offset:
            return True
        # Cut and written anew beyond where we were.
        return os.pread(descriptor, len(self._head), 0) != self._head

    def _remember_head(self) -> None:
        if self._descriptor is not None and len(self._head) < _HEAD_BYTES:
            self._head = os.pread(self._descriptor, min(_HEAD_BYTES, self._offset), 0)

    def _move_on(self) -> bool:
        """Return whether another file has taken the name of the one read, and open it if so."""
        path = self._current()
        if path is None or self._descriptor is None:
            return False
        try:
            found = path.stat()
        except FileNotFoundError:
            # Renamed away, and its successor not there yet: its writer may still write to it.
            return False
        mine = os.fstat(self._descriptor)
        if (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino):
            self.problem = None
            return False
        successor = _open(path)
        os.close(self._descriptor)
        self._descriptor, self._offset, self._head, self.problem = successor, 0, b"", None
        return True

    def _fail(self, error: OSError) -> None:
        self.problem = f"{self.path}: {error.strerror or type(error).__name__}"


def _open(path: Path) -> int:
    # A pipe would hang, a device never end.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "not a regular file")
    return descriptor


def _first_data(descriptor: int) -> int:
    """Return where a file that was cut begins: its writer may go on behind a hole."""
    try:
        return os.lseek(descriptor, 0, os.SEEK_DATA)
    except OSError:
        return 0


def _pieces(descriptor: int, begin: int, end: int) -> Iterator[bytes]:
    while begin < end and (data := os.pread(descriptor, min(_CHUNK_BYTES, end - begin), begin)):
        begin += len(data)
        yield data


def _starts_before(path: Path) -> Iterator[bytes]:
    """Yield the last starts of the file that *path* was rotated to last, unless compressed."""
    newest = max(
        (
            entry
            for entry in path.parent.iterdir()
            if entry.name.startswith((f"{path.name}.", f"{path.name}-"))
            and not entry.name.endswith(_COMPRESSED)
            and entry.is_file()
        ),
        key=lambda entry: entry.stat().st_mtime,
        default=None,
    )
    if newest is None:
        return
    descriptor = _open(newest)
    try:
        size = os.fstat(descriptor).st_size
        yield from _stretches(descriptor, _starts(descriptor, size), size)
    finally:
        os.close(descriptor)


# --- where the last starts are ----------------------------------------------------------------


def _stretches(descriptor: int, starts: Sequence[int], size: int) -> Iterator[bytes]:
    """Yield what follows each of *starts*, and the end; an empty piece before each stretch.

    Between its start and its end a log under load says little, and may be long.
    """
    wanted = [(begin, min(size, begin + _START_BYTES)) for begin in starts]
    wanted.append((_line_start(descriptor, max(0, size - _END_BYTES)), size))
    reached = 0
    for begin, end in sorted(wanted):
        if begin > reached or not reached:
            yield b""
        yield from _pieces(descriptor, max(begin, reached), end)
        reached = max(reached, end)


def _starts(descriptor: int, size: int) -> list[int]:
    """Return where the last starts begin: two with an engine, and one that has none yet."""
    lowest = max(0, size - _LOOK_BACK_BYTES)
    engines = _last_places(descriptor, (_ENGINE,), lowest, size, wanted=_STARTS_WANTED)
    latest = engines[0] if engines else lowest
    fronts = _last_places(descriptor, _FRONTS, latest, size, wanted=1)
    floors = (*engines[1:], lowest, latest) if engines else (lowest,)
    return [
        _opening(descriptor, place, floor)
        for place, floor in zip((*engines, *fronts), floors, strict=False)
    ]


def _last_places(
    descriptor: int, needles: Sequence[bytes], begin: int, end: int, *, wanted: int
) -> list[int]:
    """Return the last places of *needles* between *begin* and *end*, latest first."""
    found: list[int] = []
    while end > begin and len(found) < wanted:
        low = max(begin, end - _CHUNK_BYTES)
        # A needle that begins in this chunk may reach into the next.
        data = os.pread(descriptor, end - low + _LONGEST_NEEDLE_BYTES, low)
        places = {
            low + match.start()
            for needle in needles
            for match in re.finditer(re.escape(needle), data)
            if low + match.start() < end
        }
        found += sorted(places, reverse=True)[: wanted - len(found)]
        end = low
    return found


def _opening(descriptor: int, place: int, floor: int) -> int:
    """Return where the line begins with which the start around *place* begins, above *floor*."""
    low = max(floor, place - _LEAD_IN_BYTES)
    data = os.pread(descriptor, place - low, low)
    ahead = [at for needle in _FRONTS if (at := data.find(needle)) >= 0]
    return _line_start(descriptor, low + min(ahead) if ahead else place)


def _line_start(descriptor: int, place: int) -> int:
    low = max(0, place - _LEAD_IN_BYTES)
    return low + os.pread(descriptor, place - low, low).rfind(b"\n") + 1
