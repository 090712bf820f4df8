"""How a GPU's kernels want experts and routers allocated."""

from dataclasses import replace
from typing import Final

from kvheadroom.model.weights.parts import Experts

_TILE: Final = 128
_WIDE_TILE: Final = 256
_HOPPER: Final = 9
_BLACKWELL: Final = 10


def padded(part: Experts, method: str, capability: tuple[int, int] | None) -> Experts:
    """Return *part* as the kernel that vLLM chooses wants it allocated.

    Args:
        part: The experts by their config.
        method: How they are quantized.
        capability: Compute capability of the GPU; ``None`` stands for a Hopper.

    Source:
        vLLM 0.32's first choice of kernel for each capability when FlashInfer is installed: 4-bit
        floats pad both sides; 16-bit experts are padded on datacenter Blackwell only.
    """
    major = _HOPPER if capability is None else capability[0]
    if method == "mxfp4":
        hidden = _TILE if major == _HOPPER else _WIDE_TILE
        return replace(part, width=_up(part.width, _TILE), hidden=_up(part.hidden, hidden))
    if method == "none" and major == _BLACKWELL and part.usual and not part.bias:
        return replace(part, width=_up(part.width, _TILE))
    return part


def has_precise_router_kernel(capability: tuple[int, int] | None) -> bool:
    """Return whether a GPU multiplies 16-bit routers to float32; ``None`` stands for a Hopper.

    Source:
        vLLM 0.32: Hopper and datacenter Blackwell.
    """
    return capability is None or capability == (_HOPPER, 0) or capability[0] == _BLACKWELL


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
