"""Add up the memory budget a log prints, and say what of it is left unexplained."""

from dataclasses import dataclass

from kvheadroom.node.boot_record import BootRecord, Figure


@dataclass(frozen=True, slots=True)
class Balance:
    """The budget of the rank with the smallest pool, all in bytes.

    Attributes:
        managed_bytes: Share of the GPU that vLLM may use.
        held_bytes: Weights and what else lives outside PyTorch.
        activation_bytes: Peak of the profile run.
        graph_bytes: Set aside for CUDA graphs; 0 where the pool was not reduced by them.
        kv_bytes: The KV cache.
    """

    managed_bytes: float
    held_bytes: float
    activation_bytes: float
    graph_bytes: float
    kv_bytes: float

    @property
    def rest_bytes(self) -> float:
        """What the parts leave of the managed memory; of each, two places of a GiB are known."""
        return (
            self.managed_bytes
            - self.held_bytes
            - self.activation_bytes
            - self.graph_bytes
            - self.kv_bytes
        )


def balance(record: BootRecord) -> Balance | None:
    """Return the budget of *record*, or ``None`` where the log does not print all of it."""
    pool = record.least("kv_in_use_bytes") or record.least("available_kv_bytes")
    if pool is None:
        return None
    managed = _beside(pool, record, "requested_bytes")
    held = _held_bytes(pool, record)
    activation = _beside(pool, record, "activation_bytes")
    if managed is None or held is None or activation is None:
        return None
    without_graphs = Balance(managed, held, activation, 0, pool.value)
    estimate = _beside(pool, record, "graph_estimate_bytes")
    if estimate is None:
        return without_graphs
    # Whether the estimate was subtracted, and whether the printed activation holds it already,
    # differs between versions and runners: the sum that closes tells.
    with_graphs = Balance(managed, held, activation, estimate, pool.value)
    return min(without_graphs, with_graphs, key=lambda each: abs(each.rest_bytes))


def _held_bytes(pool: Figure, record: BootRecord) -> float | None:
    consumed = _beside(pool, record, "consumed_bytes")
    if consumed is not None:
        return consumed
    weights = _beside(pool, record, "profiled_weights_bytes")
    other = _beside(pool, record, "non_torch_bytes")
    return weights + other if weights is not None and other is not None else None


def _beside(pool: Figure, record: BootRecord, name: str) -> float | None:
    """Return the figure called *name* of the process that owns *pool*, else the last of any."""
    found = record.all(name)
    own = [figure for figure in found if (figure.process, figure.pid) == (pool.process, pool.pid)]
    return (own or found)[-1].value if found else None
