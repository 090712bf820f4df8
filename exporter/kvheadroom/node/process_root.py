"""Find files as a process sees them, which may live in a container of its own."""

import os
import stat
from collections import deque
from pathlib import Path
from typing import Final

from kvheadroom.errors import ConfigError
from kvheadroom.node.proc_files import read_proc_link

# As many as the kernel follows itself.
_MOST_LINKS: Final = 40


class ProcessRoot:
    """The file system of one process, entered through ``/proc/PID/root``.

    Links are followed here and not by the kernel, for which an absolute link inside a container
    would point out of it.

    Args:
        proc: Where ``/proc`` is.
        pid: The process.
        working_directory: Where its relative paths begin; ``None`` if unknown.
        is_contained: It is in a container; its paths are then never looked for among ours.
    """

    def __init__(
        self, proc: str, pid: int, working_directory: str | None, *, is_contained: bool
    ) -> None:
        process = f"{proc}/{pid}"
        is_ours = not is_contained and _shares_our_root(proc, process)
        self._root: Final = "" if is_ours else f"{process}/root"
        self._working_directory: Final = working_directory

    def find(self, path: str) -> Path | None:
        """Return where the process's *path* is for us; ``None`` if it is not there or not ours.

        Args:
            path: As the process would write it, relative ones included.
        """
        start = path if path.startswith("/") else self._absolute(path)
        if start is None or "\0" in path:
            return None
        real = self._resolved(start)
        if real is None:
            return None
        found = Path(f"{self._root}/{real}")
        try:
            return found if found.exists() else None
        except OSError:
            return None

    def find_file(self, path: str, most_bytes: int) -> Path:
        """Return where the process's file *path* is for us.

        Raises:
            ConfigError: It is not there, not ours to read, no regular file or too large.
        """
        found = self.find(path)
        try:
            status = found.stat() if found is not None else None
        except OSError:
            status = None
        if found is None or status is None:
            raise ConfigError(f"{path}: no such file, as the process sees it, or not ours to read")
        if not stat.S_ISREG(status.st_mode) or status.st_size > most_bytes:
            raise ConfigError(f"{path}: not a regular file of at most {most_bytes} bytes")
        return found

    def _absolute(self, path: str) -> str | None:
        directory = self._working_directory
        return None if directory is None else f"{directory}/{path}"

    def _resolved(self, path: str) -> str | None:
        """Return *path* without links and dots, relative to the root."""
        ahead, behind, links = deque(path.split("/")), list[str](), 0
        while ahead:
            step = ahead.popleft()
            if step in ("", "."):
                continue
            if step == "..":
                # Above the root is the root.
                behind = behind[:-1]
                continue
            target = read_proc_link(os.path.join(self._root, *behind, step))  # noqa: PTH118
            if target is None:
                behind.append(step)
                continue
            links += 1
            if links > _MOST_LINKS:
                return None
            behind = [] if target.startswith("/") else behind
            ahead.extendleft(reversed(target.split("/")))
        return "/".join(behind)


def _shares_our_root(proc: str, process: str) -> bool:
    """Tell whether the paths of a *process* outside any container are ours."""
    ours, theirs = read_proc_link("/proc/self/ns/mnt"), read_proc_link(f"{process}/ns/mnt")
    try:
        root = str(Path(f"{process}/root").readlink())
    except FileNotFoundError:
        return True
    except OSError:
        # Another user's process on this machine; through a foreign /proc it may be anywhere.
        return proc == "/proc"
    return root == "/" and ours is not None and ours == theirs
