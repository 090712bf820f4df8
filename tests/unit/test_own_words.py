"""Our own command line in the list of processes."""

import ast
import subprocess
import sys

PROGRAM = """
import sys
from pathlib import Path
from kvheadroom.own_words import hide_credentials
given = list(sys.argv)
hide_credentials()
print(Path("/proc/self/cmdline").read_bytes())
print(sys.argv == given)
"""


def shown(*words: str) -> tuple[bytes, bool]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        capture_output=True, text=True, timeout=20, check=True,
    )  # fmt: skip
    words_shown, is_kept = done.stdout.splitlines()
    listed: bytes = ast.literal_eval(words_shown)
    return listed, is_kept == "True"


def test_credentials_of_urls_are_written_over() -> None:
    """Each as long as it was, the rest as it was; the program itself still has them."""
    listed, is_kept = shown("--engine", "http://me:hunter2@h:8000", "--x=https://tok@h/p")

    assert listed.split(b"\0")[-4:] == [
        b"--engine",
        b"http://" + b"x" * len("me:hunter2") + b"@h:8000",
        b"--x=https://xxx@h/p",
        b"",
    ]
    assert is_kept


def test_other_words_stay() -> None:
    """Nothing is written where there is nothing to hide."""
    listed, _ = shown("--engine", "http://h:8000", "a@b")

    assert listed.split(b"\0")[-4:] == [b"--engine", b"http://h:8000", b"a@b", b""]
