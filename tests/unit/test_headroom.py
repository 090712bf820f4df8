import pytest

from kvheadroom.live.capacity import Capacity
from kvheadroom.live.headroom import engine_headroom, free_blocks
from kvheadroom.live.model_pool import model_pool
from kvheadroom.live.traffic import TrafficLengths
from kvheadroom.model.config import read_model

# Four layers of two KV heads of 32 in bf16: 1,024 bytes a token.
TINY_LLAMA = read_model(
    {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32, "hidden_size": 256,
        "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
    }
)  # fmt: skip
LLAMA = model_pool(
    TINY_LLAMA, {}, version=(0, 32, 0), blocks=200, block_tokens=128, max_model_len=2048,
    full_request_blocks=16, tensor_parallel=1,
)  # fmt: skip
# A real vLLM 0.32.0: 200 blocks of 128 tokens for requests of up to 2,048.
POOL = Capacity(
    layout="uniform",
    blocks=200,
    block_tokens=128,
    tokens=25_600,
    tokens_source="engine",
    max_model_len=2048,
    full_request_blocks=16,
    pool=LLAMA,
)


def test_the_real_gauge_is_190_of_199_blocks() -> None:
    """A real page under preemption shows 0.9547738693467337, which is 190 of 199 usable blocks."""
    assert free_blocks(POOL, 0.9547738693467337, (0, 32, 0)) == 9


def test_an_idle_engine_leaves_all_but_the_null_block() -> None:
    """Block 0 is never given out."""
    assert free_blocks(POOL, 0.0, (0, 32, 0)) == 199


def test_an_old_idle_engine_shows_the_null_block_as_used() -> None:
    """Up to 0.10.1.1 an idle engine's gauge was 1 / num_blocks; all 199 blocks are free."""
    assert free_blocks(POOL, 1 / 200, (0, 10, 1)) == 199


@pytest.mark.parametrize(("used_ratio", "free"), [(1.0, 0), (0.5, 100)])
def test_free_blocks_stay_within_the_pool(used_ratio: float, free: int) -> None:
    """Half of 199 is 99.5, which rounds to even."""
    assert free_blocks(POOL, used_ratio, None) == free


def test_requests_are_counted_in_whole_blocks() -> None:
    """129 tokens take two blocks of 128: 199 free blocks hold 99 such requests, not 197."""
    left = engine_headroom(
        POOL, used_ratio=0.0, version=None, context_tokens=(129, 128), traffic=None
    )

    assert (left.requests["129"], left.requests["128"]) == (99, 199)


def test_max_is_the_longest_request() -> None:
    """199 free blocks hold twelve requests of 2,048 tokens; the null block would make 12.5."""
    left = engine_headroom(POOL, used_ratio=0.0, version=None, context_tokens=(), traffic=None)

    assert (left.requests["max"], left.context_tokens["max"]) == (12, 2048)


def test_a_length_the_model_refuses_has_no_headroom_series() -> None:
    """8,192 tokens cannot run on a 2,048-token engine: absent, not 0."""
    left = engine_headroom(POOL, used_ratio=0.0, version=None, context_tokens=(8192,), traffic=None)

    assert "8192" not in left.requests


def test_observed_is_the_traffics_own_length() -> None:
    """300 prompt and 1,500 output tokens are 15 blocks: 199 free blocks hold 13."""
    left = engine_headroom(
        POOL,
        used_ratio=0.0,
        version=None,
        context_tokens=(),
        traffic=TrafficLengths(mean_tokens=1800, p95_tokens=2400, requests=40),
    )

    assert left.requests["observed"] == 13
    assert left.context_tokens["observed_p95"] == 2048  # no request is longer than the model


def test_bytes_and_tokens_are_the_free_share() -> None:
    """9 of 200 blocks free: 1,152 tokens, 9 x 131,072 bytes; the other 190 usable ones are used."""
    left = engine_headroom(
        POOL, used_ratio=190 / 199, version=None, context_tokens=(), traffic=None
    )

    assert (left.free_tokens, left.free_bytes) == (1_152, 1_179_648)
    assert left.used_bytes == 190 * 131_072
