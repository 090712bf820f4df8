"""A plan as a person reads it: the verdict first, what binds, what to change, then the ledger."""

from collections.abc import Iterator, Sequence
from typing import Any

from kvheadroom.engine.budget import Estimate
from kvheadroom.engine.capacity import Allocation
from kvheadroom.engine.refusal import Refusal
from kvheadroom.plan.plan import Plan, PlannedService
from kvheadroom.units import GIB

_HEADINGS = ("service", "share", "managed", "weights", "other", "left", "what is left is")


def as_text(plan: Plan, *, requests: int | None = None) -> str:
    """Return *plan* as text that ends with a newline.

    Args:
        plan: The plan.
        requests: How many requests of the asked length should be resident at once.
    """
    lines = [_verdict(plan), *_bindings(plan, requests), "", *_ledger(plan), "", *_notes(plan)]
    return "\n".join(lines) + "\n"


def as_record(plan: Plan, *, requests: int | None = None) -> dict[str, Any]:
    """Return *plan* as what JSON can hold; bytes everywhere."""
    return {
        "fits": plan.fits,
        "total_bytes": plan.card.total_bytes,
        "claimed_ratio": plan.card.claimed_ratio,
        "unallocated_bytes": plan.card.unallocated_bytes,
        "refused_at_start": [plan.services[position].name for position in plan.refused],
        "requests_asked": requests,
        "services": [_service_record(service) for service in plan.services],
    }


def _service_record(service: PlannedService) -> dict[str, Any]:
    demand, outcome = service.budget.demand, service.outcome
    record: dict[str, Any] = {
        "name": service.name,
        "gpu_memory_utilization": demand.utilization,
        "managed_bytes": service.budget.managed_bytes,
        "weights": _estimate_record(demand.weights),
        "activation": _estimate_record(demand.activation),
        "non_torch": _estimate_record(demand.non_torch),
        "cuda_graphs": _estimate_record(demand.cuda_graphs),
        "context": _estimate_record(demand.context),
        "remainder": _estimate_record(service.budget.remainder),
        "caches_kv": demand.caches_kv,
        "resident_requests": service.resident,
        "request_bytes": service.request_bytes,
        "error": None,
    }
    if isinstance(outcome, Refusal):
        record["error"] = {
            "kind": outcome.kind,
            "message": outcome.message,
            "needed_bytes": outcome.needed_bytes,
            "available_bytes": outcome.available_bytes,
            "estimated_max_model_len": outcome.estimated_max_model_len,
        }
    elif isinstance(outcome, Allocation):
        record |= {
            "block_size": outcome.block_size,
            "num_blocks": outcome.num_blocks,
            "bytes_per_block": list(outcome.bytes_per_block),
            "tokens": outcome.tokens,
            "max_concurrency": outcome.max_concurrency,
            "max_model_len": outcome.max_model_len,
        }
    return record


def _estimate_record(estimate: Estimate) -> dict[str, Any]:
    return {
        "bytes": estimate.bytes,
        "low_bytes": estimate.low_bytes,
        "high_bytes": estimate.high_bytes,
        "source": estimate.source,
    }


def _verdict(plan: Plan) -> str:
    total = _gib(plan.card.total_bytes)
    if not plan.fits:
        return f"DOES NOT FIT on {total} GiB"
    # A table's range may leave nothing where its middle leaves something.
    unsure = [
        service.name
        for service in plan.services
        if service.budget.demand.caches_kv and service.budget.remainder.low_bytes <= 0
    ]
    if unsure:
        names = " and ".join(unsure)
        return f"FITS on {total} GiB as a rule; not if {names} needs the most that is usual"
    return f"FITS on {total} GiB"


def _bindings(plan: Plan, requests: int | None) -> Iterator[str]:
    for service in plan.services:
        yield from _service_binding(service, plan, requests)
    for position in plan.refused:
        service = plan.services[position]
        yield (
            f"{service.name}: finds less free at its start than the "
            f"{_gib(service.budget.managed_bytes)} GiB it is to manage, once those before it run; "
            "lower its --gpu-memory-utilization or theirs"
        )
    if plan.card.unallocated_bytes < 0:
        yield (
            f"card: shares and contexts together are {_gib(-plan.card.unallocated_bytes)} GiB "
            "more than there is; servers do not know of each other, so the shares must add up"
        )


def _service_binding(service: PlannedService, plan: Plan, requests: int | None) -> Iterator[str]:
    outcome, remainder = service.outcome, service.budget.remainder
    if isinstance(outcome, Refusal):
        yield f"{service.name}: vLLM refuses to start: {outcome.message}"
        if outcome.estimated_max_model_len:
            yield f"{service.name}: --max-model-len {outcome.estimated_max_model_len} would start"
        if remainder.bytes <= 0:
            yield (
                f"{service.name}: raise --gpu-memory-utilization by "
                f"{(-remainder.bytes) / plan.card.total_bytes:.2f} or more, or take a smaller model"
            )
    elif requests is not None and service.resident is not None and service.resident < requests:
        yield _condition(service, plan, requests)
    elif service.outcome is None and remainder.bytes < 0:
        yield f"{service.name}: its weights and runtime exceed its share; it caches nothing"


def _condition(service: PlannedService, plan: Plan, requests: int) -> str:
    length = plan.context_tokens or service.options.max_model_len
    amounts = ""
    if service.request_bytes is not None:
        left, each = service.budget.remainder.bytes, service.request_bytes
        amounts = (
            f" ({_gib(each)} GiB each, {_gib(left)} GiB left, "
            f"{_gib(max(0, requests * each - left))} GiB short)"
        )
    return (
        f"{service.name}: {service.resident} of {requests} requests of {length:,} tokens are "
        f"resident at once{amounts}; the others wait, or preempt each other as they grow, which "
        "need not be out of memory"
    )


def _ledger(plan: Plan) -> Iterator[str]:
    rows = [_HEADINGS]
    for service in plan.services:
        demand, budget = service.budget.demand, service.budget
        other = budget.demand.activation.bytes + demand.non_torch.bytes + demand.cuda_graphs.bytes
        rows.append(
            (
                service.name,
                "bytes" if demand.kv_cache_memory_bytes else f"{demand.utilization:.2f}",
                _gib(budget.managed_bytes),
                _gib(demand.weights.bytes),
                _gib(other),
                _gib(budget.remainder.bytes),
                _use_of_the_rest(service),
            )
        )
    contexts = sum(service.budget.demand.context.bytes for service in plan.services)
    total = plan.card.total_bytes
    rows.append(("contexts", f"{contexts / total:.2f}", _gib(contexts), "", "", "", "outside"))
    free = plan.card.unallocated_bytes
    rows.append(("unallocated", f"{free / total:.2f}", _gib(free), "", "", "", "margin"))
    rows.append(("card", "1.00", _gib(total), "", "", "", "GiB"))
    yield from _columns(rows)


def _use_of_the_rest(service: PlannedService) -> str:
    outcome = service.outcome
    if outcome is None:
        return "margin: no KV cache"
    if isinstance(outcome, Refusal):
        return "refused"
    resident = "" if service.resident is None else f", {service.resident} resident"
    return (
        f"KV: {outcome.num_blocks:,} blocks, {outcome.tokens or 0:,} tokens, "
        f"{outcome.max_concurrency or 0:.2f} x {outcome.max_model_len:,}{resident}"
    )


def _notes(plan: Plan) -> Iterator[str]:
    for service in plan.services:
        demand = service.budget.demand
        guessed = {
            "activation": demand.activation,
            "non-torch": demand.non_torch,
            "CUDA graphs": demand.cuda_graphs,
            "context": demand.context,
        }
        ranges = [
            f"{name} {_gib(part.low_bytes)} to {_gib(part.high_bytes)}"
            for name, part in guessed.items()
            if part.source == "table"
        ]
        if ranges:
            yield f"{service.name}: estimated from public startup logs, GiB: {', '.join(ranges)}"


def _columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        first, *numbers, last = row
        middle = "  ".join(
            text.rjust(width) for text, width in zip(numbers, widths[1:-1], strict=True)
        )
        yield f"{first.ljust(widths[0])}  {middle}  {last}".rstrip()


def _gib(count: int) -> str:
    return f"{count / GIB:.2f}"
