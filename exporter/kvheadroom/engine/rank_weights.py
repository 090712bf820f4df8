"""Weight bytes of a server's ranks, by its model and its settings."""

from collections.abc import Mapping
from typing import Any

from kvheadroom.engine.options import EngineOptions
from kvheadroom.model.weights import weights_bytes


def rank_weights(
    config: Mapping[str, Any], options: EngineOptions, *, quantization: str | None
) -> tuple[int, ...]:
    """Return the weight bytes of one rank of each pipeline stage.

    Args:
        config: The model's config.json.
        options: Of the server.
        quantization: What ``--quantization`` asks for; ``None`` leaves it to the checkpoint.

    Raises:
        ModelConfigError: The model's weights are not known.
    """
    return weights_bytes(
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
    )
