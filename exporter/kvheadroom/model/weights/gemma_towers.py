"""The encoders of Gemma 3n and 4, whole on every rank but for little."""

from collections.abc import Mapping
from typing import Final

from kvheadroom.errors import ModelConfigError
from kvheadroom.model.weights import audio_towers
from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.parts import Part, Ranks, Tensor, norm, vocabulary
from kvheadroom.model.weights.tower_parts import (
    UNDIVIDED,
    attention,
    feed_forward,
    narrow,
    patches,
    seen,
    text_width,
    whole,
    wide,
)
from kvheadroom.model.weights.wrappers import Tower, Wrapper, hearing, kept, watching

_GEMMA3N_DEFAULTS: Final = {
    "vision_config": {"hidden_size": 2048, "vocab_size": 128},
    "audio_config": {
        "hidden_size": 1536,
        "vocab_size": 128,
        "conf_num_hidden_layers": 12,
        "conf_num_attention_heads": 8,
        "conf_conv_kernel_size": 5,
        "sscp_conv_channel_size": [128, 32],
    },
}
GEMMA4_DEFAULTS: Final = {
    "vision_config": {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 16,
        "num_attention_heads": 12,
        "num_key_value_heads": 12,
        "head_dim": 64,
        "patch_size": 16,
        "position_embedding_size": 10240,
    },
    "audio_config": {
        "hidden_size": 1024,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "conv_kernel_size": 5,
        "subsampling_conv_channels": [128, 32],
        "output_proj_dims": 1536,
    },
}
_GEMMA4_UNIFIED_DEFAULTS: Final = {
    "vision_config": {
        "patch_size": 16,
        "pooling_kernel_size": 3,
        "mm_embed_dim": 3840,
        "mm_posemb_size": 1120,
        "output_proj_dims": 3840,
    },
    "audio_config": {"audio_embed_dim": 640},
}


def gemma4_sees(c: Fields, _r: Ranks) -> list[Part]:
    """Return Gemma 4's encoder, whole on every rank."""
    v, text = seen(c), text_width(c)
    width, dim = v.hidden, v.whole("head_dim")
    queries, kv = v.heads * dim, v.kv_heads * dim
    block: list[Part] = [
        *attention(UNDIVIDED, width, inner=queries, kv=kv, bias=False, output_bias=False),
        norm(2 * dim),
        *feed_forward(UNDIVIDED, width, v.whole("intermediate_size"), bias=False, gated=True),
        norm(4 * width),
    ]
    return [
        Tensor(2 * v.whole("position_embedding_size") * width),
        patches(v, width, bias=False),
        *block * v.layers("num_hidden_layers"),
        whole(width, text, bias=False),
    ]


def _gemma4_hears(c: Fields, _r: Ranks) -> list[Part]:
    a = c.part("audio_config")
    width, out = a.hidden, a.whole("output_proj_dims")
    return [
        *audio_towers.conformer_of_gemma(
            width,
            a.layers("num_hidden_layers"),
            heads=a.heads,
            kernel=a.whole("conv_kernel_size"),
            channels=_two(a, "subsampling_conv_channels"),
        ),
        whole(width, out),
        whole(out, text_width(c), bias=False),
    ]


def _two(a: Fields, name: str) -> tuple[int, int]:
    return a.whole_at(name, 0), a.whole_at(name, 1)


def _gemma3n_hears(c: Fields, r: Ranks) -> list[Part]:
    a = c.part("audio_config")
    return [
        *audio_towers.conformer_of_gemma(
            a.hidden,
            a.layers("conf_num_hidden_layers"),
            heads=a.whole("conf_num_attention_heads"),
            kernel=a.whole("conf_conv_kernel_size"),
            channels=_two(a, "sscp_conv_channel_size"),
        ),
        *_gemma3n_embedder(c, r, a),
    ]


def _gemma3n_sees(c: Fields, r: Ranks) -> list[Part]:
    v = seen(c)
    if v.get("architecture") != "mobilenetv5_300m_enc":
        raise ModelConfigError(f"{c.architecture}: the encoder of images is not known")
    return [Tensor(_MOBILENET_V5_PARAMETERS), *_gemma3n_embedder(c, r, v)]


def _gemma3n_embedder(c: Fields, r: Ranks, e: Fields) -> list[Part]:
    """Return the table of an encoder's own tokens and what leads into the text's width."""
    width = e.hidden
    return [
        vocabulary(r, e.whole("vocab_size"), width),
        norm(2 * width),
        narrow(r, width, text_width(c), bias=False),
    ]


# timm's mobilenetv5_300m_enc, counted on vLLM's own instance of it.
_MOBILENET_V5_PARAMETERS: Final = 294_126_912


def _gemma4_unified_sees(c: Fields, r: Ranks) -> list[Part]:
    """Return what embeds whole patches of pixels, without an encoder."""
    v = seen(c)
    width = v.whole("mm_embed_dim")
    edge = v.whole("patch_size") * v.whole("pooling_kernel_size")
    pixels = 3 * edge * edge
    return [
        Tensor(v.whole("mm_posemb_size") * 2 * width),
        norm(pixels, bias=True),
        wide(r, pixels, width),
        norm(2 * width, bias=True),
        whole(v.whole("output_proj_dims"), text_width(c), bias=False),
    ]


def _gemma4_unified_hears(c: Fields, _r: Ranks) -> list[Part]:
    heard = c.part("audio_config").whole("audio_embed_dim")
    return [whole(heard, text_width(c), bias=False)]


GEMMA_TOWERS: Final[Mapping[str, Wrapper]] = {
    "Gemma3nForConditionalGeneration": Wrapper(
        (Tower(_gemma3n_sees), hearing(_gemma3n_hears)),
        "Gemma3nForCausalLM",
        defaults=_GEMMA3N_DEFAULTS,
    ),
    "Gemma4ForConditionalGeneration": Wrapper(
        (watching(gemma4_sees), hearing(_gemma4_hears)),
        "Gemma4ForCausalLM",
        defaults=GEMMA4_DEFAULTS,
    ),
    "Gemma4UnifiedForConditionalGeneration": Wrapper(
        (kept(_gemma4_unified_sees), kept(_gemma4_unified_hears, "audio_config")),
        "Gemma4ForCausalLM",
        defaults=_GEMMA4_UNIFIED_DEFAULTS,
    ),
}
