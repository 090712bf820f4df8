"""What a test needs beside Python, and what happens where it is not there."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest


def give_up(reason: str) -> NoReturn:
    """Skip the test for want of a part, or fail it where every part is promised to be there."""
    if os.environ.get("KVHEADROOM_REQUIRE_PARTS") == "1":
        pytest.fail(f"KVHEADROOM_REQUIRE_PARTS=1, but {reason}")
    pytest.skip(reason)


def require(program: str) -> str:
    """Return the path of a program, or give the test up."""
    path = shutil.which(program)
    if path is None:
        give_up(f"{program} is not installed")
    return path


def fetch_debian(folder: Path, suite: str, component: str, package: str) -> None:
    """Unpack a Debian package into *folder*, or give the test up."""
    for program in ("apt-get", "dpkg-deb"):
        require(program)
    script = Path(__file__).with_name("fetch_debian.sh")
    command = ["timeout", "120", "sh", str(script), str(folder), suite, component, package]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        give_up(f"{package} cannot be fetched from Debian's {suite} {component}")
