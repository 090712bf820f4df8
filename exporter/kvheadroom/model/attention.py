"""Read a Hugging Face config.json whose layers are all plain full attention."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvheadroom.errors import ModelConfigError

# Classes whose every layer caches K and V for the whole context. Anything else is refused, not
# guessed: a sliding window, a latent or a recurrent state costs something different.
_FULL_ATTENTION_CLASSES: Final = frozenset(
    {
        "AquilaForCausalLM",
        "ArceeForCausalLM",
        "BaichuanForCausalLM",
        "GraniteForCausalLM",
        "GraniteMoeForCausalLM",
        "InternLM2ForCausalLM",
        "InternLM3ForCausalLM",
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "MixtralForCausalLM",
        "OlmoForCausalLM",
        "OlmoeForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "StableLmForCausalLM",
        "YiForCausalLM",
    }
)

# A config with one of these describes something other than plain attention, whatever its class.
_OTHER_CACHE_FIELDS: Final = (
    "kv_lora_rank",
    "num_kv_shared_layers",
    "attention_chunk_size",
    "mamba_d_state",
    "linear_num_value_heads",
)

# Beyond any real model; a file may hold any number.
_LARGEST: Final = 10**9

ELEMENT_BYTES: Final[Mapping[str, int]] = {
    "float32": 4,
    "float16": 2,
    "half": 2,
    "bfloat16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
}


@dataclass(frozen=True, slots=True)
class FullAttention:
    """The attention layers of one model, all alike.

    Attributes:
        architecture: Class name in ``architectures``.
        layers: Layers that cache K and V.
        kv_heads: Key-value heads of the whole model.
        head_dim: Elements of one head.
        dtype: The checkpoint's own dtype, ``"bfloat16"``; ``None`` when it does not say.
        quantized_kv: The checkpoint prescribes a dtype for the cache, so ``auto`` is not *dtype*.
    """

    architecture: str
    layers: int
    kv_heads: int
    head_dim: int
    dtype: str | None
    quantized_kv: bool


def read_full_attention(config: Mapping[str, Any]) -> FullAttention:
    """Return the attention layers that *config* (a parsed config.json) describes.

    Raises:
        ModelConfigError: The class is not known as plain full attention, a field says it is not,
            or a field is missing or not a whole number above zero.
    """
    architectures = config.get("architectures") or ["(none)"]
    architecture = str(architectures[0]) if isinstance(architectures, list) else "(none)"
    _refuse_other_caches(architecture, config)
    heads = _whole(config, "num_attention_heads")
    head_dim = config.get("head_dim")
    if head_dim is None and _whole(config, "hidden_size") < heads:
        raise ModelConfigError(f"{architecture}: hidden_size is below num_attention_heads")
    return FullAttention(
        architecture=architecture,
        layers=_whole(config, "num_hidden_layers"),
        kv_heads=_whole(config, "num_key_value_heads", default=heads),
        # Qwen3 and others state head_dim, and it is not hidden_size ÷ heads.
        head_dim=_whole(config, "head_dim")
        if head_dim is not None
        else _whole(config, "hidden_size") // heads,
        dtype=_dtype(config),
        quantized_kv=_prescribes_kv_dtype(config),
    )


def _refuse_other_caches(architecture: str, config: Mapping[str, Any]) -> None:
    if architecture not in _FULL_ATTENTION_CLASSES:
        raise ModelConfigError(f"{architecture} is not known as a plain full-attention model")
    for name in _OTHER_CACHE_FIELDS:
        if config.get(name):
            raise ModelConfigError(f"{architecture}: {name} says this is not plain full attention")
    # Qwen2 writes a window and switches it off; Mistral has no switch.
    if config.get("sliding_window") and config.get("use_sliding_window", True):
        raise ModelConfigError(f"{architecture}: sliding_window is set")
    layer_types = config.get("layer_types") or []
    if not isinstance(layer_types, list) or any(kind != "full_attention" for kind in layer_types):
        raise ModelConfigError(f"{architecture}: layer_types holds more than full_attention")


def _whole(config: Mapping[str, Any], name: str, *, default: int | None = None) -> int:
    value = config.get(name)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < _LARGEST:
        raise ModelConfigError(f"config.json: {name} must be a whole number above 0, not {value!r}")
    return value


def _dtype(config: Mapping[str, Any]) -> str | None:
    value = config.get("torch_dtype") or config.get("dtype")
    return str(value).removeprefix("torch.") if value else None


def _prescribes_kv_dtype(config: Mapping[str, Any]) -> bool:
    quantization = config.get("quantization_config")
    if not isinstance(quantization, Mapping):
        return False
    return bool(quantization.get("kv_cache_scheme") or quantization.get("kv_cache_quant_algo"))
