"""Watch lists of servers that others keep: files, HTTP service discovery, Kubernetes."""

import logging
from collections.abc import Sequence
from typing import Protocol

from kvheadroom.node.target_lists import ListedServer

_log = logging.getLogger(__name__)


class TargetList(Protocol):
    """One list of servers."""

    def servers(self) -> tuple[ListedServer, ...]:
        """Return what is on it now, or was at last when it cannot be read."""
        ...


class TargetWatch:
    """All lists, read one after the other.

    Attributes:
        listed: Every server on any of them, each once, the first list it is on.
    """

    def __init__(self, lists: Sequence[TargetList]) -> None:
        self._lists = tuple(lists)
        self.listed: tuple[ListedServer, ...] = ()

    def poll(self) -> None:
        """Read every list; never raises."""
        listed: dict[str, ListedServer] = {}
        for one in self._lists:
            try:
                for server in one.servers():
                    listed.setdefault(server.address, server)
            except Exception as error:  # noqa: BLE001  (one list's fault must not end the others)
                _log.debug("traceback of the failed read", exc_info=True)
                fields = {"error": type(error).__name__}
                _log.warning("internal error while reading a target list", extra={"fields": fields})
                return
        self.listed = tuple(listed.values())

    def close(self) -> None:
        """Close the lists that hold a connection."""
        for one in self._lists:
            close = getattr(one, "close", None)
            if close is not None:
                close()
