"""What ``vllm serve`` was told and what it made of it: every setting that decides about memory."""

from dataclasses import dataclass
from typing import Literal

from kvheadroom.engine.versions import Version

MambaCacheMode = Literal["none", "align", "all"]


@dataclass(frozen=True, slots=True)
class Speculation:
    """Speculative decoding.

    Attributes:
        method: ``eagle``, ``eagle3``, ``mtp``, ``ngram``, ``draft_model`` …
        tokens: Tokens proposed per step.
        model: Path or id of the draft model; ``None`` where the target drafts for itself.
    """

    method: str
    tokens: int
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """The GPU, as far as vLLM's defaults depend on it.

    Attributes:
        total_bytes: Memory as the driver reports it.
        capability: Compute capability, ``(9, 0)``.
        name: Marketing name, where known (an A100 has defaults of its own).
    """

    total_bytes: int | None = None
    capability: tuple[int, int] | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class AdapterBuffers:
    """Room for LoRA adapters, which is allocated whether or not any is loaded.

    Attributes:
        slots: Adapters of one batch.
        rank: The largest rank of one.
        dtype: Of their elements.
    """

    slots: int
    rank: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Loading:
    """What is held beside the model's parameters, and what of them is moved off the GPU.

    Attributes:
        cpu_offload_bytes: Parameters of each rank that are moved to the CPU's memory.
        adapters: Room for LoRA adapters; ``None`` without.
        unknown: An option that changes either in a way that is not known; ``None`` without.
    """

    cpu_offload_bytes: int = 0
    adapters: AdapterBuffers | None = None
    unknown: str | None = None


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The settings of one server after its defaults are filled in.

    Attributes:
        version: vLLM's version.
        device: The GPU of every rank.
        max_model_len: Longest request, tokens; ``None`` fits it to the memory (``auto``, ``-1``).
        max_num_batched_tokens: Tokens of one step.
        max_num_seqs: Requests running at once.
        concurrent_batches: Steps in flight at once (async scheduling, pipeline stages).
        tensor_parallel: Ranks the heads are divided over.
        pipeline_parallel: Stages the layers are divided over.
        data_parallel: Engines with a pool each.
        decode_context_parallel: Ranks a request's tokens are divided over.
        prefill_context_parallel: Ranks a prompt's tokens are divided over.
        expert_parallel: Experts are divided over all ranks instead of cut in pieces.
        dtype: Of weights and activations.
        kv_cache_dtype: ``auto`` resolved as far as the front end resolves it.
        kv_cache_dtype_skip_layers: Layers whose cache keeps the model's dtype.
        block_size: What the user asked for, tokens; ``None`` leaves it to the backend.
        prefix_caching: Full blocks are kept for later requests.
        hybrid_manager: Layers of different kinds get groups of their own.
        mamba_cache_mode: How state layers are cached.
        mamba_cache_dtype: Of convolution states; ``auto`` follows *dtype*.
        mamba_ssm_cache_dtype: Of recurrent states; ``auto`` follows the model or the other.
        mamba_block_size: What the user asked for, tokens.
        gpu_memory_utilization: Share of the GPU this server manages, 0-1.
        kv_cache_memory_bytes: Exact pool per GPU, instead of a share; ``None`` uses the share.
        num_gpu_blocks_override: Exact number of blocks; ``None`` computes it.
        enforce_eager: No CUDA graphs.
        attention_backend: What the user asked for.
        speculation: Speculative decoding; ``None`` without.
        runner: ``generate`` or ``pooling``.
        without: Modalities that no request may hold: ``image``, ``video``, ``audio``.
        encode_by_request: Ranks encode whole requests instead of pieces of each.
        auto_fit_ceiling: Longest request that fitting to the memory starts from, tokens.
        loading: Adapters and offloading.
    """

    version: Version
    device: Device
    max_model_len: int | None
    max_num_batched_tokens: int
    max_num_seqs: int
    concurrent_batches: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    decode_context_parallel: int = 1
    prefill_context_parallel: int = 1
    expert_parallel: bool = False
    dtype: str = "bfloat16"
    kv_cache_dtype: str = "auto"
    kv_cache_dtype_skip_layers: tuple[str, ...] = ()
    block_size: int | None = None
    prefix_caching: bool = True
    hybrid_manager: bool = True
    mamba_cache_mode: MambaCacheMode = "none"
    mamba_cache_dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
    mamba_block_size: int | None = None
    gpu_memory_utilization: float = 0.92
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    enforce_eager: bool = False
    attention_backend: str | None = None
    speculation: Speculation | None = None
    runner: Literal["generate", "pooling"] = "generate"
    without: frozenset[str] = frozenset()
    encode_by_request: bool = False
    auto_fit_ceiling: int | None = None
    loading: Loading = Loading()
