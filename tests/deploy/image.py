"""Build the image and run its containers with buildah: no engine, no registry."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from tests.deploy.files import DEPLOY, REPOSITORY
from tests.parts.needs import give_up, require

# Debian's Python stands in for the image of the same that a registry would give.
SUITE, PYTHON = "bookworm", "3.11"
BASE_PACKAGES = ("base-files", "dash", "coreutils", "libc-bin", "python3", "python3-venv")
BASE, IMAGE = "localhost/kvheadroom-base:test", "localhost/kvheadroom:test"
MERGED_USR = "/usr/share/mmdebstrap/hooks/merged-usr"


class Builder:
    """buildah with a store of its own, which goes when its folder goes.

    Args:
        folder: For images, containers and wheels.
    """

    def __init__(self, folder: Path) -> None:
        if os.geteuid() != 0:
            give_up("building an image takes root")
        self._folder = folder
        # Where containers have their roots while they run.
        roots = folder / "roots"
        roots.mkdir()
        self._buildah = [
            *("env", f"TMPDIR={roots}", require("buildah")),
            *("--root", str(folder / "images"), "--runroot", str(folder / "run")),
            *("--storage-driver", "vfs"),
        ]

    def build(self) -> None:
        """Build deploy/docker/Dockerfile on a base made here, from wheels fetched here."""
        self._make_base()
        wheels = self._fetch_wheels()
        arguments = {
            "BASE": BASE,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": "/wheels",
            "REVISION": "0123abc",
        }
        self(
            *("bud", "--quiet", "--pull-never", "--format", "docker", "--isolation", "chroot"),
            *(f"--build-arg={name}={value}" for name, value in arguments.items()),
            *("--volume", f"{wheels}:/wheels:ro", "--tag", IMAGE),
            *("--file", str(DEPLOY / "docker" / "Dockerfile"), str(REPOSITORY)),
            seconds=300,
        )

    def image_config(self) -> dict[str, Any]:
        """What the image says of itself to who runs it."""
        return dict(json.loads(self("inspect", "--type", "image", IMAGE))["Docker"]["config"])

    def new_container(self) -> str:
        """Return the name of a fresh container of the image."""
        return self("from", "--pull-never", IMAGE)

    def run_command(self, container: str, *options: str) -> list[str]:
        """Return what runs a program, to be added, in a container."""
        return [*self._buildah, "run", "--isolation", "chroot", *options, container, "--"]

    def in_container(self, container: str, *command: str) -> str:
        """Return what a program in the container prints."""
        whole = self.run_command(container) + list(command)
        return subprocess.run(
            whole, check=True, capture_output=True, text=True, timeout=60
        ).stdout.strip()

    def __call__(self, *arguments: str, seconds: float = 120) -> str:
        command = [*self._buildah, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def close(self) -> None:
        """End what still runs in a container of ours, and remove everything."""
        for process in Path("/proc").glob("[0-9]*"):
            try:
                root = (process / "root").readlink()
            except OSError:
                continue
            if root.is_relative_to(self._folder):
                os.kill(int(process.name), signal.SIGKILL)
        # pytest keeps the folders of three runs, and this one holds several copies of a system.
        shutil.rmtree(self._folder)

    def _make_base(self) -> None:
        tar = self._folder / "base.tar"
        packages = f"--include={','.join(BASE_PACKAGES)}"
        # Unpacked and not set up: a Python and a shell need no more, and it takes a third.
        options = ["--variant=extract", f"--hook-dir={MERGED_USR}", packages]
        command = [require("mmdebstrap"), "--quiet", *options, SUITE, str(tar)]
        subprocess.run(command, check=True, timeout=240)
        empty = self("from", "scratch")
        self("add", "--quiet", empty, str(tar), "/")
        self("commit", "--quiet", "--rm", empty, BASE)
        tar.unlink()

    def _fetch_wheels(self) -> Path:
        wheels = self._folder / "wheels"
        project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
        wanted = [
            *project["project"]["dependencies"],
            *project["project"]["optional-dependencies"]["web-auth"],
            *project["build-system"]["requires"],
            "pip",
        ]
        constraints = str(REPOSITORY / "constraints.txt")
        command = [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"),
            *("--python-version", PYTHON, "--dest", str(wheels), "-c", constraints, *wanted),
        ]
        subprocess.run(command, check=True, timeout=180)
        return wheels
