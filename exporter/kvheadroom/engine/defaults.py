"""Fill in what `vllm serve` was not told, as the given version of vLLM does on the given GPU."""

from collections.abc import Mapping
from typing import Any, Final

from kvheadroom.engine.batch_limits import BatchRequest, batch_limits
from kvheadroom.engine.features import (
    concurrent_batches,
    hybrid_manager,
    mamba_cache_mode,
    prefix_caching,
    refused_modalities,
    splits_prompts,
)
from kvheadroom.engine.flags import ServeCommand
from kvheadroom.engine.human_numbers import AUTO
from kvheadroom.engine.loading import read_loading
from kvheadroom.engine.option_values import OptionValue
from kvheadroom.engine.options import Device, EngineOptions
from kvheadroom.engine.parallel import ParallelSizes, read_parallel_sizes
from kvheadroom.engine.settled_dtypes import settle_cache_dtype, settle_dtype
from kvheadroom.engine.speculation import read_speculation
from kvheadroom.engine.versions import Version
from kvheadroom.errors import ConfigError
from kvheadroom.model.context_length import read_context_length
from kvheadroom.model.facts import ModelFacts, Runner

# The default share of the GPU rose (vLLM 0.20.0).
_LARGER_SHARE: Final[Version] = (0, 20, 0)
# A yarn factor is no longer applied to the context length (vLLM 0.32.0).
_YARN_INCLUDED: Final[Version] = (0, 32, 0)
# The longest request can be fitted to the memory (vLLM 0.14.0).
_AUTO_FIT_SINCE: Final[Version] = (0, 14, 0)

_BOUNDARY_LAYERS: Final = 2
_PACKED_PREFIXES: Final = ("turboquant_", "ultraquant_4bit")
_BLOCK_DIFFUSION_SEQS: Final = 8


def resolve_options(
    command: ServeCommand, facts: ModelFacts, *, version: Version, device: Device
) -> EngineOptions:
    """Return every setting of the server that *command* starts.

    Args:
        command: What ``vllm serve`` was told.
        facts: The model, from its config.json.
        version: vLLM's version, 0.6 to 0.33.
        device: The GPU of every rank; a total of ``None`` gets the defaults of a small one.

    Raises:
        ConfigError: vLLM would refuse the settings.
        ModelConfigError: The model's config contradicts itself.

    Source:
        vLLM 0.32, the engine arguments' path to a configuration; earlier versions by their
        documented defaults.
    """
    options = command.options
    runner = _runner(options, facts)
    sizes = read_parallel_sizes(options, facts)
    speculation = read_speculation(command, facts)
    longest, ceiling = _context(command, facts, version)
    chunked = splits_prompts(options, facts, runner)
    limits = batch_limits(
        _batch_request(options, facts, sizes, ceiling if longest is None else longest, chunked),
        device,
        version,
    )
    caching = prefix_caching(options, facts, runner, version)
    backend = _backend(command)
    dtype = settle_dtype(_text(options, "dtype", "auto"), facts, device, runner)
    cache_dtype = settle_cache_dtype(
        _text(options, "kv-cache-dtype", "auto"), facts, device, backend, version
    )
    return EngineOptions(
        version=version,
        device=device,
        max_model_len=longest,
        max_num_batched_tokens=limits.tokens,
        max_num_seqs=limits.seqs,
        concurrent_batches=concurrent_batches(
            command, sizes.pipeline, speculation, runner, device, version
        ),
        tensor_parallel=sizes.tensor,
        pipeline_parallel=sizes.pipeline,
        data_parallel=sizes.data,
        decode_context_parallel=sizes.decode_context,
        prefill_context_parallel=sizes.prefill_context,
        expert_parallel=options.get("enable-expert-parallel") is True,
        dtype=dtype,
        kv_cache_dtype=cache_dtype,
        kv_cache_dtype_skip_layers=_skipped_layers(options, cache_dtype, facts),
        block_size=_positive(options, "block-size"),
        prefix_caching=caching,
        hybrid_manager=hybrid_manager(command, facts, speculation, version),
        mamba_cache_mode=mamba_cache_mode(options, facts, version, prefix_caching=caching),
        mamba_cache_dtype=_text(options, "mamba-cache-dtype", "auto"),
        mamba_ssm_cache_dtype=_state_dtype(options, facts),
        mamba_block_size=_mamba_block_size(options, longest, prefix_caching=caching),
        gpu_memory_utilization=_utilization(options, version),
        kv_cache_memory_bytes=_positive(options, "kv-cache-memory-bytes"),
        num_gpu_blocks_override=_positive(options, "num-gpu-blocks-override"),
        enforce_eager=options.get("enforce-eager") is True,
        attention_backend=backend,
        speculation=speculation,
        runner=runner,
        without=refused_modalities(options),
        encode_by_request=options.get("mm-encoder-tp-mode") == "data",
        auto_fit_ceiling=ceiling,
        loading=read_loading(options, dtype),
    )


def _runner(options: Mapping[str, OptionValue], facts: ModelFacts) -> Runner:
    asked = _text(options, "runner", "auto")
    task = options.get("task")
    if asked == "auto" and isinstance(task, str) and task != "auto":
        # Until 0.10 a task chose the runner.
        asked = "generate" if task in ("generate", "transcription") else "pooling"
    if asked == "auto" and options.get("convert", "auto") not in ("auto", "none"):
        asked = "pooling"
    if asked == "auto":
        return facts.runner
    if asked not in ("generate", "pooling"):
        raise ConfigError("--runner: must be auto, generate or pooling")
    if asked == "generate" and facts.runner == "pooling":
        raise ConfigError(f"--runner generate: {facts.architecture} does not generate")
    return "pooling" if asked == "pooling" else "generate"


def _context(command: ServeCommand, facts: ModelFacts, version: Version) -> tuple[int | None, int]:
    """Return the longest request (``None`` fits it to the memory) and where fitting starts.

    Raises:
        ConfigError: More is asked for than the model allows.
    """
    text = facts.text
    allowed = read_context_length(
        text,
        model_type=str(text.get("model_type") or facts.model_type),
        before_0_32=version < _YARN_INCLUDED,
    )
    options = command.options
    default, largest = allowed.default, allowed.largest
    if options.get("disable-sliding-window") is True and facts.sliding_window is not None:
        largest = min(largest or facts.sliding_window, facts.sliding_window)
        default = min(default, largest)
    asked = options.get("max-model-len")
    if not isinstance(asked, int):
        return default, default
    if asked == AUTO:
        if version < _AUTO_FIT_SINCE:
            raise ConfigError("--max-model-len: -1 and auto need vLLM 0.14.0 or newer")
        return None, default
    if asked < 1:
        raise ConfigError("--max-model-len: must be above 0, or -1 to fit it to the memory")
    beyond = command.environment.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0") not in ("", "0")
    bound = max(largest or asked, allowed.declared or 0)
    if asked > bound and not beyond:
        raise ConfigError(
            f"--max-model-len {asked} is more than the model's {bound} tokens; "
            "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 overrides that"
        )
    return asked, asked


def _batch_request(
    options: Mapping[str, OptionValue],
    facts: ModelFacts,
    sizes: ParallelSizes,
    longest: int,
    chunked: bool,
) -> BatchRequest:
    seqs = _positive(options, "max-num-seqs")
    if seqs is None and facts.architecture.startswith("DiffusionGemma"):
        seqs = _BLOCK_DIFFUSION_SEQS
    return BatchRequest(
        tokens=_positive(options, "max-num-batched-tokens"),
        seqs=seqs,
        max_model_len=longest,
        chunked_prefill=chunked,
        doubled=options.get("performance-mode") == "throughput",
        batched_experts=options.get("enable-expert-parallel") is True
        and sizes.data > 1
        and options.get("all2all-backend") in ("deepep_low_latency", "nixl_ep"),
        ranks=sizes.tensor * sizes.pipeline,
    )


def _backend(command: ServeCommand) -> str | None:
    config = command.options.get("attention-config")
    inner: Any = config.get("backend") if isinstance(config, dict) else None
    word = (
        command.options.get("attention-backend")
        or inner
        or command.environment.get("VLLM_ATTENTION_BACKEND")
    )
    return word.upper() if isinstance(word, str) and word.lower() != "auto" else None


def _state_dtype(options: Mapping[str, OptionValue], facts: ModelFacts) -> str:
    asked = _text(options, "mamba-ssm-cache-dtype", "auto")
    return facts.state_dtype or asked if asked == "auto" else asked


def _mamba_block_size(
    options: Mapping[str, OptionValue], longest: int | None, *, prefix_caching: bool
) -> int | None:
    tokens = _positive(options, "mamba-block-size")
    if tokens is not None and tokens != longest and not prefix_caching:
        raise ConfigError("--mamba-block-size: needs --enable-prefix-caching")
    return tokens


def _skipped_layers(
    options: Mapping[str, OptionValue], cache_dtype: str, facts: ModelFacts
) -> tuple[str, ...]:
    """Return the layers whose cache keeps the model's dtype, by index or by kind of attention."""
    given = options.get("kv-cache-dtype-skip-layers")
    skipped = {str(layer) for layer in given} if isinstance(given, list) else set()
    packed = cache_dtype.startswith(_PACKED_PREFIXES)
    if packed and facts.attention != "hybrid" and facts.layers is not None:
        ends = min(_BOUNDARY_LAYERS, facts.layers // 2)
        indices = [*range(ends), *range(facts.layers - ends, facts.layers)]
        skipped |= {str(index) for index in indices}
    return tuple(sorted(skipped))


def _utilization(options: Mapping[str, OptionValue], version: Version) -> float:
    value = options.get("gpu-memory-utilization")
    if value is None:
        return 0.92 if version >= _LARGER_SHARE else 0.9
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ConfigError("--gpu-memory-utilization: must be above 0 and at most 1")
    return float(value)


def _positive(options: Mapping[str, OptionValue], name: str) -> int | None:
    value = options.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"--{name}: must be a number above 0")
    return value


def _text(options: Mapping[str, OptionValue], name: str, default: str) -> str:
    value = options.get(name)
    return value if isinstance(value, str) else default
