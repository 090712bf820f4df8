"""Remember every engine's last budgets, over our own restarts where a file is given."""

import logging
import threading
from pathlib import Path
from typing import Final

from kvheadroom.live.boot_change import (
    BootCapacity,
    BootPast,
    dump_boots,
    load_boots,
    observe_boot,
    recall_boot,
)
from kvheadroom.node.state_file import read_state, write_state

_log = logging.getLogger(__name__)

_MOST_ENGINES: Final = 1_024


class BootBook:
    """The last two budgets of every engine; may be used by several threads.

    Args:
        path: Where to keep them; ``None`` forgets them when we end. A file that cannot be read or
            written costs the comparison over our own restart, and nothing else.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._pasts: dict[str, BootPast] = self._loaded()
        self._is_writable = True

    def observe(
        self,
        engine: str,
        seen: BootCapacity | None,
        *,
        restarts: int,
        earlier: BootCapacity | None = None,
    ) -> BootPast:
        """Return the engine's budgets with one more look at it.

        Args:
            engine: Its id.
            seen: The budget as it shows now; ``None`` while the engine tells nothing.
            restarts: Restarts of the engine seen so far.
            earlier: What a log says of the start before this one.
        """
        with self._lock:
            before = self._pasts.pop(engine, BootPast())
            after = before if earlier is None else recall_boot(before, earlier)
            after = observe_boot(after, seen, restarts=restarts)
            # Who was seen last stands last, and who was not seen for longest is forgotten first.
            self._pasts[engine] = after
            if len(self._pasts) > _MOST_ENGINES:
                del self._pasts[next(iter(self._pasts))]
            if (after.previous, after.current) != (before.previous, before.current):
                self._save()
        return after

    def _loaded(self) -> dict[str, BootPast]:
        if self._path is None:
            return {}
        try:
            return load_boots(read_state(self._path))
        except OSError as error:
            self._warn("the budgets of earlier starts cannot be read", error)
            return {}

    def _save(self) -> None:
        if self._path is None:
            return
        try:
            write_state(self._path, dump_boots(self._pasts))
        except OSError as error:
            if self._is_writable:
                self._warn("the budgets of this start cannot be kept", error)
            self._is_writable = False
        else:
            self._is_writable = True

    def _warn(self, message: str, error: OSError) -> None:
        detail = f"{self._path}: {error.strerror or type(error).__name__}"
        _log.warning(message, extra={"fields": {"detail": detail}})
