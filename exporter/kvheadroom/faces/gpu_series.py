"""The series of one GPU: what the driver said, and who holds its memory."""

from collections import Counter
from collections.abc import Iterator

from kvheadroom.faces import catalogue as c
from kvheadroom.faces.catalogue import MetricSpec, Series
from kvheadroom.live.card_view import CardView
from kvheadroom.live.ledger import Ledger, LedgerEntry
from kvheadroom.live.rank_parts import margin_bytes
from kvheadroom.readings import GpuReading

_PART_NAMES = ("weights", "kv", "activation", "non_torch", "cuda_graph", "context")


def card_series(card: CardView, driver_version: str | None) -> Iterator[Series]:
    """Yield the series of *card*.

    Args:
        card: The GPU or MIG device.
        driver_version: NVIDIA driver; ``None`` where unknown.
    """
    gpu = card.gpu
    at = (gpu.gpu, gpu.uuid)
    identity = (gpu.name or "", driver_version or "", gpu.mig_profile or "")
    yield c.GPU_INFO, (*at, *identity), 1
    # The same bytes are told by its MIG devices, and a sum over devices must not count them twice.
    if not card.is_divided:
        yield from _memory(gpu)
        yield from _holders(card)
    yield from known(c.GPU_UTILIZATION_RATIO, at, gpu.utilization_ratio)
    yield from known(c.GPU_TEMPERATURE_CELSIUS, at, gpu.temperature_celsius)
    yield from known(c.GPU_POWER_WATTS, at, gpu.power_watts)
    for reading, reason in gpu.unavailable.items():
        yield c.GPU_READING_UNAVAILABLE, (*at, reading, reason), 1


def known(spec: MetricSpec, labels: tuple[str, ...], value: float | None) -> Iterator[Series]:
    """Yield the series of *value*; what is unknown has none."""
    if value is not None:
        yield spec, labels, value


def _memory(gpu: GpuReading) -> Iterator[Series]:
    at = (gpu.gpu, gpu.uuid)
    yield from known(c.GPU_MEMORY_TOTAL_BYTES, at, gpu.total_bytes)
    yield from known(c.GPU_MEMORY_RESERVED_BYTES, at, gpu.reserved_bytes)
    yield from known(c.GPU_MEMORY_USED_BYTES, at, gpu.used_bytes)
    yield from known(c.GPU_MEMORY_FREE_BYTES, at, gpu.free_bytes)


def _holders(card: CardView) -> Iterator[Series]:
    gpu = card.gpu
    at = (gpu.gpu, gpu.uuid)
    if gpu.processes is not None:
        yield c.GPU_PROCESSES, at, len(gpu.processes)
        yield from _process_memory(card)
    if isinstance(card.ledger, Ledger):
        yield from _ledger(card.ledger)
    for engine in card.engines:
        yield c.ENGINE_GPU_INFO, (engine, *at), 1
    yield from _budget(card)
    if card.claims is not None and gpu.total_bytes is not None:
        claimed = gpu.total_bytes - card.claims.unallocated_bytes - (gpu.reserved_bytes or 0)
        yield c.GPU_UTILIZATION_CLAIMED_RATIO, at, card.claims.claimed_ratio
        yield c.GPU_MEMORY_CLAIMED_BYTES, at, claimed
        for restart in card.claims.restarts:
            if restart.starts is not None:
                blocked = float(not restart.starts)
                yield c.SERVER_RESTART_BLOCKED, (restart.server, *at), blocked
    if card.intruders is not None and all(one.taken_bytes is not None for one in card.intruders):
        taken = sum(one.taken_bytes or 0 for one in card.intruders)
        yield c.GPU_INTRUDER_MEMORY_BYTES, at, taken


def _process_memory(card: CardView) -> Iterator[Series]:
    gpu = card.gpu
    processes = gpu.processes or ()
    # A sum over processes of which one is unknown would read as the whole.
    if any(process.used_bytes is None for process in processes):
        return
    held = {"other": 0} if not card.engines else {}
    for process in processes:
        owner = card.owners.get(process.pid)
        name = owner.name if owner is not None and owner.kind == "engine" else "other"
        held[name] = held.get(name, 0) + (process.used_bytes or 0)
    for name, count in held.items():
        yield c.GPU_PROCESS_MEMORY_BYTES, (gpu.gpu, gpu.uuid, name), count


def _ledger(ledger: Ledger) -> Iterator[Series]:
    at = (ledger.gpu, ledger.uuid)
    sums: dict[tuple[str, str, str], int] = {}
    for component, owner, source, count in _lines(ledger):
        key = (owner, component, source)
        sums[key] = sums.get(key, 0) + count
    for key, count in sums.items():
        yield c.GPU_LEDGER_BYTES, (*at, *key), count
    yield c.GPU_MEMORY_UNEXPLAINED_BYTES, at, ledger.unexplained_bytes


def _lines(ledger: Ledger) -> Iterator[tuple[str, str, str, int]]:
    for entry in ledger.entries:
        for component, count in split_pool(entry):
            yield component, entry.owner or "", entry.source, count


def split_pool(entry: LedgerEntry) -> Iterator[tuple[str, int]]:
    """Yield a ledger's entry by component and bytes, a pool by what is in use and what is not."""
    if entry.component != "kv" or entry.used_bytes is None:
        yield entry.component, entry.bytes
        return
    yield "kv_used", entry.used_bytes
    yield "kv_free", entry.bytes - entry.used_bytes


def _budget(card: CardView) -> Iterator[Series]:
    gpu = card.gpu
    sums: dict[tuple[str, str, str], int] = {}
    for rank in card.ranks:
        for component in _PART_NAMES:
            part = getattr(rank.parts, component)
            if part is not None:
                key = (rank.engine, component, part.source)
                sums[key] = sums.get(key, 0) + part.bytes
    for key, count in sums.items():
        yield c.BUDGET_BYTES, (gpu.gpu, gpu.uuid, *key), count
    yield from _margins(card)


def _margins(card: CardView) -> Iterator[Series]:
    """Yield what the parts of each engine leave of its share, where it has one rank here."""
    shares = card.claims.shares if card.claims else ()
    managed = {share.engine: share.managed_bytes for share in shares}
    ranks = Counter(rank.engine for rank in card.ranks)
    for rank in card.ranks:
        if rank.engine in managed and ranks[rank.engine] == 1:
            labels = (card.gpu.gpu, card.gpu.uuid, rank.engine, "margin", "estimated")
            margin = margin_bytes(rank.parts, managed[rank.engine])
            yield from known(c.BUDGET_BYTES, labels, margin)
