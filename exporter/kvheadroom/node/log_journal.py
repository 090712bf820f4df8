"""Follow the log of a systemd unit through journalctl, without ever waiting for it."""

import contextlib
import fcntl
import os
import re
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from typing import Final

from kvheadroom.errors import ConfigError
from kvheadroom.units import MIB

# A start prints a few hundred lines; under load a server prints six a minute and its requests.
_LOOK_BACK_LINES: Final = 50_000
_OPTIONS: Final = (
    "--output=cat",
    "--follow",
    "--no-pager",
    "--quiet",
    "--all",
)
_PIPE_BYTES: Final = MIB
_PAUSE_SECONDS: Final = 0.05
_LONGEST_READ_SECONDS: Final = 2.0
# A journalctl that ends at once is not started again at every poll.
_RESTART_SECONDS: Final = 30.0
_UNIT: Final = re.compile(r"[A-Za-z0-9_@.:\\][A-Za-z0-9_@.:\\-]{0,254}", re.ASCII)


class JournalUnit:
    """The lines of one unit, from the last ones that are there on.

    Attributes:
        unit: For example ``vllm.service``.
        problem: Why nothing can be read now, one line; ``None`` while it can.

    Raises:
        ConfigError: *unit* is no name of a unit.
    """

    def __init__(self, unit: str) -> None:
        if not _UNIT.fullmatch(unit):
            raise ConfigError(f"not the name of a systemd unit: {unit!r}")
        self.unit = unit
        self.problem: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._started_monotonic_seconds = -_RESTART_SECONDS
        self._read_unix_seconds: int | None = None

    def read(self, most_bytes: int) -> Iterator[bytes]:
        """Yield what was printed since the last call, at most about *most_bytes* of it.

        An empty piece says that what follows does not continue a line.
        """
        process = self._process
        if process is None:
            process = self._process = self._started()
            if process is None:
                return
            yield b""
        self._read_unix_seconds = int(time.time())
        yield from _available(process, most_bytes)
        code = process.poll()
        if code is not None:
            self.close()
            self.problem = f"journalctl of {self.unit} ended with code {code}"

    def close(self) -> None:
        """End journalctl; reading again starts it anew."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def _started(self) -> subprocess.Popen[bytes] | None:
        now = time.monotonic()
        if now - self._started_monotonic_seconds < _RESTART_SECONDS:
            return None
        self._started_monotonic_seconds = now
        program = shutil.which("journalctl")
        if program is None:
            self.problem = f"the journal of {self.unit} cannot be read: no journalctl here"
            return None
        try:
            # Every argument is ours but the unit, which cannot be taken for an option.
            process = subprocess.Popen(  # noqa: S603
                [program, f"--unit={self.unit}", self._from(), *_OPTIONS],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
            )
        except OSError as error:
            self.problem = f"{program}: {error.strerror or type(error).__name__}"
            return None
        _prepare(process)
        self.problem = None
        return process

    def _from(self) -> str:
        # A second journalctl goes on where the first one was read last.
        since = self._read_unix_seconds
        return f"--lines={_LOOK_BACK_LINES}" if since is None else f"--since=@{since}"


def _prepare(process: subprocess.Popen[bytes]) -> None:
    if process.stdout is None:
        return
    os.set_blocking(process.stdout.fileno(), False)
    # A small pipe would take many polls to bring the first lines; a limit may forbid a large one.
    with contextlib.suppress(OSError):
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def _available(process: subprocess.Popen[bytes], most_bytes: int) -> Iterator[bytes]:
    """Yield what comes without a longer pause, for no longer than a poll may take."""
    if process.stdout is None:
        return
    until = time.monotonic() + _LONGEST_READ_SECONDS
    while most_bytes > 0 and time.monotonic() < until:
        ready, _, _ = select.select([process.stdout], [], [], _PAUSE_SECONDS)
        data = process.stdout.read(_PIPE_BYTES) if ready else None
        if not data:
            return
        most_bytes -= len(data)
        yield data
