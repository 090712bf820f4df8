"""One GPU: who holds its memory, what is claimed of it, and who runs there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvheadroom.live.claims import CardClaims, Claim, card_claims
from kvheadroom.live.engine_ranks import parts_of_rank
from kvheadroom.live.engine_view import is_asleep
from kvheadroom.live.intruders import Intruder, IntruderPast, observe_intruders
from kvheadroom.live.ledger import Ledger, NoLedger, ProcessOwner, RankOnCard, gpu_ledger
from kvheadroom.live.rank_places import GpuTenant, PlacedRank, ServerOnNode, rank_places
from kvheadroom.readings import GpuProcess, GpuReading


@dataclass(frozen=True, slots=True)
class CardView:
    """One GPU or MIG device as every face shows it.

    Attributes:
        gpu: What the driver said.
        ledger: Who holds its memory, or why that is not known.
        claims: What its engines claim of it; ``None`` where there are none, or its memory is not
            known.
        engines: Engines that run on it.
        owners: Pid → whose it is, for the processes on it.
        ranks: The engines' ranks on it and their parts.
        intruders: Who took memory beside the engines; ``None`` where no engine runs, or the driver
            does not list the processes.
        past: What to hand in at the next look.
        is_divided: It is cut into MIG devices, which tell its memory instead.
    """

    gpu: GpuReading
    ledger: Ledger | NoLedger
    claims: CardClaims | None = None
    engines: tuple[str, ...] = ()
    owners: Mapping[int, ProcessOwner] = field(default_factory=dict)
    ranks: tuple[RankOnCard, ...] = ()
    intruders: tuple[Intruder, ...] | None = None
    past: IntruderPast = field(default_factory=IntruderPast)
    is_divided: bool = False


def view_cards(
    gpus: Sequence[GpuReading],
    servers: Sequence[ServerOnNode],
    processes: Mapping[int, GpuTenant],
    pasts: Mapping[str, IntruderPast],
) -> tuple[CardView, ...]:
    """Return every GPU's view.

    Args:
        gpus: As the driver told them last.
        servers: All servers of the node.
        processes: Pid as the driver lists it → who that is; one that is missing is unknown.
        pasts: UUID → the intruders as they stood at the last look.
    """
    divided = {gpu.gpu.partition(":")[0] for gpu in gpus if ":" in gpu.gpu}
    places = rank_places(gpus, servers, processes)
    return tuple(
        _card(
            gpu,
            [place for place in places if place.gpu_uuid == gpu.uuid],
            processes,
            pasts.get(gpu.uuid, IntruderPast()),
            is_divided=gpu.gpu in divided,
        )
        for gpu in gpus
    )


def _card(
    gpu: GpuReading,
    places: Sequence[PlacedRank],
    processes: Mapping[int, GpuTenant],
    past: IntruderPast,
    *,
    is_divided: bool,
) -> CardView:
    ranks = tuple(_rank(place) for place in places)
    listed = {process.pid: process for process in gpu.processes or ()}
    owners = {pid: processes[pid].owner for pid in listed if pid in processes}
    after = observe_intruders(past, gpu, owners)
    claims = [
        claim
        for place, rank in zip(places, ranks, strict=True)
        if (claim := _claim(place, rank, listed.get(rank.pid or 0))) is not None
    ]
    claims.sort(key=lambda claim: claim.server)
    return CardView(
        gpu=gpu,
        ledger=gpu_ledger(gpu, ranks, owners),
        # Where one rank's share is not known, a sum would read as the whole.
        claims=card_claims(gpu, claims) if len(claims) == len(ranks) else None,
        engines=tuple(dict.fromkeys(rank.engine for rank in ranks)),
        owners=owners,
        ranks=ranks,
        intruders=after.intruders if gpu.processes is not None and after.was_watched else None,
        past=after,
        is_divided=is_divided,
    )


def _rank(place: PlacedRank) -> RankOnCard:
    facts, view = place.server.facts, place.view
    return RankOnCard(
        engine=place.engine,
        gpu_uuid=place.gpu_uuid,
        pid=place.pid,
        parts=parts_of_rank(
            place.place,
            options=facts.options,
            stage_weights_bytes=facts.stage_weights_bytes,
            capacity=view.capacity if view else None,
            boot=facts.boot,
            is_asleep=view is not None and is_asleep(view.reading),
        ),
        kv_used_ratio=view.reading.kv_used_ratio if view else None,
    )


def _claim(place: PlacedRank, rank: RankOnCard, process: GpuProcess | None) -> Claim | None:
    options, view = place.server.facts.options, place.view
    if options is None:
        return None
    layers = place.server.facts.layers
    return Claim(
        engine=place.engine,
        server=place.server.server,
        utilization=options.gpu_memory_utilization,
        kv_cache_memory_bytes=options.kv_cache_memory_bytes,
        held_bytes=process.used_bytes if process else None,
        parts=rank.parts,
        version=options.version,
        caches_kv=layers is None or not layers.is_encoder,
        is_asleep=view is not None and is_asleep(view.reading),
    )
