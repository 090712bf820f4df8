"""Say which options of a command are not known, and what they may have been meant to be."""

import difflib
from functools import lru_cache
from typing import Final

from kvheadroom.engine.flags import STRAY_WORD, ServeCommand
from kvheadroom.engine.option_names import ALIASES, OPTIONS

_MOST_CHARACTERS: Final = 60


def unknown_option_warnings(command: ServeCommand) -> tuple[str, ...]:
    """Return one line for each option of *command* that was passed over.

    A newer vLLM may know them, so they are no error; a typing mistake must not stay unseen.
    """
    names = dict.fromkeys(name for name in command.unknown if name != STRAY_WORD)
    stray = command.unknown.count(STRAY_WORD)
    words = "a word" if stray == 1 else f"{stray} words"
    left_over = (f"{words} passed over: no option takes it",) if stray else ()
    return (*(_warning(name[:_MOST_CHARACTERS]) for name in names), *left_over)


@lru_cache(maxsize=1024)
def _warning(written: str) -> str:
    name = written.lstrip("-").partition(".")[0].replace("_", "-").lower()
    nearest = difflib.get_close_matches(name, _SPELLINGS, n=1, cutoff=0.7)
    hint = f"; did you mean --{nearest[0]}?" if nearest else ""
    return f"unknown option {written}{hint}"


def _spellings() -> tuple[str, ...]:
    off = (f"no-{name}" for name, kind in OPTIONS.items() if kind == "switch")
    return (*OPTIONS, *ALIASES, *off)


_SPELLINGS: Final = _spellings()
