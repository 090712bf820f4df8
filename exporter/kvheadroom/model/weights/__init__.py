"""Bytes of a model's parameters: on each rank, and in its checkpoint."""

from kvheadroom.model.weights.checkpoint import (
    bytes_by_dtype,
    bytes_of_hub_answer,
    bytes_of_index,
)
from kvheadroom.model.weights.total import weights_bytes

__all__ = ["bytes_by_dtype", "bytes_of_hub_answer", "bytes_of_index", "weights_bytes"]
