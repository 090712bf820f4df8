import json
from pathlib import Path

from kvheadroom.engine.options import Device, EngineOptions
from kvheadroom.engine.rank_weights import rank_weights
from kvheadroom.live.boot_figures import RankPlace
from kvheadroom.live.capacity import Capacity, engine_capacity
from kvheadroom.live.engine_ranks import parts_of_rank
from kvheadroom.live.rank_parts import Part
from kvheadroom.model.config import read_model
from kvheadroom.readings import BootReading, ProcessBoot
from kvheadroom.units import GIB, KIB

CONFIG = json.loads(
    (Path(__file__).parents[1] / "evidence/oracle/configs/qwen3-8b.json").read_text()
)
LAYERS = read_model(CONFIG)
# What vLLM 0.32 reports of 9,999 blocks of 16 tokens for requests of up to 32,768 tokens.
LABELS = {
    "num_gpu_blocks": "9999",
    "block_size": "16",
    "cache_dtype": "auto",
    "kv_cache_size_tokens": "159984",
    "kv_cache_max_concurrency": str(9999 / 2048),
}


def options(**changed: object) -> EngineOptions:
    settings = {
        "version": (0, 32, 0),
        "device": Device(total_bytes=80 * GIB, capability=(9, 0)),
        "max_model_len": 32_768,
        "max_num_batched_tokens": 8_192,
        "max_num_seqs": 256,
    }
    return EngineOptions(**(settings | changed))  # type: ignore[arg-type]


def capacity(tensor_parallel: int) -> Capacity:
    found = engine_capacity(
        LABELS,
        engines=1,
        version=(0, 32, 0),
        max_model_len=32_768,
        layers=LAYERS,
        tensor_parallel=tensor_parallel,
    )
    assert found is not None
    return found


def test_every_rank_holds_its_share_of_weights_and_pool() -> None:
    """Qwen3-8B takes 144 KiB a token, so each of two ranks 72; it has 8.19 billion weights."""
    two = options(tensor_parallel=2)

    parts = parts_of_rank(
        RankPlace(tp=1, ranks_per_stage=2),
        options=two,
        stage_weights_bytes=rank_weights(CONFIG, two, quantization=None),
        capacity=capacity(2),
    )

    assert parts.kv == Part(9_999 * 16 * 72 * KIB, "computed")
    assert parts.weights is not None
    assert 0.5 <= parts.weights.bytes / (8.19e9 * 2) < 0.51


def test_figures_of_other_stages_are_not_taken() -> None:
    """A pool that is known as one piece says nothing about one of two stages."""
    parts = parts_of_rank(
        RankPlace(pp=1, stages=2),
        options=options(pipeline_parallel=2),
        stage_weights_bytes=(16 * GIB,),
        capacity=capacity(1),
    )

    assert (parts.weights, parts.kv) == (None, None)


def test_a_log_of_the_only_rank_may_contradict_the_pool() -> None:
    """Half the bytes the model says: its checkpoint caches in 8 bits."""
    log = BootReading(processes=(ProcessBoot("EngineCore", 7, kv_bytes=11 * GIB),))
    place = RankPlace()

    alone = parts_of_rank(
        place, options=options(), stage_weights_bytes=None, capacity=capacity(1), boot=log
    )
    overridden = parts_of_rank(
        place,
        options=options(num_gpu_blocks_override=9_999),
        stage_weights_bytes=None,
        capacity=capacity(1),
        boot=log,
    )

    assert alone.kv == Part(11 * GIB, "log")
    assert overridden.kv == Part(9_999 * 16 * 144 * KIB, "computed")


def test_without_a_command_a_page_or_a_model_the_log_is_what_there_is() -> None:
    """A server behind a remote address tells nothing else."""
    log = BootReading(processes=(ProcessBoot("EngineCore", 7, weights_bytes=GIB, kv_bytes=GIB),))

    parts = parts_of_rank(
        RankPlace(), options=None, stage_weights_bytes=None, capacity=None, boot=log
    )

    assert (parts.weights, parts.kv) == (Part(GIB, "log"), Part(GIB, "log"))
