"""Tell the name of a pod from the folder in which the kubelet keeps its logs."""

import os
import re
from typing import Final

# NAMESPACE_POD_UID; neither of the first two may hold an underscore.
_FOLDER: Final = re.compile(r"([^_]+)_([^_]+)_([0-9a-f-]{32,36})")


class PodNames:
    """The pods of this node by uid, read again when one is new.

    Args:
        folder: ``/var/log/pods`` or where it is mounted; ``None`` knows no names.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder: Final = folder
        self._names: dict[str, tuple[str, str]] = {}

    def find(self, uid: str) -> tuple[str, str] | None:
        """Return namespace and name of the pod *uid*; ``None`` if the folder does not tell."""
        if uid not in self._names and self._folder is not None:
            self._names = _read_names(self._folder)
        return self._names.get(uid)


def _read_names(folder: str) -> dict[str, tuple[str, str]]:
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except OSError:
        return {}
    matches = (_FOLDER.fullmatch(name) for name in names)
    return {match[3]: (match[1], match[2]) for match in matches if match}
