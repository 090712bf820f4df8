"""One snapshot as the JSON document: the same numbers as the metrics, by name."""

from collections.abc import Iterator, Sequence

from kvheadroom.faces.document import (
    CacheDocument,
    DiscoveredDocument,
    EngineDocument,
    FitDocument,
    GpuDocument,
    NodeDocument,
    RestartDocument,
    ServerDocument,
    ShareDocument,
    SourceDocument,
    TrafficDocument,
)
from kvheadroom.faces.gpu_series import split_pool
from kvheadroom.live.advice import Advice, advise_all
from kvheadroom.live.card_view import CardView
from kvheadroom.live.engine_view import EngineView, is_asleep
from kvheadroom.live.found_servers import FoundServer
from kvheadroom.live.ledger import Ledger
from kvheadroom.live.snapshot import ServerView, Snapshot
from kvheadroom.readings import SourceHealth


def node_document(version: str, snapshot: Snapshot) -> NodeDocument:
    """Return the document of *snapshot*.

    Args:
        version: Of this kvheadroom.
        snapshot: The node at one moment.
    """
    # Nobody but a reader of this needs it, so it is worked out when one comes.
    advice = advise_all(snapshot.cards, snapshot.engines)
    return NodeDocument(
        version=version,
        complete=snapshot.is_complete,
        driver_version=snapshot.driver_version,
        sources=tuple(map(_source, snapshot.sources)),
        discovered=tuple(_discovered(*one) for one in snapshot.discovered.items()),
        servers=tuple(map(_server, snapshot.servers)),
        gpus=tuple(map(_gpu, snapshot.cards)),
        engines=tuple(_engine(view, advice.get(view.engine, ())) for view in snapshot.engines),
    )


def _source(health: SourceHealth) -> SourceDocument:
    return SourceDocument(
        source=health.source,
        target=health.target,
        up=health.up,
        reason=health.reason,
        detail=health.detail,
        failures={reason: count for reason, count in health.failures.items() if count},
        duration_seconds=health.duration_seconds,
        last_success_unix_seconds=health.last_success_unix_seconds,
    )


def _discovered(server_id: str, found: FoundServer) -> DiscoveredDocument:
    command = found.command
    return DiscoveredDocument(
        server=server_id,
        address=found.address.name,
        pid=found.pid,
        model=command.model if command else None,
        is_listening=found.address.is_listening,
        unreachable=found.address.unreachable,
        problem=found.problem,
        devices=found.devices,
        container_id=found.container_id,
        pod=found.pod_name,
        pod_namespace=found.pod_namespace,
        systemd_unit=found.systemd_unit,
    )


def _server(server: ServerView) -> ServerDocument:
    return ServerDocument(
        target=server.target,
        vllm_version=server.vllm_version,
        silent=server.silent,
        endpoints={path: reason or "ok" for path, reason in server.endpoints.items()},
    )


# --- GPUs -----------------------------------------------------------------------------------


def _gpu(card: CardView) -> GpuDocument:
    gpu, claims = card.gpu, card.claims
    is_whole = not card.is_divided
    ledger = card.ledger if isinstance(card.ledger, Ledger) and is_whole else None
    return GpuDocument(
        gpu=gpu.gpu,
        uuid=gpu.uuid,
        name=gpu.name,
        mig_profile=gpu.mig_profile,
        total_bytes=gpu.total_bytes if is_whole else None,
        used_bytes=gpu.used_bytes if is_whole else None,
        free_bytes=gpu.free_bytes if is_whole else None,
        reserved_bytes=gpu.reserved_bytes if is_whole else None,
        utilization_ratio=gpu.utilization_ratio,
        temperature_celsius=gpu.temperature_celsius,
        power_watts=gpu.power_watts,
        processes=None if gpu.processes is None else len(gpu.processes),
        unavailable=dict(gpu.unavailable),
        engines=card.engines,
        ledger=tuple(_shares(ledger)) if ledger else (),
        ledger_notes=ledger.notes if ledger else (),
        ledger_absent=_why_no_ledger(card),
        claimed_utilization_ratio=claims.claimed_ratio if claims else None,
        overcommitted=claims.is_overcommitted if claims else None,
        intruders=tuple(one.name for one in card.intruders or ()),
        intruder_bytes=_intruder_bytes(card),
        restarts=tuple(_restarts(card)),
        start_order=(claims.start_order or ()) if claims else (),
    )


def _why_no_ledger(card: CardView) -> str | None:
    if card.is_divided:
        return "its MIG devices have ledgers of their own"
    return None if isinstance(card.ledger, Ledger) else card.ledger.reason


def _shares(ledger: Ledger) -> Iterator[ShareDocument]:
    for entry in ledger.entries:
        for component, count in split_pool(entry):
            yield ShareDocument(
                component=component, bytes=count, source=entry.source, owner=entry.owner
            )


def _restarts(card: CardView) -> Iterator[RestartDocument]:
    for restart in card.claims.restarts if card.claims else ():
        if restart.starts is not None:
            yield RestartDocument(
                server=restart.server,
                starts=restart.starts,
                needed_bytes=restart.asked_bytes,
                free_bytes=restart.found_bytes,
            )


def _intruder_bytes(card: CardView) -> int | None:
    taken = [one.taken_bytes for one in card.intruders or ()]
    known = [count for count in taken if count is not None]
    return sum(known) if card.intruders is not None and len(known) == len(taken) else None


# --- engines --------------------------------------------------------------------------------


def _engine(view: EngineView, advice: Sequence[Advice]) -> EngineDocument:
    reading, pressure, drift = view.reading, view.pressure, view.drift
    sleeps = None if reading.sleep_state is None else is_asleep(reading)
    return EngineDocument(
        engine=view.engine,
        target=view.target,
        model=reading.model_name,
        vllm_version=view.vllm_version,
        requests_running=reading.requests_running,
        requests_waiting=reading.requests_waiting,
        waiting_by_reason=dict(reading.waiting_by_reason),
        requests_preempted=view.requests_preempted,
        preemptions_total=view.preemptions_total,
        preemptions_inferred_total=view.preemptions_inferred_total,
        max_num_seqs=view.facts.rules.max_num_seqs,
        restarts=view.restarts,
        asleep=sleeps,
        stalled=view.stalled,
        stall_evidence=view.stall_evidence,
        cache=_cache(view),
        headroom=tuple(_fits(view)),
        limit=pressure.binding if pressure else None,
        limit_evidence=pressure.evidence if pressure and pressure.binding != "none" else None,
        exhaustion_seconds=view.exhaustion_seconds if view.headroom else None,
        drift_ratio=drift.ratio if drift else None,
        drift_reason=drift.reason if drift else None,
        boot_change=view.boot_change.text if view.boot_change else None,
        budget_problem=view.facts.problem,
        traffic=_traffic(view),
        advice=tuple(one.text for one in advice),
    )


def _cache(view: EngineView) -> CacheDocument | None:
    capacity, headroom = view.capacity, view.headroom
    if capacity is None:
        return None
    if capacity.usable_blocks == 0:
        return CacheDocument(layout=capacity.layout, blocks=capacity.blocks, usable_blocks=0)
    return CacheDocument(
        layout=capacity.layout,
        blocks=capacity.blocks,
        usable_blocks=capacity.usable_blocks,
        block_tokens=capacity.block_tokens,
        tokens=capacity.tokens,
        tokens_source=capacity.tokens_source,
        bytes=capacity.bytes,
        bytes_per_block=capacity.bytes_per_block,
        max_model_len=capacity.max_model_len,
        used_ratio=None if is_asleep(view.reading) else view.reading.kv_used_ratio,
        used_blocks=headroom.used_blocks if headroom else None,
        used_bytes=headroom.used_bytes if headroom else None,
        free_blocks=headroom.free_blocks if headroom else None,
        free_tokens=headroom.free_tokens if headroom else None,
        free_bytes=headroom.free_bytes if headroom else None,
    )


def _fits(view: EngineView) -> Iterator[FitDocument]:
    if view.headroom is None:
        return
    for context, requests in view.headroom.requests.items():
        yield FitDocument(
            context=context,
            context_tokens=view.headroom.context_tokens[context],
            requests=requests,
        )


def _traffic(view: EngineView) -> TrafficDocument | None:
    traffic = view.traffic
    if traffic is None:
        return None
    return TrafficDocument(
        mean_tokens=traffic.mean_tokens,
        p95_tokens=traffic.p95_tokens,
        requests=traffic.requests,
    )
