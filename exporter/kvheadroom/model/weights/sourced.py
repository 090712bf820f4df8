"""DeepSeek-V4.1, whose compressed rows and index belong to a few layers that others read."""

from collections.abc import Mapping
from typing import Final

from kvheadroom.errors import ModelConfigError
from kvheadroom.model.weights.family import UNTIED, Family
from kvheadroom.model.weights.feed_forward import layer
from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.latent import one_key_attention, stream_experts, stream_mixing
from kvheadroom.model.weights.parts import (
    FLOAT32,
    Part,
    Ranks,
    Tensor,
    norm,
    replicated,
)
from kvheadroom.model.weights.tower_parts import narrow, seen, text_width, wide
from kvheadroom.model.weights.wrappers import Tower, Wrapper

_CHANNELS: Final = 3
_IMAGE_TOKENS: Final = 3
_VISION_DEFAULTS: Final = {
    "num_hidden_layers": 0,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "patch_size": 14,
    "downsample_ratio": 3,
}


def _attention(c: Fields, r: Ranks, index: int) -> list[Part]:
    if c.get("engram_layer_ids"):
        raise ModelConfigError(
            f"{c.architecture}: the parameters of its engrams are not known; the sizes in its "
            "safetensors headers would settle them"
        )
    parts, dim = one_key_attention(c, r), c.head_dim
    if index in c.per_layer("kv_source_layer_ids"):
        # A row for several tokens weighs them by a gate.
        rows = (dim,) * (2 if int(c.at("compress_ratios", index)) > 1 else 1)
        parts += [
            replicated("attn.compressor.fused_wkv_wgate", c.hidden, *rows, quantizable=False),
            norm(dim),
        ]
    if index in c.per_layer("index_source_layer_ids"):
        heads, key = c.whole("index_n_heads"), c.whole("index_head_dim")
        parts += [
            replicated("attn.indexer.wq_b", c.whole("q_lora_rank"), heads * key),
            replicated("attn.indexer.weights_proj", c.hidden, heads, quantizable=False),
            replicated("attn.indexer.wk", dim, key, quantizable=False),
            norm(key),
        ]
    return parts


def _tower(c: Fields, r: Ranks) -> list[Part]:
    """Return the encoder, the projector behind it and the tokens that frame an image."""
    v, text = seen(c), text_width(c)
    width, inner = v.hidden, v.whole("intermediate_size")
    patch = _CHANNELS * v.whole("patch_size") ** 2
    block: list[Part] = [
        wide(r, width, width, width, width),
        narrow(r, width, width),
        wide(r, width, inner, inner, bias=False),
        narrow(r, inner, width, bias=False),
        norm(2 * width),
    ]
    merged = width * v.whole("downsample_ratio") ** 2
    return [
        Tensor(_IMAGE_TOKENS * text, FLOAT32),
        Tensor((patch + 1) * width),
        *block * v.count("num_hidden_layers"),
        norm(width),
        wide(r, merged, text),
        narrow(r, text, text),
    ]


def _image_bias(c: Fields, _r: Ranks, _index: int) -> list[Part]:
    """Return what chooses other experts for the tokens of an image."""
    vision = c.values.get("vision_config")
    sees = isinstance(vision, Mapping) and bool(vision.get("num_hidden_layers"))
    return [Tensor(c.whole("n_routed_experts"), FLOAT32)] if sees else []


SOURCED: Final[Mapping[str, Wrapper]] = {
    "DeepseekV41ForCausalLM": Wrapper(
        (Tower(_tower),),
        family=Family(layer(_attention, stream_experts, _image_bias, stream_mixing), UNTIED),
        defaults={"vision_config": _VISION_DEFAULTS},
        # Images are routed by a bias of their own.
        outer_fields=("vision_config",),
    ),
}
