"""Layers read from config.json against what vLLM's own layers say they cache."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvheadroom.errors import ModelConfigError
from kvheadroom.model.config import read_model
from kvheadroom.model.facts import read_facts
from kvheadroom.model.layers import AttentionLayer, CrossAttentionLayer, Layer, StateLayer

EVIDENCE = Path(__file__).parent.parent / "evidence" / "layers"


def cases() -> list[dict[str, Any]]:
    files = sorted(EVIDENCE.glob("retrieval*.json"))
    return [case for file in files for case in json.loads(file.read_text())]


def as_recorded(layer: Layer) -> list[Any]:
    if isinstance(layer, AttentionLayer):
        return ["FullAttentionSpec", layer.kv_heads, layer.head_dim]
    assert isinstance(layer, StateLayer)
    return ["MambaSpec", [[layer.conv_kernel - 1, layer.conv_channels]]]


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["name"])
def test_layers_cache_what_vllms_say(case: dict[str, Any]) -> None:
    """Kind, heads and sizes of every layer are those of vLLM's cache specification.

    Source: vLLM 0.32.0's model classes, as recorded in tests/evidence/layers.
    """
    model = read_model(case["config"])

    found = [as_recorded(layer) for block in model.blocks for layer in block]
    assert found == [layer for layer in case["layers"] if layer is not None]
    assert model.is_encoder == (not any(case["layers"]))


COHERE_ASR = {
    "architectures": ["CohereAsrForConditionalGeneration"],
    "model_type": "cohere_asr",
    "encoder": {"d_model": 1280, "n_heads": 8},
    "transf_decoder": {
        "config_dict": {"hidden_size": 1024, "num_attention_heads": 8, "num_layers": 3}
    },
}
NEMOTRON_PARSE = {
    "architectures": ["NemotronParseForConditionalGeneration"],
    "model_type": "nemotron_parse",
    "decoder": {"d_model": 1024, "decoder_attention_heads": 16, "decoder_layers": 2},
}


@pytest.mark.parametrize(
    ("config", "layers", "heads", "dim"), [(COHERE_ASR, 3, 8, 128), (NEMOTRON_PARSE, 2, 16, 64)]
)
def test_a_decoder_in_a_section_of_its_own_caches_what_it_hears_too(
    config: dict[str, Any], layers: int, heads: int, dim: int
) -> None:
    """Each decoder layer has attention to itself and to the encoder, as many heads as queries.

    Source: vLLM 0.32's cohere_asr and nemotron_parse classes.
    """
    model = read_model(config)

    block = (AttentionLayer(heads, dim, dim), CrossAttentionLayer(heads, dim))
    assert model.blocks == (block,) * layers
    assert read_facts(config).attention == "encoder_decoder"


def test_a_class_that_needs_a_plug_in_is_said_to() -> None:
    """vLLM 0.32 leaves BART to a package beside it."""
    with pytest.raises(ModelConfigError, match="plug-in"):
        read_model({"architectures": ["BartForConditionalGeneration"], "model_type": "bart"})
