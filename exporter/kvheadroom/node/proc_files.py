"""Read the small files of /proc, which may vanish, be forbidden or hold anything."""

import os
from typing import Final

_PIECE_BYTES: Final = 64 * 1024


def read_proc_file(path: str, most_bytes: int = _PIECE_BYTES) -> bytes | None:
    """Return the start of the file at *path*, at most *most_bytes*; ``None`` if it cannot be read.

    A process may end, or not be ours to look at, between any two reads: that is no error.
    """
    try:
        # Should something that is no file stand there, opening it must not wait.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    try:
        content = os.read(descriptor, most_bytes)
        # The kernel hands out long files by the page.
        while content and len(content) < most_bytes:
            piece = os.read(descriptor, most_bytes - len(content))
            if not piece:
                break
            content += piece
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return content


def read_proc_text(path: str, most_bytes: int = _PIECE_BYTES) -> str:
    """Return the start of the file at *path* as text; empty if it cannot be read."""
    content = read_proc_file(path, most_bytes)
    return "" if content is None else content.decode(errors="replace")


def read_proc_link(path: str) -> str | None:
    """Return what the link at *path* points to; ``None`` if it cannot be read."""
    try:
        return os.readlink(path)  # noqa: PTH115  (a Path would cost more than the call)
    except (OSError, ValueError):
        return None
