"""Cached layers against what vLLM's own model classes answer.

Source of every expected value: vLLM 0.32.0's model classes built without data, as recorded in
tests/evidence/layers.
"""

import json
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import pytest

from kvheadroom.model.config import read_model
from kvheadroom.model.facts import read_facts
from kvheadroom.model.layers import AttentionLayer, LatentLayer, Layer, StateLayer

EVIDENCE = Path(__file__).parent.parent / "evidence"


def recorded() -> list[dict[str, Any]]:
    files = sorted((EVIDENCE / "layers").glob("text*.json"))
    return [case for file in files for case in json.loads(file.read_text())]


@cache
def configs() -> dict[str, dict[str, Any]]:
    files = sorted((EVIDENCE / "weights").glob("small-*.json"))
    return {case["name"]: case["config"] for file in files for case in json.loads(file.read_text())}


def answer(layer: Layer) -> dict[str, Any]:
    """Return *layer* in the words of the evidence; of states, only their elements."""
    match layer:
        case AttentionLayer(window=None):
            return {"kv_heads": layer.kv_heads, "head_dim": layer.head_dim}
        case AttentionLayer():
            heads = {"kv_heads": layer.kv_heads, "head_dim": layer.head_dim}
            return {**heads, "window": layer.window}
        case LatentLayer():
            return {"latent": layer.latent_dim + layer.rope_dim}
        case StateLayer():
            channels = layer.conv_channels + 2 * layer.groups * layer.state_dim
            convolution = (layer.conv_kernel - 1) * channels if channels else 0
            return {"elements": convolution + layer.heads * prod(layer.state_shape)}
        case _:
            raise AssertionError(layer)


def expected(layer: dict[str, Any]) -> dict[str, Any]:
    if "shapes" in layer:
        return {"elements": sum(prod(shape) for shape in layer["shapes"])}
    return layer


@pytest.mark.parametrize("case", recorded(), ids=lambda case: case["name"])
def test_each_layer_caches_what_vllm_says(case: dict[str, Any]) -> None:
    """Every layer of every class is of the kind and size that the model's class answers."""
    blocks = read_model(configs()[case["name"]]).blocks
    assert [answer(layer) for block in blocks for layer in block] == [
        expected(layer) for layer in case["layers"]
    ]


@pytest.mark.parametrize(
    ("name", "layers", "kv_heads"),
    [("dbrx", 3, 2), ("decilm", 5, 2), ("gpt-bigcode", 3, 1), ("longcat-ngram", 2, 1)],
)
def test_heads_and_layers_under_unusual_names_are_found(
    name: str, layers: int, kv_heads: int
) -> None:
    """A class with fields of its own has the heads and layers that the config's author wrote."""
    facts = read_facts(configs()[name])
    assert (facts.layers, facts.kv_heads) == (layers, kv_heads)
