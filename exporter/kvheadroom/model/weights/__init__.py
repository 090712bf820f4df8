"""Bytes of a model's parameters: on each rank, and in its checkpoint."""

from collections.abc import Collection, Mapping
from typing import Any

from kvheadroom.errors import ModelConfigError
from kvheadroom.model.weights.checkpoint import (
    bytes_by_dtype,
    bytes_of_hub_answer,
    bytes_of_index,
)

__all__ = [
    "adapter_bytes",
    "bytes_by_dtype",
    "bytes_of_hub_answer",
    "bytes_of_index",
    "weights_bytes",
]


def weights_bytes(
    config: Mapping[str, Any],
    *,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    data_parallel: int = 1,
    expert_parallel: bool = False,
    dtype: str | None = None,
    quantization: str | None = None,
    capability: tuple[int, int] | None = None,
    runner: str = "generate",
    without: Collection[str] = (),
    towers_by_request: bool = False,
    offload_bytes: int = 0,
) -> tuple[int, ...]:
    """Return the bytes of parameters on one rank of every pipeline stage, first stage first.

    Args:
        config: A parsed config.json.
        tensor_parallel: Ranks the matrices are divided over.
        pipeline_parallel: Stages the layers are divided over.
        data_parallel: Engines; only experts are divided over them.
        expert_parallel: Ranks hold whole experts instead of a piece of each.
        dtype: ``--dtype``; ``None`` or ``auto`` follows vLLM's rule for the checkpoint's dtype.
        quantization: ``--quantization``; ``None`` follows the checkpoint.
        capability: Compute capability of the GPU; some kernels pad experts to their tiles.
        runner: ``pooling`` builds no output head.
        without: Modalities that the server takes none of (``image``, ``video``, ``audio``); towers
            of nothing else are not built.
        towers_by_request: Ranks share out requests to encode instead of cutting the towers
            (``--mm-encoder-tp-mode data``), where the class can.
        offload_bytes: ``--cpu-offload-gb`` of each rank: parameters of its layers are moved to the
            CPU, whole and in their order, until they reach this.

    Raises:
        ModelConfigError: The class or the quantization is not known, a field is missing, or the
            ranks do not divide the model.

    Source:
        Parameters as vLLM 0.32's model classes create them; buffers and what kernels add after
        loading are not in it.
    """
    if min(tensor_parallel, pipeline_parallel, data_parallel) < 1:
        raise ModelConfigError("a model is held by one rank or more")
    # What every class is made of takes longer to load than all the rest: only when asked for.
    from kvheadroom.model.weights.parts import Ranks  # noqa: PLC0415
    from kvheadroom.model.weights.total import Asked, stages_bytes  # noqa: PLC0415

    asked = Asked(
        Ranks(
            tensor_parallel,
            tensor_parallel * data_parallel if expert_parallel else 1,
            1 if expert_parallel else tensor_parallel * data_parallel,
        ),
        pipeline_parallel,
        dtype,
        quantization,
        capability,
        runner == "pooling",
        frozenset(without),
        towers_by_request,
        offload_bytes,
    )
    return stages_bytes(config, asked)


def adapter_bytes(
    config: Mapping[str, Any],
    *,
    slots: int,
    rank: int,
    dtype: str = "bfloat16",
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    runner: str = "generate",
) -> tuple[int, ...]:
    """Return the bytes of LoRA buffers on one rank of every pipeline stage, first stage first.

    Args:
        config: A parsed config.json.
        slots: Adapters of one batch (``--max-loras``).
        rank: The largest rank of an adapter (``--max-lora-rank``).
        dtype: Of the buffers' elements.
        tensor_parallel: Ranks the matrices are divided over.
        pipeline_parallel: Stages the layers are divided over.
        runner: ``pooling`` builds no output head.

    Raises:
        ModelConfigError: The buffers of the class are not known, or vLLM refuses it.

    Source:
        vLLM 0.32, the LoRA layers' buffers, which are allocated before any adapter is loaded.
    """
    from kvheadroom.model.weights.adapters import adapter_elements  # noqa: PLC0415

    element_bytes = 4 if dtype == "float32" else 2
    elements = adapter_elements(
        config,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        headless=runner == "pooling",
    )
    return tuple(slots * rank * element_bytes * each for each in elements)
