"""Encoders of newer models, and the models that have one."""

from collections.abc import Mapping
from itertools import combinations, pairwise
from math import log, prod
from typing import Final

from kvheadroom.errors import ModelConfigError
from kvheadroom.model.weights.dense import DENSE
from kvheadroom.model.weights.experts import EXPERTS
from kvheadroom.model.weights.family import Extra, Family
from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.gated_attention import COMPASS, COSMOS_EDGE, MUSE
from kvheadroom.model.weights.indexed import GLM5_NEXT, INKLING, MINIMAX_M3, QWEN4_EXP
from kvheadroom.model.weights.kimi import KIMI_LINEAR
from kvheadroom.model.weights.parts import Part, Ranks, Tensor, column, norm, row
from kvheadroom.model.weights.vision import qwen3_tower
from kvheadroom.model.weights.wrappers import Tower, Wrapper

_CHANNELS: Final = 3
_SCALE_CHANNELS: Final = 64


def _column(r: Ranks, name: str, inputs: int, *outputs: int, bias: bool = True) -> Part:
    return column(r, f"visual.{name}", inputs, *outputs, bias=bias, quantizable=False)


def _row(r: Ranks, name: str, inputs: int, outputs: int, *, bias: bool = True) -> Part:
    return row(r, f"visual.{name}", inputs, outputs, bias=bias, quantizable=False)


def _biased_block(r: Ranks, width: int, inner: int) -> list[Part]:
    """Return one layer of a vision transformer with biases everywhere."""
    return [
        _column(r, "attn.qkv", width, width, width, width),
        _row(r, "attn.proj", width, width),
        _column(r, "mlp.fc1", width, inner),
        _row(r, "mlp.fc2", inner, width),
        norm(2 * width, bias=True),
    ]


def _muse_tower(c: Fields, r: Ranks) -> list[Part]:
    v = c.part("vision_config")
    width, inner = v.hidden, v.whole("intermediate_size")
    patch = v.whole("patch_temporal") * _CHANNELS * v.whole("patch_size") ** 2
    adapter = v.whole("adapter_dim")
    text = c.part("text_config").hidden
    block: list[Part] = [
        _column(r, "attn.qkv_proj", width, width, width, width),
        _row(r, "attn.o_proj", width, width),
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
    v, p = c.part("vision_config"), c.part("projector_config")
    width, patch = v.hidden, _CHANNELS * v.whole("patch_size") ** 2
    merge = p.whole("spatial_merge_size") ** 2
    inner, out = p.whole("merger_intermediate_size"), p.whole("out_hidden_size")
    block = _biased_block(r, width, v.whole("intermediate_size"))
    return [
        Tensor((patch + 1 + v.whole("num_patches")) * width),
        *block * v.layers("num_hidden_layers"),
        norm(width, bias=True),
        norm(width * (merge if p.says("use_postshuffle_norm") else 1), bias=True),
        _column(r, "projector.linear_fc1", width * merge, inner),
        _row(r, "projector.linear_fc2", inner, out),
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
    v = c.part("vision_config")
    width, inner, out = v.hidden, v.whole("intermediate_size"), v.whole("out_hidden_size")
    merge = v.whole("spatial_merge_size") ** 2
    patch = v.whole("in_channels") * v.whole("temporal_patch_size") * v.whole("patch_size") ** 2
    wide, head = v.whole("projection_intermediate_size"), width // v.whole("num_heads")
    bias = v.says("attention_bias")
    block: list[Part] = [
        _column(r, "attn.qkv", width, width, width, width, bias=bias),
        _row(r, "attn.proj", width, width, bias=bias),
        _column(r, "mlp.gate_up_proj", width, inner, inner),
        _row(r, "mlp.down_proj", inner, width),
        norm(2 * width + 2 * head),
    ]
    return [
        Tensor((patch + 1) * width),
        *block * v.layers("depth"),
        norm(width),
        Tensor((width * merge + 1) * out),
        _column(r, "merger.proj", out, out, bias=False),
        norm(out, bias=True),
        _column(r, "merger.gate_up_proj", out, wide, wide, bias=False),
        _row(r, "merger.down_proj", wide, out, bias=False),
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
    v = c.part("vision_config")
    width, text = v.hidden, c.part("text_config").hidden
    squeeze = v.part("img_token_compression_config")
    merge, frames = squeeze.whole("spatial_merge_size"), squeeze.whole("temporal_patch_size")
    inner = c.whole("projector_hidden_size", default=text)
    block = _biased_block(r, width, v.whole("intermediate_size"))
    patch = v.whole("num_channels", default=_CHANNELS) * frames * v.whole("patch_size") ** 2
    return [
        Tensor(patch * width),
        norm(width, bias=True),
        *block * v.layers("num_hidden_layers"),
        _column(r, "projector.linear_1", width, inner),
        _row(r, "projector.linear_2", inner, text),
        _column(r, "patch_merge_mlp.linear_1", text * merge**2, inner),
        _row(r, "patch_merge_mlp.linear_2", inner, text),
    ]


def _kimi_tower(c: Fields, r: Ranks) -> list[Part]:
    v = c.part("vision_config")
    width, inner, attention = (
        v.whole("vt_hidden_size"),
        v.whole("vt_intermediate_size"),
        v.whole("qkv_hidden_size"),
    )
    if v.get("norm_type") != "rmsnorm" or v.get("mlp_type") != "mlp2":
        raise ModelConfigError(f"{c.architecture}: vision_config has an unknown norm or mlp type")
    linear, own = v.says("linear_bias"), v.says("attn_bias")
    text = c.part("text_config").hidden
    kernel = v.per_layer("merge_kernel_size") or (2, 2)
    merged = width * prod(int(side) for side in kernel)
    block: list[Part] = [
        _column(r, "wqkv", width, attention, attention, attention, bias=own),
        _row(r, "wo", attention, width, bias=own),
        _column(r, "mlp.fc0", width, inner, bias=linear),
        _row(r, "mlp.fc1", inner, width, bias=linear),
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
    v = c.part("vision_config")
    width, inner, out = v.hidden, v.whole("intermediate_size"), v.whole("out_hidden_size")
    heads, kv = v.whole("num_heads"), v.whole("num_key_value_heads", default=v.whole("num_heads"))
    dim, merged = v.whole("qk_channels"), width * v.whole("spatial_merge_size") ** 2
    frames = v.whole("in_channels", "in_chans") * v.whole("temporal_patch_size")
    parts: list[Part] = [
        Tensor(width * frames * v.whole("patch_size") ** 2),
        norm(width),
        _column(r, "merger.fc1", merged, merged, bias=False),
        _row(r, "merger.fc2", merged, out, bias=False),
    ]
    depth, kinds = v.layers("depth"), v.per_layer("vit_window_attn_types")
    for index in range(depth):
        parts += [
            _column(r, "attn.qkv", width, heads * dim, kv * dim, kv * dim),
            _row(r, "attn.proj", heads * dim, width),
            _column(r, "mlp.gate_up_proj", width, inner, inner),
            _row(r, "mlp.down_proj", inner, width),
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
    v = c.part("vision_config")
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


def _seeing(
    family: Family, tower: Extra, *, section: str | None = "vision_config", **defaults: object
) -> Wrapper:
    """Return *family* with an encoder before it."""
    return Wrapper((Tower(tower, section=section),), family=family, defaults=defaults)


TOWERS: Final[Mapping[str, Wrapper]] = {
    "CohereCompassForConditionalGeneration": _seeing(
        COMPASS, qwen3_tower, vision_config=_QWEN3_DEFAULTS
    ),
    "Cosmos3EdgeForConditionalGeneration": _seeing(
        COSMOS_EDGE, _edge_tower, vision_config=_EDGE_VISION, projector_config=_EDGE_PROJECTOR
    ),
    "Cosmos3ForConditionalGeneration": _seeing(
        DENSE["Qwen3ForCausalLM"], qwen3_tower, vision_config=_QWEN3_DEFAULTS
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
