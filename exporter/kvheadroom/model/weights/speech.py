"""Models that hear: which encoder stands before the text, and how it leads into it."""

from collections.abc import Mapping
from typing import Final

from kvheadroom.model.weights import audio_towers as towers
from kvheadroom.model.weights import vision_towers
from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.parts import FLOAT32, Part, Ranks, Tensor, norm
from kvheadroom.model.weights.tower_parts import (
    encoder_layer,
    heard,
    linears,
    narrow,
    text_width,
    whole,
    wide,
)
from kvheadroom.model.weights.vision import qwen3_tower
from kvheadroom.model.weights.wrappers import Wrapper, hearing, watching

_VOXTRAL_STRIDE: Final = 4


def _qwen2_audio(c: Fields, _r: Ranks) -> list[Part]:
    a = heard(c)
    return [*towers.undivided_whisper(a), whole(towers.width_of(a), text_width(c))]


def _qwen2_5_omni_hears(c: Fields, _r: Ranks) -> list[Part]:
    a = heard(c)
    out = a.whole("output_dim")
    return [
        *towers.undivided_whisper(a, positions=False),
        Tensor(2 * out),
        whole(towers.width_of(a), out),
    ]


def _qwen2_5_omni_sees(c: Fields, r: Ranks) -> list[Part]:
    return vision_towers.qwen2_5(c.part("vision_config"), r)


def _qwen3_hears(c: Fields, r: Ranks) -> list[Part]:
    return towers.qwen3(heard(c), r)


def _audio_flamingo(c: Fields, _r: Ranks) -> list[Part]:
    a, text = heard(c), text_width(c)
    bias = c.says("projector_bias")
    return [
        *towers.undivided_whisper(a),
        *linears(towers.width_of(a), text, text, bias=bias),
    ]


def _glm_asr(c: Fields, r: Ranks) -> list[Part]:
    a, text = heard(c), text_width(c)
    return [
        *towers.rotated_whisper(a, r),
        wide(r, a.whole("intermediate_size"), 2 * text),
        narrow(r, 2 * text, text),
    ]


def _voxtral(c: Fields, r: Ranks) -> list[Part]:
    a, text = heard(c), text_width(c)
    stacked = towers.width_of(a) * a.whole("downsample_factor", default=_VOXTRAL_STRIDE)
    return [
        *towers.whisper(a, r, position_bytes=FLOAT32),
        *linears(stacked, text, text, bias=False),
    ]


def _ultravox(c: Fields, r: Ranks) -> list[Part]:
    """Return Whisper's encoder and one of two projectors: dense, or of more layers like its."""
    a, text = heard(c), text_width(c)
    width = towers.width_of(a)
    stacked = width * c.whole("stack_factor", default=8)
    layers = c.count("num_projector_layers")
    if layers:
        block = encoder_layer(r, width, a.whole("encoder_ffn_dim")) * layers
        positions = Tensor(a.whole("max_source_positions", default=1500) * width)
        projector: list[Part] = [whole(stacked, width), positions, *block, whole(width, text)]
        return [*towers.whisper(a, r), norm(stacked), *projector, norm(width)]
    inner = c.whole("hidden_size", default=4096)
    halved = inner // 2 if c.get("projector_act") == "swiglu" else inner
    return [
        *towers.whisper(a, r),
        norm(stacked),
        *linears(stacked, inner, bias=False),
        *linears(halved, text, bias=False),
        norm(halved if c.says("projector_ln_mid") else text),
    ]


def _granite(c: Fields, r: Ranks) -> list[Part]:
    e, q = c.part("encoder_config"), c.part("projector_config")
    seen = q.whole("encoder_hidden_size")
    queries = c.whole("window_size", default=15) // c.whole("downsample_rate", default=5)
    return [
        *towers.conformer_of_granite(e, r),
        Tensor(queries * q.hidden),
        *towers.qformer(q, seen=seen),
        whole(q.hidden, text_width(c)),
    ]


_GRANITE_DEFAULTS: Final = {
    "encoder_config": {
        "input_dim": 160,
        "num_layers": 10,
        "hidden_dim": 1024,
        "feedforward_mult": 4,
        "num_heads": 8,
        "dim_head": 128,
        "output_dim": 42,
        "max_pos_emb": 512,
        "conv_kernel_size": 15,
        "conv_expansion_factor": 2,
    },
    "projector_config": {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "intermediate_size": 3072,
        "cross_attention_frequency": 2,
        "encoder_hidden_size": 1408,
    },
}
_QWEN3_ASR: Final = Wrapper((hearing(_qwen3_hears),), "Qwen3ForCausalLM", head="text")
_QWEN2_5_OMNI: Final = Wrapper(
    (hearing(_qwen2_5_omni_hears), watching(_qwen2_5_omni_sees)),
    "Qwen2ForCausalLM",
    head="text",
    text_tied=True,
)

SPEECH: Final[Mapping[str, Wrapper]] = {
    "AudioFlamingo3ForConditionalGeneration": Wrapper(
        (hearing(_audio_flamingo),), defaults={"projector_bias": True}
    ),
    "GlmAsrForConditionalGeneration": Wrapper((hearing(_glm_asr),), tied=True),
    "GraniteSpeechForConditionalGeneration": Wrapper(
        (hearing(_granite, "encoder_config"),), tied=True, defaults=_GRANITE_DEFAULTS
    ),
    "Qwen2AudioForConditionalGeneration": Wrapper((hearing(_qwen2_audio),)),
    "Qwen2_5OmniForConditionalGeneration": _QWEN2_5_OMNI,
    "Qwen2_5OmniModel": _QWEN2_5_OMNI,
    "Qwen3ASRForConditionalGeneration": _QWEN3_ASR,
    "Qwen3ASRRealtimeGeneration": _QWEN3_ASR,
    "Qwen3OmniMoeForConditionalGeneration": Wrapper(
        (hearing(_qwen3_hears), watching(qwen3_tower)), "Qwen3MoeForCausalLM", head="text"
    ),
    "UltravoxModel": Wrapper((hearing(_ultravox),)),
    "VoxtralForConditionalGeneration": Wrapper((hearing(_voxtral),)),
}
