"""Figures that vLLM's own planner gave for shapes written out by hand, and what it never says."""

from dataclasses import replace

import pytest

from kvheadroom.engine.capacity import Allocation, allocate, steady_blocks, steady_requests
from kvheadroom.engine.options import Device, EngineOptions
from kvheadroom.engine.refusal import Refusal
from kvheadroom.model.layers import (
    AttentionLayer,
    Block,
    KernelTraits,
    LatentLayer,
    ModelLayers,
    StateLayer,
)
from kvheadroom.units import GIB

SERVER = EngineOptions(
    version=(0, 32, 0),
    device=Device(80 * GIB, (9, 0)),
    max_model_len=131072,
    max_num_batched_tokens=8192,
    max_num_seqs=1024,
    concurrent_batches=2,
)


def shape(blocks: tuple[Block, ...], kv_heads: int, head_dim: int) -> ModelLayers:
    traits = KernelTraits(query_heads=64, kv_heads=kv_heads, head_dim=head_dim)
    return ModelLayers("Made", blocks, "bfloat16", None, traits=traits)


def attention(kv_heads: int, head_dim: int, window: int | None = None) -> Block:
    return (AttentionLayer(kv_heads, head_dim, head_dim, window=window),)


LLAMA_70B = shape((attention(8, 128),) * 80, 8, 128)
GPT_OSS_120B = shape((attention(8, 64, 128), attention(8, 64)) * 18, 8, 64)
GEMMA_3_27B = shape(
    tuple(attention(16, 128, 1024 if (index + 1) % 6 else None) for index in range(62)), 16, 128
)
DEEPSEEK_V3 = ModelLayers(
    "Made",
    ((LatentLayer(512, 64),),) * 61,
    "bfloat16",
    None,
    traits=KernelTraits(query_heads=128, nope_dim=128, value_dim=128),
)

_DELTA_NET: Block = (
    StateLayer(
        kind="gdn",
        conv_channels=2 * 128 * 16 + 128 * 48,
        conv_kernel=4,
        heads=48,
        state_shape=(128, 128),
        recurrent_dtype="float32",
    ),
)
QWEN_3_5_27B = shape((_DELTA_NET, _DELTA_NET, _DELTA_NET, attention(4, 256)) * 16, 4, 256)


def allocated(model: ModelLayers, memory: float | list[float], **changes: object) -> Allocation:
    gib = memory if isinstance(memory, list) else [memory]
    found = allocate(
        model,
        replace(SERVER, **changes),  # type: ignore[arg-type]
        [int(count * GIB) for count in gib],
    )
    assert isinstance(found, Allocation), found
    return found


@pytest.mark.parametrize(
    ("model", "memory", "changes", "tokens", "concurrency"),
    [
        (LLAMA_70B, 30, {"tensor_parallel": 4}, 393_216, 3.00),
        (LLAMA_70B, 30, {"tensor_parallel": 8}, 786_432, 6.00),
        (LLAMA_70B, 30, {"tensor_parallel": 4, "kv_cache_dtype": "fp8"}, 786_432, 6.00),
        (GPT_OSS_120B, 12, {}, 310_381, 2.37),
        (GPT_OSS_120B, 12, {"max_model_len": 16384}, 174_674, 10.66),
        (GPT_OSS_120B, 12, {"max_num_batched_tokens": 2048}, 338_567, 2.58),
        (GPT_OSS_120B, 12, {"kv_cache_dtype": "fp8"}, 620_762, 4.74),
        (GPT_OSS_120B, 12, {"hybrid_manager": False}, 174_752, 1.33),
        (GEMMA_3_27B, 40, {}, 291_658, 2.23),
        (GEMMA_3_27B, 40, {"max_model_len": 8192}, 74_773, 9.13),
        (GEMMA_3_27B, 80, {"hybrid_manager": False}, 169_120, 1.29),
        (DEEPSEEK_V3, 20, {"block_size": 64, "max_model_len": 163_840}, 305_536, 1.86),
        (
            DEEPSEEK_V3,
            20,
            {
                "block_size": 64,
                "max_model_len": 163_840,
                "tensor_parallel": 8,
                "decode_context_parallel": 8,
            },
            2_444_288,
            14.92,
        ),
    ],
)
def test_a_worked_shape_comes_out_as_vllm_planned_it(
    model: ModelLayers,
    memory: float,
    changes: dict[str, object],
    tokens: int,
    concurrency: float,
) -> None:
    """Tokens and concurrency are those of vLLM 0.32's planner, run on the same shape."""
    found = allocated(model, memory, **changes)

    assert found.tokens == tokens
    assert found.max_concurrency == pytest.approx(concurrency, abs=0.005)


def test_the_poorest_rank_binds() -> None:
    """Of stages with 30 and 24 GiB the second decides: 19,660 blocks (vLLM's planner)."""
    found = allocated(LLAMA_70B, [30, 30, 24, 24], tensor_parallel=2, pipeline_parallel=2)

    assert (found.num_blocks, found.tokens) == (19_660, 314_560)


def test_a_window_is_reckoned_with_one_step_in_flight_before_0_26() -> None:
    """vLLM 0.25 counts one step in flight: 328,620 tokens, 2.51x (its rule, vLLM's planner)."""
    found = allocated(GPT_OSS_120B, 12, version=(0, 25, 0))

    assert found.tokens == 328_620


def test_a_hybrid_logs_blocks_by_groups_before_0_20_1() -> None:
    """vLLM 0.19 logged 290,864 tokens beside 33.04x of 32,768 for Qwen3.5-27B (issue 40691)."""
    found = allocated(
        QWEN_3_5_27B,
        80,
        version=(0, 19, 0),
        max_model_len=32768,
        num_gpu_blocks_override=1487,
    )

    assert (found.block_size, found.tokens) == (784, 290_864)
    assert found.max_concurrency == pytest.approx(33.04, abs=0.005)


def test_the_null_block_is_held_back_from_0_29() -> None:
    """Memory for exactly one request is enough up to 0.28 and not from 0.29 on."""
    blocks = 131072 // 16
    memory = blocks * 80 * 16 * 8 * 2 * 128 * 2

    before = allocate(LLAMA_70B, replace(SERVER, version=(0, 28, 0)), memory)
    after = allocate(LLAMA_70B, replace(SERVER, version=(0, 29, 0)), memory)

    assert isinstance(before, Allocation)
    assert isinstance(after, Refusal)
    assert after.estimated_max_model_len == 131072 - 16


def test_little_difference_in_number_is_padded_by_version() -> None:
    """18 sliding and 19 full layers: two groups of 19 today, four groups up to 0.11."""
    model = shape((*GPT_OSS_120B.blocks, attention(8, 64)), 8, 64)

    assert [group.layers for group in allocated(model, 12).groups] == [18, 19]
    assert [group.layers for group in allocated(model, 12, version=(0, 11, 0)).groups] == [
        18,
        10,
        9,
    ]


@pytest.mark.parametrize(
    ("model", "tokens", "blocks"),
    # gpt-oss: 1,004 full + 8 or 9 of a window of 128 in blocks of 16; Gemma 3: 504 + 6 x 65.
    [(GPT_OSS_120B, 16_064, 1_004 + 9), (GEMMA_3_27B, 8_064, 504 + 6 * 65)],
)
def test_a_decoding_request_holds_its_windows_only(
    model: ModelLayers, tokens: int, blocks: int
) -> None:
    """Once a prompt is settled a window group keeps the window, whatever was reserved."""
    found = allocated(model, 40, max_model_len=32768)

    assert steady_blocks(found, tokens) == blocks
    assert steady_requests(found, tokens) == (found.num_blocks - 1) // blocks


def test_no_memory_is_a_refusal_of_its_own() -> None:
    """Nothing left for blocks is told apart from too little for one request."""
    found = allocate(LLAMA_70B, SERVER, 0)

    assert isinstance(found, Refusal)
    assert found.kind == "no_cache_memory"


def test_a_length_that_can_fit_nothing_is_refused() -> None:
    """Fitting the length to two blocks' worth of memory cannot serve a token of a hybrid."""
    size = allocated(GPT_OSS_120B, 12).bytes_per_block[0]

    found = allocate(GPT_OSS_120B, replace(SERVER, max_model_len=None), 2 * size)

    assert isinstance(found, Refusal)
    assert found.kind == "auto_fit_impossible"
