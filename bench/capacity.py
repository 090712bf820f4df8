"""What 10,000 questions to ``capacity --batch`` cost, and importing the package."""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.unit.oracle import cases

from bench.figures import Figure
from kvheadroom.plan.batch import answer_lines

FOLDER = Path(__file__).parent.parent / "tests" / "evidence" / "oracle"
LINES = 10_000


def figures() -> Iterator[Figure]:
    """Yield both; no two questions have the same memory."""
    recorded = cases()
    lines = [_question(recorded[i % len(recorded)], i) for i in range(LINES)]
    started = time.process_time()
    for _ in answer_lines(lines, folders=(FOLDER,)):
        pass
    spent = time.process_time() - started
    yield Figure("CPU of 10,000 capacity lines over the recorded models", spent, "s", at_most=3)
    bare, imported = (
        statistics.median(_seconds(code) for _ in range(9))
        for code in ("pass", "import kvheadroom")
    )
    yield Figure("import kvheadroom, beyond pass", (imported - bare) * 1e3, "ms", at_most=30)


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


def _seconds(code: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - started
