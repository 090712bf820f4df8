"""Encoders whose sizes are fixed in code: Phi, DeepSeek and Molmo."""

from collections.abc import Mapping
from typing import Any, Final

from kvheadroom.model.weights import vision_towers as towers
from kvheadroom.model.weights.attention import grouped_attention
from kvheadroom.model.weights.family import Ends, Family
from kvheadroom.model.weights.feed_forward import gated, layer
from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.parts import Part, Ranks, Tensor, norm, vocabulary
from kvheadroom.model.weights.tower_parts import (
    UNDIVIDED,
    attention,
    encoder_layer,
    feed_forward,
    held_layers,
    linears,
    narrow,
    patches,
    seen,
    text_width,
    whole,
    wide,
)
from kvheadroom.model.weights.wrappers import Tower, Wrapper, hearing, kept

# OpenAI's ViT-L/14 at 336 pixels, which Phi-3-vision and Molmo fix in code.
_CLIP_LARGE: Final = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "image_size": 336,
    "patch_size": 14,
}
# SigLIP so400m with patches of 14 pixels.
_SIGLIP_LARGE: Final = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "image_size": 448,
    "patch_size": 14,
}


def _fixed(c: Fields, values: Mapping[str, Any]) -> Fields:
    return Fields(c.architecture, values, {})


def _phi3(c: Fields, r: Ranks) -> list[Part]:
    """Return CLIP but its last layer, the separators, and a second table of embeddings."""
    text = c.part("text_config")
    merged = 4 * _CLIP_LARGE["hidden_size"]
    return [
        *towers.clip(_fixed(c, _CLIP_LARGE), r, layers=23),
        Tensor(2 * merged),
        *linears(merged, text.hidden, text.hidden),
        vocabulary(r, text.whole("vocab_size"), text.hidden),
    ]


def _phi4_sees(c: Fields, r: Ranks) -> list[Part]:
    width, text = _SIGLIP_LARGE["hidden_size"], text_width(c)
    return [
        *towers.siglip(_fixed(c, _SIGLIP_LARGE), r, layers=26),
        Tensor(2 * width),
        *linears(width, text, text),
    ]


def _phi4_hears(c: Fields, _r: Ranks) -> list[Part]:
    """Return the conformer of Phi-4-multimodal, with a projector of its own beside images."""
    a = c.part("audio_processor").part("config")
    width, text = a.whole("attention_dim"), text_width(c)
    dense: list[Part] = [
        norm(width, bias=True),
        whole(width, 2 * a.whole("linear_units")),
        whole(a.whole("linear_units"), width),
    ]
    block: list[Part] = [
        *dense,
        *dense,
        whole(width, 4 * width),
        norm(width, bias=True),
        Tensor(2 * width),
        whole(width, 2 * width),
        whole(a.whole("kernel_size"), width),
        *linears(width, width, width),
        norm(2 * width, bias=True),
    ]
    pitches = a.whole("input_size")
    relative = a.part("relative_attention_bias_args").whole("t5_bias_max_distance")
    halved = a.whole("time_reduction")
    shorten = [whole(9, width)] * 3 + linears(width, width, width)
    return [
        *shorten,
        whole(width * pitches // halved, width),
        Tensor(2 * relative * a.whole("attention_heads") + 2 * pitches),
        *block * a.layers("num_blocks"),
        *linears(width, text, text) * 2,
    ]


def _phi4_siglip(c: Fields, r: Ranks) -> list[Part]:
    v, text = seen(c), text_width(c)
    width = v.hidden
    block = encoder_layer(r, width, v.whole("intermediate_size"))
    return [
        patches(v, width),
        Tensor(v.whole("num_patches", default=256) * width),
        *block * (v.layers("num_hidden_layers") - 1),
        wide(r, width, text),
        narrow(r, text, text),
    ]


def _vit_of_sam(last: int) -> list[Part]:
    """Return Segment Anything's ViT-B, whole on every rank, and convolutions to *last* channels."""
    width, dim, layers = 768, 64, 12
    # Every third layer sees the whole grid of 64 x 64, the others windows of 14 x 14.
    relative = 2 * dim * (8 * (2 * 14 - 1) + 4 * (2 * 64 - 1))
    return [
        Tensor(64 * 64 * width + relative),
        whole(3 * 16 * 16, width),
        *encoder_layer(UNDIVIDED, width, 4 * width) * layers,
        whole(width, 256, bias=False),
        whole(256 * 9, 256, bias=False),
        norm(2 * 256, bias=True),
        whole(256 * 9, 512, bias=False),
        whole(512 * 9, last, bias=False),
    ]


def _projected(c: Fields) -> int:
    return c.part("projector_config").whole("n_embed")


def _deepseek_ocr(c: Fields, r: Ranks) -> list[Part]:
    out = _projected(c)
    small = _fixed(c, {**_CLIP_LARGE, "image_size": 224})
    projector = whole(c.part("projector_config").whole("input_dim"), out)
    return [
        *_vit_of_sam(1024),
        *towers.clip(small, r, layers=24),
        projector,
    ]


def _deepseek_ocr2(c: Fields, _r: Ranks) -> list[Part]:
    """Return SAM before a small Qwen2, whose queries read what it sees."""
    out, width, inner, kv = _projected(c), 896, 4864, 128
    block: list[Part] = [
        whole(width, width + 2 * kv),
        whole(width, width, bias=False),
        whole(width, 3 * inner, bias=False),
        norm(2 * width),
    ]
    return [
        *_vit_of_sam(width),
        *block * 24,
        norm(width),
        Tensor((144 + 256) * width),
        whole(c.part("projector_config").whole("input_dim"), out),
    ]


def _separator(c: Fields, _r: Ranks) -> list[Part]:
    return [Tensor(_projected(c))]


def _separators(c: Fields, r: Ranks) -> list[Part]:
    """Return the embeddings that end a row of patches and a view."""
    return [*_separator(c, r), *_separator(c, r)]


def _deepseek_vl2(c: Fields, r: Ranks) -> list[Part]:
    """Return timm's SigLIP with its pooling head; only dense layers are divided."""
    p = c.part("projector_config")
    width, inner, out = 1152, 4304, p.whole("n_embed")
    merged = p.whole("input_dim") * p.whole("downsample_ratio", default=2) ** 2
    hidden = out * p.whole("mlp_ratio", default=1)
    block: list[Part] = [
        *attention(UNDIVIDED, width),
        *feed_forward(r, width, inner),
        norm(2 * width, bias=True),
    ]
    widths = [merged, *[hidden] * (p.whole("depth", default=2) - 1), out]
    return [
        Tensor((384 // 14) ** 2 * width),
        whole(3 * 14 * 14, width),
        *block * 27,
        norm(width, bias=True),
        Tensor(width),
        whole(width, 4 * width),
        norm(width, bias=True),
        *feed_forward(r, width, inner),
        *linears(*widths),
    ]


# Tokens of its own beside the vocabulary's.
_MOLMO_TOKENS: Final = 128


def _molmo_embedding(c: Fields, r: Ranks) -> list[Part]:
    rows = c.whole("embedding_size", "vocab_size") + _MOLMO_TOKENS
    return [vocabulary(r, rows, c.hidden)]


def _molmo_half(c: Fields) -> int:
    # The field counts both matrices that lead in.
    return c.whole("intermediate_size") // 2


_MOLMO: Final = Family(
    layer(
        grouped_attention(qkv_bias="qkv_bias", head_norms="width", normed="attention_layer_norm"),
        gated(_molmo_half),
    ),
    Ends(embedding="none", never_tied=True),
    every=_molmo_embedding,
)


def _molmo_sees(c: Fields, r: Ranks) -> list[Part]:
    """Return CLIP but its last layer, and attention that pools two of its outputs."""
    text = c.part("text_config")
    width = _CLIP_LARGE["hidden_size"]
    return [
        *towers.clip(_fixed(c, _CLIP_LARGE), r, layers=23),
        Tensor(2 * 2 * width),
        wide(r, 2 * width, width, width, width),
        narrow(r, width, width),
        wide(r, width, 2 * _molmo_half(text), bias=False),
        narrow(r, _molmo_half(text), text.hidden, bias=False),
    ]


def _molmo2_rows(c: Fields, r: Ranks) -> list[Part]:
    rows = c.whole("vocab_size") + c.count("additional_vocab_size", default=_MOLMO_TOKENS)
    return [vocabulary(r, rows, c.hidden)]


def _molmo2_attention(c: Fields, r: Ranks, index: int) -> list[Part]:
    return grouped_attention(
        qkv_bias="qkv_bias",
        head_norms="head" if c.get("qk_norm_type") == "qwen3" else "width",
        normed="use_qk_norm",
    )(c, r, index)


_MOLMO2: Final = Family(
    layer(_molmo2_attention, gated()),
    Ends(embedding="none", never_tied=True),
    every=_molmo2_rows,
)


def _molmo2_sees(c: Fields, r: Ranks) -> list[Part]:
    """Return SigLIP as far as the last output that is read, and attention that pools those."""
    v, a = c.part("vit_config"), c.part("adapter_config")
    width = v.hidden
    chosen = a.per_layer("vit_layers")
    inner, read = a.heads * a.whole("head_dim"), width * len(chosen)
    block = encoder_layer(r, width, v.whole("intermediate_size"))
    held = held_layers(v.layers("num_hidden_layers"), chosen)
    return [
        Tensor(v.whole("image_num_pos") * width),
        whole(3 * v.whole("image_patch_size") ** 2, width),
        *block * held,
        wide(r, read, inner, inner, inner),
        narrow(r, inner, a.hidden),
        wide(r, a.hidden, 2 * a.whole("intermediate_size"), bias=False),
        narrow(r, a.whole("intermediate_size"), a.whole("text_hidden_size"), bias=False),
    ]


FIXED_TOWERS: Final[Mapping[str, Wrapper]] = {
    "DeepseekOCRForCausalLM": Wrapper((Tower(_deepseek_ocr), kept(_separators))),
    "DeepseekOCR2ForCausalLM": Wrapper((Tower(_deepseek_ocr2), kept(_separator))),
    "DeepseekVLV2ForCausalLM": Wrapper((Tower(_deepseek_vl2), kept(_separators))),
    "MolmoForCausalLM": Wrapper((Tower(_molmo_sees, section=None),), family=_MOLMO),
    "Molmo2ForConditionalGeneration": Wrapper(
        (Tower(_molmo2_sees, frozenset({"image", "video"}), "vit_config"),), family=_MOLMO2
    ),
    "Phi3VForCausalLM": Wrapper((Tower(_phi3, section=None),), "Phi3ForCausalLM"),
    "Phi4ForCausalLMV": Wrapper((Tower(_phi4_siglip),), "Phi3ForCausalLM"),
    "Phi4MMForCausalLM": Wrapper(
        (
            Tower(_phi4_sees, frozenset({"image", "video"}), section=None),
            hearing(_phi4_hears, "audio_processor"),
        ),
        "Phi3ForCausalLM",
    ),
}
