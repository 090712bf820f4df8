"""Encoders that stand before a language model, and the models that have one."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kvheadroom.model.weights.dense import DENSE
from kvheadroom.model.weights.experts import EXPERTS
from kvheadroom.model.weights.family import Extra, Family
from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.gemma import GEMMA3
from kvheadroom.model.weights.hybrid import HYBRID
from kvheadroom.model.weights.parts import (
    Part,
    Ranks,
    Tensor,
    column,
    norm,
    row,
)


def biased_block(r: Ranks, width: int, inner: int, *, gated: bool, norm_bias: bool) -> list[Part]:
    """Return one layer of a vision transformer with biases everywhere."""
    lead_in = (inner, inner) if gated else (inner,)
    return [
        column(r, "visual.attn.qkv", width, width, width, width, bias=True, quantizable=False),
        row(r, "visual.attn.proj", width, width, bias=True, quantizable=False),
        column(r, "visual.mlp.fc1", width, *lead_in, bias=True, quantizable=False),
        row(r, "visual.mlp.fc2", inner, width, bias=True, quantizable=False),
        norm(2 * width, bias=norm_bias),
    ]


def _merger(r: Ranks, inner: int, outputs: int) -> list[Part]:
    """Return the two matrices that merge neighboring patches."""
    return [
        column(r, "visual.merger.fc1", inner, inner, bias=True, quantizable=False),
        row(r, "visual.merger.fc2", inner, outputs, bias=True, quantizable=False),
    ]


def _patch(v: Fields, width: int) -> int:
    channels = v.whole("in_channels", "in_chans", default=3)
    return width * channels * v.whole("temporal_patch_size", default=2) * v.whole("patch_size") ** 2


def _qwen2_5_tower(c: Fields, r: Ranks) -> list[Part]:
    v = c.part("vision_config")
    width, merged = v.hidden, v.hidden * v.whole("spatial_merge_size", default=2) ** 2
    block = biased_block(r, width, v.whole("intermediate_size"), gated=True, norm_bias=False)
    return [
        Tensor(_patch(v, width) + width),
        *block * v.layers("depth"),
        *_merger(r, merged, v.whole("out_hidden_size")),
    ]


def qwen3_tower(c: Fields, r: Ranks) -> list[Part]:
    """Return the encoder of Qwen3-VL and of those that took it over."""
    v = c.part("vision_config")
    width, merged = v.hidden, v.hidden * v.whole("spatial_merge_size", default=2) ** 2
    block = biased_block(r, width, v.whole("intermediate_size"), gated=False, norm_bias=True)
    merger = _merger(r, merged, v.whole("out_hidden_size"))
    deep = len(v.per_layer("deepstack_visual_indexes"))
    return [
        Tensor(_patch(v, width) + width),
        Tensor(v.whole("num_position_embeddings") * width),
        *block * v.layers("depth"),
        *merger,
        norm(width, bias=True),
        *[*merger, norm(merged, bias=True)] * deep,
    ]


def _qwen2_tower(c: Fields, r: Ranks) -> list[Part]:
    v = c.part("vision_config")
    width = v.whole("embed_dim")
    inner = int(width * v.number("mlp_ratio", 4.0))
    block = biased_block(r, width, inner, gated=False, norm_bias=True)
    merged = width * v.whole("spatial_merge_size", default=2) ** 2
    return [
        Tensor(_patch(v, width)),
        norm(width, bias=True),
        *block * v.layers("depth"),
        *_merger(r, merged, v.hidden),
    ]


def _llama4_tower(c: Fields, r: Ranks) -> list[Part]:
    """Return Llama 4's encoder, the adapter behind it and the projector to the text's width."""
    v = c.part("vision_config")
    width, patch = v.hidden, v.whole("patch_size")
    positions = (v.whole("image_size") // patch) ** 2 + 1
    block = biased_block(r, width, v.whole("intermediate_size"), gated=False, norm_bias=True)
    lead, out = v.whole("projector_input_dim"), v.whole("projector_output_dim")
    shuffled = int(width / v.number("pixel_shuffle_ratio", 0.5) ** 2)
    text = c.part("text_config").hidden
    return [
        Tensor((1 + positions) * width),
        column(r, "vision_model.patch_embedding", 3 * patch * patch, width, quantizable=False),
        norm(2 * width, bias=True),
        *block * v.layers("num_hidden_layers"),
        column(r, "vision_model.adapter.fc1", shuffled, lead, quantizable=False),
        row(r, "vision_model.adapter.fc2", lead, out, quantizable=False),
        column(r, "multi_modal_projector", v.whole("vision_output_dim"), text, quantizable=False),
    ]


def _pixtral_tower(c: Fields, r: Ranks) -> list[Part]:
    """Return Mistral's encoder and the projector that merges its patches."""
    v = c.part("vision_config")
    width, inner = v.hidden, v.whole("intermediate_size")
    text, merge = c.part("text_config").hidden, c.whole("spatial_merge_size", default=2)
    bias = c.says("multimodal_projector_bias")
    block: list[Part] = [
        column(r, "visual.qkv_proj", width, width, width, width, quantizable=False),
        row(r, "visual.o_proj", width, width, quantizable=False),
        column(r, "visual.gate_up_proj", width, inner, inner, quantizable=False),
        row(r, "visual.down_proj", inner, width, quantizable=False),
        norm(2 * width),
    ]
    return [
        Tensor(width * 3 * v.whole("patch_size") ** 2 + width),
        *block * v.layers("num_hidden_layers"),
        norm(width),
        Tensor(width * width * merge * merge),
        column(r, "projector.linear_1", width, text, bias=bias, quantizable=False),
        row(r, "projector.linear_2", text, text, bias=bias, quantizable=False),
    ]


def _siglip_tower(c: Fields, r: Ranks) -> list[Part]:
    v = c.part("vision_config")
    width, patch = v.hidden, v.whole("patch_size")
    block = biased_block(r, width, v.whole("intermediate_size"), gated=False, norm_bias=True)
    positions = (v.whole("image_size") // patch) ** 2
    return [
        Tensor(width * (3 * patch * patch + 1) + positions * width),
        *block * v.layers("num_hidden_layers"),
        norm(width, bias=True),
        Tensor(width * c.part("text_config").hidden + width),
    ]


def seeing(family: Family, tower: Extra, **defaults: object) -> Family:
    """Return *family* with an encoder before it and its own fields nested."""
    return replace(family, tower=tower, nested=True, defaults={**family.defaults, **defaults})


_SIGLIP_DEFAULTS: Final = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "image_size": 896,
    "patch_size": 14,
}

VISION: Final[Mapping[str, Family]] = {
    "Qwen2VLForConditionalGeneration": seeing(DENSE["Qwen2ForCausalLM"], _qwen2_tower),
    "Llama4ForConditionalGeneration": seeing(EXPERTS["Llama4ForCausalLM"], _llama4_tower),
    "Qwen2_5_VLForConditionalGeneration": seeing(DENSE["Qwen2ForCausalLM"], _qwen2_5_tower),
    "Qwen3VLForConditionalGeneration": seeing(DENSE["Qwen3ForCausalLM"], qwen3_tower),
    "Qwen3VLMoeForConditionalGeneration": seeing(EXPERTS["Qwen3MoeForCausalLM"], qwen3_tower),
    "Qwen3_5ForConditionalGeneration": seeing(HYBRID["Qwen3_5ForCausalLM"], qwen3_tower),
    "Qwen3_5MoeForConditionalGeneration": seeing(HYBRID["Qwen3_5MoeForCausalLM"], qwen3_tower),
    "Mistral3ForConditionalGeneration": seeing(DENSE["MistralForCausalLM"], _pixtral_tower),
    "Gemma3ForConditionalGeneration": seeing(GEMMA3, _siglip_tower, vision_config=_SIGLIP_DEFAULTS),
}
