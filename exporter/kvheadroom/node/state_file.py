"""A small text file that outlives us: written whole or not at all."""

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Final

from kvheadroom.units import MIB

_MOST_BYTES: Final = 4 * MIB


def read_state(path: Path) -> str:
    """Return what was written last; empty where there is nothing to read.

    Raises:
        OSError: The file is there and cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def write_state(path: Path, text: str) -> None:
    """Put *text* where *path* was; a reader sees the old text or the new.

    Raises:
        OSError: The folder is missing, full or not ours to write to.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode())
            file.flush()
            # Without it a crash of the machine may leave the new name with nothing in it.
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
