import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from kvheadroom.engine.versions import Version, parse_version
from kvheadroom.live.capacity import Capacity, engine_capacity
from kvheadroom.model.config import read_model
from kvheadroom.model.layers import ModelLayers

GIB = 1024**3
SERVERS = Path(__file__).parent.parent / "evidence" / "real-servers"
QWEN3_8B = read_model(
    {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 36,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "hidden_size": 4096, "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
    }
)  # fmt: skip


def capacity(
    labels: Mapping[str, str],
    *,
    engines: int = 1,
    version: Version | None = (0, 32, 0),
    max_model_len: int | None = None,
    layers: ModelLayers | None = None,
    tensor_parallel: int = 1,
) -> Capacity:
    found = engine_capacity(
        labels,
        engines=engines,
        version=version,
        max_model_len=max_model_len,
        layers=layers,
        tensor_parallel=tensor_parallel,
    )
    assert found is not None
    return found


# Labels of a real vLLM 0.32.0 with a tiny Llama: 200 blocks of 128 tokens, max_model_len 2048.
TINY_LLAMA = {
    "num_gpu_blocks": "200",
    "block_size": "128",
    "effective_attention_block_size": "128",
    "kv_cache_size_tokens": "25600",
    "kv_cache_max_concurrency": "12.5",
    "cache_dtype": "auto",
}
# Labels of a real vLLM 0.32.0 with a tiny Gemma 3 (sliding and full layers), max_model_len 2048.
TINY_GEMMA3 = TINY_LLAMA | {
    "num_gpu_blocks": "130",
    "kv_cache_size_tokens": "2636",
    "kv_cache_max_concurrency": "1.2871287128712872",
}


def test_the_engines_own_token_figure_is_used() -> None:
    """A real 0.32.0 reports 25,600 tokens; its startup log says the same."""
    pool = capacity(TINY_LLAMA, max_model_len=2048)

    assert (pool.tokens, pool.tokens_source, pool.layout) == (25_600, "engine", "uniform")


def test_a_hybrid_is_not_blocks_times_block_size() -> None:
    """The product is 16,640 tokens; the engine's own figure, and its log, say 2,636."""
    pool = capacity(TINY_GEMMA3, max_model_len=2048)

    assert (pool.tokens, pool.layout, pool.block_tokens) == (2_636, "hybrid", None)


def test_a_hybrid_states_the_blocks_of_one_full_request() -> None:
    """130 blocks hold 1.287 full requests, so one reserves 101."""
    pool = capacity(TINY_GEMMA3, max_model_len=2048)

    assert pool.blocks_for(2048) == 101


def test_a_hybrid_says_nothing_of_other_lengths() -> None:
    """What a shorter request of a hybrid costs cannot be known without its layers."""
    assert capacity(TINY_GEMMA3, max_model_len=2048).blocks_for(1024) is None


@pytest.mark.parametrize(("labels", "length"), [(TINY_LLAMA, 2048), (TINY_GEMMA3, 2048)])
def test_max_model_len_follows_from_tokens_and_concurrency(
    labels: Mapping[str, str], length: int
) -> None:
    """/v1/models may want an API key; the two labels already imply the length."""
    assert capacity(labels).max_model_len == length


def test_data_parallel_engines_share_the_reported_sum() -> None:
    """A real DP=2 server with 200 blocks each shows num_gpu_blocks="400" on both series."""
    pool = capacity(TINY_LLAMA | {"num_gpu_blocks": "400"}, engines=2, max_model_len=2048)

    assert pool.blocks == 200


def test_an_encoder_has_no_pool() -> None:
    """A real 0.32.0 with a BERT shows one symbolic block and no size."""
    labels = {"num_gpu_blocks": "1", "block_size": "128", "kv_cache_size_tokens": "None"}

    pool = capacity(labels)

    assert (pool.layout, pool.usable_blocks, pool.tokens) == ("none", 0, None)


def test_blocks_not_reported_yet_are_unknown() -> None:
    """num_gpu_blocks="None" is what a server shows before its engine has started."""
    pool = engine_capacity(
        {"num_gpu_blocks": "None", "block_size": "16"},
        engines=1, version=None, max_model_len=None, layers=None,
    )  # fmt: skip

    assert pool is None


@pytest.mark.parametrize("version", ["0.18.1", "0.20.2", "0.22.1"])
def test_an_unsynced_block_size_label_is_not_trusted(version: str) -> None:
    """From 0.18 to 0.22 the label is the front end's 16, whatever the worker uses."""
    labels = {"num_gpu_blocks": "40", "block_size": "16"}

    pool = capacity(labels, version=parse_version(version), max_model_len=2048)

    assert (pool.layout, pool.tokens) == ("unknown", None)


@pytest.mark.parametrize(("version", "tokens"), [("0.10.2", 20_480), ("0.11.0", 20_480)])
def test_older_versions_tokens_match_their_logs(version: str, tokens: int) -> None:
    """Real 0.10.2 and 0.11.0 servers log 20,480 tokens for 160 blocks of 128."""
    labels = {"num_gpu_blocks": "160", "block_size": "128"}

    pool = capacity(labels, version=parse_version(version), max_model_len=2048, layers=QWEN3_8B)

    assert (pool.tokens, pool.tokens_source) == (tokens, "computed")


def test_without_the_model_the_assumption_is_said() -> None:
    """Nothing contradicts a uniform pool, nothing proves it: the source says so."""
    labels = {"num_gpu_blocks": "25824", "block_size": "16"}

    pool = capacity(labels, version=(0, 10, 2))

    assert (pool.tokens, pool.tokens_source) == (413_184, "assumed_uniform")


def test_a_recurrent_hybrid_is_not_assumed_uniform() -> None:
    """A mamba cache mode in use gives the hybrid away, whatever the block size label says."""
    labels = {"num_gpu_blocks": "1606", "block_size": "16", "mamba_cache_mode": "align"}

    assert capacity(labels, version=(0, 17, 0)).tokens is None


@pytest.mark.parametrize(
    ("dtype", "blocks", "bytes_per_block"),
    [("auto", 9_102, 2_359_296), ("fp8", 18_204, 1_179_648)],
)
def test_qwen3_8b_bytes_are_what_vllm_allocates(
    dtype: str, blocks: int, bytes_per_block: int
) -> None:
    """In 20 GiB vLLM 0.32's allocator makes 9,102 blocks in bf16 and 18,204 in fp8."""
    labels = {"num_gpu_blocks": str(blocks), "block_size": "16", "cache_dtype": dtype}

    pool = capacity(labels, layers=QWEN3_8B)

    assert pool.bytes_per_block == bytes_per_block
    assert 20 * GIB // bytes_per_block == blocks


def test_heads_are_copied_beyond_their_number() -> None:
    """Eight KV heads on sixteen ranks: every rank keeps one, twice the bytes in all."""
    labels = {"num_gpu_blocks": "100", "block_size": "16", "cache_dtype": "auto"}

    pool = capacity(labels, layers=QWEN3_8B, tensor_parallel=16)

    assert pool.bytes_per_block == 2 * 2_359_296


def test_layers_left_out_of_the_cache_dtype_cost_more() -> None:
    """Two layers that keep 16 bits make every block dearer than 36 layers of 8."""
    labels = {
        "num_gpu_blocks": "100", "block_size": "16", "cache_dtype": "fp8",
        "kv_cache_dtype_skip_layers": "['0', '1']",
    }  # fmt: skip

    per_block = capacity(labels, layers=QWEN3_8B).bytes_per_block

    assert per_block is not None
    assert per_block > 1_179_648


def test_an_unreadable_list_of_layers_leaves_the_bytes_unknown() -> None:
    """Better no bytes than those of other layers."""
    labels = {
        "num_gpu_blocks": "100", "block_size": "16", "cache_dtype": "fp8",
        "kv_cache_dtype_skip_layers": "<object>",
    }  # fmt: skip

    assert capacity(labels, layers=QWEN3_8B).bytes_per_block is None


def test_a_hybrid_whose_model_is_known_answers_every_length() -> None:
    """The real tiny Gemma 3: its own rules reproduce the 101 blocks, so shorter requests too."""
    config = json.loads((SERVERS / "0.32.0-gemma3" / "config.json").read_text())

    pool = capacity(TINY_GEMMA3, max_model_len=2048, layers=read_model(config))

    assert pool.bytes_per_block is not None
    short, long = pool.blocks_for(256), pool.blocks_for(2048)
    assert short is not None
    assert long is not None
    assert 0 < short < long <= 101


def test_a_model_that_does_not_agree_is_not_believed() -> None:
    """A config.json of another model would give other bytes, with full confidence."""
    pool = capacity(TINY_GEMMA3, max_model_len=2048, layers=QWEN3_8B)

    assert pool.bytes_per_block is None
    assert pool.tokens == 2_636


def test_a_request_longer_than_the_model_has_no_answer() -> None:
    """vLLM refuses it, so 'how many fit' is not zero but meaningless."""
    assert capacity(TINY_LLAMA, max_model_len=2048).blocks_for(8192) is None
