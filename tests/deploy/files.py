"""What is in deploy/, as its readers would read it."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from tests.parts.needs import fetch_debian

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "deploy"
CACHE = REPOSITORY / ".cache"


def documents(text: str) -> list[Any]:
    """Every YAML document in *text*."""
    return [document for document in yaml.safe_load_all(text) if document is not None]


def document(path: str) -> Any:  # noqa: ANN401
    """The one YAML document in the file *path* of deploy/."""
    (only,) = documents((DEPLOY / path).read_text())
    return only


def debian_program(name: str, package: str) -> str:
    """A program that is installed, or unpacked once from a newer Debian's *package*."""
    installed = shutil.which(name)
    if installed is not None:
        return installed
    folder = CACHE / package
    if not any(folder.rglob(f"bin/{name}")):
        fetch_debian(folder, "trixie", "main", package)
    return str(next(folder.rglob(f"bin/{name}")))


def kvheadroom(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What the command says and how it ends."""
    return subprocess.run(
        [sys.executable, "-m", "kvheadroom", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
