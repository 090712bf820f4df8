"""Keep credentials that are in our own command line out of the list of processes."""

import ctypes
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

_CREDENTIALS: Final = re.compile(rb"(?<=://)[^/@\s\0]+(?=@)")
# Fields of /proc/self/stat after the name in parentheses: where the words begin and end.
_WORDS_BEGIN: Final = 45
_WORDS_END: Final = 46


def hide_credentials() -> None:
    """Write over the credentials of every URL among our words; does nothing but on Linux.

    The interpreter has copied its words by now, so nobody reads them here but the kernel.
    """
    with suppress(OSError, ValueError, IndexError):
        _hide(Path("/proc/self"))


def _hide(own: Path) -> None:
    words = (own / "cmdline").read_bytes()
    found = list(_CREDENTIALS.finditer(words))
    if not found:
        return
    fields = (own / "stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[_WORDS_BEGIN]), int(fields[_WORDS_END])
    # Written only where the very same bytes are: the kernel's word for it is all there is.
    if not begin or end - begin != len(words) or ctypes.string_at(begin, len(words)) != words:
        return
    for match in found:
        ctypes.memset(begin + match.start(), ord("x"), len(match[0]))
