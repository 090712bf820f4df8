from typing import Any

import pytest
from tests.unit.startup_logs import GOLD, only_boot, server_log

from kvheadroom.live.boot_figures import RankPlace, boot_of_rank, is_boot_of
from kvheadroom.node.boot_reading import boot_reading
from kvheadroom.readings import BootReading, ProcessBoot
from kvheadroom.units import GIB

# A public log of a 27B model on a GB10 (vLLM 0.27.1): 55.99 + 3.78 + 50.29 = 110.06 GiB, so the
# peak holds the graphs' estimate of 1.94.
GB10 = """\
(APIServer pid=1) INFO 11-30 09:00:00 [api_server.py:1] vLLM API server version 0.27.1
(EngineCore pid=7) INFO 11-30 09:00:01 [core.py:1] Initializing a V1 LLM engine (v0.27.1) with \
config: model='m', dtype=torch.bfloat16
(EngineCore pid=7) INFO 11-30 09:00:02 [model_runner.py:1] Model loading took 51.35 GiB memory \
and 9.1 seconds
(EngineCore pid=7) INFO 11-30 09:00:03 [gpu_worker.py:1] Available KV cache memory: 50.29 GiB
(EngineCore pid=7) INFO 11-30 09:00:03 [gpu_worker.py:1] CUDA graph memory profiling is enabled \
(default since v0.21.0). The current --gpu-memory-utilization=0.9200 is equivalent to \
--gpu-memory-utilization=0.9038 without CUDA graph memory profiling.
(EngineCore pid=7) INFO 11-30 09:00:03 [kv_cache_utils.py:1] GPU KV cache size: 820,013 tokens
(EngineCore pid=7) INFO 11-30 09:00:03 [kv_cache_utils.py:1] Maximum concurrency for 786,432 \
tokens per request: 1.04x
(EngineCore pid=7) INFO 11-30 09:00:04 [model_runner.py:1] CUDA graph pool memory: 0.94 GiB \
(actual), 1.94 GiB (estimated), difference: 1.00 GiB (106%).
(EngineCore pid=7) INFO 11-30 09:00:04 [gpu_worker.py:1] Free memory on device cuda:0 \
(115.1/119.63 GiB) on startup. Desired GPU memory utilization is (0.92, 110.06 GiB). Actual usage \
is 55.99 GiB for consumed memory (weights + non-torch), 3.78 GiB for peak activation, and 0.94 GiB \
for CUDAGraph memory. Current kv cache memory in use is 50.29 GiB.
(APIServer pid=1) INFO:     Application startup complete.
"""


def gib(amount: float) -> int:
    return round(amount * GIB)


def reading(log: str | bytes) -> BootReading:
    return boot_reading(only_boot(log))


def test_the_parts_of_a_rank_are_read_from_its_log() -> None:
    """Weights as loaded, non-torch as what was consumed beside them, the peak without graphs."""
    boot = reading(GB10)

    [engine] = [one for one in boot.processes if one.process == "EngineCore"]
    assert (boot.version, boot.is_ready, boot.max_model_len) == ("0.27.1", True, 786_432)
    assert engine.weights_bytes == gib(51.35)
    assert engine.non_torch_bytes == pytest.approx(gib(4.64), abs=1)
    assert engine.activation_bytes == pytest.approx(gib(1.84), abs=1)
    assert (engine.graph_bytes, engine.graph_estimate_bytes) == (gib(0.94), gib(1.94))
    assert (engine.kv_bytes, engine.kv_tokens) == (gib(50.29), 820_013)
    assert (engine.requested_bytes, engine.utilization_ratio) == (gib(110.06), 0.92)


def test_a_peak_beside_the_graphs_stays_as_it_is() -> None:
    """Without the estimate in the sum (0.69 printed, 1.94 less pool), nothing is taken off."""
    boot = reading(GB10.replace("50.29", "48.35"))

    assert [one.activation_bytes for one in boot.processes if one.weights_bytes] == [gib(3.78)]


def test_the_logs_of_real_servers_are_readings() -> None:
    """A DP2 server of vLLM 0.28 gave each engine 40 blocks of 128 tokens: 5,120 tokens, 2.5x."""
    boot = reading(server_log("0.28.0-dp2"))

    for dp in (0, 1):
        own = boot_of_rank(boot, RankPlace(dp=dp, engines=2))
        assert (own.kv_tokens, own.max_concurrency) == (5_120, 2.5)


def test_a_refused_start_is_a_failure() -> None:
    """A pool of 8 blocks was refused for requests of 4,096 tokens."""
    boot = reading(server_log("0.32.0-toolong"))

    assert not boot.is_ready
    assert boot.failure == "request_too_long"


def two_stages() -> BootReading:
    def worker(name: str, rank: int, weights: int, kv: int | None = None) -> ProcessBoot:
        return ProcessBoot(name, 100 + rank, rank, weights_bytes=weights, kv_bytes=kv)

    return BootReading(
        processes=(
            worker("Worker_PP0_TP0", 0, 10, 7),
            worker("Worker_PP0_TP1", 1, 11),
            worker("Worker_PP1_TP0", 2, 20, 5),
            ProcessBoot("EngineCore", 99, kv_tokens=1_000),
        )
    )


def place(pp: int, tp: int, pid: int | None = None) -> RankPlace:
    return RankPlace(pp=pp, tp=tp, stages=2, ranks_per_stage=2, pid=pid)


def test_a_rank_has_its_own_figures() -> None:
    """By the name of its process."""
    assert boot_of_rank(two_stages(), place(0, 1)).weights_bytes == 11


def test_what_a_rank_does_not_say_its_stage_says() -> None:
    """Only the first rank of a stage prints its pool, and all of a stage have the same."""
    assert boot_of_rank(two_stages(), place(0, 1)).kv_bytes == 7
    assert boot_of_rank(two_stages(), place(1, 1)).weights_bytes == 20


def test_a_stage_that_says_nothing_takes_nothing_from_another() -> None:
    """Another stage holds other layers."""
    others = BootReading(processes=two_stages().processes[:2])

    assert boot_of_rank(others, place(1, 0)).weights_bytes is None


def test_a_pid_beats_a_name() -> None:
    """Before its groups exist a worker is called ``Worker`` and no more."""
    boot = BootReading(
        processes=(
            ProcessBoot("Worker", 100, weights_bytes=10),
            ProcessBoot("Worker", 101, weights_bytes=11),
        )
    )

    assert boot_of_rank(boot, RankPlace(tp=1, ranks_per_stage=2, pid=101)).weights_bytes == 11


def test_a_global_rank_tells_stage_and_place() -> None:
    """Up to 0.9 the prefix is ``VllmWorker rank=3``: stage 1, rank 1 of two."""
    boot = BootReading(
        processes=tuple(
            ProcessBoot("VllmWorker", 100 + rank, rank, weights_bytes=rank) for rank in range(4)
        )
    )

    assert boot_of_rank(boot, place(1, 1)).weights_bytes == 3


def test_engine_figures_come_from_the_engine() -> None:
    """Tokens are of the pool, which every rank has a part of."""
    assert boot_of_rank(two_stages(), place(1, 1)).kv_tokens == 1_000


def test_engines_do_not_take_from_each_other() -> None:
    """Each data-parallel engine sizes its own pool."""
    boot = BootReading(processes=(ProcessBoot("EngineCore_DP0", 1, kv_tokens=7, kv_bytes=3),))

    other = boot_of_rank(boot, RankPlace(dp=1, engines=2))
    assert (other.kv_tokens, other.kv_bytes) == (None, None)


@pytest.mark.parametrize(
    ("said", "agrees"),
    [
        ({"version": "0.27.1", "kv_tokens": 820_013, "max_model_len": 786_432}, True),
        ({"version": None, "kv_tokens": None, "max_model_len": None}, True),
        ({"version": "0.28.0", "kv_tokens": 820_013, "max_model_len": 786_432}, False),
        ({"version": "0.27.1", "kv_tokens": 820_014, "max_model_len": 786_432}, False),
        ({"version": "0.27.1", "kv_tokens": 820_013, "max_model_len": 32_768}, False),
    ],
)
def test_a_log_of_another_start_is_not_taken(said: dict[str, object], agrees: bool) -> None:
    """The engine's page says which version, pool and length run now."""
    assert is_boot_of(reading(GB10), **said) is agrees  # type: ignore[arg-type]


def test_a_start_that_failed_runs_nothing() -> None:
    """What runs was started by another attempt."""
    boot = reading(server_log("0.32.0-toolong"))

    assert not is_boot_of(boot, version="0.32.0", kv_tokens=None, max_model_len=None)


# Of each figure in the collection: where a reading has it.
PRINTED = {
    "weights_gib": "weights_bytes",
    "kv_in_use_gib": "kv_bytes",
    "cudagraph_gib": "graph_bytes",
    "non_torch_gib": "non_torch_bytes",
    "activation_gib": "activation_bytes",
    "budget_gib": "requested_bytes",
}
# Told in other words than vLLM's.
RETOLD = {
    "qwen25-0.5b-util035-nochunk",
    "qwen25-15b-l4-triton-util070",
    "qwen38-27b-bf16-rtxpro6000-v0290",
}


@pytest.mark.parametrize(
    "case", [case for case in GOLD if case["id"] not in RETOLD], ids=lambda case: case["id"]
)
def test_public_logs_are_readings(case: dict[str, Any]) -> None:
    """Every figure that people read off their logs by hand, vLLM 0.6 to 0.29."""
    raw = "\n".join(case["raw"])
    own = boot_of_rank(reading(raw), RankPlace())

    printed = {
        PRINTED[name]: gib(value)
        for name, value in case["lines"].items()
        if name in PRINTED and f"{value:g}" in raw
    }
    read = {name: getattr(own, name) for name in printed}
    assert read == pytest.approx(printed, abs=0.006 * GIB)
    assert case["lines"].get("kv_tokens") in {None, own.kv_tokens}
    assert case["lines"].get("max_concurrency") in {None, own.max_concurrency}
