"""What each capability that deploy/ asks for is good for, on real processes of another user."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy.files import DEPLOY, REPOSITORY, document
from tests.parts.needs import give_up
from tests.unit.real_tree import RealServer

pytestmark = pytest.mark.parts

# include/uapi/linux/capability.h
NUMBERS = {"DAC_READ_SEARCH": 2, "SYS_PTRACE": 19}

# Everything is imported first: nobody may not be let into the folder this Python is in.
LOOK = """
import ctypes, json, os, sys
from tests.unit.real_tree import real_discovery
discovery = real_discovery()
libc = ctypes.CDLL(None)
KEEP_CAPABILITIES, DUMPABLE, VERSION_3 = 8, 4, 0x20080522
mask = sum(1 << int(number) for number in sys.argv[2:])
libc.prctl(KEEP_CAPABILITIES, 1)
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
header, sets = (ctypes.c_uint32 * 2)(VERSION_3, 0), (ctypes.c_uint32 * 6)(mask, mask)
assert libc.capset(header, sets) == 0
libc.prctl(DUMPABLE, 1)
found = next(one for one in discovery.look(()).servers.values() if one.pid == int(sys.argv[1]))
print(json.dumps({
    "url": found.address.url,
    "listens": found.address.is_listening,
    "variables": found.environment and dict(found.environment),
    "folder": found.working_directory,
    "max_num_seqs": found.command and found.command.options.get("max-num-seqs"),
}))
"""


def look_as_nobody(server: RealServer, *capabilities: str) -> dict[str, Any]:
    """What discovery tells of *server* to a user of its own with *capabilities*."""
    numbers = [str(NUMBERS[name]) for name in capabilities]
    command = [sys.executable, "-c", LOOK, str(server.pid), *numbers]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=30, cwd=REPOSITORY, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.fixture
def server(tmp_path: Path) -> Any:  # noqa: ANN401
    """A server of root's, told in a file of a folder that is root's alone."""
    if os.geteuid() != 0:
        give_up("only root can become somebody else")
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    (private / "serve.yaml").write_text("max-num-seqs: 9\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    flags = ("--host", "127.0.0.1", "--port", port, "--config", str(private / "serve.yaml"))
    with RealServer(tmp_path, *flags, environment={"CUDA_VISIBLE_DEVICES": "3"}) as running:
        yield running


def test_both_capabilities_show_all_of_a_server(server: RealServer) -> None:
    """Its address, environment, folder, and the file that it was told in."""
    seen = look_as_nobody(server, "SYS_PTRACE", "DAC_READ_SEARCH")

    assert seen["url"].startswith("http://127.0.0.1:")
    assert seen["listens"]
    assert seen["variables"]["CUDA_VISIBLE_DEVICES"] == "3"
    assert seen["folder"] is not None
    assert seen["max_num_seqs"] == 9


@pytest.mark.parametrize(
    ("capabilities", "shown"),
    [((), set()), (("SYS_PTRACE",), {"folder"}), (("DAC_READ_SEARCH",), {"max_num_seqs"})],
)
def test_with_less_a_server_is_found_but_less_is_known(
    server: RealServer, capabilities: tuple[str, ...], shown: set[str]
) -> None:
    """The command line is everybody's; the environment takes both, so that neither is too many."""
    seen = look_as_nobody(server, *capabilities)

    assert seen["url"].startswith("http://127.0.0.1:")
    assert seen["listens"]
    assert {name for name in ("variables", "folder", "max_num_seqs") if seen[name]} == shown


def test_every_way_to_run_it_asks_for_these_two() -> None:
    """systemd, compose and the Kubernetes component that looks into processes agree."""
    unit = (DEPLOY / "systemd" / "kvheadroom.service").read_text()
    (patch,) = document("kubernetes/processes/kustomization.yaml")["patches"]
    pod = yaml.safe_load(patch["patch"])["spec"]["template"]["spec"]
    asked = {
        "systemd": re.findall(r"^AmbientCapabilities=(.*)$", unit, re.MULTILINE)[0]
        .replace("CAP_", "")
        .split(),
        "systemd, at most": re.findall(r"^CapabilityBoundingSet=(.*)$", unit, re.MULTILINE)[0]
        .replace("CAP_", "")
        .split(),
        "compose": document("compose/compose.yaml")["services"]["real"]["cap_add"],
        "kubernetes": pod["containers"][0]["securityContext"]["capabilities"]["add"],
    }

    assert {way: sorted(names) for way, names in asked.items()} == dict.fromkeys(
        asked, sorted(NUMBERS)
    )
