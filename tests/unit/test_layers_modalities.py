"""What the layers of models that see or hear cache.

Source of every expected value: vLLM 0.32.0's model classes asked for their caches, as recorded in
tests/evidence/layers.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from kvheadroom.model.config import read_model
from kvheadroom.model.layers import AttentionLayer, Block, LatentLayer, StateLayer

EVIDENCE = Path(__file__).parent.parent / "evidence"


def models() -> dict[str, dict[str, Any]]:
    """Return the small models by name."""
    cases = json.loads((EVIDENCE / "weights" / "small-modalities.json").read_text())
    return {case["name"]: case["config"] for case in cases}


def recorded() -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((EVIDENCE / "layers" / "modalities.json").read_text())
    return cases


def described(layer: object) -> dict[str, Any]:
    """Return *layer* in the words of the evidence."""
    match layer:
        case AttentionLayer(kv_heads=heads, head_dim=size, window=int(window)):
            return {"kind": "sliding", "heads": heads, "size": size, "window": window}
        case AttentionLayer(kv_heads=heads, head_dim=size, chunk=int(chunk)):
            return {"kind": "chunked", "heads": heads, "size": size, "chunk": chunk}
        case AttentionLayer(kv_heads=heads, head_dim=size):
            return {"kind": "full", "heads": heads, "size": size}
        case LatentLayer(latent_dim=latent, rope_dim=rope):
            return {"kind": "latent", "heads": 1, "size": latent + rope}
        case StateLayer():
            return {"kind": "state"}
    raise AssertionError(layer)


def flat(blocks: tuple[Block, ...]) -> list[dict[str, Any]]:
    return [described(layer) for block in blocks for layer in block]


MODELS = models()


@pytest.mark.parametrize("case", recorded(), ids=lambda case: case["model"])
def test_layers_cache_what_vllm_asks_for(case: dict[str, Any]) -> None:
    """Kinds, heads, sizes and windows are those of vLLM's own layers, in order."""
    assert flat(read_model(MODELS[case["model"]]).blocks) == case["layers"]
