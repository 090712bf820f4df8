"""Builds of Prometheus and Alertmanager to test against: the machine's own, Debian's newer."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from tests.parts.needs import fetch_debian, give_up

_CACHE: Final = Path(__file__).parents[2] / ".cache"
# From 2.53 on Debian ships promtool apart.
_PACKAGES: Final = {
    "prometheus": "prometheus",
    "promtool": "promtool",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "amtool": "prometheus-alertmanager",
}

Find = Callable[[str], Path]
"""Name of a program to where it is; gives the test up where it cannot be had."""


def installed(program: str) -> Path:
    """Return the machine's own: Prometheus 2.42 and Alertmanager 0.25 on Debian 12."""
    path = shutil.which(program)
    if path is None:
        give_up(f"{program} is not installed")
    return Path(path)


def trixie(program: str) -> Path:
    """Return Debian 13's: Prometheus 2.53 and Alertmanager 0.28."""
    return _unpacked("trixie", program)


def forky(program: str) -> Path:
    """Return Debian testing's: Prometheus 3. It moves, so a test is skipped where it is gone."""
    try:
        return _unpacked("forky", program)
    except pytest.fail.Exception as failed:
        pytest.skip(str(failed))


def _unpacked(suite: str, program: str) -> Path:
    package = _PACKAGES[program]
    folder = _CACHE / f"{package}-{suite}"
    binary = folder / "usr" / "bin" / program
    if not binary.exists():
        fetch_debian(folder, suite, "main", package)
    return binary


BUILDS: Final = [
    pytest.param(installed, id="installed"),
    pytest.param(trixie, id="trixie"),
    pytest.param(forky, id="forky"),
]
