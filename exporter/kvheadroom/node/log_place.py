"""Find where a running server's log goes: its own output, its container's log, its unit."""

import os
import re
import shutil
import stat
from pathlib import Path
from typing import Final

_OUTPUTS: Final = (2, 1)
_CONTAINER_ID: Final = re.compile(r"[0-9a-f]{12,64}", re.ASCII)
_DOCKER: Final = "var/lib/docker/containers"
_KUBERNETES: Final = "var/log/containers"
_ENDING: Final = ".service"


def find_log(
    pid: int,
    *,
    container_id: str | None = None,
    unit: str | None = None,
    proc: Path = Path("/proc"),
    host: Path = Path("/"),
) -> str | None:
    """Return the place of a server's log as :func:`~kvheadroom.node.log_follow.open_log` takes it.

    Args:
        pid: The server's first process.
        container_id: Of the container it runs in.
        unit: The systemd service it runs in.
        proc: The process file system that knows *pid*.
        host: Where the host's files are.

    Returns:
        A file that its output goes to, else its container's log, else its unit's journal; ``None``
        where none of them can be read here.
    """
    return (
        _output(pid, proc)
        or (_container_log(container_id, host) if container_id else None)
        or (_journal(unit) if unit else None)
    )


def _output(pid: int, proc: Path) -> str | None:
    for descriptor in _OUTPUTS:
        link = proc / str(pid) / "fd" / str(descriptor)
        try:
            target, held = str(link.readlink()), link.stat()
        except OSError:
            continue
        if not stat.S_ISREG(held.st_mode) or not target.startswith("/"):
            continue
        # The same name may be another file where the process has a root of its own.
        for place in (Path(target), proc / str(pid) / "root" / target.lstrip("/")):
            if _is_readable(place, held):
                return str(place)
    return None


def _is_readable(place: Path, held: os.stat_result) -> bool:
    try:
        found = place.stat()
    except (OSError, ValueError):
        return False
    same = (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino)
    return same and os.access(place, os.R_OK)


def _container_log(container_id: str, host: Path) -> str | None:
    if not _CONTAINER_ID.fullmatch(container_id):
        return None
    docker = host / _DOCKER
    # Both name their logs after the container: docker in full, kubelet at the end of a link's name.
    candidates = (
        *docker.glob(f"{container_id}*/{container_id}*-json.log"),
        *(host / _KUBERNETES).glob(f"*-{container_id}*.log"),
    )
    readable = (place for place in candidates if os.access(place, os.R_OK))
    return next((str(place) for place in readable), None)


def _journal(unit: str) -> str | None:
    is_service = unit.endswith(_ENDING)
    return f"journald:{unit}" if is_service and shutil.which("journalctl") else None
