"""Read NVML when told to, in a process of its own: pynvml keeps one library per process.

Usage: nvml_reader.py DEADLINE_SECONDS; each line on standard input is a command, each line on
standard output its answer as JSON.
"""

import json
import sys
import threading
import time
from dataclasses import asdict
from typing import Any

from kvheadroom.errors import SourceError
from kvheadroom.node.nvml import NvmlSource


def answer_to(command: str, sources: list[NvmlSource]) -> dict[str, Any]:
    """Return what one command of the tests asks for, of the last source that was opened."""
    word, *arguments = command.split()
    source = sources[-1]
    match word:
        case "read":
            return read(source)
        case "deadline":
            source.deadline_seconds = float(arguments[0])
        case "threads":
            return {"names": sorted(thread.name for thread in threading.enumerate())}
        case "cpu":
            return {"milliseconds": sorted(cpu_milliseconds(source, int(arguments[0])))}
        case "close":
            source.close()
        case "open":
            sources.append(NvmlSource(deadline_seconds=source.deadline_seconds))
    return {}


def read(source: NvmlSource) -> dict[str, Any]:
    """Return one reading and how long it took, or the reason why there is none."""
    started = time.monotonic()
    try:
        answer = asdict(source.read())
    except SourceError as error:
        answer = {"error": error.reason, "detail": str(error)}
    return answer | {"seconds": time.monotonic() - started}


def cpu_milliseconds(source: NvmlSource, reads: int) -> list[float]:
    """Return the CPU time of each of several readings."""
    spent = []
    for _ in range(reads):
        started = time.process_time()
        source.read()
        spent.append(1000 * (time.process_time() - started))
    return spent


def main() -> None:
    """Answer until standard input ends."""
    sources = [NvmlSource(deadline_seconds=float(sys.argv[1]))]
    for line in sys.stdin:
        print(json.dumps(answer_to(line, sources)), flush=True)  # noqa: T201  (it is the answer)


if __name__ == "__main__":
    main()
