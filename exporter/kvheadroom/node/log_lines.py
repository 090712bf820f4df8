"""Turn the bytes of a log, whatever carried them, into lines that know their process and number."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, NamedTuple

# Long enough for vLLM's longest line (every compilation setting), short enough to hold many.
_MOST_LINE_BYTES: Final = 256 * 1024
_DEEPEST_WRAPPING: Final = 3

# Fields in which log shippers put the line they carry, most specific first.
_CARRIED_FIELDS: Final = ("log", "message", "MESSAGE", "msg", "line", "textPayload", "event")

_TERMINAL_CODE: Final = re.compile(r"\x1b?\[[0-9;]{0,16}m|\x1b\[[0-9;?]{0,16}[A-Za-z]")
_UNPRINTABLE: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
# vLLM's own heading: `INFO 11-30 09:29:31 [core.py:76] ` and, up to 0.8, without the first bracket.
_HEADING: Final = re.compile(
    r"\b(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL) "
    r"(?P<clock>\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d{1,9})? "
    r"\[?[\w./<>-]{1,200}:\d{1,6}\] ?"
)
_PROCESS: Final = re.compile(
    r"\((?P<name>[A-Za-z][\w:.-]{0,80})(?: rank=(?P<rank>\d{1,6}))? "
    r"pid=(?P<pid>\d{1,10})[^()]{0,80}\)"
    r"|\((?P<bare>Worker_[A-Z]{2,4}\d[\w-]{0,40})\)"
    r"|[(\[]rank ?(?P<only>\d{1,6})[)\]]:?"
)
_CONTAINERS: Final = (
    # docker compose: `service-1  | `.
    re.compile(r"^(?P<source>[\w.-]{1,100}) {1,40}\| "),
    re.compile(r"^\[(?P<source>pod/[\w./-]{1,300})\] ?"),
    # CRI (containerd, CRI-O): time, stream, Full or Partial.
    re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]{8,18}(?:Z|[+-]\d\d:\d\d) (?:stdout|stderr) [FP] "),
    # docker and kubectl with --timestamps, journald with ISO times.
    re.compile(r"^\d{4}-\d\d-\d\d[T ][\d:.,]{8,18}(?:Z|[+-]\d\d:?\d\d)? "),
    # journald and syslog: `Nov 30 09:29:31 host unit[123]: `, the time perhaps cut off above.
    re.compile(
        r"^(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d )?"
        r"[\w.-]{1,100} (?P<source>[\w@.\\-]{1,100})\[\d{1,10}\]: "
    ),
)
_PARTIAL: Final = re.compile(
    rb"^\d{4}-\d\d-\d\dT[\d:.]{8,18}(?:Z|[+-]\d\d:\d\d) (?:stdout|stderr) P "
)
_CARRIER: Final = re.compile(
    rb"^\d{4}-\d\d-\d\dT[\d:.]{8,18}(?:Z|[+-]\d\d:\d\d) (?:stdout|stderr) [FP] "
)


class _Carried(NamedTuple):
    """A text on its way out of its wrapping: the JSON object and the service it came from."""

    text: str
    record: dict[str, Any]
    source: str | None


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line as vLLM wrote it, without what carried it.

    Attributes:
        number: In the file, from 1.
        text: The message, without prefixes, colors and line end.
        process: Name in vLLM's prefix, ``EngineCore_DP0`` or ``Worker_TP1``; ``None`` without one.
        pid: In the same prefix.
        rank: Where the prefix names it.
        level: ``INFO``, ``ERROR`` …; ``None`` for what was not logged (tracebacks, prints).
        clock: ``MM-DD HH:MM:SS`` as printed: vLLM writes neither year nor zone.
        source: The service, pod or unit that whatever carried the line names.
    """

    number: int
    text: str
    process: str | None = None
    pid: int | None = None
    rank: int | None = None
    level: str | None = None
    clock: str | None = None
    source: str | None = None


def read_numbered(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the number and bytes of each line, holding one line at a time.

    Lines longer than 256 KiB are cut; the pieces a container runtime made of a long line are
    joined under the number of the first.
    """
    number, first, held = 0, 0, b""
    while raw := stream.readline(_MOST_LINE_BYTES):
        number += 1
        _skip_rest_of_line(stream, raw)
        raw = raw.rstrip(b"\r\n")
        if is_piece(raw):
            first = first or number
            held += raw if not held else raw[_carrier_end(raw) :]
            held = held[:_MOST_LINE_BYTES]
            continue
        if held:
            yield first, held + raw[_carrier_end(raw) :]
            first, held = 0, b""
        else:
            yield number, raw
    if held:
        yield first, held


def is_piece(raw: bytes) -> bool:
    """Return whether *raw* is a piece of a long line, and not its last."""
    return _PARTIAL.match(raw) is not None


def parse_line(number: int, raw: bytes) -> Iterator[LogLine]:
    """Yield what *raw* carries: one line, or several where a JSON field holds line ends."""
    text = _TERMINAL_CODE.sub("", raw.decode("utf-8", errors="replace"))
    for carried in _unwrapped(_Carried(text, {}, None), _DEEPEST_WRAPPING):
        for part in carried.text.splitlines() or [""]:
            yield _parse_text(number, part, carried)


def _skip_rest_of_line(stream: BinaryIO, piece: bytes) -> None:
    while len(piece) == _MOST_LINE_BYTES and not piece.endswith(b"\n"):
        piece = stream.readline(_MOST_LINE_BYTES)


def _carrier_end(raw: bytes) -> int:
    match = _CARRIER.match(raw)
    return match.end() if match else 0


def _unwrapped(outer: _Carried, depth: int) -> Iterator[_Carried]:
    """Yield what is inside *outer*, to the innermost JSON object."""
    bare, source = _without_container(outer.text)
    inside = _Carried(bare, outer.record, source or outer.source)
    record = _json_object(bare) if depth and bare.startswith("{") else None
    text = _carried_text(record) if record else None
    if record is None or text is None:
        yield inside
        return
    for line in _TERMINAL_CODE.sub("", text).splitlines() or [""]:
        yield from _unwrapped(_Carried(line, record, inside.source), depth - 1)


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _carried_text(record: dict[str, Any]) -> str | None:
    for field in _CARRIED_FIELDS:
        carried = record.get(field)
        if isinstance(carried, str):
            return carried
        if isinstance(carried, list):
            # journald writes what is not plain text as a list of bytes.
            try:
                return bytes(carried).decode("utf-8", errors="replace")
            except (TypeError, ValueError):
                continue
    return None


def _parse_text(number: int, part: str, carried: _Carried) -> LogLine:
    text = _UNPRINTABLE.sub(" ", part)
    heading = _HEADING.search(text)
    before = text[: heading.start()] if heading else text[:400]
    process, pid, rank, end = _process(before)
    message = text[heading.end() :] if heading else text[end:]
    if process is None:
        process, pid = _record_process(carried.record)
    level = heading["level"] if heading else _text(carried.record.get("levelname"))
    clock = heading["clock"] if heading else _text(carried.record.get("asctime"))
    return LogLine(number, message.strip(), process, pid, rank, level, clock, carried.source)


def _process(before: str) -> tuple[str | None, int | None, int | None, int]:
    """Return name, pid and rank of the last prefix in *before*, and where that prefix ends."""
    prefixes = list(_PROCESS.finditer(before))
    if not prefixes:
        return None, None, None, 0
    last = prefixes[-1]
    rank = last["rank"] or last["only"]
    name = last["name"] or last["bare"]
    pid = int(last["pid"]) if last["pid"] else None
    return name, pid, int(rank) if rank else None, last.end()


def _record_process(record: dict[str, Any]) -> tuple[str | None, int | None]:
    pid = record.get("process")
    return _text(record.get("processName")), pid if isinstance(pid, int) else None


def _text(value: object) -> str | None:
    return value[:80] if isinstance(value, str) and value else None


def _without_container(text: str) -> tuple[str, str | None]:
    """Return *text* without what a container runtime put before it, and the name it gave."""
    source = None
    for prefix in _CONTAINERS:
        if match := prefix.match(text):
            text = text[match.end() :]
            source = match.groupdict().get("source") or source
    return text, source
