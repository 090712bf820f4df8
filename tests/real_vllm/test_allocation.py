"""What we compute from config.json and flags against what a real vLLM allocates and logs."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.real_vllm.server import RealVllm, reported

from kvheadroom import (
    Allocation,
    Device,
    allocate,
    parse_serve_command,
    read_facts,
    read_model,
    resolve_options,
    steady_blocks,
)
from kvheadroom.engine.versions import parse_version
from kvheadroom.units import GIB

pytestmark = pytest.mark.real_vllm

CASES = {
    # Fitted to the memory: 4 MiB hold less than the 4,096 tokens the model allows.
    "llama": ("--max-model-len", "auto", "--kv-cache-memory-bytes", "4M"),
    "gemma3": ("--max-model-len", "2K", "--kv-cache-memory-bytes", "8M"),
    # Without the dtype some CPUs settle on one of their own.
    "qwen3-next": (
        *("--max-model-len", "3000", "--max-num-seqs", "16", "--kv-cache-memory-bytes", "48M"),
        *("--mamba-ssm-cache-dtype", "float32"),
    ),
    "granite-hybrid": (
        *("--max-model-len", "2048", "--max-num-batched-tokens", "1K", "--max-num-seqs", "16"),
        *("--mamba-ssm-cache-dtype", "float32", "--kv-cache-memory-bytes", "64M"),
        *("--num-gpu-blocks-override", "50"),
        # The CPU's Mamba 2 kernel fails on long prompts when it is to keep their prefixes.
        "--no-enable-prefix-caching",
    ),
}
# The CPU backend's own default; our defaults are a GPU's.
CPU_BLOCK_TOKENS = 128
PROMPT_TOKENS = 700
OUTPUT_TOKENS = 120


@pytest.fixture(scope="module", params=CASES)
def server(
    request: pytest.FixtureRequest,
    vllm_home: Path,
    tiny_model: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[RealVllm]:
    kind = request.param
    log = tmp_path_factory.mktemp(kind) / "vllm.log"
    with RealVllm(vllm_home, tiny_model(kind), log, *CASES[kind]) as started:
        started.wait_until_ready()
        yield started


def computed(server: RealVllm) -> Allocation:
    """What we say of the same model, flags, version and cache memory."""
    config = json.loads((server.model / "config.json").read_text())
    command = parse_serve_command(f"{server.command_line} --block-size {CPU_BLOCK_TOKENS}")
    version = parse_version(server.ask("/version")["version"])
    assert version is not None
    options = resolve_options(
        command, read_facts(config), version=version, device=Device(name="cpu")
    )
    available_bytes = int(server.cache_config()["kv_cache_memory_bytes"])
    allocation = allocate(read_model(config), options, available_bytes)
    assert isinstance(allocation, Allocation), allocation
    return allocation


def test_the_memory_reported_is_the_memory_logged(server: RealVllm) -> None:
    """The bytes we start from are those vLLM's worker logs, to its two decimals."""
    (logged,) = server.logged(r"Explicitly set \(([\d.]+)/[\d.]+\) GiB for KV cache")

    assert round(int(server.cache_config()["kv_cache_memory_bytes"]) / GIB, 2) == float(logged)


def test_blocks_tokens_and_concurrency(server: RealVllm) -> None:
    """Every figure of the pool is the one that vLLM's own page reports."""
    found = computed(server)
    settings = server.cache_config()

    assert {
        "num_gpu_blocks": found.num_blocks,
        "block_size": found.block_size,
        "kv_cache_size_tokens": found.tokens,
        "kv_cache_max_concurrency": found.max_concurrency,
    } == {
        "num_gpu_blocks": int(settings["num_gpu_blocks"]),
        "block_size": int(settings["block_size"]),
        "kv_cache_size_tokens": int(settings["kv_cache_size_tokens"]),
        "kv_cache_max_concurrency": float(settings["kv_cache_max_concurrency"]),
    }


def test_the_startup_log(server: RealVllm) -> None:
    """Tokens, longest request and concurrency are the ones in vLLM's startup log."""
    found = computed(server)
    logged = server.logged(
        r"KV cache size: ([\d,]+) tokens, "
        r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.,]+)x"
    )

    told = (str(found.tokens), str(found.max_model_len), f"{found.max_concurrency:.2f}")
    assert told == logged


def test_the_blocks_that_the_memory_allows(server: RealVllm) -> None:
    """Our bytes per block give the blocks that vLLM has, or logs that an override replaced."""
    settings = server.cache_config()
    blocks = settings["num_gpu_blocks"]
    if settings["num_gpu_blocks_override"] != "None":
        (blocks,) = server.logged(r"Overriding num_gpu_blocks=([\d,]+) with")

    (bytes_per_block,) = computed(server).bytes_per_block
    assert int(settings["kv_cache_memory_bytes"]) // bytes_per_block == int(blocks)


def test_the_longest_request(server: RealVllm) -> None:
    """The longest request is the one that vLLM offers its clients, fitted or as asked."""
    (model,) = server.ask("/v1/models")["data"]

    assert computed(server).max_model_len == model["max_model_len"]


def test_the_blocks_of_a_request(server: RealVllm) -> None:
    """A decoding request holds the blocks that we say.

    Where states are kept at the ends of blocks, each group holds a second one for the step or two
    in which a request passes such an end; it is not what the request holds in the steady state.
    """
    found = computed(server)
    before = reported(server.page(), "generation_tokens_total")
    load = server.start_load(1, PROMPT_TOKENS, OUTPUT_TOKENS)
    held = [0]
    while load.is_running():
        page = server.page()
        # In the first steps after it the whole prompt is still held.
        if reported(page, "generation_tokens_total") >= before + 3:
            held.append(round(reported(page, "kv_cache_usage_perc") * (found.num_blocks - 1)))
    load.wait(60)

    assert not load.failed
    lengths = range(PROMPT_TOKENS, PROMPT_TOKENS + OUTPUT_TOKENS + 1)
    most = max(steady_blocks(found, length) for length in lengths)
    align = server.cache_config()["mamba_cache_mode"] == "align"
    passing = sum(group.kind == "MambaSpec" for group in found.groups) if align else 0
    assert most <= max(held) <= most + passing
    assert Counter(held).most_common(1)[0][0] <= most
