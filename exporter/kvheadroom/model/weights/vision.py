"""Models that see: which encoder stands before the text, and how it leads into it."""

from collections.abc import Mapping
from typing import Final

from kvheadroom.model.weights import vision_towers as towers
from kvheadroom.model.weights.family import Extra
from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.parts import Part, Ranks, Tensor, norm
from kvheadroom.model.weights.tower_parts import (
    encoder_layer,
    grid,
    linears,
    narrow,
    patches,
    seen,
    text_width,
    whole,
    wide,
)
from kvheadroom.model.weights.wrappers import Tower, Wrapper, by_request, kept, watching

_SIGLIP_DEFAULTS: Final = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 224,
    "patch_size": 16,
}
_LLAVA_DEFAULTS: Final = {"multimodal_projector_bias": True, "vision_feature_layer": -2}
_MOON_DEFAULTS: Final = {
    "merge_kernel_size": [2, 2],
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "patch_size": 14,
    "init_pos_emb_height": 64,
    "init_pos_emb_width": 64,
}


def seeing(tower: Extra, text: str | None = None, **defaults: object) -> Wrapper:
    """Return a model of one encoder of images before the class *text*, or before any."""
    return Wrapper((Tower(tower),), text, defaults=defaults)


def _qwen2(c: Fields, r: Ranks) -> list[Part]:
    v = seen(c)
    return towers.qwen2(v, r, outputs=v.hidden)


def _qwen2_5(c: Fields, r: Ranks) -> list[Part]:
    return towers.qwen2_5(seen(c), r)


def qwen3_tower(c: Fields, r: Ranks) -> list[Part]:
    """Return Qwen3-VL's encoder."""
    return towers.qwen3(seen(c), r)


def _glm4v(c: Fields, r: Ranks) -> list[Part]:
    v = seen(c)
    inner, merged = v.whole("out_hidden_size"), v.whole("intermediate_size")
    return towers.glm(v, r, positions=True, inner=inner, merged=merged)


def _glm_ocr(c: Fields, r: Ranks) -> list[Part]:
    v = seen(c)
    merged = c.part("text_config").whole("intermediate_size")
    return towers.glm(v, r, positions=False, inner=v.whole("intermediate_size"), merged=merged)


def _llama4(c: Fields, r: Ranks) -> list[Part]:
    """Return Llama 4's encoder and the adapter behind it."""
    v = seen(c)
    width, patch = v.hidden, v.whole("patch_size")
    lead, out = v.whole("projector_input_dim"), v.whole("projector_output_dim")
    shuffled = int(width / v.number("pixel_shuffle_ratio", 0.5) ** 2)
    block = encoder_layer(r, width, v.whole("intermediate_size"))
    return [
        Tensor((1 + grid(v) + 1) * width),
        wide(r, 3 * patch * patch, width, bias=False),
        norm(2 * width, bias=True),
        *block * v.layers("num_hidden_layers"),
        wide(r, shuffled, lead, bias=False),
        narrow(r, lead, out, bias=False),
    ]


def _llama4_projector(c: Fields, r: Ranks) -> list[Part]:
    return [wide(r, seen(c).whole("vision_output_dim"), text_width(c), bias=False)]


def _mistral3(c: Fields, r: Ranks) -> list[Part]:
    """Return Pixtral's encoder and the projector that merges its patches."""
    v, text = seen(c), text_width(c)
    width, merge = v.hidden, c.whole("spatial_merge_size", default=2)
    bias = c.says("multimodal_projector_bias")
    layers = towers.chosen_layers(v, c.get("vision_feature_layer"))
    return [
        *towers.pixtral(v, r, layers=layers),
        norm(width),
        whole(width * merge * merge, width, bias=False),
        wide(r, width, text, bias=bias),
        narrow(r, text, text, bias=bias),
    ]


def _llava_tower(c: Fields, r: Ranks) -> list[Part]:
    """Return as much of any of LLaVA's encoders as the layer that is read needs."""
    v = seen(c)
    layers = towers.chosen_layers(v, c.get("vision_feature_layer"))
    kind = v.get("model_type")
    if kind == "pixtral":
        return towers.pixtral(v, r, layers=layers)
    if kind == "siglip_vision_model":
        return towers.siglip(v, r, layers=layers, last_norm=False)
    return towers.clip(v, r, layers=layers)


def _llava_projector(c: Fields, r: Ranks) -> list[Part]:
    width, text, bias = seen(c).hidden, text_width(c), c.says("multimodal_projector_bias")
    return [wide(r, width, text, bias=bias), narrow(r, text, text, bias=bias)]


def _whole_llava_projector(c: Fields) -> list[Part]:
    width, text = seen(c).hidden, text_width(c)
    return linears(width, text, text, bias=c.says("multimodal_projector_bias"))


def _llava(c: Fields, r: Ranks) -> list[Part]:
    return [*_llava_tower(c, r), *_llava_projector(c, r)]


def _newline(c: Fields, _r: Ranks) -> list[Part]:
    """Return the embedding that ends a row of patches."""
    return [Tensor(text_width(c))]


def _whole_llava(c: Fields, r: Ranks) -> list[Part]:
    return [*_llava_tower(c, r), *_whole_llava_projector(c)]


def _bee_projector(c: Fields, _r: Ranks) -> list[Part]:
    width, text = seen(c).hidden, text_width(c)
    projector = linears(width, 4 * text, text, bias=c.says("multimodal_projector_bias"))
    return [norm(width, bias=True), *projector, Tensor(text)]


def _shuffled(c: Fields, width: int) -> int:
    """Return the elements of the patches that are merged into one."""
    return width * int(1 / c.number("downsample_ratio", 0.5)) ** 2


def _intern_projector(c: Fields) -> list[Part]:
    merged, text = _shuffled(c, seen(c).hidden), text_width(c)
    return [norm(merged, bias=True), *linears(merged, text, text)]


def _intern(c: Fields, r: Ranks) -> list[Part]:
    v = seen(c)
    layers = towers.chosen_layers(v, c.get("select_layer"))
    return [*towers.intern(v, r, layers=layers), *_intern_projector(c)]


def _intern_of_transformers(c: Fields, r: Ranks) -> list[Part]:
    return [*towers.intern_of_transformers(seen(c), r), *_intern_projector(c)]


def _nvlm(c: Fields, r: Ranks) -> list[Part]:
    """Return InternViT with as many heads as ranks of any usual number divide."""
    v = seen(c)
    layers = towers.chosen_layers(v, c.get("select_layer"))
    merged, text = _shuffled(c, v.hidden), c.part("text_config")
    inner = text.whole("intermediate_size")
    return [
        *towers.intern(v, r, layers=layers, least_heads=v.heads + 7),
        norm(merged, bias=True),
        *linears(merged, inner, text.hidden, bias=False),
    ]


def _eagle(c: Fields, r: Ranks) -> list[Part]:
    v = seen(c)
    layers = towers.chosen_layers(v, c.get("select_layer"))
    return [*towers.siglip(v, r, layers=layers), *_intern_projector(c)]


def _gemma3(c: Fields, r: Ranks) -> list[Part]:
    v = seen(c)
    return [*towers.siglip(v, r), Tensor(v.hidden * text_width(c) + v.hidden)]


def _paligemma(c: Fields, r: Ranks) -> list[Part]:
    v = seen(c)
    return [*towers.siglip(v, r), whole(v.hidden, v.whole("projection_dim"))]


def _cohere2(c: Fields, r: Ranks) -> list[Part]:
    v = seen(c)
    merged = v.hidden * c.whole("downsample_factor") ** 2
    inner = c.whole("alignment_intermediate_size")
    # Half of what comes out of the first matrix gates the other half.
    return [*towers.siglip(v, r), wide(r, merged, inner), narrow(r, inner // 2, text_width(c))]


def _idefics3(c: Fields, r: Ranks) -> list[Part]:
    v = seen(c)
    merged = v.hidden * c.whole("scale_factor") ** 2
    return [*towers.siglip(v, r), whole(merged, text_width(c), bias=False)]


def _lfm2(c: Fields, r: Ranks) -> list[Part]:
    v = seen(c)
    merged, inner = v.hidden * c.whole("downsample_factor") ** 2, c.whole("projector_hidden_size")
    normed = [norm(merged, bias=True)] if c.says("projector_use_layernorm") else []
    bias = c.says("projector_bias")
    return [
        *towers.siglip_of_any_size(v, r),
        *normed,
        *linears(merged, inner, text_width(c), bias=bias),
    ]


def _paddle(c: Fields, r: Ranks) -> list[Part]:
    v = seen(c)
    merged = v.hidden * v.whole("spatial_merge_size", default=2) ** 2
    return [
        *towers.siglip(v, r),
        norm(v.hidden, bias=True),
        *linears(merged, merged, text_width(c)),
    ]


def _keye(c: Fields, r: Ranks, *, merged_norm: bool = False) -> list[Part]:
    """Return SigLIP with a second table of positions, one for each patch of a pack."""
    v = seen(c)
    merged = v.hidden * v.whole("spatial_merge_size", default=2) ** 2
    return [
        *towers.siglip(v, r),
        Tensor(_KEYE_PACK * v.hidden),
        norm(merged if merged_norm else v.hidden, bias=True),
        wide(r, merged, merged),
        narrow(r, merged, text_width(c)),
    ]


def _keye1_5(c: Fields, r: Ranks) -> list[Part]:
    return _keye(c, r, merged_norm=True)


_KEYE_PACK: Final = 32768


def _moon_projector(c: Fields, width: int, bias: bool = True) -> list[Part]:
    v = seen(c)
    merged = width * v.whole_at("merge_kernel_size", 0) * v.whole_at("merge_kernel_size", 1)
    return [norm(width, bias=True), *linears(merged, merged, text_width(c), bias=bias)]


def _kimi(c: Fields, r: Ranks) -> list[Part]:
    v = seen(c)
    return [*towers.moon(v, r), *_moon_projector(c, v.whole("hidden_size"))]


def _dots(c: Fields, r: Ranks) -> list[Part]:
    """Return the encoder of dots.ocr with its merger."""
    v = seen(c)
    width, bias = v.whole("embed_dim"), v.says("use_bias")
    merged = width * v.whole("spatial_merge_size", default=2) ** 2
    block = encoder_layer(
        r, width, v.whole("intermediate_size"), bias=bias, gated=True, norm_bias=False
    )
    return [
        patches(v, width),
        norm(width),
        *block * v.layers("num_hidden_layers"),
        *[norm(width)] * v.says("post_norm"),
        norm(width, bias=True),
        wide(r, merged, merged),
        narrow(r, merged, v.hidden),
    ]


def _step3(c: Fields, r: Ranks) -> list[Part]:
    """Return Step-3's encoder, two convolutions that shrink its output and the projector."""
    v = seen(c)
    width, out = v.hidden, v.whole("output_hidden_size")
    return [
        Tensor(width * (1 + grid(v) + 1)),
        patches(v, width),
        *encoder_layer(r, width, v.whole("intermediate_size")) * v.layers("num_hidden_layers"),
        whole(width * 2 * 2, out),
        whole(out * 3 * 3, 2 * out),
        whole(2 * out, text_width(c), bias=c.says("projector_bias")),
    ]


VISION: Final[Mapping[str, Wrapper]] = {
    "BeeForConditionalGeneration": Wrapper((watching(_llava_tower), kept(_bee_projector))),
    "Cohere2VisionForConditionalGeneration": Wrapper(
        (Tower(_cohere2),), tied=True, defaults={"vision_config": _SIGLIP_DEFAULTS}
    ),
    "DotsOCRForCausalLM": Wrapper((by_request(Tower(_dots)),), "Qwen2ForCausalLM"),
    "Eagle2_5_VLForConditionalGeneration": Wrapper((by_request(Tower(_eagle)),)),
    "Exaone4_5_ForConditionalGeneration": Wrapper((by_request(watching(_qwen2_5)),), tied=False),
    "Gemma3ForConditionalGeneration": Wrapper(
        (Tower(_gemma3),),
        "Gemma3ForCausalLM",
        tied=True,
        defaults={"vision_config": {**_SIGLIP_DEFAULTS, "image_size": 896, "patch_size": 14}},
    ),
    "Glm4vForConditionalGeneration": Wrapper((by_request(watching(_glm4v)),), head="either"),
    "Glm4vMoeForConditionalGeneration": Wrapper((by_request(watching(_glm4v)),), head="either"),
    "GlmOcrForConditionalGeneration": Wrapper((by_request(watching(_glm_ocr)),), head="either"),
    "H2OVLChatModel": Wrapper((by_request(watching(_intern)),)),
    "Idefics3ForConditionalGeneration": Wrapper((Tower(_idefics3),), head="text"),
    "InternS1ForConditionalGeneration": Wrapper((watching(_intern_of_transformers),)),
    "InternS2PreviewForConditionalGeneration": Wrapper(
        (by_request(watching(qwen3_tower)),), "Qwen3_5MoeForCausalLM", head="text"
    ),
    "InternVLChatModel": Wrapper((by_request(watching(_intern)),)),
    "InternVLForConditionalGeneration": Wrapper((watching(_intern_of_transformers),), tied=True),
    "KeyeForConditionalGeneration": Wrapper((watching(_keye),), "Qwen3ForCausalLM"),
    "KeyeVL1_5ForConditionalGeneration": Wrapper((watching(_keye1_5),), "Qwen3ForCausalLM"),
    "KimiVLForConditionalGeneration": Wrapper(
        (by_request(Tower(_kimi)),), defaults={"vision_config": _MOON_DEFAULTS}
    ),
    # Its images come as pieces of a modality of their own, which no usual limit names.
    "KimiK25ForConditionalGeneration": Wrapper(
        (by_request(Tower(_kimi, frozenset({"vision_chunk"}))),),
        defaults={"vision_config": _MOON_DEFAULTS},
    ),
    "Lfm2VlForConditionalGeneration": Wrapper((Tower(_lfm2),), tied=True),
    "LightOnOCRForConditionalGeneration": Wrapper((Tower(_mistral3),), tied=True),
    "Llama4ForConditionalGeneration": Wrapper(
        (by_request(Tower(_llama4)), Tower(_llama4_projector)),
        "Llama4ForCausalLM",
        tied=False,
    ),
    "LlavaForConditionalGeneration": Wrapper(
        (Tower(_llava),), head="either", defaults=_LLAVA_DEFAULTS
    ),
    "LlavaNextForConditionalGeneration": Wrapper(
        (Tower(_llava), kept(_newline)), tied=False, defaults=_LLAVA_DEFAULTS
    ),
    "LlavaNextVideoForConditionalGeneration": Wrapper(
        (Tower(_whole_llava, frozenset({"video"})),), head="either", defaults=_LLAVA_DEFAULTS
    ),
    "LlavaOnevisionForConditionalGeneration": Wrapper(
        (
            watching(_whole_llava),
            kept(_newline),
        ),
        head="either",
        defaults=_LLAVA_DEFAULTS,
    ),
    "Mistral3ForConditionalGeneration": Wrapper((Tower(_mistral3),), tied=True),
    "NVLM_D": Wrapper((by_request(watching(_nvlm)),)),
    "OpenCUAForConditionalGeneration": Wrapper((by_request(Tower(_qwen2_5)),), "Qwen2ForCausalLM"),
    "PaddleOCRVLForConditionalGeneration": Wrapper(
        (Tower(_paddle),), "Ernie4_5ForCausalLM", head="either", tied=True, text_tied=True
    ),
    "PaliGemmaForConditionalGeneration": Wrapper((Tower(_paligemma),), tied=True),
    "QianfanOCRForConditionalGeneration": Wrapper((by_request(watching(_intern)),), tied=False),
    "Qwen2VLForConditionalGeneration": Wrapper(
        (by_request(watching(_qwen2)),), "Qwen2ForCausalLM", head="either"
    ),
    "Qwen2_5_VLForConditionalGeneration": Wrapper(
        (by_request(watching(_qwen2_5)),), "Qwen2ForCausalLM", head="either"
    ),
    "Qwen3VLForConditionalGeneration": Wrapper(
        (by_request(watching(qwen3_tower)),), "Qwen3ForCausalLM", tied=False
    ),
    "Qwen3VLMoeForConditionalGeneration": Wrapper(
        (by_request(watching(qwen3_tower)),), "Qwen3MoeForCausalLM", tied=False
    ),
    "Qwen3_5ForConditionalGeneration": Wrapper(
        (by_request(watching(qwen3_tower)),), "Qwen3_5ForCausalLM", head="text"
    ),
    "Qwen3_5MoeForConditionalGeneration": Wrapper(
        (by_request(watching(qwen3_tower)),), "Qwen3_5MoeForCausalLM", head="text"
    ),
    "SkyworkR1VChatModel": seeing(_intern),
    "SmolVLMForConditionalGeneration": Wrapper((Tower(_idefics3),), head="text"),
    "Step3VLForConditionalGeneration": Wrapper(
        (by_request(Tower(_step3)),), "Step3TextForCausalLM"
    ),
}
