"""How many tokens a step takes and how many requests run, by GPU, version and what was asked."""

from dataclasses import dataclass
from typing import Final

from kvheadroom.engine.options import Device
from kvheadroom.engine.versions import Version
from kvheadroom.errors import ConfigError
from kvheadroom.units import GIB

# A step of 16384 tokens on the largest GPUs (vLLM 0.28.0).
_LARGEST_STEP: Final[Version] = (0, 28, 0)
# The A100 got defaults of its own (vLLM 0.9.0).
_A100_APART: Final[Version] = (0, 9, 0)
# The V1 engine, whose defaults follow the GPU, became the default (vLLM 0.8.0).
_V1_ENGINE: Final[Version] = (0, 8, 0)

_LARGEST_BYTES: Final = 160 * GIB
_LARGE_BYTES: Final = 70 * GIB
_BATCHED_EXPERTS_TOKENS: Final = 256
_V0_TOKENS: Final = 2048
_V0_SEQS: Final = 256
# Longer contexts made the V0 engine chunk its prefills.
_V0_CHUNKED_FROM_TOKENS: Final = 32768


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of one scheduling step.

    Attributes:
        tokens: ``max_num_batched_tokens``.
        seqs: ``max_num_seqs``.
    """

    tokens: int
    seqs: int


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """What the limits are derived from.

    Attributes:
        tokens: ``--max-num-batched-tokens``; ``None`` when not given.
        seqs: ``--max-num-seqs``; ``None`` when not given.
        max_model_len: Longest request, tokens.
        chunked_prefill: A prompt may be split over steps.
        doubled: ``--performance-mode throughput``.
        batched_experts: Data-parallel experts that exchange fixed batches.
        ranks: GPUs (or CPU sockets) of one engine.
    """

    tokens: int | None
    seqs: int | None
    max_model_len: int
    chunked_prefill: bool
    doubled: bool = False
    batched_experts: bool = False
    ranks: int = 1


def batch_limits(request: BatchRequest, device: Device, version: Version) -> BatchLimits:
    """Return the limits of a step of the API server.

    Raises:
        ConfigError: A combination that vLLM refuses.

    Source:
        vLLM 0.32, the engine arguments' defaults by device and their later checks.
    """
    default = _device_default(device, version, request.ranks)
    factor = 2 if request.doubled else 1
    seqs = request.seqs or default.seqs * factor
    tokens = request.tokens
    if tokens is None:
        tokens = _default_tokens(request, default.tokens, version) * factor
        if not request.chunked_prefill:
            tokens = max(request.max_model_len, tokens)
        tokens = min(seqs * request.max_model_len, tokens)
    if request.seqs is None:
        seqs = min(seqs, tokens)
    _check(tokens, seqs, request)
    return BatchLimits(tokens, seqs)


def _default_tokens(request: BatchRequest, of_device: int, version: Version) -> int:
    if request.batched_experts:
        return _BATCHED_EXPERTS_TOKENS
    if version < _V1_ENGINE and request.max_model_len <= _V0_CHUNKED_FROM_TOKENS:
        return max(request.max_model_len, of_device)
    return of_device


def _device_default(device: Device, version: Version, ranks: int) -> BatchLimits:
    name = (device.name or _probable_name(device)).lower()
    total_bytes = device.total_bytes or 0
    if version < _V1_ENGINE:
        return BatchLimits(_V0_TOKENS, _V0_SEQS)
    if name == "cpu":
        return BatchLimits(2048 * ranks, 128 * ranks)
    if total_bytes >= _LARGEST_BYTES and version >= _LARGEST_STEP:
        return BatchLimits(16384, 1024)
    if total_bytes >= _LARGE_BYTES and not ("a100" in name and version >= _A100_APART):
        return BatchLimits(8192, 1024)
    return BatchLimits(2048, 256)


def _probable_name(device: Device) -> str:
    # Of compute capability 8.0 and this size there is the A100 (and its A800 sibling) alone.
    return "A100" if device.capability == (8, 0) else ""


def _check(tokens: int, seqs: int, request: BatchRequest) -> None:
    if tokens < 1 or seqs < 1:
        raise ConfigError("--max-num-batched-tokens and --max-num-seqs must be above 0")
    if tokens < seqs:
        raise ConfigError(
            f"--max-num-batched-tokens {tokens} is below --max-num-seqs {seqs}: vLLM refuses that"
        )
    if tokens < request.max_model_len and not request.chunked_prefill:
        raise ConfigError(
            f"--max-num-batched-tokens {tokens} is below the longest request of "
            f"{request.max_model_len} tokens, and prompts are not chunked: vLLM refuses that"
        )
