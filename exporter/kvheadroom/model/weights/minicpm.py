"""The encoders of MiniCPM-V and MiniCPM-o."""

from collections.abc import Mapping
from typing import Any, Final

from kvheadroom.errors import ModelConfigError
from kvheadroom.model.weights import audio_towers
from kvheadroom.model.weights import vision_towers as towers
from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.parts import Part, Ranks, Tensor, norm
from kvheadroom.model.weights.tower_parts import (
    attention,
    linears,
    seen,
    text_width,
    whole,
)
from kvheadroom.model.weights.wrappers import Tower, Wrapper, by_request, hearing, watching


def _held(c: Fields, v: Fields) -> int:
    return v.layers("num_hidden_layers") - c.says("drop_vision_last_layer")


def _minicpm_sees(c: Fields, r: Ranks) -> list[Part]:
    """Return SigLIP and the queries that resample what it sees."""
    v, text = seen(c), text_width(c)
    return [
        *towers.siglip(v, r, layers=_held(c, v), last_norm=True),
        Tensor(c.whole("query_num", default=64) * text + text * text),
        whole(v.hidden, text, bias=False),
        whole(text, 4 * text),
        norm(3 * text, bias=True),
    ]


def _minicpm_hears(c: Fields, _r: Ranks) -> list[Part]:
    a, text = c.part("audio_config"), text_width(c)
    return [
        *audio_towers.undivided_whisper(a),
        *linears(a.whole("encoder_ffn_dim") // 4, text, text),
    ]


_MINICPM_TEXTS: Final = {
    "2.5": "LlamaForCausalLM",
    "2.6": "Qwen2ForCausalLM",
    "4.0": "LlamaForCausalLM",
    "4.5": "Qwen3ForCausalLM",
}


def _minicpm_text(config: Mapping[str, Any]) -> str:
    version = config.get("version")
    if version is None and str(config.get("model_type")) == "minicpmo":
        version = "2.6"
    known = _MINICPM_TEXTS.get(str(version))
    if known is None:
        raise ModelConfigError(
            f"version {version!r:.20} of MiniCPM is not known; "
            f"known are {', '.join(_MINICPM_TEXTS)}"
        )
    return known


def _minicpm4_7(c: Fields, r: Ranks) -> list[Part]:
    """Return what 4.6 has, whose last layer it always keeps."""
    return _minicpm4_6(Fields(c.architecture, {**c.values, "drop_vision_last_layer": False}, {}), r)


def _minicpm4_6(c: Fields, r: Ranks) -> list[Part]:
    """Return SigLIP, a layer that merges its windows of patches and what merges those again."""
    v, text = seen(c), text_width(c)
    width = v.hidden
    merged, inner = 4 * width, 4 * v.whole("intermediate_size")
    return [
        *towers.siglip(v, r, layers=_held(c, v), last_norm=True),
        *attention(r, width),
        norm(width, bias=True),
        norm(merged, bias=True),
        *linears(merged, inner, width),
        norm(merged, bias=True),
        *linears(merged, merged, text),
    ]


MINICPM: Final[Mapping[str, Wrapper]] = {
    "MiniCPMO": Wrapper(
        (by_request(watching(_minicpm_sees)), hearing(_minicpm_hears)), _minicpm_text
    ),
    "MiniCPMV": Wrapper((by_request(watching(_minicpm_sees)),), _minicpm_text),
    "MiniCPMV4_6ForConditionalGeneration": Wrapper((by_request(Tower(_minicpm4_6)),), head="text"),
    "MiniCPMV4_7ForConditionalGeneration": Wrapper((by_request(Tower(_minicpm4_7)),), head="text"),
}
