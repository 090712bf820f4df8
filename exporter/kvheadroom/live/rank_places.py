"""Which rank of which engine is on which GPU, by its process or by the server's own order."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from kvheadroom.live.boot_figures import RankPlace
from kvheadroom.live.engine_facts import EngineFacts
from kvheadroom.live.engine_view import EngineView, engine_id
from kvheadroom.live.found_servers import FoundServer
from kvheadroom.live.ledger import ProcessOwner
from kvheadroom.live.process_tree import Rank
from kvheadroom.live.visible_devices import Sizes, rank_at
from kvheadroom.readings import GpuReading


@dataclass(frozen=True, slots=True)
class ServerOnNode:
    """One server, as far as its place on this node goes.

    Attributes:
        server: What its engines are called by: its configured name, its address or its id.
        found: Its process and ranks; ``None`` where they are not known.
        facts: What is known of its engines without asking them.
        engines: Its engines that answered.
    """

    server: str
    found: FoundServer | None
    facts: EngineFacts
    engines: tuple[EngineView, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuTenant:
    """Who one process on a GPU is.

    Attributes:
        owner: Whose it is, by the name that faces show.
        server: The server it belongs to, as :class:`ServerOnNode` has it; ``None`` for others.
        rank: Its place in that server.
        own_pid: Its pid as it sees itself, inside its container.
    """

    owner: ProcessOwner
    server: str | None = None
    rank: Rank | None = None
    own_pid: int | None = None


@dataclass(frozen=True, slots=True)
class PlacedRank:
    """One rank of an engine on one GPU.

    Attributes:
        server: Its server.
        engine: Its engine's id.
        view: Its engine, where that answered.
        gpu_uuid: The GPU or MIG device.
        pid: Its process as the driver lists it; ``None`` where that is not known.
        place: Where it stands among the ranks of its server.
    """

    server: ServerOnNode
    engine: str
    view: EngineView | None
    gpu_uuid: str
    pid: int | None
    place: RankPlace


def rank_places(
    gpus: Sequence[GpuReading],
    servers: Sequence[ServerOnNode],
    processes: Mapping[int, GpuTenant],
) -> tuple[PlacedRank, ...]:
    """Return every rank that is known to be on a GPU.

    Processes tell it where the driver lists them. Of a server none of whose processes is seen,
    the devices it was given tell, in the order in which vLLM takes them.

    Args:
        gpus: As the driver told them last.
        servers: All servers of the node.
        processes: Pid as the driver lists it → who that is.
    """
    by_name = {server.server: server for server in servers}
    seen = [place for gpu in gpus for place in _by_processes(gpu, by_name, processes)]
    with_processes = {place.server.server for place in seen}
    uuids = {gpu.uuid for gpu in gpus}
    for server in servers:
        if server.server not in with_processes:
            seen += [place for place in _by_order(server) if place.gpu_uuid in uuids]
    return tuple(seen)


def engine_at(server: ServerOnNode, data: int | None) -> tuple[str, EngineView | None]:
    """Return id and view of the engine of data-parallel rank *data*; ``None`` is the only one."""
    views = {view.reading.rank: view for view in server.engines}
    if data is None and len(views) == 1:
        view: EngineView | None = next(iter(views.values()))
    else:
        view = views.get(str(data or 0))
    name = view.engine if view else engine_id(server.server, str(data or 0), server.facts.name)
    return name, view


def _by_processes(
    gpu: GpuReading,
    servers: Mapping[str, ServerOnNode],
    processes: Mapping[int, GpuTenant],
) -> Sequence[PlacedRank]:
    """Return the ranks whose processes the driver lists on *gpu*.

    A front end, or a core that has workers, may hold a context beside its rank: of several
    processes that would be the same rank, the largest is it.
    """
    ranks: dict[Hashable, PlacedRank] = {}
    for process in sorted(gpu.processes or (), key=lambda one: (one.used_bytes or 0, one.pid)):
        tenant = processes.get(process.pid)
        server = servers.get(tenant.server or "") if tenant else None
        if tenant is None or server is None:
            continue
        rank = tenant.rank or Rank()
        placed = _placed(server, gpu.uuid, rank, process.pid, tenant.own_pid)
        place = placed.place
        # Where it is not known which engine's they are, each may be another's.
        which = process.pid if rank.data is None and place.engines > 1 else None
        ranks[server.server, place.dp, place.pp, place.tp, which] = placed
    return sorted(ranks.values(), key=lambda placed: placed.pid or 0)


def _by_order(server: ServerOnNode) -> Iterator[PlacedRank]:
    found, options = server.found, server.facts.options
    if found is None or found.devices is None or options is None:
        return
    sizes = Sizes(
        data=options.data_parallel,
        pipeline=options.pipeline_parallel,
        tensor=options.tensor_parallel,
        prefill_context=options.prefill_context_parallel,
    )
    ranks = prod((sizes.data, sizes.pipeline, sizes.tensor, sizes.prefill_context))
    # Fewer devices than ranks: the rest is on another node, and who is where cannot be told.
    if len(found.devices) < ranks:
        return
    for position, uuid in enumerate(found.devices[:ranks]):
        yield _placed(server, uuid, rank_at(position, sizes), None, None)


def _placed(
    server: ServerOnNode, uuid: str, rank: Rank, pid: int | None, own_pid: int | None
) -> PlacedRank:
    options, data = server.facts.options, rank.data
    engine, view = engine_at(server, data)
    return PlacedRank(
        server=server,
        engine=engine,
        view=view,
        gpu_uuid=uuid,
        pid=pid,
        place=RankPlace(
            dp=data or 0,
            pp=rank.pipeline or 0,
            tp=rank.tensor or 0,
            engines=options.data_parallel if options else max(1, len(server.engines)),
            stages=options.pipeline_parallel if options else 1,
            ranks_per_stage=options.tensor_parallel if options else server.facts.tensor_parallel,
            pid=own_pid,
        ),
    )
