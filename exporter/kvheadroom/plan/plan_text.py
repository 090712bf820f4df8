"""A plan as a person reads it: the verdict first, what binds, what to change, then the ledger."""

from collections.abc import Iterator, Sequence
from math import ceil
from typing import Any, Final

from kvheadroom.engine.budget import LARGEST_SHARE, Estimate
from kvheadroom.engine.capacity import Allocation
from kvheadroom.engine.refusal import Refusal
from kvheadroom.plan.plan import Plan, PlannedService
from kvheadroom.units import GIB

_HEADINGS: Final = ("service", "share", "managed", "weights", "other", "left", "what is left is")


def as_text(plan: Plan) -> str:
    """Return *plan* as text that ends with a newline."""
    lines = [_verdict(plan), *_bindings(plan), "", *_ledger(plan), "", *_notes(plan)]
    return "\n".join(lines) + "\n"


def as_record(plan: Plan) -> dict[str, Any]:
    """Return *plan* as what JSON can hold; bytes everywhere."""
    return {
        "fits": plan.fits,
        "verdict": plan.verdict,
        "total_bytes": plan.card.total_bytes,
        "gpus": plan.gpus,
        "claimed_ratio": plan.card.claimed_ratio,
        "unallocated_bytes": plan.card.unallocated_bytes,
        "refused_at_start": [plan.services[position].name for position in plan.refused],
        "requests_asked": plan.requests,
        "services": [_service_record(service) for service in plan.services],
    }


def _service_record(service: PlannedService) -> dict[str, Any]:
    demand, outcome = service.budget.demand, service.outcome
    record: dict[str, Any] = {
        "name": service.name,
        "gpus": service.gpus,
        "stage_weights_bytes": list(service.stage_weights),
        "gpu_memory_utilization": demand.utilization,
        "managed_bytes": service.budget.managed_bytes,
        "weights": _estimate_record(demand.weights),
        "activation": _estimate_record(demand.activation),
        "non_torch": _estimate_record(demand.non_torch),
        "cuda_graphs": _estimate_record(demand.cuda_graphs),
        "context": _estimate_record(demand.context),
        "remainder": _estimate_record(service.budget.remainder),
        "caches_kv": demand.caches_kv,
        "verdict": service.verdict,
        "warnings": list(service.warnings),
        "overrun_bytes": service.overrun_bytes,
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
    total = f"{_gib(plan.card.total_bytes)} GiB"
    if plan.gpus > 1:
        total = f"each of {plan.gpus} GPUs of {total}"
    if plan.verdict == "depends":
        return f"DEPENDS on {total}: what is estimated may be more than there is"
    if plan.verdict == "does not fit":
        return f"DOES NOT FIT on {total}"
    if not plan.fits:
        return f"FITS on {total}, but not with {plan.requests} requests at once"
    # A table's range may leave nothing where its middle leaves something.
    unsure = [
        service.name
        for service in plan.services
        if service.budget.demand.caches_kv and service.budget.remainder.low_bytes <= 0
    ]
    if unsure:
        names = " and ".join(unsure)
        return f"FITS on {total} as a rule; not if {names} needs the most that is usual"
    return f"FITS on {total}"


def _bindings(plan: Plan) -> Iterator[str]:
    if plan.cards is not None and plan.gpus > plan.cards:
        asking = next(service for service in plan.services if service.gpus == plan.gpus)
        yield f"{asking.name}: asks for {asking.gpus} GPUs, and there are {plan.cards}"
    for service in plan.services:
        yield from _service_binding(service, plan)
    for position in plan.refused:
        service = plan.services[position]
        knob = _knob(service)
        before = ", once those before it run" if position else ""
        yield (
            f"{service.name}: finds less free at its start than the "
            f"{_gib(service.budget.managed_bytes)} GiB it is to hold{before}; lower its {knob}"
            + (" or theirs" if position else "")
        )
    if plan.card.unallocated_bytes < 0:
        yield (
            f"card: shares and contexts together are {_gib(-plan.card.unallocated_bytes)} GiB "
            "more than there is; servers do not know of each other, so the shares must add up"
        )


def _service_binding(service: PlannedService, plan: Plan) -> Iterator[str]:
    outcome, remainder = service.outcome, service.budget.remainder
    if service.overrun_bytes:
        yield (
            f"{service.name}: --num-gpu-blocks-override asks for "
            f"{_gib(service.overrun_bytes)} GiB more than is left; vLLM believes it and runs out "
            "of memory"
        )
    elif isinstance(outcome, Refusal):
        yield from _refusal(service, outcome, plan)
    elif not plan.holds(service):
        yield _condition(service, plan)
    elif outcome is None and remainder.bytes < 0:
        yield (
            f"{service.name}: uses {_gib(-remainder.bytes)} GiB beyond its share; it caches "
            "nothing, so nothing stops it"
        )


def _refusal(service: PlannedService, outcome: Refusal, plan: Plan) -> Iterator[str]:
    remainder = service.budget.remainder
    how = "by the middle of what is estimated, vLLM" if service.starts_at_best else "vLLM"
    why = outcome.message
    if remainder.bytes <= 0:
        short = _gib(-remainder.bytes)
        why = f"weights and runtime are {short} GiB more than its share, before any cache"
    yield f"{service.name}: {how} refuses to start: {why}"
    if outcome.estimated_max_model_len:
        yield f"{service.name}: --max-model-len {outcome.estimated_max_model_len} would start"
    if service.budget.demand.kv_cache_memory_bytes is None:
        yield _share_advice(service, outcome, plan)


def _share_advice(service: PlannedService, outcome: Refusal, plan: Plan) -> str:
    demand, total = service.budget.demand, plan.card.total_bytes
    missing = (outcome.needed_bytes or 0) - service.budget.remainder.bytes
    wanted = ceil((service.budget.managed_bytes + missing) / total * 100) / 100
    if wanted <= LARGEST_SHARE:
        return f"{service.name}: --gpu-memory-utilization {wanted:.2f} would be enough for it"
    weights = demand.weights.bytes / total
    return (
        f"{service.name}: no share of this card is enough (its weights alone are {weights:.0%} of "
        "it): take a smaller or more quantized model, more GPUs, or a larger card"
    )


def _condition(service: PlannedService, plan: Plan) -> str:
    length = plan.context_tokens or service.options.max_model_len or 0
    longest = service.outcome.max_model_len if isinstance(service.outcome, Allocation) else 0
    if length > longest:
        return (
            f"{service.name}: vLLM rejects a request of {length:,} tokens: --max-model-len is "
            f"{longest:,}"
        )
    requests, left = plan.requests or 0, service.budget.remainder.bytes
    why = ""
    if service.resident == service.options.max_num_seqs:
        why = f" (--max-num-seqs {service.options.max_num_seqs})"
    elif service.request_bytes is not None:
        each = service.request_bytes
        short = max(0, requests * each - left)
        missing = f"{_gib(short)} GiB short" if short else "short by less than blocks round up to"
        why = f" ({_gib(each)} GiB each, {_gib(left)} GiB left, {missing})"
    return (
        f"{service.name}: {service.resident} of {requests} requests of {length:,} tokens are "
        f"resident at once{why}; the others wait, or preempt each other as they grow, which need "
        "not be out of memory"
    )


def _knob(service: PlannedService) -> str:
    in_bytes = service.budget.demand.kv_cache_memory_bytes is not None
    return "--kv-cache-memory-bytes" if in_bytes else "--gpu-memory-utilization"


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
        yield from (f"{service.name}: {warning}" for warning in service.warnings)
        if service.gpus > 1:
            yield _spread(service)
        loading = service.options.loading
        if loading.adapters is not None:
            slots, rank = loading.adapters.slots, loading.adapters.rank
            yield f"{service.name}: weights include room for LoRA adapters: {slots} of rank {rank}"
        if loading.cpu_offload_bytes:
            moved = _gib(loading.cpu_offload_bytes)
            yield f"{service.name}: weights are what --cpu-offload-gb leaves; {moved} GiB are moved"
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


def _spread(service: PlannedService) -> str:
    """Say over how many GPUs a server spreads, and what its stages hold where they differ."""
    text = f"{service.name}: the row is of each of its {service.gpus} GPUs"
    if len(set(service.stage_weights)) == 1:
        return text
    held = ", ".join(_gib(count) for count in service.stage_weights)
    return f"{text} on the heaviest stage; weights by stage, GiB: {held}"


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
