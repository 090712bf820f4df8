"""From a config.json to the bytes of weights on each pipeline stage."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from kvheadroom.errors import ModelConfigError
from kvheadroom.model.weights.family import Family, stage_layers
from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.parts import (
    FLOAT32,
    CacheScales,
    Experts,
    Linear,
    Part,
    PreciseRouter,
    Ranks,
    Tensor,
)
from kvheadroom.model.weights.quantization import Quantization, read_quantization
from kvheadroom.model.weights.registry import FAMILIES, WRAPPERS
from kvheadroom.model.weights.tiles import has_precise_router_kernel, padded
from kvheadroom.model.weights.wrappers import Tower

_DTYPE_BYTES: Final[Mapping[str, int]] = {
    "float32": 4,
    "float": 4,
    "float16": 2,
    "half": 2,
    "bfloat16": 2,
}
# Their activations overflow float16: GPUs without bfloat16 load them as float32.
_NOT_IN_FLOAT16: Final = frozenset({"gemma2", "gemma3", "gemma3_text", "glm4"})
_FIRST_WITH_BFLOAT16: Final = (8, 0)


@dataclass(frozen=True, slots=True)
class Asked:
    """Everything beside the config that decides about weights.

    Attributes:
        ranks: Over how many the parameters are divided.
        stages: Pipeline stages.
        dtype: ``--dtype``; ``None`` or ``auto`` follows the checkpoint.
        quantization: ``--quantization``; ``None`` follows the checkpoint.
        capability: Compute capability of the GPU.
        headless: No output head is built.
        without: Modalities that the server takes none of.
        towers_by_request: Ranks hold whole towers where the class can.
        offload_bytes: Parameters of the layers that are moved to the CPU, one after the other
            until they reach this.
    """

    ranks: Ranks
    stages: int
    dtype: str | None
    quantization: str | None
    capability: tuple[int, int] | None
    headless: bool
    without: frozenset[str] = frozenset()
    towers_by_request: bool = False
    offload_bytes: int = 0


def stages_bytes(config: Mapping[str, Any], asked: Asked) -> tuple[int, ...]:
    """Return the bytes of one rank of every stage; `kvheadroom.model.weights` says more.

    Raises:
        ModelConfigError: The model's parameters are not known.
    """
    return _stages(json.dumps(config, sort_keys=True, default=str), asked)


@lru_cache(maxsize=1024)
def _stages(text: str, asked: Asked) -> tuple[int, ...]:
    config = json.loads(text)
    family, fields = find_family(config)
    if asked.headless and not family.keeps_head:
        family = replace(family, ends=replace(family.ends, head="none"))
    storage = Storage(
        read_quantization(config, asked.quantization),
        _element_bytes(config, asked.dtype, asked.capability),
        asked.capability,
    )
    layers = fields.layers(*family.layers) * family.halves
    if asked.stages > layers:
        raise ModelConfigError(f"{fields.architecture}: {asked.stages} stages for {layers} layers")
    model = _Model(family, fields, _towers(config, asked), asked.ranks, storage)
    if asked.offload_bytes and (not family.staged or family.encoder or model.towers):
        raise ModelConfigError(
            f"--cpu-offload-gb: what it moves of {fields.architecture:.80} is not known"
        )
    return tuple(
        _stage(model, layers, asked.stages, stage, asked.offload_bytes)
        for stage in range(asked.stages)
    )


@dataclass(frozen=True, slots=True)
class Storage:
    """How parameters become bytes.

    Attributes:
        method: The quantization.
        element_bytes: Of the model's dtype.
        capability: Of the GPU.
    """

    method: Quantization
    element_bytes: int
    capability: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class _Model:
    family: Family
    fields: Fields
    towers: list[Part]
    ranks: Ranks
    storage: Storage


def find_family(config: Mapping[str, Any]) -> tuple[Family, Fields]:
    """Return what the language model of *config* is made of, and the fields that decide about it.

    Raises:
        ModelConfigError: The class is not known.
    """
    name = _architecture(config)
    wrapper = WRAPPERS.get(name)
    if wrapper is None:
        family = _family(name, name)
        return family, Fields(name, config, family.defaults)
    family = wrapper.family or _family(wrapper.text_class(config), name)
    if wrapper.keeps_head:
        family = replace(family, keeps_head=True)
    return family, Fields(name, wrapper.text_values(config), family.defaults)


def _towers(config: Mapping[str, Any], asked: Asked) -> list[Part]:
    """Return what stands before the language model on every stage."""
    name = _architecture(config)
    wrapper = WRAPPERS.get(name)
    if wrapper is None:
        return []
    around = wrapper.surroundings(name, config)
    return [
        part
        for tower in wrapper.towers
        if tower.stands(around.values, asked.without)
        for part in tower.parts(around, _tower_ranks(tower, asked))
    ]


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else "(none)"


def _tower_ranks(tower: Tower, asked: Asked) -> Ranks:
    return Ranks() if asked.towers_by_request and tower.by_request else asked.ranks


def _family(name: str, architecture: str) -> Family:
    family = FAMILIES.get(name)
    if family is None:
        raise ModelConfigError(
            f"{architecture:.80}: the parameters of this class are not known; the sizes in its "
            "safetensors headers, or the index's metadata.total_size, would settle them"
        )
    return family


def _element_bytes(
    config: Mapping[str, Any], dtype: str | None, capability: tuple[int, int] | None
) -> int:
    """Return the bytes of an element: float32 checkpoints are loaded with 16 bits unless asked."""
    if dtype and dtype != "auto":
        if dtype not in _DTYPE_BYTES:
            raise ModelConfigError(f"--dtype {dtype:.40} is not one of {', '.join(_DTYPE_BYTES)}")
        return _DTYPE_BYTES[dtype]
    without_bfloat16 = capability is not None and capability < _FIRST_WITH_BFLOAT16
    return 4 if without_bfloat16 and str(config.get("model_type")) in _NOT_IN_FLOAT16 else 2


def _stage(model: _Model, layers: int, stages: int, stage: int, offload_bytes: int) -> int:
    family, c, r = model.family, model.fields, model.ranks
    first, last = stage == 0, stage == stages - 1
    parts = family.ends.parts(c, r, first=first, last=last)
    if family.every:
        parts += family.every(c, r)
    if family.inputs and family.ends.held(c, "embedding", first=first, last=last):
        parts += family.inputs(c, r)
    if family.last and last:
        parts += family.last(c, r)
    parts += model.towers
    total = _bytes(parts, "", model.storage)
    held = stage_layers(layers, stages, stage) if family.staged else range(layers)
    to_move = offload_bytes
    for index in held:
        prefix, parts = f"model.layers.{index}.", family.block(c, r, index)
        while to_move > 0 and parts:
            part = parts.pop(0)
            for size in _parameters(part, _bytes([part], prefix, model.storage), model.storage):
                total += 0 if to_move > 0 else size
                to_move -= size
        total += _bytes(parts, prefix, model.storage)
    if family.encoder:
        for index in stage_layers(c.layers("encoder_layers"), stages, stage):
            total += _bytes(family.encoder(c, r, index), f"encoder.layers.{index}.", model.storage)
    return total


def _parameters(part: Part, size: int, storage: Storage) -> tuple[int, ...]:
    """Return *size*, the bytes of *part*, by parameter in the order in which vLLM makes them."""
    match part:
        case Experts(gated=gated):
            inward = size * 2 // 3 if gated else size // 2
            return inward, size - inward
        case Linear(bias=True):
            bias = sum(part.outputs) * storage.element_bytes
            return size - bias, bias
    return (size,)


def _bytes(parts: Iterable[Part], prefix: str, storage: Storage) -> int:
    total = 0
    method, element = storage.method, storage.element_bytes
    for part in parts:
        match part:
            case Linear():
                total += method.linear_bytes(part, prefix, element)
            case Experts():
                held = padded(part, method.method, storage.capability)
                total += method.expert_bytes(held, prefix, element)
            case Tensor():
                total += part.elements * (part.element_bytes or element)
            case PreciseRouter():
                follows = has_precise_router_kernel(storage.capability)
                total += part.elements * (element if follows else FLOAT32)
            case CacheScales():
                total += method.scales_bytes(element)
    return total
