"""Bytes of the buffers that vLLM keeps for LoRA adapters, whether or not any is loaded."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvheadroom.errors import ModelConfigError
from kvheadroom.model.weights.family import Family, stage_layers
from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.parts import Experts, Linear, Part, Ranks
from kvheadroom.model.weights.total import find_family

# What the sampler's kernel can index.
_LARGEST_VOCABULARY: Final = 258_048


@dataclass(frozen=True, slots=True)
class _Adapted:
    """Which modules of a class get buffers beside its linear layers.

    Attributes:
        embedding: The token embedding does.
        head: The output head does.
        whole: Matrices that a checkpoint stores fused, too: one pair of buffers, not one for each
            part.
    """

    embedding: bool = True
    head: bool = True
    whole: frozenset[str] = frozenset()


# As vLLM 0.32's classes declare them. Others are refused: shared experts, states and
# latent attention have buffers of their own.
_ADAPTED: Final[Mapping[str, _Adapted]] = {
    **dict.fromkeys(
        (
            *("Ernie4_5ForCausalLM", "Exaone4ForCausalLM", "GraniteForCausalLM"),
            *("GraniteMoeForCausalLM", "LlamaForCausalLM", "MistralModel", "MixtralForCausalLM"),
            *("NemotronForCausalLM", "PhiMoEForCausalLM", "Qwen3ForCausalLM"),
            *("Qwen3MoeForCausalLM", "Qwen3VLForConditionalGeneration"),
        ),
        _Adapted(),
    ),
    **dict.fromkeys(
        (
            *("ArceeForCausalLM", "Cohere2ForCausalLM", "CohereForCausalLM"),
            *("HunYuanDenseV1ForCausalLM", "Olmo2ForCausalLM", "Olmo3ForCausalLM"),
            *("OlmoForCausalLM", "PhiForCausalLM", "SeedOssForCausalLM", "SmolLM3ForCausalLM"),
            "Starcoder2ForCausalLM",
        ),
        _Adapted(head=False),
    ),
    **dict.fromkeys(
        (
            *("Gemma2ForCausalLM", "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
            *("GemmaForCausalLM", "Glm4ForCausalLM", "MistralForCausalLM", "OlmoeForCausalLM"),
            *("Qwen2ForCausalLM", "Qwen2VLForConditionalGeneration"),
            "Qwen2_5_VLForConditionalGeneration",
        ),
        _Adapted(embedding=False, head=False),
    ),
    "Phi3ForCausalLM": _Adapted(whole=frozenset({"qkv_proj", "gate_up_proj"})),
}


def adapter_elements(
    config: Mapping[str, Any], *, tensor_parallel: int, pipeline_parallel: int, headless: bool
) -> tuple[int, ...]:
    """Return the elements of the buffers of one adapter of rank 1, on one rank of every stage.

    Raises:
        ModelConfigError: The buffers of the class are not known, or vLLM refuses it.
    """
    family, c = find_family(config)
    adapted = _ADAPTED.get(c.architecture)
    if adapted is None:
        raise ModelConfigError(
            f"{c.architecture:.80}: the LoRA buffers of this class are not known; add them to the "
            "weights that an earlier start logged, and pin those"
        )
    stages = pipeline_parallel
    layers, ranks = c.layers(*family.layers), Ranks(tensor_parallel, 1, tensor_parallel)
    total = []
    for stage in range(stages):
        held = stage_layers(layers, stages, stage) if family.staged else range(layers)
        elements = sum(
            _elements(part, adapted) for index in held for part in family.block(c, ranks, index)
        )
        ends = _ends(
            family, adapted, c, first=stage == 0, last=stage == stages - 1, head=not headless
        )
        total.append(elements + ends)
    return tuple(total)


def _ends(
    family: Family, adapted: _Adapted, c: Fields, *, first: bool, last: bool, head: bool
) -> int:
    """Return the elements of rank 1 at the embedding and the output head of one stage."""
    rows = c.whole("vocab_size")
    everywhere = family.ends.embedding == "every"
    # A tied head is a copy of the embedding, which gets buffers as such, too.
    copied = last and c.tied and family.ends.embedding == "tied_last"
    has_head = adapted.head and head and last
    if has_head and rows > _LARGEST_VOCABULARY:
        raise ModelConfigError(f"--enable-lora: {rows} tokens are more than vLLM's sampler takes")
    has_embedding = adapted.embedding and (first or everywhere or copied)
    return (has_embedding + has_head) * (rows + c.hidden)


def _elements(part: Part, adapted: _Adapted) -> int:
    if isinstance(part, Experts):
        matrices = 3 if part.gated else 2
        router = part.hidden + part.count
        return part.count * matrices * (part.hidden + part.width) + router
    if not isinstance(part, Linear):
        return 0
    pairs = 1 if part.name.rpartition(".")[2] in adapted.whole else len(part.outputs)
    return pairs * part.inputs + sum(part.outputs)
