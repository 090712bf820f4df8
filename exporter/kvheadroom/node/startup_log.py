"""Read the starts of vLLM servers out of a log, in one pass and bounded memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import BinaryIO, Final

from kvheadroom.node import log_facts, log_failures
from kvheadroom.node.boot_record import BootRecord, Fact, Failure, FailureKind, Figure, Load
from kvheadroom.node.log_arguments import without_secrets
from kvheadroom.node.log_figures import figures_in
from kvheadroom.node.log_lines import LogLine, parse_line, read_numbered

# A start of 1,000 ranks prints some 10,000 figures; beyond this a log repeats itself.
_MOST_FIGURES: Final = 20_000
_MOST_FAILURES: Final = 64
_MOST_RANKS: Final = 10_000
_MOST_SOURCES: Final = 64
# How far below "failed to start" the traceback's last line may stand.
_LONGEST_TRACEBACK_LINES: Final = 300

# A line without one of these words, or an exception's name, tells nothing; a log under load is
# mostly such lines.
_TELLING_WORDS: Final = frozenset(
    word.encode()
    for word in (
        *("gib", "gb", "memory", "blocks", "cache", "concurrency", "len", "batched", "kv"),
        *("padding", "mamba", "preemption", "init", "graph", "compilation", "utilization"),
        *("weights", "llm", "version", "args", "backend", "failed", "died", "nccl", "cuda"),
        *("driver", "kernel", "supported", "valid", "gated", "found", "repo", "exit", "killed"),
        *("signal", "space", "startup", "shutdown", "shutting", "sigterm", "throughput", "world"),
        *("architecture", "layout", "platform", "capability", "compatible", "divisible", "larger"),
        *("fatal", "watchdog", "initialized", "device", "bus", "address", "identifier", "runner"),
        *("model", "repository", "gpus", "error", "issue", "loop", "task", "oomkilled", "weight"),
        *("exception", "argument", "server", "num", "torch", "process", "config"),
        *("consumed", "peak", "equivalent", "attention", "load", "sleep", "block"),
    )
)
_EXCEPTION_NAMES: Final = (b"Error", b"Exception")
_ACCESS: Final = b"HTTP/1."
# Letters in lower case, everything else a space.
_TO_WORDS: Final = bytes(
    byte | 32 if chr(byte).isalpha() and byte < 128 else 32  # noqa: PLR2004
    for byte in range(256)
)
_STAGES: Final = {
    "weights_bytes": "weights",
    "available_kv_bytes": "profile",
    "kv_tokens": "blocks",
    "gpu_blocks": "blocks",
    "graph_bytes": "graphs",
}
_STAGE_ORDER: Final = ("weights", "profile", "blocks", "graphs", "sized")
# What can end a server that already serves; anything else is the fault of one request.
_SERVING_CAUSES: Final = frozenset(("gpu_out_of_memory", "gpu_fault", "nccl", "driver", "killed"))
_OPENINGS: Final = ("front", "arguments", "engine")


def read_boots(stream: BinaryIO) -> Iterator[BootRecord]:
    """Yield each start in *stream* when it is over; none when it holds no vLLM log.

    Any bytes are accepted. One line, and one start of each service, are held at a time.
    """
    scanner = BootScanner()
    for number, raw in read_numbered(stream):
        yield from scanner.feed(number, raw)
    yield from scanner.latest()


class BootScanner:
    """Reads starts out of a log that is handed over line by line, and may go on.

    Attributes:
        telling_lines: Lines so far that may tell something.
    """

    def __init__(self) -> None:
        self.telling_lines = 0
        self._boots: dict[str | None, _Boot] = {}

    def feed(self, number: int, raw: bytes) -> Sequence[BootRecord]:
        """Take one line and return the starts that are over with it."""
        if not _tells(raw):
            return ()
        self.telling_lines += 1
        boots, over = self._boots, []
        is_mention = b"vllm" in raw.lower()
        for line in parse_line(number, raw):
            source = line.source if len(boots) < _MOST_SOURCES or line.source in boots else None
            boot = boots.setdefault(source, _Boot(source))
            if boot.is_over(line):
                if boot.is_vllm():
                    over.append(boot.record())
                boot = boots[source] = _Boot(source)
            boot.mentions_vllm = boot.mentions_vllm or is_mention
            boot.add(line)
        return over

    def latest(self) -> Sequence[BootRecord]:
        """Return the last start of each service as far as it has been read, by first line."""
        boots = sorted(self._boots.values(), key=lambda boot: boot.first_line)
        return [replace(boot.record(), is_latest=True) for boot in boots if boot.is_vllm()]


def _tells(raw: bytes) -> bool:
    # journald spells bytes it takes for binary as numbers: nothing to see without parsing.
    if any(name in raw for name in _EXCEPTION_NAMES) or b'"MESSAGE"' in raw:
        return True
    return _ACCESS not in raw and not _TELLING_WORDS.isdisjoint(raw.translate(_TO_WORDS).split())


@dataclass(slots=True)
class _Boot:
    """What is known so far about the start being read."""

    source: str | None = None
    first_line: int = 0
    last_line: int = 0
    clock: str | None = None
    mentions_vllm: bool = False
    opened: int = -1
    engines: set[str | None] = field(default_factory=set)
    facts: dict[str, Fact] = field(default_factory=dict)
    arguments: dict[str, object] = field(default_factory=dict)
    arguments_line: int | None = None
    figures: list[Figure] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    ranks: dict[int, int] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    stage: str | None = None
    sized_line: int | None = None
    ready_line: int | None = None
    shutdown_line: int | None = None
    load: Load | None = None
    truncated: bool = False

    def is_vllm(self) -> bool:
        """Return whether what was read can only come from vLLM."""
        return bool(self.opened >= 0 or self.figures or self.load) or (
            self.mentions_vllm and bool(self.failures)
        )

    def is_over(self, line: LogLine) -> bool:
        """Return whether *line* begins another start."""
        opening = log_facts.opening_in(line.text)
        # API servers beside the first repeat its lines, at any moment.
        if opening is None or (line.process or "").startswith("ApiServer_"):
            return False
        height = _OPENINGS.index(opening)
        if height != self.opened:
            return height < self.opened
        return opening != "front" and (opening == "arguments" or line.process in self.engines)

    def add(self, line: LogLine) -> None:
        """Take over everything *line* says."""
        self.first_line = self.first_line or line.number
        self.last_line = line.number
        self.clock = self.clock or line.clock
        if load := log_facts.load_in(line.text):
            self._add_load(line, load)
            return
        self._add_opening(line)
        if self._is_about_the_engine(line):
            self._add_figures(line)
            self._add_facts(line)
        self._add_milestones(line)
        self._add_failures(line)

    def record(self) -> BootRecord:
        """Return what was read as a frozen record."""
        ranked = tuple(
            replace(figure, rank=self.ranks.get(figure.pid, figure.rank))
            if figure.pid is not None
            else figure
            for figure in self.figures
        )
        return BootRecord(
            first_line=self.first_line,
            last_line=self.last_line,
            is_latest=False,
            source=self.source,
            clock=self.clock,
            facts=self.facts,
            arguments=self.arguments,
            arguments_line=self.arguments_line,
            figures=ranked,
            failures=tuple(self.failures),
            sized_line=self.sized_line,
            ready_line=self.ready_line,
            shutdown_line=self.shutdown_line,
            notes=self.notes,
            load=self.load,
            truncated=self.truncated,
        )

    def _is_about_the_engine(self, line: LogLine) -> bool:
        # Once it serves, a front end may log prompts, which can say anything.
        if self.ready_line is None or line.level == "WARNING":
            return True
        return line.process is not None and not line.process.lower().startswith("apiserver")

    def _add_opening(self, line: LogLine) -> None:
        opening = log_facts.opening_in(line.text)
        if opening is None:
            return
        self.opened = max(self.opened, _OPENINGS.index(opening))
        if opening == "arguments" and self.arguments_line is None:
            self.arguments = dict(log_facts.arguments_in(line.text))
            self.arguments_line = line.number
        if opening == "engine":
            self.engines.add(line.process)
            for name, value in log_facts.settings_in(line.text).items():
                self.facts.setdefault(name, Fact(value, line.number))

    def _add_figures(self, line: LogLine) -> None:
        for name, value, printed in figures_in(line.text):
            if len(self.figures) >= _MOST_FIGURES:
                self.truncated = True
                return
            self.figures.append(
                Figure(name, value, printed, line.number, line.process, line.pid, line.rank)
            )
            self._reach(_STAGES.get(name))

    def _reach(self, stage: str | None) -> None:
        if stage and (
            self.stage is None or _STAGE_ORDER.index(stage) > _STAGE_ORDER.index(self.stage)
        ):
            self.stage = stage

    def _add_facts(self, line: LogLine) -> None:
        for name, value in log_facts.facts_in(line.text):
            self.facts.setdefault(name, Fact(value, line.number))
        for note in log_facts.notes_in(line.text):
            self.notes.setdefault(note, line.number)
        rank = log_facts.rank_in(line.text)
        if rank is not None and line.pid is not None and len(self.ranks) < _MOST_RANKS:
            self.ranks[line.pid] = rank

    def _add_milestones(self, line: LogLine) -> None:
        if log_facts.is_sized(line.text):
            self.sized_line = self.sized_line or line.number
            self._reach("sized")
        if log_facts.is_ready(line.text):
            self.ready_line = self.ready_line or line.number
        if log_facts.is_shutdown(line.text):
            self.shutdown_line = self.shutdown_line or line.number

    def _add_load(self, line: LogLine, load: log_facts.LoadLine) -> None:
        before = self.load
        self.load = Load(
            line.number,
            *load,
            peak_kv_used_ratio=max(load.kv_used_ratio, before.peak_kv_used_ratio if before else 0),
            peak_waiting=max(load.waiting, before.peak_waiting if before else 0),
        )

    def _add_failures(self, line: LogLine) -> None:
        serving = self.ready_line is not None or self.load is not None
        # Faults are logged as errors or printed bare; what is said in passing is none.
        if line.level not in {None, "ERROR", "CRITICAL", "FATAL"}:
            return
        # What breaks while a server is being stopped is part of stopping it.
        if serving and self.shutdown_line is not None:
            return
        found = log_failures.cause_in(line.text)
        if found and self._is_credible(found.kind, line, serving=serving):
            self._keep(found.kind, line, serving=serving, numbers=dict(found.numbers))
        elif outcome := log_failures.outcome_in(line.text):
            self._keep("engine_dead" if serving else outcome, line, serving=serving)
        elif log_failures.is_exception(line.text):
            self._name_the_outcome(line)

    def _is_credible(self, kind: FailureKind, line: LogLine, *, serving: bool) -> bool:
        if not serving:
            return True
        return kind in _SERVING_CAUSES and (
            line.level is not None or log_failures.is_exception(line.text)
        )

    def _keep(
        self,
        kind: FailureKind,
        line: LogLine,
        *,
        serving: bool,
        numbers: dict[str, float] | None = None,
    ) -> None:
        known = next((item for item in self.failures if item.kind == kind), None)
        # The first of a kind is the cause and the rest its echo, unless only the echo has figures.
        if known and (known.numbers or not numbers):
            return
        if known:
            self.failures.remove(known)
        if len(self.failures) < _MOST_FAILURES:
            self.failures.append(
                Failure(
                    kind,
                    without_secrets(line.text),
                    known.line if known else line.number,
                    serving,
                    line.process,
                    numbers or {},
                    self.stage,
                )
            )

    def _name_the_outcome(self, line: LogLine) -> None:
        """Give the outcome above the exception that its traceback ends in."""
        last = self.failures[-1] if self.failures else None
        if (
            last is not None
            and last.kind in {"engine_start", "engine_dead"}
            and not log_failures.is_exception(last.text)
            and last.process == line.process
            and line.number - last.line <= _LONGEST_TRACEBACK_LINES
        ):
            self.failures[-1] = replace(last, text=without_secrets(line.text))
