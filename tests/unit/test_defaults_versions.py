import pytest
from tests.unit.oracle import config_at

from kvheadroom.engine.defaults import resolve_options
from kvheadroom.engine.flags import parse_serve_command
from kvheadroom.engine.options import Device, EngineOptions
from kvheadroom.engine.versions import Version
from kvheadroom.model.facts import read_facts

H100 = Device(85_029_158_912, (9, 0), "NVIDIA H100 80GB HBM3")
B200 = Device(191_514_345_472, (10, 0), "NVIDIA B200")
A100 = Device(85_095_874_560, (8, 0), "NVIDIA A100-SXM4-80GB")
L4 = Device(23_659_151_360, (8, 9), "NVIDIA L4")
CPU = Device(name="cpu")
LATEST = (0, 32, 0)


def serve(
    words: str = "", *, model: str = "llama-3.1-8b", version: Version = LATEST, gpu: Device = H100
) -> EngineOptions:
    command = parse_serve_command(f"vllm serve m {words}")
    return resolve_options(
        command, read_facts(config_at(f"configs/{model}.json")), version=version, device=gpu
    )


@pytest.mark.parametrize(
    ("version", "share"),
    [((0, 9, 2), 0.9), ((0, 19, 1), 0.9), ((0, 20, 0), 0.92), ((0, 33, 0), 0.92)],
)
def test_the_default_share_rose(version: Version, share: float) -> None:
    """``gpu_memory_utilization`` is 0.9 up to vLLM 0.19.1 and 0.92 from 0.20.0."""
    assert serve(version=version).gpu_memory_utilization == share


@pytest.mark.parametrize(
    ("gpu", "version", "tokens", "seqs"),
    [
        (H100, LATEST, 8192, 1024),
        (A100, LATEST, 2048, 256),
        (L4, LATEST, 2048, 256),
        (B200, LATEST, 16384, 1024),
        (B200, (0, 27, 1), 8192, 1024),
        (CPU, (0, 28, 0), 2048, 128),
        (Device(), LATEST, 2048, 256),
    ],
)
def test_a_step_grows_with_the_gpu(gpu: Device, version: Version, tokens: int, seqs: int) -> None:
    """From 70 GiB steps are larger, except on an A100; from 160 GiB again since 0.28."""
    options = serve("--max-model-len 32K", version=version, gpu=gpu)

    assert (options.max_num_batched_tokens, options.max_num_seqs) == (tokens, seqs)


def test_throughput_mode_doubles_what_was_not_given() -> None:
    """``--performance-mode throughput`` doubles both defaults and no given value."""
    options = serve("--performance-mode throughput --max-num-seqs 100")

    assert (options.max_num_batched_tokens, options.max_num_seqs) == (16384, 100)


def test_short_requests_bound_a_step() -> None:
    """A step never takes more than all requests at their full length."""
    assert serve("--max-model-len 16 --max-num-seqs 8").max_num_batched_tokens == 128


@pytest.mark.parametrize(("version", "cached"), [((0, 25, 1), False), ((0, 26, 0), True)])
def test_hybrids_cache_prefixes_since_0_26(version: Version, cached: bool) -> None:
    """Prefix caching of hybrids is on by default from vLLM 0.26.0, and states align to it."""
    options = serve(model="qwen3-next-80b", version=version)

    assert options.prefix_caching is cached
    assert options.mamba_cache_mode == ("align" if cached else "none")


@pytest.mark.parametrize(
    ("words", "version", "batches"),
    [
        ("", LATEST, 2),
        ("--no-async-scheduling", LATEST, 1),
        ("-pp 3", LATEST, 4),
        ("-pp 3", (0, 28, 0), 3),
        ("", (0, 25, 1), 1),
        ("-sc.method ngram -sc.num_speculative_tokens 2", LATEST, 1),
        ("-sc.method eagle3 -sc.num_speculative_tokens 2 -sc.model d", LATEST, 2),
    ],
)
def test_steps_in_flight(words: str, version: Version, batches: int) -> None:
    """Async scheduling and pipeline stages put several steps in flight; sizing counts them."""
    assert serve(words, version=version).concurrent_batches == batches


def test_chunked_attention_was_not_grouped_before_0_14() -> None:
    """Llama 4's chunks got groups of their own by default from vLLM 0.14."""
    assert not serve(model="llama-4-maverick-text", version=(0, 13, 0)).hybrid_manager
    assert serve(model="llama-4-maverick-text", version=(0, 14, 0)).hybrid_manager


@pytest.mark.parametrize(
    ("connector", "version", "grouped"),
    [
        ("NixlConnector", LATEST, True),
        ("LMCacheConnectorV1", LATEST, False),
        ("NixlConnector", (0, 13, 0), False),
    ],
)
def test_a_connector_may_turn_grouping_off(connector: str, version: Version, grouped: bool) -> None:
    """A connector that cannot move groups makes all layers one group."""
    options = serve(f"--kv-transfer-config.kv_connector {connector}", version=version)

    assert options.hybrid_manager is grouped


def test_the_attention_backend_came_from_the_environment() -> None:
    """Until 0.14 the backend was chosen by a variable; it is read where it is given."""
    command = parse_serve_command("VLLM_ATTENTION_BACKEND=FLASHINFER vllm serve m")
    facts = read_facts(config_at("configs/llama-3.1-8b.json"))

    options = resolve_options(command, facts, version=(0, 13, 0), device=H100)

    assert options.attention_backend == "FLASHINFER"


def test_speculation_is_inferred_from_the_drafts_name() -> None:
    """A draft called ``…eagle3…`` is one, as vLLM takes it."""
    options = serve("-sc.model org/llama-eagle3 -sc.num_speculative_tokens 3")

    assert options.speculation is not None
    assert options.speculation.method == "eagle3"
    assert options.speculation.model == "org/llama-eagle3"


def test_packed_caches_spare_the_outer_layers() -> None:
    """TurboQuant keeps the first and last two layers of a dense model in 16 bits."""
    options = serve("--kv-cache-dtype turboquant_4bit_nc")

    assert set(options.kv_cache_dtype_skip_layers) == {"0", "1", "30", "31"}


@pytest.mark.parametrize(("version", "dtype"), [((0, 13, 0), "auto"), ((0, 14, 0), "fp8_e4m3")])
def test_a_checkpoint_decides_about_its_cache_since_0_14(version: Version, dtype: str) -> None:
    """A ModelOpt checkpoint with an fp8 cache makes ``auto`` mean fp8 from vLLM 0.14."""
    assert serve(model="llama-3.3-70b-nvfp4", version=version).kv_cache_dtype == dtype
