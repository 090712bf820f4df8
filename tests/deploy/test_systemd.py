"""The systemd unit, checked by systemd itself."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.deploy.files import DEPLOY
from tests.parts.needs import require

pytestmark = pytest.mark.parts

UNIT = DEPLOY / "systemd" / "kvheadroom.service"
COMMAND = "/opt/kvheadroom/bin/kvheadroom"


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [require("systemd-analyze"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def installed(folder: Path, text: str) -> Path:
    """The unit in *folder*, its command one that is there."""
    unit = folder / UNIT.name
    assert COMMAND in text
    unit.write_text(text.replace(COMMAND, sys.executable))
    return unit


def test_systemd_has_nothing_to_say(tmp_path: Path) -> None:
    """`systemd-analyze verify` ends well and prints nothing."""
    verified = analyze("verify", installed(tmp_path, UNIT.read_text()))

    assert (verified.returncode, verified.stdout, verified.stderr) == (0, "", "")


def test_a_mistake_is_found(tmp_path: Path) -> None:
    """The check is awake: an unknown key is named, though verify still exits 0."""
    text = UNIT.read_text().replace("RestartSec=", "RestartSeconds=")

    assert "RestartSeconds" in analyze("verify", installed(tmp_path, text)).stderr


def test_its_exposure_is_low() -> None:
    """systemd's own score, 0 safe to 10 not, stays below 2.5 with both capabilities."""
    report = analyze("security", "--offline=true", "--no-pager", UNIT).stdout
    level = re.search(r"Overall exposure level for kvheadroom.service: ([\d.]+)", report)

    assert level is not None, report
    assert float(level[1]) < 2.5


@pytest.mark.parametrize(
    ("key", "hidden"),
    [("PrivateDevices", "the GPUs"), ("ProtectProc", "the servers"), ("PrivateNetwork", "vLLM")],
)
def test_nothing_hides_what_it_watches(key: str, hidden: str) -> None:
    """Sandboxing that would take away GPUs, processes or the servers' sockets is not set."""
    assert not re.search(rf"^{key}=", UNIT.read_text(), re.MULTILINE), hidden
