"""Models that see: which encoder stands before the text, and how it leads into it."""

from collections.abc import Mapping
from typing import Final

from kvheadroom.model.weights import vision_towers as towers
from kvheadroom.model.weights.family import Extra
from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.parts import Part, Ranks, Tensor, norm
from kvheadroom.model.weights.tower_parts import (
    encoder_layer,
    feed_forward,
    grid,
    linears,
    narrow,
    patches,
    whole,
    wide,
)
from kvheadroom.model.weights.wrappers import Tower, Wrapper

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
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "patch_size": 14,
    "init_pos_emb_height": 64,
    "init_pos_emb_width": 64,
}


def _seen(c: Fields) -> Fields:
    return c.part("vision_config")


def _text_width(c: Fields) -> int:
    return c.part("text_config").hidden


def seeing(tower: Extra, text: str | None = None, **defaults: object) -> Wrapper:
    """Return a model of one encoder of images before the class *text*, or before any."""
    return Wrapper((Tower(tower),), text, defaults=defaults)


def _qwen2(c: Fields, r: Ranks) -> list[Part]:
    v = _seen(c)
    return towers.qwen2(v, r, outputs=v.hidden)


def _qwen2_5(c: Fields, r: Ranks) -> list[Part]:
    return towers.qwen2_5(_seen(c), r)


def qwen3_tower(c: Fields, r: Ranks) -> list[Part]:
    """Return Qwen3-VL's encoder."""
    return towers.qwen3(_seen(c), r)


def _glm4v(c: Fields, r: Ranks) -> list[Part]:
    v = _seen(c)
    inner, merged = v.whole("out_hidden_size"), v.whole("intermediate_size")
    return towers.glm(v, r, positions=True, inner=inner, merged=merged)


def _glm_ocr(c: Fields, r: Ranks) -> list[Part]:
    v = _seen(c)
    merged = c.part("text_config").whole("intermediate_size")
    return towers.glm(v, r, positions=False, inner=v.whole("intermediate_size"), merged=merged)


def _llama4(c: Fields, r: Ranks) -> list[Part]:
    """Return Llama 4's encoder, the adapter behind it and the projector to the text's width."""
    v = _seen(c)
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
        wide(r, v.whole("vision_output_dim"), _text_width(c), bias=False),
    ]


def _mistral3(c: Fields, r: Ranks) -> list[Part]:
    """Return Pixtral's encoder and the projector that merges its patches."""
    v, text = _seen(c), _text_width(c)
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
    v = _seen(c)
    layers = towers.chosen_layers(v, c.get("vision_feature_layer"))
    kind = v.get("model_type")
    if kind == "pixtral":
        return towers.pixtral(v, r, layers=layers)
    if kind == "siglip_vision_model":
        return towers.siglip(v, r, layers=layers, last_norm=False)
    return towers.clip(v, r, layers=layers)


def _llava_projector(c: Fields, r: Ranks) -> list[Part]:
    width, text, bias = _seen(c).hidden, _text_width(c), c.says("multimodal_projector_bias")
    return [wide(r, width, text, bias=bias), narrow(r, text, text, bias=bias)]


def _whole_llava_projector(c: Fields) -> list[Part]:
    width, text = _seen(c).hidden, _text_width(c)
    return linears(width, text, text, bias=c.says("multimodal_projector_bias"))


def _llava(c: Fields, r: Ranks) -> list[Part]:
    return [*_llava_tower(c, r), *_llava_projector(c, r)]


def _llava_next(c: Fields, r: Ranks) -> list[Part]:
    return [*_llava(c, r), Tensor(_text_width(c))]


def _llava_next_video(c: Fields, r: Ranks) -> list[Part]:
    return [*_llava_tower(c, r), *_whole_llava_projector(c)]


def _llava_onevision(c: Fields, r: Ranks) -> list[Part]:
    return [*_llava_tower(c, r), *_whole_llava_projector(c), Tensor(_text_width(c))]


def _bee(c: Fields, r: Ranks) -> list[Part]:
    width, text = _seen(c).hidden, _text_width(c)
    projector = linears(width, 4 * text, text, bias=c.says("multimodal_projector_bias"))
    return [*_llava_tower(c, r), norm(width, bias=True), *projector, Tensor(text)]


def _shuffled(c: Fields, width: int) -> int:
    """Return the elements of the patches that are merged into one."""
    return width * int(1 / c.number("downsample_ratio", 0.5)) ** 2


def _intern_projector(c: Fields) -> list[Part]:
    merged, text = _shuffled(c, _seen(c).hidden), _text_width(c)
    return [norm(merged, bias=True), *linears(merged, text, text)]


def _intern(c: Fields, r: Ranks) -> list[Part]:
    v = _seen(c)
    layers = towers.chosen_layers(v, c.get("select_layer"))
    return [*towers.intern(v, r, layers=layers), *_intern_projector(c)]


def _intern_of_transformers(c: Fields, r: Ranks) -> list[Part]:
    return [*towers.intern_of_transformers(_seen(c), r), *_intern_projector(c)]


def _nvlm(c: Fields, r: Ranks) -> list[Part]:
    """Return InternViT with as many heads as ranks of any usual number divide."""
    v = _seen(c)
    layers = towers.chosen_layers(v, c.get("select_layer"))
    merged, text = _shuffled(c, v.hidden), c.part("text_config")
    inner = text.whole("intermediate_size")
    return [
        *towers.intern(v, r, layers=layers, least_heads=v.heads + 7),
        norm(merged, bias=True),
        *linears(merged, inner, text.hidden, bias=False),
    ]


def _eagle(c: Fields, r: Ranks) -> list[Part]:
    v = _seen(c)
    layers = towers.chosen_layers(v, c.get("select_layer"))
    return [*towers.siglip(v, r, layers=layers), *_intern_projector(c)]


def _gemma3(c: Fields, r: Ranks) -> list[Part]:
    v = _seen(c)
    return [*towers.siglip(v, r), Tensor(v.hidden * _text_width(c) + v.hidden)]


def _paligemma(c: Fields, r: Ranks) -> list[Part]:
    v = _seen(c)
    return [*towers.siglip(v, r), whole(v.hidden, v.whole("projection_dim"))]


def _cohere2(c: Fields, r: Ranks) -> list[Part]:
    v = _seen(c)
    merged = v.hidden * c.whole("downsample_factor") ** 2
    inner = c.whole("alignment_intermediate_size")
    # Half of what comes out of the first matrix gates the other half.
    return [*towers.siglip(v, r), wide(r, merged, inner), narrow(r, inner // 2, _text_width(c))]


def _idefics3(c: Fields, r: Ranks) -> list[Part]:
    v = _seen(c)
    merged = v.hidden * c.whole("scale_factor") ** 2
    return [*towers.siglip(v, r), whole(merged, _text_width(c), bias=False)]


def _lfm2(c: Fields, r: Ranks) -> list[Part]:
    v = _seen(c)
    merged, inner = v.hidden * c.whole("downsample_factor") ** 2, c.whole("projector_hidden_size")
    normed = [norm(merged, bias=True)] if c.says("projector_use_layernorm") else []
    bias = c.says("projector_bias")
    return [
        *towers.siglip_of_any_size(v, r),
        *normed,
        *linears(merged, inner, _text_width(c), bias=bias),
    ]


def _paddle(c: Fields, r: Ranks) -> list[Part]:
    v = _seen(c)
    merged = v.hidden * v.whole("spatial_merge_size", default=2) ** 2
    return [
        *towers.siglip(v, r),
        norm(v.hidden, bias=True),
        *linears(merged, merged, _text_width(c)),
    ]


def _keye(c: Fields, r: Ranks, *, merged_norm: bool = False) -> list[Part]:
    """Return SigLIP with a second table of positions, one for each patch of a pack."""
    v = _seen(c)
    merged = v.hidden * v.whole("spatial_merge_size", default=2) ** 2
    return [
        *towers.siglip(v, r),
        Tensor(_KEYE_PACK * v.hidden),
        norm(merged if merged_norm else v.hidden, bias=True),
        wide(r, merged, merged),
        narrow(r, merged, _text_width(c)),
    ]


def _keye1_5(c: Fields, r: Ranks) -> list[Part]:
    return _keye(c, r, merged_norm=True)


_KEYE_PACK: Final = 32768


def _moon_projector(c: Fields, width: int, bias: bool = True) -> list[Part]:
    rows, columns = _seen(c).get("merge_kernel_size")
    merged = width * rows * columns
    return [norm(width, bias=True), *linears(merged, merged, _text_width(c), bias=bias)]


def _kimi(c: Fields, r: Ranks) -> list[Part]:
    v = _seen(c)
    return [*towers.moon(v, r), *_moon_projector(c, v.whole("hidden_size"))]


def _dots(c: Fields, r: Ranks) -> list[Part]:
    """Return the encoder of dots.ocr with its merger."""
    v = _seen(c)
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
    v = _seen(c)
    width, out = v.hidden, v.whole("output_hidden_size")
    return [
        Tensor(width * (1 + grid(v) + 1)),
        patches(v, width),
        *encoder_layer(r, width, v.whole("intermediate_size")) * v.layers("num_hidden_layers"),
        whole(width * 2 * 2, out),
        whole(out * 3 * 3, 2 * out),
        whole(2 * out, _text_width(c), bias=c.says("projector_bias")),
    ]


VISION: Final[Mapping[str, Wrapper]] = {
    "BeeForConditionalGeneration": seeing(_bee),
    "Cohere2VisionForConditionalGeneration": Wrapper(
        (Tower(_cohere2),), tied=True, defaults={"vision_config": _SIGLIP_DEFAULTS}
    ),
    "DotsOCRForCausalLM": seeing(_dots, "Qwen2ForCausalLM"),
    "Eagle2_5_VLForConditionalGeneration": seeing(_eagle),
    "Exaone4_5_ForConditionalGeneration": Wrapper((Tower(_qwen2_5),), tied=False),
    "Gemma3ForConditionalGeneration": seeing(
        _gemma3,
        "Gemma3ForCausalLM",
        vision_config={**_SIGLIP_DEFAULTS, "image_size": 896, "patch_size": 14},
    ),
    "Glm4vForConditionalGeneration": Wrapper((Tower(_glm4v),), tied=False, tied_by_either=True),
    "Glm4vMoeForConditionalGeneration": Wrapper((Tower(_glm4v),), tied=False, tied_by_either=True),
    "GlmOcrForConditionalGeneration": Wrapper((Tower(_glm_ocr),), tied=False, tied_by_either=True),
    "H2OVLChatModel": seeing(_intern),
    "Idefics3ForConditionalGeneration": Wrapper((Tower(_idefics3),), tied=False),
    "InternS1ForConditionalGeneration": seeing(_intern_of_transformers),
    "InternVLChatModel": seeing(_intern),
    "InternVLForConditionalGeneration": Wrapper((Tower(_intern_of_transformers),), tied=True),
    "KeyeForConditionalGeneration": seeing(_keye, "Qwen3ForCausalLM"),
    "KeyeVL1_5ForConditionalGeneration": seeing(_keye1_5, "Qwen3ForCausalLM"),
    "KimiVLForConditionalGeneration": Wrapper(
        (Tower(_kimi),), defaults={"vision_config": _MOON_DEFAULTS}
    ),
    "KimiK25ForConditionalGeneration": Wrapper(
        (Tower(_kimi),), defaults={"vision_config": _MOON_DEFAULTS}
    ),
    "Lfm2VlForConditionalGeneration": Wrapper((Tower(_lfm2),), tied=True),
    "LightOnOCRForConditionalGeneration": Wrapper((Tower(_mistral3),), tied=True),
    "Llama4ForConditionalGeneration": seeing(_llama4, "Llama4ForCausalLM"),
    "LlavaForConditionalGeneration": Wrapper(
        (Tower(_llava),), tied=False, tied_by_either=True, defaults=_LLAVA_DEFAULTS
    ),
    "LlavaNextForConditionalGeneration": Wrapper(
        (Tower(_llava_next),), tied=False, defaults=_LLAVA_DEFAULTS
    ),
    "LlavaNextVideoForConditionalGeneration": Wrapper(
        (Tower(_llava_next_video),), tied=False, tied_by_either=True, defaults=_LLAVA_DEFAULTS
    ),
    "LlavaOnevisionForConditionalGeneration": Wrapper(
        (Tower(_llava_onevision),), tied=False, tied_by_either=True, defaults=_LLAVA_DEFAULTS
    ),
    "Mistral3ForConditionalGeneration": Wrapper((Tower(_mistral3),), tied=True),
    "NVLM_D": seeing(_nvlm),
    "OpenCUAForConditionalGeneration": seeing(_qwen2_5, "Qwen2ForCausalLM"),
    "PaddleOCRVLForConditionalGeneration": Wrapper(
        (Tower(_paddle),), "Ernie4_5ForCausalLM", tied=True, tied_by_either=True, flat_tied=True
    ),
    "PaliGemmaForConditionalGeneration": Wrapper((Tower(_paligemma),), tied=True),
    "Qwen2VLForConditionalGeneration": Wrapper(
        (Tower(_qwen2),), "Qwen2ForCausalLM", tied=False, tied_by_either=True
    ),
    "Qwen2_5_VLForConditionalGeneration": Wrapper(
        (Tower(_qwen2_5),), "Qwen2ForCausalLM", tied=False, tied_by_either=True
    ),
    "Qwen3VLForConditionalGeneration": seeing(qwen3_tower, "Qwen3ForCausalLM"),
    "Qwen3VLMoeForConditionalGeneration": seeing(qwen3_tower, "Qwen3MoeForCausalLM"),
    "Qwen3_5ForConditionalGeneration": seeing(qwen3_tower, "Qwen3_5ForCausalLM"),
    "Qwen3_5MoeForConditionalGeneration": seeing(qwen3_tower, "Qwen3_5MoeForCausalLM"),
    "SkyworkR1VChatModel": seeing(_intern),
    "SmolVLMForConditionalGeneration": Wrapper((Tower(_idefics3),), tied=False),
    "Step3VLForConditionalGeneration": seeing(_step3, "Step3TextForCausalLM"),
}
