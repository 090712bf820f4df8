"""What of a node needs a person, one sentence each; the same on every face."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from kvheadroom.faces.document import EngineDocument, GpuDocument, NodeDocument
from kvheadroom.units import format_bytes

Weight = Literal["fault", "warning", "advice"]


@dataclass(frozen=True, slots=True)
class Note:
    """One sentence.

    Attributes:
        subject: Engine, server, GPU or source that it is about.
        text: What was seen, or what to do.
        weight: How much it matters.
    """

    subject: str
    text: str
    weight: Weight


def notes(node: NodeDocument) -> Iterator[Note]:
    """Yield what needs a person: faults and limits of engines and GPUs."""
    for engine in node.engines:
        yield from _of_engine(engine)
    for gpu in node.gpus:
        yield from _of_gpu(gpu)
    for server in node.discovered:
        if server.problem is not None:
            yield Note(server.server, f"not everything is known: {server.problem}", "warning")
        if server.unreachable is not None:
            yield Note(server.server, f"found and not asked: {server.unreachable}", "warning")


def source_notes(node: NodeDocument) -> Iterator[Note]:
    """Yield every source that is down, and why."""
    for source in node.sources:
        if not source.up and source.reason:
            why = ": ".join(filter(None, (source.reason, source.detail)))
            yield Note(f"{source.source} {source.target}", f"down: {why}", "fault")


def _of_engine(engine: EngineDocument) -> Iterator[Note]:
    if engine.stalled:
        yield Note(engine.engine, f"stalled: {engine.stall_evidence}", "fault")
    elif engine.limit not in {None, "none"} and engine.limit_evidence:
        yield Note(engine.engine, f"{engine.limit} binds: {engine.limit_evidence}", "warning")
    if engine.boot_change:
        yield Note(engine.engine, engine.boot_change, "warning")
    if engine.drift_ratio:
        yield Note(
            engine.engine,
            f"reports another capacity than its model and settings make: {engine.drift_ratio:+.1%}",
            "warning",
        )
    if engine.budget_problem:
        yield Note(engine.engine, f"not computed: {engine.budget_problem}", "warning")
    for advice in engine.advice:
        yield Note(engine.engine, advice, "advice")


def _of_gpu(gpu: GpuDocument) -> Iterator[Note]:
    subject = f"GPU {gpu.gpu}"
    if gpu.intruder_bytes:
        who = ", ".join(dict.fromkeys(gpu.intruders))
        yield Note(
            subject,
            f"{who} took {format_bytes(gpu.intruder_bytes)} beside the engines",
            "warning",
        )
    if gpu.overcommitted:
        claimed = gpu.claimed_utilization_ratio or 0.0
        yield Note(
            subject, f"over-committed: shares of {claimed:.0%} and contexts exceed it", "warning"
        )
    for restart in gpu.restarts:
        if not restart.starts:
            wants, free = restart.needed_bytes or 0, restart.free_bytes or 0
            sizes = f"asks for {format_bytes(wants)}, would find {format_bytes(free)}"
            yield Note(restart.server, f"would not start again on {subject}: {sizes}", "fault")
    for line in gpu.ledger_notes:
        yield Note(subject, line, "warning")
