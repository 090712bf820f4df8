"""The nodes that ``kvheadroom demo`` can show."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kvheadroom.demo.engine import StepCost
from kvheadroom.demo.plans import CardPlan, NodePlan, ServerPlan
from kvheadroom.demo.traffic import Lengths, Traffic
from kvheadroom.units import GIB, KIB, MIB


def _gib(count: float) -> int:
    return round(count * GIB)


# A retrieval pipeline on one card of 12 GiB. The margin is what no utilization claims, less the
# driver's reserve. Per token: 36 layers x 8 KV heads x 128 x (K + V) x 1 byte = 72 KiB for the
# LLM, 28 x 8 x 128 x 2 x 2 bytes = 112 KiB for the embedder.
_RTX_4070: Final = CardPlan(
    name="NVIDIA GeForce RTX 4070",
    total_bytes=12 * GIB,
    reserved_bytes=256 * MIB,
    idle_watts=14.0,
    limit_watts=200.0,
    compute_capability=(8, 9),
)
_CONTEXT_BYTES: Final = _gib(0.28)

_CARD_LLM: Final = ServerPlan(
    name="chat",
    model="Qwen/Qwen3-8B-AWQ",
    config_name="qwen3-8b-awq",
    ranks=((0,),),
    utilization=0.60,
    weights_bytes=_gib(5.68),
    runtime_bytes=_gib(0.80),
    context_bytes=_CONTEXT_BYTES,
    block_bytes=16 * 72 * KIB,
    max_model_len=8192,
    max_num_seqs=32,
    max_num_batched_tokens=2048,
    cost=StepCost(0.015, 0.00028, 0.0004),
    traffic=Traffic(
        quiet_per_second=0.15,
        peak_per_second=1.05,
        period_seconds=180.0,
        prompt=Lengths(1500, 0.35, 700, 5000),
        output=Lengths(260, 0.7, 20, 1500),
        prefix_tokens=512,
        burst_every_seconds=240.0,
        burst_requests=4,
        hurried_ratio=0.05,
        patience_seconds=20.0,
    ),
    flags=("--kv-cache-dtype", "fp8"),
)
_CARD_EMBEDDER: Final = ServerPlan(
    name="embed",
    model="Qwen/Qwen3-Embedding-0.6B",
    config_name="qwen3-embedding-0.6b",
    ranks=((0,),),
    utilization=0.16,
    weights_bytes=_gib(1.11),
    runtime_bytes=_gib(0.50),
    context_bytes=_CONTEXT_BYTES,
    block_bytes=16 * 112 * KIB,
    max_model_len=1024,
    max_num_seqs=256,
    max_num_batched_tokens=1024,
    cost=StepCost(0.008, 0.00012, 0.0),
    traffic=Traffic(
        quiet_per_second=0.5,
        peak_per_second=6.0,
        period_seconds=180.0,
        prompt=Lengths(220, 0.8, 12, 1000),
        burst_every_seconds=75.0,
        burst_requests=250,
    ),
    flags=("--runner", "pooling", "--convert", "embed"),
)
_CARD_RERANKER: Final = ServerPlan(
    name="rerank",
    model="BAAI/bge-reranker-v2-m3",
    config_name="bge-reranker-v2-m3",
    ranks=((0,),),
    utilization=0.14,
    weights_bytes=_gib(1.06),
    runtime_bytes=_gib(0.50),
    context_bytes=_CONTEXT_BYTES,
    block_bytes=0,
    max_model_len=1024,
    max_num_seqs=256,
    max_num_batched_tokens=1024,
    cost=StepCost(0.006, 0.00005, 0.0),
    traffic=Traffic(
        quiet_per_second=2.0,
        peak_per_second=20.0,
        period_seconds=180.0,
        prompt=Lengths(380, 0.4, 40, 1000),
    ),
    flags=("--runner", "pooling"),
)
_CARD: Final = NodePlan(cards=(_RTX_4070,), servers=(_CARD_LLM, _CARD_EMBEDDER, _CARD_RERANKER))

# The same card with its LLM alone and long answers: load rises for 14 seconds and ends, so that
# within a minute the pool fills, requests are preempted, and all is over.
_SURGE: Final = NodePlan(
    cards=(_RTX_4070,),
    servers=(
        replace(
            _CARD_LLM,
            traffic=Traffic(
                quiet_per_second=0.02,
                peak_per_second=2.6,
                period_seconds=30.0,
                prompt=Lengths(600, 0.2, 200, 2500),
                output=Lengths(1000, 0.2, 60, 3000),
                until_seconds=14.0,
            ),
        ),
    ),
)

# Eight cards of 80 GiB. Weights per GPU are vLLM 0.32's own figures for these checkpoints.
_H100: Final = CardPlan(
    name="NVIDIA H100 80GB HBM3",
    total_bytes=81_559 * MIB,
    reserved_bytes=551 * MIB,
    idle_watts=70.0,
    limit_watts=700.0,
    compute_capability=(9, 0),
)
_H100_SHARED: Final = replace(_H100, tenant_bytes=_gib(22.4))
_RACK: Final = NodePlan(
    cards=(*(_H100,) * 7, _H100_SHARED),
    servers=(
        ServerPlan(
            name="llama-70b",
            model="RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic",
            config_name="llama-3.3-70b-fp8-dynamic",
            ranks=((0, 1),),
            utilization=0.90,
            weights_bytes=_gib(33.85),
            runtime_bytes=_gib(4.0),
            context_bytes=_gib(1.1),
            block_bytes=2_621_440,
            max_model_len=32_768,
            max_num_seqs=128,
            max_num_batched_tokens=8192,
            cost=StepCost(0.022, 0.00012, 0.0002),
            traffic=Traffic(
                quiet_per_second=0.15,
                peak_per_second=0.85,
                period_seconds=300.0,
                prompt=Lengths(7000, 0.5, 800, 24_000),
                output=Lengths(500, 0.7, 30, 4000),
                prefix_tokens=1200,
                prefixes=4,
            ),
        ),
        ServerPlan(
            name="qwen3-32b",
            model="Qwen/Qwen3-32B",
            config_name="qwen3-32b",
            ranks=((2,),),
            utilization=0.92,
            weights_bytes=_gib(61.02),
            runtime_bytes=_gib(3.0),
            context_bytes=_gib(0.6),
            block_bytes=4 * MIB,
            max_model_len=16_384,
            max_num_seqs=64,
            max_num_batched_tokens=8192,
            cost=StepCost(0.024, 0.0001, 0.0002),
            traffic=Traffic(
                quiet_per_second=0.1,
                peak_per_second=0.65,
                period_seconds=240.0,
                prompt=Lengths(2500, 0.5, 300, 9000),
                output=Lengths(600, 0.6, 40, 4000),
                prefix_tokens=800,
            ),
        ),
        ServerPlan(
            name="qwen3-8b",
            model="Qwen/Qwen3-8B",
            config_name="qwen3-8b",
            ranks=((3,), (4,)),
            utilization=0.50,
            weights_bytes=_gib(15.26),
            runtime_bytes=_gib(2.5),
            context_bytes=_gib(0.6),
            block_bytes=2_359_296,
            max_model_len=32_768,
            max_num_seqs=128,
            max_num_batched_tokens=8192,
            cost=StepCost(0.009, 0.00003, 0.0001),
            traffic=Traffic(
                quiet_per_second=0.4,
                peak_per_second=2.9,
                period_seconds=200.0,
                prompt=Lengths(4500, 0.6, 200, 20_000),
                output=Lengths(450, 0.7, 20, 3000),
                prefix_tokens=1024,
                prefixes=3,
                hurried_ratio=0.03,
            ),
        ),
        ServerPlan(
            name="qwen3-30b-a3b",
            model="Qwen/Qwen3-30B-A3B-FP8",
            config_name="qwen3-30b-a3b-fp8",
            ranks=((5,),),
            utilization=0.60,
            weights_bytes=_gib(29.03),
            runtime_bytes=_gib(3.0),
            context_bytes=_gib(0.6),
            block_bytes=1_572_864,
            max_model_len=32_768,
            max_num_seqs=16,
            max_num_batched_tokens=8192,
            cost=StepCost(0.010, 0.00004, 0.0002),
            traffic=Traffic(
                quiet_per_second=0.1,
                peak_per_second=0.75,
                period_seconds=260.0,
                prompt=Lengths(900, 0.6, 60, 6000),
                output=Lengths(1800, 0.6, 100, 8000),
            ),
        ),
        ServerPlan(
            name="llama-8b",
            model="meta-llama/Llama-3.1-8B-Instruct",
            config_name="llama-3.1-8b",
            ranks=((6,),),
            utilization=0.40,
            weights_bytes=_gib(14.96),
            runtime_bytes=_gib(2.2),
            context_bytes=_gib(0.6),
            block_bytes=2 * MIB,
            max_model_len=16_384,
            max_num_seqs=128,
            max_num_batched_tokens=8192,
            cost=StepCost(0.009, 0.00003, 0.0001),
            traffic=Traffic(
                quiet_per_second=0.4,
                peak_per_second=2.4,
                period_seconds=220.0,
                prompt=Lengths(2200, 0.6, 100, 10_000),
                output=Lengths(350, 0.7, 20, 2000),
                prefix_tokens=512,
            ),
        ),
        ServerPlan(
            name="embed",
            model="Qwen/Qwen3-Embedding-0.6B",
            config_name="qwen3-embedding-0.6b",
            ranks=((6,),),
            utilization=0.05,
            weights_bytes=_gib(1.11),
            runtime_bytes=_gib(0.6),
            context_bytes=_gib(0.6),
            block_bytes=1_835_008,
            max_model_len=8192,
            max_num_seqs=256,
            max_num_batched_tokens=8192,
            cost=StepCost(0.006, 0.00001, 0.0),
            traffic=Traffic(
                quiet_per_second=1.0,
                peak_per_second=12.0,
                period_seconds=220.0,
                prompt=Lengths(300, 0.9, 12, 6000),
                burst_every_seconds=90.0,
                burst_requests=400,
            ),
            flags=("--runner", "pooling", "--convert", "embed"),
        ),
        ServerPlan(
            name="qwen3-4b",
            model="Qwen/Qwen3-4B",
            config_name="qwen3-4b",
            ranks=((7,),),
            utilization=0.20,
            weights_bytes=_gib(7.49),
            runtime_bytes=_gib(1.9),
            context_bytes=_gib(0.6),
            block_bytes=2_359_296,
            max_model_len=16_384,
            max_num_seqs=64,
            max_num_batched_tokens=8192,
            cost=StepCost(0.007, 0.00002, 0.0001),
            traffic=Traffic(
                quiet_per_second=0.3,
                peak_per_second=3.0,
                period_seconds=180.0,
                prompt=Lengths(1500, 0.6, 60, 8000),
                output=Lengths(400, 0.8, 20, 3000),
                prefix_tokens=256,
            ),
        ),
    ),
)

PROFILES: Final[Mapping[str, NodePlan]] = {"card": _CARD, "rack": _RACK, "surge": _SURGE}
"""Name to node, as ``--profile`` takes it."""
