"""The real vLLM, made once, and the tiny models it serves, each made when first asked for."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.real_vllm.server import BLOCKS, MAX_MODEL_LEN, RealVllm

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def vllm_home() -> Path:
    """A folder with a real vLLM in it; ``KVHEADROOM_REAL_VLLM`` names one already made."""
    default = HERE.parents[1] / ".cache" / "real-vllm"
    home = Path(os.environ.get("KVHEADROOM_REAL_VLLM", default))
    subprocess.run(["bash", str(HERE / "make_vllm.sh"), str(home)], check=True, timeout=1500)
    return home


@pytest.fixture(scope="session")
def tiny_model(vllm_home: Path) -> Callable[[str], Path]:
    """The folder of the tiny model of a kind."""

    def made(kind: str) -> Path:
        finished = vllm_home / "models" / kind
        if not finished.exists():
            begun = finished.with_suffix(".part")
            shutil.rmtree(begun, ignore_errors=True)
            python, script = vllm_home / "venv/bin/python", HERE / "make_model.py"
            subprocess.run(
                [python, script, kind, begun],
                check=True,
                timeout=120,
                env={**os.environ, "HF_HUB_OFFLINE": "1"},
            )
            begun.rename(finished)
        return finished

    return made


@pytest.fixture(scope="session")
def vllm(
    vllm_home: Path, tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealVllm]:
    """A serving vLLM with 200 blocks of 128 tokens."""
    log = tmp_path_factory.mktemp("vllm") / "vllm.log"
    with RealVllm(
        vllm_home, tiny_model("llama"), log, "--max-model-len", str(MAX_MODEL_LEN),
        "--max-num-seqs", "64", "--num-gpu-blocks-override", str(BLOCKS),
        environment={"VLLM_CPU_KVCACHE_SPACE": "1"},
    ) as server:  # fmt: skip
        server.wait_until_ready()
        yield server
