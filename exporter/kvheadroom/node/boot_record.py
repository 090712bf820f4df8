"""What one start of a vLLM server said about itself, every statement with the line it stands on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

FailureKind = Literal[
    "free_memory",  # less free on the device than the utilization asks for
    "no_kv_memory",  # nothing is left for a single block
    "request_too_long",  # the pool does not hold one request of max_model_len
    "auto_fit_impossible",  # not even one token fits
    "profiling_disturbed",  # another process freed memory while this one measured
    "external_weights",  # weights held by another process leave too little
    "too_few_state_blocks",  # max_num_seqs needs more recurrent states than blocks
    "length_above_model",  # max_model_len above what the model's config allows
    "gpu_out_of_memory",
    "gpu_fault",  # illegal access, ECC, a GPU off the bus
    "nccl",
    "driver",  # none, too old, not ready, no GPU visible
    "gpu_too_old",  # the GPU lacks a dtype or the build lacks the GPU
    "kv_dtype_unsupported",
    "backend_unsupported",
    "parallel_unsupported",  # heads, layers or GPUs do not divide as asked
    "port_in_use",
    "model_missing",
    "model_forbidden",  # a gated or private repository
    "model_unsupported",  # no implementation of the architecture
    "bad_argument",
    "disk_full",
    "killed",  # a process ended by a signal, most often host memory
    "engine_start",  # the engine says it failed; the cause is not one of the above
    "engine_dead",  # the engine stopped while serving; the cause is not one of the above
]


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of the log.

    Attributes:
        name: What it is; its ending is its unit (``_bytes``, ``_tokens``, ``_blocks``, ``_ratio``).
        value: In that unit; what is printed in GiB is bytes here, rounded as it was printed.
        printed: As the log has it, with its unit.
        line: Where, from 1.
        process: Who said it, ``EngineCore_DP0`` or ``Worker_TP1``; ``None`` without a prefix.
        pid: In the same prefix.
        rank: Global rank, where the log tells.
    """

    name: str
    value: float
    printed: str
    line: int
    process: str | None = None
    pid: int | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Fact:
    """One text of the log: a version, a name, a dtype, a backend.

    Attributes:
        value: Free of secrets.
        line: Where, from 1.
    """

    value: str
    line: int


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that went wrong.

    Attributes:
        kind: Bounded cause.
        text: The message, one line, free of secrets.
        line: Where, from 1.
        serving: The server had already answered that it was ready.
        process: Who said it.
        numbers: What the message holds: bytes, tokens, ratios, named like figures.
        stage: The last step known to be done before it (``weights``, ``profile``, ``blocks`` …).
    """

    kind: FailureKind
    text: str
    line: int
    serving: bool
    process: str | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
    stage: str | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """What the periodic line said about traffic.

    Attributes:
        line: The last such line.
        running: Requests running there.
        waiting: Requests waiting there.
        kv_used_ratio: Share of the pool in use there, 0-1.
        peak_kv_used_ratio: Highest share of any such line.
        peak_waiting: Most requests waiting on any such line.
    """

    line: int
    running: int
    waiting: int
    kv_used_ratio: float
    peak_kv_used_ratio: float
    peak_waiting: int


@dataclass(frozen=True, slots=True)
class BootRecord:
    """One start of a server, from its first line to the next start.

    Attributes:
        first_line: Where it begins.
        last_line: Its last line that tells something.
        is_latest: No later start of the same service follows in the log.
        source: The service, pod or unit, where several log into one; ``None`` without a name.
        clock: ``MM-DD HH:MM:SS`` of its first dated line.
        facts: ``version``, ``model``, ``dtype``, ``kv_cache_dtype``, ``attention_backend`` …
        arguments: What the server was told, secrets dropped; empty where the log does not say.
        arguments_line: Where.
        figures: Every number, in the log's order.
        failures: Everything that went wrong, in the log's order.
        sized_line: Where the engine said that sizing had ended.
        ready_line: Where the server said that it accepts requests.
        shutdown_line: Where it said that it stops.
        notes: Kinds of other lines that matter to capacity → where (``graphs_not_counted`` …).
        load: Traffic; ``None`` without a periodic line.
        truncated: More was said than is kept.
    """

    first_line: int
    last_line: int
    is_latest: bool
    source: str | None = None
    clock: str | None = None
    facts: Mapping[str, Fact] = field(default_factory=dict)
    arguments: Mapping[str, object] = field(default_factory=dict)
    arguments_line: int | None = None
    figures: tuple[Figure, ...] = ()
    failures: tuple[Failure, ...] = ()
    sized_line: int | None = None
    ready_line: int | None = None
    shutdown_line: int | None = None
    notes: Mapping[str, int] = field(default_factory=dict)
    load: Load | None = None
    truncated: bool = False

    def all(self, name: str) -> tuple[Figure, ...]:
        """Return every figure called *name*, in the log's order."""
        return tuple(figure for figure in self.figures if figure.name == name)

    def last(self, *names: str) -> Figure | None:
        """Return the last figure of the first of *names* that the log has."""
        for name in names:
            if found := self.all(name):
                return found[-1]
        return None

    def by_process(self, name: str) -> tuple[Figure, ...]:
        """Return the last figure called *name* of each process, by first appearance."""
        kept: dict[tuple[str | None, int | None, int | None], Figure] = {}
        for figure in self.all(name):
            kept[figure.process, figure.pid, figure.rank] = figure
        return tuple(kept.values())

    def least(self, name: str) -> Figure | None:
        """Return the smallest figure called *name* over processes: the one that binds."""
        return min(self.by_process(name), key=lambda figure: figure.value, default=None)

    def fact(self, name: str) -> str | None:
        """Return the text called *name*."""
        found = self.facts.get(name)
        return found.value if found else None
