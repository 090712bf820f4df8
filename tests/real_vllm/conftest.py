"""The real vLLM: made once, served once for all tests of this folder."""

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.real_vllm.server import RealVllm

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def vllm_home() -> Path:
    """A folder with a real vLLM in it; ``KVHEADROOM_REAL_VLLM`` names one already made."""
    default = HERE.parents[1] / ".cache" / "real-vllm"
    home = Path(os.environ.get("KVHEADROOM_REAL_VLLM", default))
    subprocess.run(["bash", str(HERE / "make_vllm.sh"), str(home)], check=True, timeout=1500)
    return home


@pytest.fixture(scope="session")
def vllm(vllm_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealVllm]:
    """A serving vLLM with 200 blocks of 128 tokens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("vllm") / "vllm.log"
    with RealVllm(vllm_home, log, port) as server:
        server.wait_until_ready()
        yield server
