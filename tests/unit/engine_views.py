"""Engines and GPUs as the live judge sees them, made from readings by the real functions."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.unit.oracle import model_at

from kvheadroom.engine.options import Device, EngineOptions
from kvheadroom.live.admission import AdmissionRules
from kvheadroom.live.card_view import CardView, view_cards
from kvheadroom.live.engine_facts import EngineFacts
from kvheadroom.live.engine_view import EnginePast, EngineView, ViewOptions, view_engine
from kvheadroom.live.ledger import ProcessOwner
from kvheadroom.live.pressure import Pressure
from kvheadroom.live.process_tree import Rank
from kvheadroom.live.rank_places import GpuTenant, ServerOnNode
from kvheadroom.live.traffic import TrafficLengths
from kvheadroom.readings import EngineReading, GpuProcess, GpuReading, ServerReading
from kvheadroom.units import GIB

# vLLM 0.32 plans Qwen3-8B on 20 GiB for requests of up to 40,960 tokens as 9,102 blocks of 16:
# 145,632 tokens, 3.56 requests.
QWEN3_8B = {
    "num_gpu_blocks": "9102",
    "block_size": "16",
    "cache_dtype": "auto",
    "kv_cache_size_tokens": "145632",
    "kv_cache_max_concurrency": str(9102 / 2560),
}
HOPPER = Device(total_bytes=80 * GIB, capability=(9, 0))


def options(**changed: Any) -> EngineOptions:  # noqa: ANN401
    """A server on a Hopper GPU with the defaults of vLLM 0.32 for it."""
    settings: dict[str, Any] = {
        "version": (0, 32, 0),
        "device": HOPPER,
        "max_model_len": 40_960,
        "max_num_batched_tokens": 8_192,
        "max_num_seqs": 256,
        "concurrent_batches": 2,
        "gpu_memory_utilization": 0.5,
    }
    return EngineOptions(**(settings | changed))


def facts(model: str | None = "qwen3-8b", **changed: Any) -> EngineFacts:  # noqa: ANN401
    """What is known of a server; ``settings`` are its options, ``None`` where not known."""
    settings = changed.pop("settings", options())
    return EngineFacts(
        layers=None if model is None else model_at(f"configs/{model}.json"),
        tensor_parallel=settings.tensor_parallel if settings else 1,
        options=settings,
        rules=AdmissionRules(
            version=(0, 32, 0),
            max_num_seqs=settings.max_num_seqs if settings else None,
            max_num_batched_tokens=settings.max_num_batched_tokens if settings else None,
        ),
        **changed,
    )


def engine(
    *,
    labels: Mapping[str, str] | None = None,
    known: EngineFacts | None = None,
    used_ratio: float | None = 0.0,
    running: float | None = 0,
    waiting: float | None = 0,
    target: str = "127.0.0.1:8000",
    rank: str = "0",
    max_model_len: int = 40_960,
    sleep_state: str | None = "awake",
    engines: int = 1,
) -> EngineView:
    """One engine, seen once."""
    reading = EngineReading(
        rank=rank,
        requests_running=running,
        requests_waiting=waiting,
        waiting_by_reason={} if waiting is None else {"capacity": waiting, "deferred": 0},
        kv_used_ratio=used_ratio,
        sleep_state=sleep_state,
        cache_config=labels if labels is not None else QWEN3_8B,
    )
    peers = tuple(replace(reading, rank=str(one)) for one in range(engines))
    server = ServerReading(
        engines=peers, vllm_version="0.32.0", max_model_len=max_model_len, health="ok"
    )
    view, _ = view_engine(
        reading,
        server,
        target=target,
        facts=known or facts(),
        past=EnginePast(),
        options=ViewOptions(),
        at_seconds=0.0,
    )
    return view


def pressed(view: EngineView, binding: str = "kv", **changed: Any) -> EngineView:  # noqa: ANN401
    """The same engine with requests of 2,000 tokens (95 %: 4,000) that *binding* holds up."""
    return replace(
        view,
        pressure=Pressure(binding=binding, evidence="seen by the test"),  # type: ignore[arg-type]
        traffic=TrafficLengths(mean_tokens=2_000, p95_tokens=4_000, requests=100),
        **changed,
    )


def cards(
    views: Sequence[EngineView],
    *,
    held_gib: Mapping[str, float],
    total_gib: float = 80.0,
    others_gib: float = 0.0,
) -> tuple[CardView, ...]:
    """The one GPU that all *views* share, one process each, and perhaps one that is no engine.

    Args:
        views: Engines of one rank.
        held_gib: Engine → what its process holds.
        total_gib: Memory of the GPU.
        others_gib: What the other process holds.
    """
    held = {pid: held_gib[view.engine] for pid, view in enumerate(views, 100)}
    if others_gib:
        held[99] = others_gib
    used = sum(map(_gib, held.values()))
    gpu = GpuReading(
        gpu="0",
        uuid="GPU-1",
        total_bytes=_gib(total_gib),
        reserved_bytes=0,
        used_bytes=used,
        free_bytes=_gib(total_gib) - used,
        processes=tuple(GpuProcess(pid, _gib(size)) for pid, size in held.items()),
    )
    servers = [ServerOnNode(view.target, None, view.facts, (view,)) for view in views]
    tenants = {
        pid: GpuTenant(ProcessOwner("engine", view.engine), view.target, Rank())
        for pid, view in enumerate(views, 100)
    }
    tenants[99] = GpuTenant(ProcessOwner("other", "python"))
    return view_cards((gpu,), servers, tenants, {})


def _gib(size: float) -> int:
    return round(size * GIB)
