"""Settle the dtypes of weights and cache that ``auto`` leaves to the model and the GPU."""

from typing import Final

from kvheadroom.engine.options import Device
from kvheadroom.engine.versions import Version
from kvheadroom.errors import ConfigError
from kvheadroom.model.facts import ModelFacts, Runner

# A ModelOpt checkpoint decides about the cache (vLLM 0.14.0).
_CHECKPOINT_DECIDES: Final[Version] = (0, 14, 0)
# Sparse latent caches have a packed format only under some backends (vLLM 0.19.0).
_PACKED_BY_BACKEND: Final[Version] = (0, 19, 0)
# The first version to serve sparse latent caches packed them unasked (vLLM 0.11.0).
_PACKED_BY_DEFAULT: Final[Version] = (0, 11, 0)

_PACKED_LATENT: Final = "fp8_ds_mla"
_DTYPE_NAMES: Final = {
    "half": "float16",
    "float16": "float16",
    "float": "float32",
    "float32": "float32",
    "bfloat16": "bfloat16",
}
_NO_FLOAT16_TYPES: Final = frozenset({"gemma2", "gemma3", "gemma3_text", "glm4"})
_BFLOAT16_FROM: Final = (8, 0)
_FLOAT16_FROM: Final = (6, 0)


def settle_dtype(asked: str, facts: ModelFacts, device: Device, runner: Runner) -> str:
    """Return the dtype of weights and activations.

    Args:
        asked: ``--dtype``.
        facts: The model.
        device: The GPU; without a capability it is taken to have bfloat16.
        runner: Pooling models prefer float16 where a checkpoint is float32.

    Raises:
        ConfigError: An unknown dtype, or one the model cannot run in.

    Source:
        vLLM 0.32, the model configuration's resolution of ``auto``.
    """
    if asked.lower() != "auto":
        dtype = _DTYPE_NAMES.get(asked.lower())
        if dtype is None:
            raise ConfigError("--dtype: must be auto, half, float16, bfloat16, float or float32")
        if dtype == "float16" and facts.model_type in _NO_FLOAT16_TYPES:
            raise ConfigError(f"--dtype float16: a {facts.model_type} model is unstable in it")
        return dtype
    usable = [dtype for dtype in _native_dtypes(device) if _stable(dtype, facts)]
    preferred = "float16" if runner == "pooling" and "float16" in usable else usable[0]
    stored = _DTYPE_NAMES.get(facts.dtype or "float32", "float32")
    if stored == "float32":
        return preferred
    return stored if stored in usable else preferred


def settle_cache_dtype(
    asked: str, facts: ModelFacts, device: Device, backend: str | None, version: Version
) -> str:
    """Return ``--kv-cache-dtype`` after the checkpoint's, the class's and the backend's say.

    Args:
        asked: The option's value, ``"auto"`` when not given.
        facts: The model.
        device: The GPU.
        backend: Attention backend asked for.
        version: vLLM's version.

    Returns:
        A dtype's name; ``"auto"`` is the model's own dtype.

    Source:
        vLLM 0.32: the cache dtype's resolution, the configuration hooks of DeepSeek-V3.2 and
        GLM-MoE-DSA, the latent attention layer's choice of a packed format.
    """
    dtype = asked
    if dtype == "auto" and version >= _CHECKPOINT_DECIDES:
        dtype = facts.prescribed_kv_dtype or "auto"
    if facts.architecture.startswith("DeepseekV4"):
        return _PACKED_LATENT if dtype == "auto" or dtype.startswith("fp8") else dtype
    if not facts.is_sparse_latent:
        return dtype
    major = device.capability[0] if device.capability else None
    if facts.architecture == "DeepseekV32ForCausalLM" and dtype == "bfloat16":
        dtype = "auto"
    if facts.architecture == "GlmMoeDsaForCausalLM" and dtype == "auto" and major == 10:  # noqa: PLR2004
        dtype = "fp8_e4m3"
    return _PACKED_LATENT if _is_packed(dtype, major, backend, version) else dtype


def _is_packed(dtype: str, major: int | None, backend: str | None, version: Version) -> bool:
    """Tell whether the backend of a sparse latent cache stores *dtype* packed."""
    if version < _PACKED_BY_BACKEND:
        return dtype == "fp8" or (dtype == "auto" and version <= _PACKED_BY_DEFAULT)
    if backend is not None:
        return backend == "FLASHMLA_SPARSE" and dtype.startswith("fp8")
    if major == 12:  # noqa: PLR2004
        return dtype in ("auto", "fp8", "fp8_e4m3")
    return major == 9 and dtype == "fp8"  # noqa: PLR2004


def _native_dtypes(device: Device) -> tuple[str, ...]:
    if device.capability is None or device.capability >= _BFLOAT16_FROM:
        return ("bfloat16", "float16", "float32")
    if device.capability >= _FLOAT16_FROM:
        return ("float16", "float32")
    return ("float32",)


def _stable(dtype: str, facts: ModelFacts) -> bool:
    return dtype != "float16" or facts.model_type not in _NO_FLOAT16_TYPES
