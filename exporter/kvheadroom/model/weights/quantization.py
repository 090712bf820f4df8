"""How a checkpoint stores its matrices, as its quantization_config says."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from math import gcd
from typing import Any, Final

from kvheadroom.errors import ModelConfigError
from kvheadroom.model.facts import quantization_section
from kvheadroom.model.weights.parts import Experts, Linear
from kvheadroom.model.weights.stores import (
    SCALE_BYTES,
    Store,
    bitsandbytes,
    block_scaled_bytes,
    four_bit_floats,
    grouped_integers,
    scaled_bytes,
    unquantized,
    with_shape,
)

_MXFP4_BLOCK: Final = 32
_NVFP4_BLOCK: Final = 16
# vLLM gives up on blocks smaller than this.
_LEAST_BLOCK: Final = 32
_BITS: Final = (2, 3, 4, 8)
# Of weights that vLLM quantizes while it loads them.
_ONLINE_BLOCK: Final = (128, 128)
_REGEX: Final = "re:"
_NESTED_REPEAT: Final = re.compile(r"[+*}]\)[+*{]")
_EXPERTS: Final = ".experts"


def _exact(ignored: tuple[str, ...], module: str) -> bool:
    """Return whether a list of whole names holds *module*; one expert stands for all."""
    if module in ignored:
        return True
    return module.endswith(_EXPERTS) and any(module in entry for entry in ignored)


def _substring(ignored: tuple[str, ...], module: str) -> bool:
    return any(entry in module for entry in ignored)


def _wildcard(ignored: tuple[str, ...], module: str) -> bool:
    return any(entry in module or fnmatchcase(module, entry) for entry in ignored)


def _pattern(ignored: tuple[str, ...], module: str) -> bool:
    for entry in ignored:
        if entry.startswith(_REGEX):
            if _compiled(entry.removeprefix(_REGEX)).match(module):
                return True
        elif entry == module:
            return True
    return False


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    # A repeated group that itself repeats can take forever on a short name.
    if _NESTED_REPEAT.search(pattern):
        raise ModelConfigError(f"quantization_config: the pattern {pattern[:60]!r} is not followed")
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ModelConfigError(f"quantization_config: {pattern[:60]!r} is no pattern") from error


@dataclass(frozen=True, slots=True)
class CacheScaleTypes:
    """What a method loads beside each attention for its cache.

    Attributes:
        float32: Elements that are float32.
        typed: Elements in the model's dtype.
    """

    float32: int = 0
    typed: int = 0


@dataclass(frozen=True, slots=True)
class Quantization:
    """How a checkpoint stores its matrices.

    Attributes:
        method: vLLM's name for it.
        linear: Of a linear layer; ``None`` leaves linear layers in the model's dtype.
        experts: Of routed experts of a given shape.
        ignored: Modules that stay in the model's dtype.
        matches: Whether *ignored* means a module.
        cache_scales: Beside each attention.
    """

    method: str
    linear: Store | None
    experts: Callable[[Experts], Store]
    ignored: tuple[str, ...] = ()
    matches: Callable[[tuple[str, ...], str], bool] = _substring
    cache_scales: CacheScaleTypes = CacheScaleTypes()

    def linear_bytes(self, part: Linear, prefix: str, dtype_bytes: int) -> int:
        """Return the bytes of one linear layer."""
        quantized = part.quantizable and not self.ignores(prefix + part.name)
        store = self.linear if quantized and self.linear else unquantized
        bias = sum(part.outputs) * dtype_bytes if part.bias else 0
        return store(part.inputs, part.outputs, dtype_bytes) + bias

    def expert_bytes(self, part: Experts, prefix: str, dtype_bytes: int) -> int:
        """Return the bytes of the experts of one layer."""
        store = unquantized if self.ignores(prefix + part.name) else self.experts(part)
        lead_in = (part.width,) * (2 if part.gated else 1)
        bias = (sum(lead_in) + part.hidden) * dtype_bytes if part.bias else 0
        matrices = store(part.hidden, lead_in, dtype_bytes)
        return part.count * (matrices + store(part.width, (part.hidden,), dtype_bytes) + bias)

    def scales_bytes(self, dtype_bytes: int) -> int:
        """Return the bytes of the scales of one attention's cache."""
        return SCALE_BYTES * self.cache_scales.float32 + dtype_bytes * self.cache_scales.typed

    def ignores(self, module: str) -> bool:
        """Return whether *module*, or what is fused into it, is left in the model's dtype."""
        if not self.ignored:
            return False
        return any(self.matches(self.ignored, name) for name in _unfused(module))


_FUSED: Final = {
    "qkv_proj": ("q_proj", "qkv_proj"),
    "gate_up_proj": ("gate_proj", "gate_up_proj"),
    "fused_qkv_a_proj": ("q_a_proj", "fused_qkv_a_proj"),
    "in_proj_qkvz": ("in_proj_qkvz", "in_proj_qkv"),
    "in_proj_ba": ("in_proj_ba", "in_proj_b"),
}


def _unfused(module: str) -> tuple[str, ...]:
    """Return the names that an ignore list may give a fused module."""
    parent, _, last = module.rpartition(".")
    return tuple(f"{parent}.{name}" for name in _FUSED.get(last, (last,)))


_FLOAT_CACHE_SCALES: Final = CacheScaleTypes(typed=4)
_COMPRESSED_SCALES: Final = CacheScaleTypes(float32=3, typed=3)


def _any_shape(store: Store) -> Callable[[Experts], Store]:
    return lambda _part: store


UNQUANTIZED: Final = Quantization("none", None, _any_shape(unquantized))


def read_quantization(config: Mapping[str, Any], asked: str | None) -> Quantization:
    """Return how the weights of *config* are stored when vLLM is asked for *asked*.

    Args:
        config: A parsed config.json.
        asked: ``--quantization``; ``None`` follows the checkpoint.

    Raises:
        ModelConfigError: The method is not known, or its fields are missing.
    """
    stated = quantization_section(config)
    if not stated:
        return _online(asked) if asked else UNQUANTIZED
    method = str(stated.get("quant_method") or stated.get("quant_algo") or "").lower()
    reader = _READERS.get(method)
    if reader is None:
        raise ModelConfigError(
            f"quantization_config: {method or 'no quant_method'!r:.60} is not known; "
            f"known are {', '.join(_READERS)}"
        )
    return reader(stated, config)


def _online(asked: str) -> Quantization:
    if asked in {"fp8", "fp8_per_tensor"}:
        store = scaled_bytes(per_row=False, static_input=False)
        return Quantization(asked, store, _any_shape(store))
    if asked == "fp8_per_block":
        store = block_scaled_bytes(*_ONLINE_BLOCK)
        return Quantization(asked, store, _any_shape(store))
    if asked == "bitsandbytes":
        return Quantization(asked, bitsandbytes, _any_shape(bitsandbytes))
    raise ModelConfigError(f"--quantization {asked}: config.json has no quantization_config for it")


def _group(stated: Mapping[str, Any], *names: str, default: int | None = None) -> int:
    """Return the inputs that share a scale; -1 is all of them."""
    value = next((stated[name] for name in names if stated.get(name) is not None), default)
    if isinstance(value, bool) or not isinstance(value, int) or (value < 1 and value != -1):
        raise ModelConfigError(f"quantization_config: {' or '.join(names)} is not a group's size")
    return value


def _bits(stated: Mapping[str, Any], *names: str) -> int:
    for name in names:
        if (bits := stated.get(name)) in _BITS:
            return int(bits)
    raise ModelConfigError(f"quantization_config: {' or '.join(names)} must be one of {_BITS}")


def _names(stated: Mapping[str, Any], *fields: str) -> tuple[str, ...]:
    for name in fields:
        entries = stated.get(name)
        if isinstance(entries, list):
            return tuple(_inside_text(str(entry)) for entry in entries)
    return ()


def _inside_text(entry: str) -> str:
    """Return the name of a module as a model of text alone would spell it."""
    for wrapped in ("model.language_model.", "language_model.model."):
        entry = entry.replace(wrapped, "model.")
    return entry


def _awq(stated: Mapping[str, Any], _config: Mapping[str, Any]) -> Quantization:
    store = grouped_integers(
        _bits(stated, "bits", "w_bit"),
        _group(stated, "group_size", "q_group_size"),
        zeros=stated.get("zero_point") is not False,
        index=False,
    )
    return Quantization("awq", store, _any_shape(store), _names(stated, "modules_to_not_convert"))


def _gptq(stated: Mapping[str, Any], _config: Mapping[str, Any]) -> Quantization:
    bits, group = _bits(stated, "bits"), _group(stated, "group_size")
    # A zero point is allocated for symmetric checkpoints, too.
    linear = grouped_integers(bits, group, zeros=True, index=bool(stated.get("desc_act")))
    experts = grouped_integers(bits, group, zeros=True, index=False)
    return Quantization(
        "gptq", linear, _any_shape(experts), _names(stated, "modules_in_block_to_not_quantize")
    )


_EXPONENT_SCALES: Final = frozenset({"deepseek_v4", "deepseek_v41"})


def _fp8(stated: Mapping[str, Any], config: Mapping[str, Any]) -> Quantization:
    block = stated.get("weight_block_size")
    ignored = _names(stated, "ignored_layers", "modules_to_not_convert")
    if not isinstance(block, list):
        static = stated.get("activation_scheme") == "static"
        store = scaled_bytes(per_row=False, static_input=static)
        return Quantization("fp8", store, _any_shape(store), ignored, _exact, _FLOAT_CACHE_SCALES)
    rows, inputs = _block(block)
    # DeepSeek-V4 states its experts' format beside the rest's, and its scales are exponents.
    four_bits = config.get("expert_dtype", stated.get("expert_dtype")) == "fp4"
    scale_bytes = 1 if str(config.get("model_type")) in _EXPONENT_SCALES else SCALE_BYTES
    experts = _any_shape(four_bit_floats(_MXFP4_BLOCK, scales_per_matrix=0))
    return Quantization(
        "fp8",
        block_scaled_bytes(rows, inputs, scale_bytes),
        experts if four_bits else _refined(rows, inputs),
        ignored,
        _exact,
        _FLOAT_CACHE_SCALES,
    )


def _block(stated: object) -> tuple[int, int]:
    edges = stated if isinstance(stated, list) else []
    match [edge for edge in edges if isinstance(edge, int) and edge > 0]:
        case [rows, inputs] if len(edges) == len((rows, inputs)):
            return rows, inputs
    raise ModelConfigError(
        f"quantization_config: a block must be two whole numbers, not {stated!r:.40}"
    )


def _refined(rows: int, inputs: int) -> Callable[[Experts], Store]:
    """Describe blocks that shrink to what divides an expert's piece (vLLM 0.32)."""

    def experts(part: Experts) -> Store:
        if part.width % rows == 0 and part.width % inputs == 0:
            return block_scaled_bytes(rows, inputs)
        edge = gcd(rows, inputs, part.width, part.hidden)
        return (
            block_scaled_bytes(edge, edge)
            if edge >= _LEAST_BLOCK
            else block_scaled_bytes(rows, inputs)
        )

    return experts


def _fbgemm_fp8(stated: Mapping[str, Any], _config: Mapping[str, Any]) -> Quantization:
    store = scaled_bytes(per_row=True, static_input=True)
    ignored = _names(stated, "modules_to_not_convert")
    return Quantization("fbgemm_fp8", store, _any_shape(store), ignored, _exact)


def _mxfp4(_stated: Mapping[str, Any], _config: Mapping[str, Any]) -> Quantization:
    # Only the experts of gpt-oss are stored so.
    store = four_bit_floats(_MXFP4_BLOCK, scales_per_matrix=0)
    return Quantization("mxfp4", None, _any_shape(store))


def _modelopt(stated: Mapping[str, Any], _config: Mapping[str, Any]) -> Quantization:
    nested = stated.get("quantization")
    fields = nested if isinstance(nested, Mapping) else stated
    algorithm = str(fields.get("quant_algo") or "").upper()
    ignored = _names(fields, "exclude_modules", "ignore")
    if algorithm == "FP8":
        store = scaled_bytes(per_row=False, static_input=True)
    elif algorithm == "NVFP4":
        block = _group(fields, "group_size", default=_NVFP4_BLOCK)
        store = four_bit_floats(block, scales_per_matrix=2)
    else:
        raise ModelConfigError(f"quantization_config: quant_algo {algorithm!r:.40} is not known")
    return Quantization(
        "modelopt", store, _any_shape(store), ignored, _wildcard, _FLOAT_CACHE_SCALES
    )


def _bitsandbytes(stated: Mapping[str, Any], _config: Mapping[str, Any]) -> Quantization:
    skipped = _names(stated, "llm_int8_skip_modules")
    if stated.get("load_in_8bit"):
        store = scaled_bytes(per_row=True, static_input=False)
        return Quantization("bitsandbytes", store, _any_shape(store), skipped, _substring)
    return Quantization("bitsandbytes", bitsandbytes, _any_shape(bitsandbytes), skipped, _substring)


def _compressed_tensors(stated: Mapping[str, Any], _config: Mapping[str, Any]) -> Quantization:
    groups = stated.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise ModelConfigError("quantization_config: config_groups is missing")
    group = next(iter(groups.values()))
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        raise ModelConfigError("quantization_config: config_groups states no weights")
    inputs = group.get("input_activations")
    store = _compressed_store(weights, inputs if isinstance(inputs, Mapping) else {})
    return Quantization(
        "compressed-tensors",
        store,
        _any_shape(store),
        _names(stated, "ignore"),
        _pattern,
        _COMPRESSED_SCALES,
    )


def _compressed_store(weights: Mapping[str, Any], inputs: Mapping[str, Any]) -> Store:
    bits, kind = _bits(weights, "num_bits"), weights.get("type")
    strategy = weights.get("strategy")
    if bits == 4 and kind == "float":  # noqa: PLR2004 - bits
        return four_bit_floats(
            _group(weights, "group_size", default=_NVFP4_BLOCK), scales_per_matrix=2
        )
    if not inputs and kind == "int":
        return with_shape(
            grouped_integers(
                bits,
                _group(weights, "group_size") if strategy == "group" else -1,
                zeros=weights.get("symmetric") is False,
                index=weights.get("actorder") == "group",
            )
        )
    if bits != 8:  # noqa: PLR2004 - bits
        raise ModelConfigError(f"quantization_config: {bits}-bit {kind} weights are not known")
    block = weights.get("block_structure")
    if strategy == "block":
        return block_scaled_bytes(*_block(block))
    static = bool(inputs) and inputs.get("dynamic") is False
    return scaled_bytes(per_row=strategy == "channel", static_input=static)


_READERS: Final[Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any]], Quantization]]] = {
    "awq": _awq,
    "gptq": _gptq,
    "fp8": _fp8,
    "fbgemm_fp8": _fbgemm_fp8,
    "mxfp4": _mxfp4,
    "modelopt": _modelopt,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed_tensors,
}
