"""From a config.json to the bytes of weights on each pipeline stage."""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from kvheadroom.errors import ModelConfigError
from kvheadroom.model.weights.family import Family, stage_layers
from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.parts import (
    CacheScales,
    Experts,
    Linear,
    Part,
    Ranks,
    Tensor,
)
from kvheadroom.model.weights.quantization import Quantization, read_quantization
from kvheadroom.model.weights.registry import FAMILIES, WRAPPERS
from kvheadroom.model.weights.tiles import padded
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

    Raises:
        ModelConfigError: The class or the quantization is not known, a field is missing, or the
            ranks do not divide the model.

    Source:
        Parameters as vLLM 0.32's model classes create them; buffers and what kernels add after
        loading are not in it.
    """
    asked = _Asked(
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
    )
    if min(tensor_parallel, pipeline_parallel, data_parallel) < 1:
        raise ModelConfigError("a model is held by one rank or more")
    return _stages(json.dumps(config, sort_keys=True, default=str), asked)


@dataclass(frozen=True, slots=True)
class _Asked:
    """Everything beside the config that decides about weights."""

    ranks: Ranks
    stages: int
    dtype: str | None
    quantization: str | None
    capability: tuple[int, int] | None
    headless: bool
    without: frozenset[str]
    towers_by_request: bool


@lru_cache(maxsize=1024)
def _stages(text: str, asked: _Asked) -> tuple[int, ...]:
    config = json.loads(text)
    family, fields, towers = _found(config, asked)
    if asked.headless:
        family = replace(family, ends=replace(family.ends, head="none"))
    storage = Storage(
        read_quantization(config, asked.quantization),
        _element_bytes(config, asked.dtype, asked.capability),
        asked.capability,
    )
    layers = fields.layers(*family.layers) * family.halves
    if asked.stages > layers:
        raise ModelConfigError(f"{fields.architecture}: {asked.stages} stages for {layers} layers")
    model = _Model(family, fields, towers, asked.ranks, storage)
    return tuple(_stage(model, layers, asked.stages, stage) for stage in range(asked.stages))


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


def _found(config: Mapping[str, Any], asked: _Asked) -> tuple[Family, Fields, list[Part]]:
    """Return the decoder, its fields and what stands before it on every stage."""
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else "(none)"
    wrapper = WRAPPERS.get(name)
    if wrapper is None:
        family = _family(name, name)
        return family, Fields(name, config, family.defaults), []
    family = wrapper.family or _family(wrapper.text_class(config), name)
    around = wrapper.surroundings(name, config)
    towers = [
        part
        for tower in wrapper.towers
        if tower.stands(around.values, asked.without)
        for part in tower.parts(around, _tower_ranks(tower, asked))
    ]
    # DeepSeek-V4.1 routes images by a bias of their own.
    values = {"vision_config": around.get("vision_config"), **wrapper.text_values(config)}
    return family, Fields(name, values, family.defaults), towers


def _tower_ranks(tower: Tower, asked: _Asked) -> Ranks:
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
    return 4 if without_bfloat16 and config.get("model_type") in _NOT_IN_FLOAT16 else 2


def _stage(model: _Model, layers: int, stages: int, stage: int) -> int:
    family, c, r = model.family, model.fields, model.ranks
    parts = family.ends.parts(c, r, first=stage == 0, last=stage == stages - 1)
    if family.every:
        parts += family.every(c, r)
    if family.last and stage == stages - 1:
        parts += family.last(c, r)
    parts += model.towers
    total = _bytes(parts, "", model.storage)
    held = stage_layers(layers, stages, stage) if family.staged else range(layers)
    for index in held:
        total += _bytes(family.block(c, r, index), f"model.layers.{index}.", model.storage)
    if family.encoder:
        for index in stage_layers(c.layers("encoder_layers"), stages, stage):
            total += _bytes(family.encoder(c, r, index), f"encoder.layers.{index}.", model.storage)
    return total


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
            case CacheScales():
                total += method.scales_bytes(element)
    return total
