import io
import json
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.startup_logs import (
    CARRIERS,
    GOLD,
    SERVERS,
    boots,
    essence,
    only_boot,
    server_log,
    values,
)

from kvheadroom.node.log_figures import UNIT_OF, figures_in
from kvheadroom.node.startup_log import read_boots
from kvheadroom.units import GIB

# What the gold cases call each figure → what the reader calls it.
NAMES = {
    "available_kv_gib": ("available_kv_bytes",),
    "available_kv_bytes": ("available_kv_bytes",),
    "kv_tokens": ("kv_tokens",),
    "max_concurrency": ("concurrency",),
    "max_concurrency_len": ("concurrency_tokens",),
    "weights_gib": ("weights_bytes", "profiled_weights_bytes"),
    "total_gpu_memory_gib": ("total_bytes",),
    "budget_gib": ("requested_bytes",),
    "activation_gib": ("activation_bytes",),
    "cudagraph_gib": ("graph_bytes",),
    "cudagraph_est_gib": ("graph_estimate_bytes",),
    "num_gpu_blocks": ("gpu_blocks", "mamba_blocks", "profiled_blocks"),
    "num_cpu_blocks": ("cpu_blocks",),
    "non_torch_gib": ("non_torch_bytes",),
    "free_gpu_memory_gib": ("free_bytes",),
    "weights_in_profile_gib": ("profiled_weights_bytes", "consumed_bytes"),
    "consumed_gib": ("consumed_bytes",),
    "block_size": ("block_tokens",),
    "kv_in_use_gib": ("kv_in_use_bytes",),
    "needed_kv_gib": ("needed_kv_bytes",),
    "needed_for_len": ("refused_tokens",),
    "util_effective": ("utilization_without_graphs_ratio",),
    "padding_layers": ("padding_layers",),
    "estimated_max_len": ("estimated_max_tokens",),
    "mamba_page_padding_pct": ("mamba_padding_ratio",),
    "peak_torch_gib": ("peak_torch_bytes",),
}
# Retold in an article instead of printed, or inferred: no wording of any vLLM.
NOT_PRINTED = {
    ("lfm25-12b-int4-h100slice-v0260", "block_size"),
    ("mitchross-qwen38-27b-fp8-2x3090", "available_kv_gib"),
    ("mitchross-qwen38-27b-fp8-2x3090", "block_size"),
    ("qwen25-0.5b-util035-nochunk", "weights_gib"),
    ("qwen25-15b-l4-triton-util070", "weights_gib"),
    ("qwen25-15b-l4-triton-util070", "available_kv_gib"),
    ("qwen3-30b-a3b-gb10-util049", "total_gpu_memory_gib"),
    ("qwen3-32b-pp2-util0426-96gb", "budget_gib"),
    ("qwen38-27b-bf16-rtxpro6000-v0290", "num_gpu_blocks"),
    ("qwen38-27b-bf16-rtxpro6000-v0290", "block_size"),
    ("qwen38-27b-bf16-rtxpro6000-v0290", "budget_gib"),
    ("qwen38-27b-bf16-rtxpro6000-v0290", "total_gpu_memory_gib"),
    ("qwen38-27b-bf16-rtxpro6000-v0290", "free_gpu_memory_gib"),
    ("qwen3next80b-bf16-2xh200-v0102", "available_kv_bytes"),
    ("qwen3next80b-bf16-2xh200-v0102", "activation_gib"),
    ("qwen3next80b-bf16-2xh200-v0102", "non_torch_gib"),
    ("qwen3next80b-bf16-2xh200-v0102", "budget_gib"),
    ("qwen3next80b-bf16-2xh200-v0102", "total_gpu_memory_gib"),
    ("qwen3x-27b-gb10-786432-util092", "budget_gib"),
    ("qwen3x-27b-gb10-786432-util092", "total_gpu_memory_gib"),
}


def gold_figures() -> Iterator[tuple[str, list[str], str, float]]:
    for case in GOLD:
        for name, value in case["lines"].items():
            if not isinstance(value, str) and (case["id"], name) not in NOT_PRINTED:
                yield case["id"], case["raw"], name, value


@pytest.mark.parametrize(
    ("raw", "name", "value"),
    [
        pytest.param(raw, name, value, id=f"{case}-{name}")
        for case, raw, name, value in gold_figures()
    ],
)
def test_a_posted_figure_is_read(raw: list[str], name: str, value: float) -> None:
    """Every figure of the lines people posted is read with its value in bytes or tokens."""
    unit = {"gib": GIB, "pct": 0.01}.get(name.rpartition("_")[2], 1)
    read = only_boot("\n".join(raw))

    found = [figure.value / unit for kind in NAMES[name] for figure in read.all(kind)]

    # The posts round GiB to two places.
    assert any(each == pytest.approx(value, abs=0.0051) for each in found)


def test_every_figure_has_a_unit() -> None:
    """No wording yields a figure that the table of units does not know."""
    for case in GOLD:
        for line in case["raw"]:
            assert {figure.name for figure in figures_in(line)} <= UNIT_OF.keys()


# --- whole logs of real servers -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "version", "kv_tokens", "concurrency", "gpu_blocks"),
    [
        # Read by eye in the logs themselves.
        ("0.10.2", "0.10.2", 20_480, 10.0, 160),
        ("0.11.0", "0.11.0", 20_480, 10.0, 160),
        ("0.18.1", "0.18.1", 5_120, 2.5, None),
        ("0.28.0", "0.28.0", 5_120, 2.5, None),
        ("0.28.0-dp2", "0.28.0", 5_120, 2.5, None),
        ("0.32.0-api2", "0.32.0", 5_120, 2.5, None),
        ("0.32.0-gemma3", "0.32.0", 2_636, 1.29, None),
        ("0.32.0-lora", "0.32.0", 5_120, 2.5, None),
        ("0.32.0-module", "0.32.0", 5_120, 2.5, None),
        ("0.32.0-embed-bert", "0.32.0", None, None, None),
    ],
)
def test_a_real_log_is_read(
    name: str,
    version: str,
    kv_tokens: int | None,
    concurrency: float | None,
    gpu_blocks: int | None,
) -> None:
    """Version and capacity of a real server's log are read; an encoder has no capacity."""
    record = only_boot(server_log(name))
    read = values(record)

    assert record.fact("version") == version
    assert read.get("kv_tokens") == kv_tokens
    assert read.get("concurrency") == concurrency
    assert read.get("gpu_blocks") == gpu_blocks
    assert record.ready_line is not None


def test_each_engine_of_a_data_parallel_server_is_told_apart() -> None:
    """Two engines that log into one file give one figure each, with the process that said it."""
    record = only_boot(server_log("0.28.0-dp2"))

    said_by = {figure.process: figure.line for figure in record.by_process("kv_tokens")}

    assert said_by == {"EngineCore_DP1": 74, "EngineCore_DP0": 95}


def test_a_figure_points_at_its_line() -> None:
    """The line number of a figure is that of the file."""
    log = server_log("0.32.0-gemma3")
    figure = only_boot(log).last("kv_tokens")

    assert figure is not None
    assert b"2,636 tokens" in log.split(b"\n")[figure.line - 1]


def test_arguments_are_read_without_running_them() -> None:
    """Arguments come typed; one that is no literal, like a LoRA module, stays text."""
    arguments = only_boot(server_log("0.32.0-lora")).arguments

    assert arguments["max_model_len"] == 2048
    assert arguments["served_model_name"] == ["tiny"]
    assert isinstance(arguments["lora_modules"], str)


# --- carriers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("server", ["0.11.0", "0.32.0-toolong", "0.28.0-dp2"])
@pytest.mark.parametrize("carrier", CARRIERS)
def test_what_carried_a_log_does_not_matter(carrier: str, server: str) -> None:
    """A log says the same through docker, Kubernetes, journald and a prefix of the user's own."""
    log = server_log(server)

    carried = only_boot(CARRIERS[carrier](log))

    assert essence(carried) == essence(only_boot(log))


def test_the_json_formatter_is_read() -> None:
    """vLLM's own JSON format gives figure, process and pid.

    Source: fields of JSON_FORMAT in vLLM 0.32's logging_utils/formatter.py.
    """
    line = {
        "asctime": "11-30 09:52:24",
        "levelname": "INFO",
        "name": "vllm.v1.core.kv_cache_utils",
        "processName": "EngineCore_DP0",
        "process": 77,
        "message": "GPU KV cache size: 393,216 tokens, Maximum concurrency for 131,072 tokens "
        "per request: 3.00x",
    }

    figure = only_boot(json.dumps(line)).last("kv_tokens")

    assert figure is not None
    assert (figure.value, figure.process, figure.pid) == (393_216, "EngineCore_DP0", 77)


def test_ranks_that_log_at_once_keep_their_own_figures() -> None:
    """Interleaved workers are told apart and the smallest pool is found."""
    log = "\n".join(
        f"(Worker_TP{rank} pid={100 + rank}) INFO 11-30 09:52:24 [gpu_worker.py:298] "
        f"Available KV cache memory: {gib} GiB"
        for rank, gib in enumerate((8.42, 8.11, 8.5, 8.42))
    )
    record = only_boot(log)
    least = record.least("available_kv_bytes")

    assert len(record.by_process("available_kv_bytes")) == 4
    assert least is not None
    assert (least.printed, least.process) == ("8.11 GiB", "Worker_TP1")


# --- several starts -----------------------------------------------------------------------------


def test_each_start_in_a_file_is_a_record() -> None:
    """Logs one after the other, as a restarting container leaves them, are told apart."""
    logs = [server_log(name) for name in SERVERS]

    records = boots(b"\n".join(logs))

    assert [record.fact("version") for record in records] == [
        only_boot(log).fact("version") for log in logs
    ]
    assert [record.is_latest for record in records] == [False] * (len(logs) - 1) + [True]


def test_two_equal_starts_are_two_starts() -> None:
    """A container that restarts with the same process ids has still started twice."""
    log = server_log("0.32.0-module")

    first, second = boots(log + b"\n" + log)

    assert essence(first) == essence(second)
    assert second.first_line > first.last_line


def test_a_start_of_v0_is_read_through_its_namespace() -> None:
    """Up to 0.8.5 all arguments come as a Namespace, and the profile in three lines.

    Source: wording of vLLM 0.6.6's api_server.py, worker.py and executor.
    """
    log = """\
INFO 01-02 03:04:05 api_server.py:712] vLLM API server version 0.6.6.post1
INFO 01-02 03:04:05 api_server.py:713] args: Namespace(host=None, port=8000, api_key='s3cret', \
model='facebook/opt-125m', max_model_len=2048, gpu_memory_utilization=0.9)
INFO 01-02 03:04:09 llm_engine.py:234] Initializing an LLM engine (v0.6.6.post1) with config: \
model='facebook/opt-125m', dtype=torch.float16, max_seq_len=2048, kv_cache_dtype=auto
INFO 01-02 03:04:15 worker.py:241] Memory profiling takes 1.48 seconds
INFO 01-02 03:04:15 worker.py:241] the current vLLM instance can use total_gpu_memory \
(23.69GiB) x gpu_memory_utilization (0.90) = 21.32GiB
INFO 01-02 03:04:15 worker.py:241] model weights take 0.24GiB; non_torch_memory takes 0.06GiB; \
PyTorch activation peak memory takes 0.46GiB; the rest of the memory reserved for KV Cache is \
20.56GiB.
INFO 01-02 03:04:15 distributed_gpu_executor.py:57] # GPU blocks: 37431, # CPU blocks: 7281
INFO 01-02 03:04:15 distributed_gpu_executor.py:61] Maximum concurrency for 2048 tokens per \
request: 292.43x
"""
    record = only_boot(log)
    read = values(record)

    assert record.fact("dtype") == "float16"
    assert record.arguments["gpu_memory_utilization"] == 0.9
    assert "api_key" not in record.arguments
    assert read["gpu_blocks"] == 37_431
    assert read["available_kv_bytes"] == pytest.approx(20.56 * GIB)


def test_the_last_capture_of_graphs_counts() -> None:
    """The V2 model runner reports a partial capture first; the last figure is the real one."""
    log = """\
(Worker pid=9) INFO 11-30 09:52:20 [r.py:1] Graph capturing finished in 3 secs, took 0.21 GiB
(Worker pid=9) INFO 11-30 09:52:24 [w.py:1] Available KV cache memory: 30.5 GiB
(Worker pid=9) INFO 11-30 09:52:30 [r.py:1] Graph capturing finished in 9 secs, took 1.02 GiB
"""
    figure = only_boot(log).last("graph_bytes")

    assert figure is not None
    assert figure.printed == "1.02 GiB"


# --- anything at all ----------------------------------------------------------------------------

_FRAGMENTS = st.sampled_from(
    [line.encode() for case in GOLD for line in case["raw"]]
    + server_log("0.32.0-toolong").split(b"\n")
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=200), _FRAGMENTS), max_size=30).map(b"\n".join))
def test_no_bytes_raise(log: bytes) -> None:
    """Whatever a file holds, the reader returns."""
    boots(log)


@settings(max_examples=100, deadline=None)
@given(_FRAGMENTS, st.integers(0, 200), st.binary(max_size=8))
def test_a_line_cut_or_overwritten_anywhere_does_not_raise(
    line: bytes, position: int, noise: bytes
) -> None:
    """A torn line, as a crash or a rotation leaves it, is read or ignored."""
    boots(line[:position] + noise + line[position + len(noise) :])


def test_what_is_no_vllm_log_has_no_start() -> None:
    """Other programs' logs, and nothing at all, hold no start."""
    assert boots(b"") == []
    assert boots(b"\x00\xff" * 5000) == []
    assert boots("ERROR torch.OutOfMemoryError: CUDA out of memory.\nplain text\n") == []


def test_a_log_of_any_length_takes_the_memory_of_one_start() -> None:
    """Reading 40 MB of access lines, and one line of 8 MB, allocates less than 8 MB."""
    access = b'(APIServer pid=3) INFO:     127.0.0.1:5 - "POST /v1/completions HTTP/1.1" 200 OK\n'
    log = server_log("0.32.0-module") + access * 400_000 + b"error " * 1_400_000
    stream = io.BytesIO(log)
    tracemalloc.start()
    try:
        (record,) = read_boots(stream)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert record.last("kv_tokens") is not None
    assert peak_bytes < 8_000_000
