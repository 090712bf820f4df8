"""Encoders of newer models, and the models that have one."""

from collections.abc import Mapping
from itertools import combinations, pairwise
from math import log, prod
from typing import Final

from kvheadroom.errors import ModelConfigError
from kvheadroom.model.weights.bailing import BAILING
from kvheadroom.model.weights.experts import EXPERTS
from kvheadroom.model.weights.family import Extra, Family
from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.gated_attention import COMPASS, COSMOS_EDGE, MUSE
from kvheadroom.model.weights.indexed import GLM5_NEXT, INKLING, MINIMAX_M3, QWEN4_EXP
from kvheadroom.model.weights.kimi import KIMI_LINEAR
from kvheadroom.model.weights.parts import Part, Ranks, Tensor, norm
from kvheadroom.model.weights.tower_parts import (
    encoder_layer,
    narrow,
    seen,
    text_width,
    wide,
)
from kvheadroom.model.weights.vision import qwen3_tower
from kvheadroom.model.weights.vision_towers import qwen3_layers
from kvheadroom.model.weights.wrappers import Tower, Wrapper, by_request, watching

_CHANNELS: Final = 3
_SCALE_CHANNELS: Final = 64


def _muse_tower(c: Fields, r: Ranks) -> list[Part]:
    v = seen(c)
    width, inner = v.hidden, v.whole("intermediate_size")
    patch = v.whole("patch_temporal") * _CHANNELS * v.whole("patch_size") ** 2
    adapter = v.whole("adapter_dim")
    text = text_width(c)
    block: list[Part] = [
        wide(r, width, width, width, width),
        narrow(r, width, width),
        # The dense layers are whole on every rank.
        Tensor(2 * width * inner + inner + width),
        norm(2 * width, bias=True),
    ]
    places = v.whole("pos_emb_height") * v.whole("pos_emb_width")
    return [
        Tensor((patch + places) * width),
        norm(2 * width, bias=True),
        *block * v.layers("num_hidden_layers"),
        Tensor((v.whole("output_dim") + adapter + text) * adapter),
    ]


_MUSE_DEFAULTS: Final = {
    "patch_size": 14,
    "pos_emb_height": 32,
    "pos_emb_width": 32,
    "num_hidden_layers": 50,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "output_dim": 6144,
    "patch_temporal": 2,
    "adapter_dim": 4096,
}


def _edge_tower(c: Fields, r: Ranks) -> list[Part]:
    """Return SigLIP 2 and the projector that merges its patches."""
    v, p = seen(c), c.part("projector_config")
    width, patch = v.hidden, _CHANNELS * v.whole("patch_size") ** 2
    merge = p.whole("spatial_merge_size") ** 2
    inner, out = p.whole("merger_intermediate_size"), p.whole("out_hidden_size")
    block = encoder_layer(r, width, v.whole("intermediate_size"))
    return [
        Tensor((patch + 1 + v.whole("num_patches")) * width),
        *block * v.layers("num_hidden_layers"),
        norm(width, bias=True),
        norm(width * (merge if p.says("use_postshuffle_norm") else 1), bias=True),
        wide(r, width * merge, inner),
        narrow(r, inner, out),
    ]


_EDGE_VISION: Final = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_patches": 256,
    "patch_size": 16,
}
_EDGE_PROJECTOR: Final = {
    "spatial_merge_size": 2,
    "merger_intermediate_size": 11520,
    "out_hidden_size": 1024,
}


def _glm_tower(c: Fields, r: Ranks) -> list[Part]:
    v = seen(c)
    width, inner, out = v.hidden, v.whole("intermediate_size"), v.whole("out_hidden_size")
    merge = v.whole("spatial_merge_size") ** 2
    patch = v.whole("in_channels") * v.whole("temporal_patch_size") * v.whole("patch_size") ** 2
    merged, head = v.whole("projection_intermediate_size"), width // v.whole("num_heads")
    bias = v.says("attention_bias")
    block: list[Part] = [
        wide(r, width, width, width, width, bias=bias),
        narrow(r, width, width, bias=bias),
        wide(r, width, inner, inner),
        narrow(r, inner, width),
        norm(2 * width + 2 * head),
    ]
    return [
        Tensor((patch + 1) * width),
        *block * v.layers("depth"),
        norm(width),
        Tensor((width * merge + 1) * out),
        wide(r, out, out, bias=False),
        norm(out, bias=True),
        wide(r, out, merged, merged, bias=False),
        narrow(r, merged, out, bias=False),
    ]


_GLM_DEFAULTS: Final = {
    "depth": 24,
    "hidden_size": 1024,
    "attention_bias": True,
    "num_heads": 16,
    "in_channels": 3,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 1536,
    "intermediate_size": 4096,
    "projection_intermediate_size": 10240,
}


def _m3_tower(c: Fields, r: Ranks) -> list[Part]:
    v = seen(c)
    width, text = v.hidden, text_width(c)
    squeeze = v.part("img_token_compression_config")
    merge, frames = squeeze.whole("spatial_merge_size"), squeeze.whole("temporal_patch_size")
    inner = c.whole("projector_hidden_size", default=text)
    block = encoder_layer(r, width, v.whole("intermediate_size"))
    patch = v.whole("num_channels", default=_CHANNELS) * frames * v.whole("patch_size") ** 2
    return [
        Tensor(patch * width),
        norm(width, bias=True),
        *block * v.layers("num_hidden_layers"),
        wide(r, width, inner),
        narrow(r, inner, text),
        wide(r, text * merge**2, inner),
        narrow(r, inner, text),
    ]


def _kimi_tower(c: Fields, r: Ranks) -> list[Part]:
    v = seen(c)
    width, inner, attention = (
        v.whole("vt_hidden_size"),
        v.whole("vt_intermediate_size"),
        v.whole("qkv_hidden_size"),
    )
    if v.get("norm_type") != "rmsnorm" or v.get("mlp_type") != "mlp2":
        raise ModelConfigError(f"{c.architecture}: vision_config has an unknown norm or mlp type")
    linear, own = v.says("linear_bias"), v.says("attn_bias")
    text = text_width(c)
    kernel = v.per_layer("merge_kernel_size") or (2, 2)
    merged = width * prod(int(side) for side in kernel)
    block: list[Part] = [
        wide(r, width, attention, attention, attention, bias=own),
        narrow(r, attention, width, bias=own),
        wide(r, width, inner, bias=linear),
        narrow(r, inner, width, bias=linear),
        norm(2 * width),
    ]
    patch = _CHANNELS * v.whole("patch_size") ** 2 + v.says("patch_embed_proj_bias")
    places = v.whole("init_pos_emb_height") * v.whole("init_pos_emb_width")
    return [
        Tensor((patch + places) * width),
        *block * v.layers("vt_num_hidden_layers"),
        norm(width),
        Tensor(merged * (merged + text)),
        norm(text),
    ]


_KIMI_DEFAULTS: Final = {
    "patch_size": 14,
    "init_pos_emb_height": 64,
    "init_pos_emb_width": 64,
    "vt_num_hidden_layers": 27,
    "vt_hidden_size": 1024,
    "vt_intermediate_size": 4096,
    "qkv_hidden_size": 1536,
    "norm_type": "rmsnorm",
    "mlp_type": "mlp2",
}


def _mimo_tower(c: Fields, r: Ranks) -> list[Part]:
    if isinstance(c.get("audio_config"), Mapping):
        raise ModelConfigError(
            f"{c.architecture}: the parameters of its audio encoder are not known; the sizes in "
            "its safetensors headers would settle them"
        )
    v = seen(c)
    width, inner, out = v.hidden, v.whole("intermediate_size"), v.whole("out_hidden_size")
    heads, kv = v.whole("num_heads"), v.whole("num_key_value_heads", default=v.whole("num_heads"))
    dim, merged = v.whole("qk_channels"), width * v.whole("spatial_merge_size") ** 2
    frames = v.whole("in_channels", "in_chans") * v.whole("temporal_patch_size")
    parts: list[Part] = [
        Tensor(width * frames * v.whole("patch_size") ** 2),
        norm(width),
        wide(r, merged, merged, bias=False),
        narrow(r, merged, out, bias=False),
    ]
    depth, kinds = v.layers("depth"), v.per_layer("vit_window_attn_types")
    for index in range(depth):
        parts += [
            wide(r, width, heads * dim, kv * dim, kv * dim),
            narrow(r, heads * dim, width),
            wide(r, width, inner, inner),
            narrow(r, inner, width),
            norm(2 * width),
        ]
        windowed = index < len(kinds) and kinds[index] != -1
        if windowed and v.says("use_sink"):
            parts.append(Tensor(heads))
    return parts


_MIMO_DEFAULTS: Final = {
    "depth": 28,
    "hidden_size": 1280,
    "intermediate_size": 4608,
    "num_heads": 32,
    "num_key_value_heads": 8,
    "in_channels": 3,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 2048,
    "qk_channels": 64,
}


_QWEN4_DEFAULTS: Final = {
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "patch_size": 16,
    "out_hidden_size": 3584,
    "num_position_embeddings": 2304,
}
_QWEN3_DEFAULTS: Final = {**_QWEN4_DEFAULTS, "deepstack_visual_indexes": (8, 16, 24)}


def _bailing_tower(c: Fields, r: Ranks) -> list[Part]:
    """Return Qwen3-VL's encoder, whose patches only a norm merges, and a projector behind it."""
    v, text = seen(c), text_width(c)
    merged = v.hidden * v.whole("spatial_merge_size", default=2) ** 2
    return [
        *qwen3_layers(v, r),
        norm(v.hidden, bias=True),
        wide(r, merged, text),
        narrow(r, text, text),
    ]


def _factors(number: int) -> list[int]:
    """Return the prime factors of *number*, the largest first."""
    found, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            found.append(divisor)
            number //= divisor
        divisor += 1
    return found[::-1]


def _patch_scales(patch: int, frames: int, channels: int, layers: int) -> list[tuple[int, int]]:
    """Return how many pixels are folded after each layer, and the width there.

    Of all ways to fold a patch by its prime factors, the one that grows most evenly is chosen.
    """
    folded, scales = 1, [(1, channels)]
    for factor in [factor**2 for factor in _factors(patch)] + _factors(frames):
        folded *= factor
        scales.append((folded, -(-folded * channels // _SCALE_CHANNELS) * _SCALE_CHANNELS))
    if layers >= len(scales):
        raise ModelConfigError(f"{layers} layers fold a patch that has {len(scales) - 1} factors")
    end = log(patch * patch * frames * channels)
    chosen = min(
        combinations(range(len(scales)), layers + 1),
        key=lambda picks: sum(
            abs(end * step / layers - log(scales[pick][0])) for step, pick in enumerate(picks)
        ),
    )
    return [scales[0], *[scales[pick] for pick in chosen[1:-1]], scales[-1]]


def _inkling_towers(c: Fields, _r: Ranks) -> list[Part]:
    """Return the layers that fold a patch of an image, and the table of sounds."""
    parts: list[Part] = []
    v = seen(c)
    if v.get("decoder_dmodel") is not None:
        width = v.whole("decoder_dmodel")
        scales = _patch_scales(
            *(v.whole("patch_size"), v.whole("temporal_patch_size")),
            *(v.whole("n_channels"), v.layers("n_layers")),
        )
        for (pixels, channels), (folded, inner) in pairwise(scales):
            inputs = channels * folded // pixels
            last = folded == scales[-1][0]
            parts.append(Tensor(inputs * width if last else (inputs + 1) * inner))
        parts += [norm(width)] * v.says("use_vision_norm")
    audio = c.values.get("audio_config")
    if isinstance(audio, Mapping) and audio.get("decoder_dmodel") is not None:
        a = c.part("audio_config")
        width = a.whole("decoder_dmodel")
        parts.append(Tensor(a.whole("n_mel_bins") * a.whole("mel_vocab_size") * width))
        parts += [norm(width)] * a.says("use_audio_norm")
    return parts


def _seeing(family: Family, tower: Extra, **defaults: object) -> Wrapper:
    """Return *family* with an encoder before it."""
    return Wrapper((Tower(tower),), family=family, defaults=defaults)


NEWER_TOWERS: Final[Mapping[str, Wrapper]] = {
    "BailingMoeV3VLForConditionalGeneration": _seeing(
        BAILING["BailingMoeV3ForCausalLM"], _bailing_tower, vision_config=_QWEN4_DEFAULTS
    ),
    "CohereCompassForConditionalGeneration": _seeing(
        COMPASS, qwen3_tower, vision_config=_QWEN3_DEFAULTS
    ),
    "Cosmos3EdgeForConditionalGeneration": _seeing(
        COSMOS_EDGE, _edge_tower, vision_config=_EDGE_VISION, projector_config=_EDGE_PROJECTOR
    ),
    "Cosmos3ForConditionalGeneration": Wrapper(
        (by_request(watching(qwen3_tower)),),
        "Qwen3ForCausalLM",
        tied=False,
        defaults={"vision_config": _QWEN3_DEFAULTS},
    ),
    "Glm5NextForConditionalGeneration": _seeing(GLM5_NEXT, _glm_tower, vision_config=_GLM_DEFAULTS),
    "InklingForConditionalGeneration": _seeing(INKLING, _inkling_towers),
    "KimiK3ForConditionalGeneration": _seeing(
        KIMI_LINEAR, _kimi_tower, vision_config=_KIMI_DEFAULTS
    ),
    "MiMoV2OmniForCausalLM": _seeing(
        EXPERTS["MiMoV2ForCausalLM"], _mimo_tower, vision_config=_MIMO_DEFAULTS
    ),
    "MiniMaxM3SparseForConditionalGeneration": _seeing(MINIMAX_M3, _m3_tower),
    "MuseGlimmerForConditionalGeneration": _seeing(MUSE, _muse_tower, vision_config=_MUSE_DEFAULTS),
    "Qwen4ExpForConditionalGeneration": _seeing(
        QWEN4_EXP, qwen3_tower, vision_config=_QWEN4_DEFAULTS
    ),
}
