"""The recorded startup logs, and the ways a log is carried."""

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvheadroom.node.boot_record import BootRecord
from kvheadroom.node.startup_log import read_boots

_FOLDER = Path(__file__).parent.parent / "evidence" / "startup-logs"
SERVERS = tuple(sorted(path.name.removesuffix(".log.gz") for path in _FOLDER.glob("*.log.gz")))
GOLD: tuple[dict[str, Any], ...] = tuple(
    json.loads(line)
    for line in gzip.decompress((_FOLDER / "gold.jsonl.gz").read_bytes()).splitlines()
)
# How vLLM and what it stands on word each way to fail, and what the words say.
CAUSES: tuple[dict[str, Any], ...] = tuple(
    json.loads(line) for line in (_FOLDER / "causes.jsonl").read_text().splitlines()
)


def server_log(name: str) -> bytes:
    return gzip.decompress((_FOLDER / f"{name}.log.gz").read_bytes())


def boots(log: bytes | str) -> list[BootRecord]:
    return list(read_boots(io.BytesIO(log.encode() if isinstance(log, str) else log)))


def only_boot(log: bytes | str) -> BootRecord:
    (record,) = boots(log)
    return record


def values(record: BootRecord) -> dict[str, float]:
    """Return the last value of every figure."""
    return {figure.name: figure.value for figure in record.figures}


def essence(record: BootRecord) -> object:
    """Return what *record* says, without where it says it."""
    figures = [
        (item.name, item.value, item.process, item.pid, item.rank) for item in record.figures
    ]
    facts = {name: fact.value for name, fact in record.facts.items()}
    failures = [(item.kind, item.serving, item.numbers) for item in record.failures]
    return figures, facts, failures, record.arguments, record.load and record.load.running


def _each_line(wrap: Callable[[str], str]) -> Callable[[bytes], bytes]:
    def carry(log: bytes) -> bytes:
        lines = log.decode().split("\n")
        return "\n".join(wrap(line) for line in lines).encode()

    return carry


def _cri_in_pieces(log: bytes) -> bytes:
    """Return *log* as containerd writes it: lines above 16 KiB, here 100 bytes, in pieces."""
    head = "2026-11-30T09:29:31.123456789Z stderr"
    out = []
    for line in log.decode().split("\n"):
        pieces = [line[at : at + 100] for at in range(0, len(line), 100)] or [""]
        out += [f"{head} P {piece}" for piece in pieces[:-1]] + [f"{head} F {pieces[-1]}"]
    return "\n".join(out).encode()


# Formats as the documentation of each runtime gives them.
CARRIERS: dict[str, Callable[[bytes], bytes]] = {
    "docker compose": _each_line(lambda line: f"vllm-1  | {line}"),
    "docker json-file": _each_line(
        lambda line: json.dumps(
            {"log": f"{line}\n", "stream": "stderr", "time": "2026-11-30T09:29:31.1Z"}
        )
    ),
    "docker --timestamps": _each_line(lambda line: f"2026-11-30T09:29:31.123456789Z {line}"),
    "containerd": _each_line(lambda line: f"2026-11-30T09:29:31.123456789+01:00 stdout F {line}"),
    "kubectl --prefix": _each_line(lambda line: f"[pod/vllm-7d9f-x2x/server] {line}"),
    "journald": _each_line(lambda line: f"Nov 30 09:29:31 node-1 vllm[4242]: {line}"),
    "journald -o json": _each_line(lambda line: json.dumps({"MESSAGE": line, "_PID": "4242"})),
    "journald bytes": _each_line(lambda line: json.dumps({"MESSAGE": list(line.encode())})),
    "windows line ends": lambda log: log.replace(b"\n", b"\r\n"),
    "unknown prefix": _each_line(lambda line: f"<team-a> {line}" if " [" in line else line),
    "containerd in pieces": _cri_in_pieces,
}
