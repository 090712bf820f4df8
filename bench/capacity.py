"""What 10,000 questions to ``capacity --batch`` cost, and importing the package."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.unit.oracle import cases

from bench.figures import Figure
from kvheadroom.plan.batch import answer_lines

FOLDER = Path(__file__).parent.parent / "tests" / "evidence" / "oracle"
LINES = 10_000
# What the package uses of it.
_LIBRARIES = "import dataclasses, functools, importlib, json, re, shlex, typing"


def figures() -> Iterator[Figure]:
    """Yield both; no two questions have the same memory."""
    recorded = cases()
    lines = [_question(recorded[i % len(recorded)], i) for i in range(LINES)]
    started = time.process_time()
    for _ in answer_lines(lines, folders=(FOLDER,)):
        pass
    spent = time.process_time() - started
    yield Figure("CPU of 10,000 capacity lines over the recorded models", spent, "s", at_most=3)
    yield from _imports()


def _imports() -> Iterator[Figure]:
    """Yield what importing costs beyond an interpreter that does nothing, bytecode compiled."""
    with tempfile.TemporaryDirectory() as bytecode:
        bare, package, names, libraries = (
            _median_seconds(code, bytecode)
            for code in ("pass", "import kvheadroom", "from kvheadroom import *", _LIBRARIES)
        )
    yield Figure("import kvheadroom, beyond pass", (package - bare) * 1e3, "ms", at_most=30)
    yield Figure("from kvheadroom import *, all that it offers", (names - bare) * 1e3, "ms")
    yield Figure("  of which the standard library", (libraries - bare) * 1e3, "ms")


def _question(case: Mapping[str, Any], number: int) -> str:
    return json.dumps(
        {
            "id": number,
            "path": f"configs/{case['model']}.json",
            "args": case["flags"],
            "available_bytes": case["avail_bytes"] + number,
            "vllm_version": case["vllm_version"],
            "gpu": {
                "total_bytes": case["gpu_total_bytes"],
                "compute_capability": case["capability"],
            },
        }
    )


def _median_seconds(code: str, bytecode: str) -> float:
    # An installed package comes with its bytecode; a checkout need not.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    _seconds(code, environment)
    return statistics.median(_seconds(code, environment) for _ in range(15))


def _seconds(code: str, environment: Mapping[str, str]) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    return time.perf_counter() - started
