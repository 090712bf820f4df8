"""Builds the simulated node that ``kvheadroom demo`` puts behind the real pipeline."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final

from kvheadroom.demo.description import DemoServer
from kvheadroom.demo.engine import Engine
from kvheadroom.demo.families import CACHE_CONFIG_DEFAULTS
from kvheadroom.demo.gpus import SimulatedCard, SimulatedGpus, gpu_uuid
from kvheadroom.demo.page import PageFacts
from kvheadroom.demo.plans import BLOCK_TOKENS, CardPlan, NodePlan, ServerPlan
from kvheadroom.demo.processes import SimulatedProcesses
from kvheadroom.demo.profiles import PROFILES
from kvheadroom.demo.server import SimulatedServer
from kvheadroom.demo.traffic import arrivals
from kvheadroom.errors import ConfigError
from kvheadroom.readings import GpuProcess

_FIRST_ENGINE_PID: Final = 4200
_FIRST_TENANT_PID: Final = 3100


class DemoNode:
    """Simulated GPUs and vLLM servers that share one virtual clock.

    Attributes:
        servers: The vLLM servers; their ports are bound, they answer between start and close.
        gpus: What NVML would read.
        processes: What a look at the processes would find.
    """

    def __init__(self, plan: NodePlan, *, seed: int, speed: float) -> None:
        """Build the node of *plan*.

        Args:
            plan: Cards and servers.
            seed: Same seed, same traffic.
            speed: Virtual seconds per real second.
        """
        clock = _VirtualClock(speed)
        pids = _number_processes(plan)
        simulated = [_simulate(server, plan, seed, clock) for server in plan.servers]
        self._clock = clock
        self._simulated = simulated
        self.servers: tuple[DemoServer, ...] = tuple(
            _describe(server, simulated[index].url, pids)
            for index, server in enumerate(plan.servers)
        )
        self.gpus = SimulatedGpus(_occupy_cards(plan, simulated, pids), clock)
        uuids = [gpu_uuid(index) for index in range(len(plan.cards))]
        self.processes = SimulatedProcesses(self.servers, uuids)

    @property
    def engine_urls(self) -> tuple[str, ...]:
        """Base URL of each server."""
        return tuple(server.url for server in self.servers)

    def start(self) -> None:
        """Let virtual time run and answer requests."""
        self._clock.start()
        for server in self._simulated:
            server.start()

    def close(self) -> None:
        """Stop every server."""
        for server in self._simulated:
            server.close()


def build_node(profile: str, *, seed: int, speed: float) -> DemoNode:
    """Return the node of a profile, not yet started.

    Args:
        profile: ``card`` (one 12 GiB card, three services), ``rack`` (eight GPUs) or ``surge`` (an
            LLM's load rises once).
        seed: Same seed, same traffic.
        speed: Virtual seconds per real second, above 0.

    Raises:
        ConfigError: No such profile, or no such speed.
    """
    plan = PROFILES.get(profile)
    if plan is None:
        raise ConfigError(f"no demo profile {profile!r}: choose {' or '.join(PROFILES)}")
    if not (math.isfinite(speed) and speed > 0):
        raise ConfigError(f"the demo's speed must be above zero: {speed}")
    return DemoNode(plan, seed=seed, speed=speed)


class _VirtualClock:
    """Seconds since the start times the speed; 0 before the start."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._started_monotonic_seconds: float | None = None

    def start(self) -> None:
        self._started_monotonic_seconds = time.monotonic()

    def __call__(self) -> float:
        if self._started_monotonic_seconds is None:
            return 0.0
        return (time.monotonic() - self._started_monotonic_seconds) * self._speed


_Pids = Mapping[tuple[str, int], int]
"""Server name and GPU index to the process there."""


def _number_processes(plan: NodePlan) -> _Pids:
    places = [(s.name, gpu) for s in plan.servers for rank in s.ranks for gpu in rank]
    return {place: _FIRST_ENGINE_PID + number for number, place in enumerate(places)}


def _simulate(
    server: ServerPlan, plan: NodePlan, seed: int, clock: Callable[[], float]
) -> SimulatedServer:
    card = plan.cards[server.ranks[0][0]]
    engines = []
    for rank in range(len(server.ranks)):
        random = Random(f"{seed} {server.name} {rank}")  # noqa: S311  (traffic, not secrets)
        engines.append(Engine(server.limits(card), server.cost, arrivals(server.traffic, random)))
    facts = PageFacts(
        model_name=server.name,
        cache_config=cache_config(server, card),
        started_unix_seconds=round(time.time(), 2),
        several_api_servers=len(server.ranks) > 1,
    )
    return SimulatedServer(facts, engines, model=server.model, clock=clock)


def cache_config(server: ServerPlan, card: CardPlan) -> dict[str, str]:
    """Return the labels of ``cache_config_info``, ``engine`` apart, as vLLM 0.32 fills them."""
    limits = server.limits(card)
    longest_blocks = -(-limits.max_model_len // BLOCK_TOKENS)
    concurrency = limits.total_blocks / longest_blocks
    sizes = {
        "kv_cache_max_concurrency": str(concurrency),
        "kv_cache_size_tokens": str(int(concurrency * limits.max_model_len)),
        "effective_attention_block_size": str(BLOCK_TOKENS),
    }
    return {
        **CACHE_CONFIG_DEFAULTS,
        **(sizes if limits.holds_kv else dict.fromkeys(sizes, "None")),
        "block_size": str(BLOCK_TOKENS),
        "cache_dtype": server.cache_dtype,
        "enable_prefix_caching": str(limits.holds_kv),
        "gpu_memory_utilization": f"{server.utilization:g}",
        # The front end adds up its engines and shows the sum for each of them.
        "num_gpu_blocks": str(limits.total_blocks * len(server.ranks)),
    }


def _describe(server: ServerPlan, url: str, pids: _Pids) -> DemoServer:
    return DemoServer(
        name=server.name,
        url=url,
        model=server.model,
        model_config_path=server.config_path,
        command=server.command,
        gpus_by_rank=tuple(tuple(str(gpu) for gpu in rank) for rank in server.ranks),
        pids_by_rank=tuple(tuple(pids[server.name, gpu] for gpu in rank) for rank in server.ranks),
    )


def _occupy_cards(
    plan: NodePlan, simulated: Sequence[SimulatedServer], pids: _Pids
) -> list[SimulatedCard]:
    cards = []
    for index, card in enumerate(plan.cards):
        processes = []
        busy: list[Callable[[], float]] = []
        if card.tenant_bytes:
            processes.append(GpuProcess(_FIRST_TENANT_PID + index, card.tenant_bytes))
        for server, running in zip(plan.servers, simulated, strict=True):
            for rank, gpus in enumerate(server.ranks):
                if index in gpus:
                    pid = pids[server.name, index]
                    processes.append(GpuProcess(pid, server.process_bytes(card)))
                    busy.append(_busy_of(running, rank))
        cards.append(SimulatedCard(card, tuple(processes), tuple(busy)))
    return cards


def _busy_of(server: SimulatedServer, rank: int) -> Callable[[], float]:
    return lambda: server.busy_seconds(rank)
