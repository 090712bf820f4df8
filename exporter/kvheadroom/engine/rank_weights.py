"""Weight bytes of a server's ranks, by its model and its settings."""

from collections.abc import Mapping
from typing import Any, Final

from kvheadroom.engine.options import EngineOptions
from kvheadroom.engine.versions import Version
from kvheadroom.errors import ModelConfigError
from kvheadroom.model.weights import adapter_bytes, weights_bytes

# Until then adapters had room for a vocabulary of their own (pull request 28545).
_ONE_VOCABULARY_SINCE: Final[Version] = (0, 12, 0)

# What vLLM converts to the dtype it serves with; packed and integer tensors stay as they are.
_FLOAT_BYTES: Final = {"F32": 4, "F16": 2, "BF16": 2}


def rank_weights(
    config: Mapping[str, Any], options: EngineOptions, *, quantization: str | None
) -> tuple[int, ...]:
    """Return the weight bytes of one rank of each pipeline stage, room for adapters included.

    Args:
        config: The model's config.json.
        options: Of the server.
        quantization: What ``--quantization`` asks for; ``None`` leaves it to the checkpoint.

    Raises:
        ModelConfigError: The model's weights, or what is loaded beside them, are not known.
    """
    loading = options.loading
    if loading.unknown is not None:
        raise ModelConfigError(f"--{loading.unknown}: what it leaves on the GPU is not known")
    parameters = weights_bytes(
        config,
        tensor_parallel=options.tensor_parallel,
        pipeline_parallel=options.pipeline_parallel,
        data_parallel=options.data_parallel,
        expert_parallel=options.expert_parallel,
        dtype=options.dtype,
        quantization=quantization,
        capability=options.device.capability,
        runner=options.runner,
        without=options.without,
        towers_by_request=options.encode_by_request,
        offload_bytes=loading.cpu_offload_bytes,
    )
    buffers = adapter_buffers(config, options)
    return tuple(own + beside for own, beside in zip(parameters, buffers, strict=True))


def adapter_buffers(config: Mapping[str, Any], options: EngineOptions) -> tuple[int, ...]:
    """Return the bytes of LoRA buffers on one rank of each pipeline stage, 0 without.

    Raises:
        ModelConfigError: They are not known for the model's class, or for how it is divided.
    """
    asked = options.loading.adapters
    if asked is None:
        return (0,) * options.pipeline_parallel
    if options.version < _ONE_VOCABULARY_SINCE:
        raise ModelConfigError("--enable-lora: its buffers are not known before vLLM 0.12")
    if options.expert_parallel:
        raise ModelConfigError("--enable-lora: its buffers are not known for whole experts a rank")
    return adapter_bytes(
        config,
        slots=asked.slots,
        rank=asked.rank,
        dtype=asked.dtype,
        tensor_parallel=options.tensor_parallel,
        pipeline_parallel=options.pipeline_parallel,
        runner=options.runner,
    )


def even_bytes(checkpoint: Mapping[str, int], options: EngineOptions) -> int:
    """Return one rank's bytes of *checkpoint*, loaded and cut evenly over the ranks.

    Where most of it is of one float type, that is the model's dtype, which is converted to the
    served one; the rest is kept as it lies.
    """
    ranks = options.tensor_parallel * options.pipeline_parallel
    total = sum(checkpoint.values())
    most = max(checkpoint, key=lambda dtype: checkpoint[dtype], default="")
    if most in _FLOAT_BYTES:
        served = 4 if options.dtype in {"float32", "float"} else 2
        total += checkpoint[most] * served // _FLOAT_BYTES[most] - checkpoint[most]
    return -(-total // ranks)
