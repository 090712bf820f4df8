"""Models that see or hear: their towers, their output heads and what limits leave out.

Source of every expected value: vLLM 0.32.0's model classes built without data, as recorded in
tests/evidence/weights.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kvheadroom.errors import ModelConfigError
from kvheadroom.model.weights import weights_bytes

WEIGHTS = Path(__file__).parent.parent / "evidence" / "weights"
TEXTS = ("text_config", "llm_config", "language_config")
JUNK: tuple[Any, ...] = (None, -1, "x", [1], [None] * 3, {"a": 1}, 7)


def recorded(name: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((WEIGHTS / f"{name}.json").read_text())
    return cases


@cache
def configs() -> Mapping[str, dict[str, Any]]:
    """Return the small models by name."""
    return {case["name"]: case["config"] for case in recorded("small-modalities")}


def with_heads(config: dict[str, Any], outside: bool | None, text: bool | None) -> dict[str, Any]:
    """Return *config* with ``tie_word_embeddings`` said anew in both places."""
    changed: dict[str, Any] = json.loads(json.dumps(config))
    around = changed.get("thinker_config", changed)
    inner: dict[str, Any] = next((around[name] for name in TEXTS if name in around), {})
    for part, value in ((inner, text), (around, outside)):
        part.pop("tie_word_embeddings", None)
        if value is not None:
            part["tie_word_embeddings"] = value
    return changed


@pytest.mark.parametrize(
    "case", recorded("ties"), ids=lambda case: f"{case['model']}-{case['outside']}-{case['text']}"
)
def test_a_head_is_tied_where_vllm_ties_it(case: dict[str, Any]) -> None:
    """Which of two fields decides about the output head differs by class, and defaults do, too."""
    config = with_heads(configs()[case["model"]], case["outside"], case["text"])
    assert weights_bytes(config) == (case["bytes"],)


@pytest.mark.parametrize(
    "case", recorded("limits"), ids=lambda case: f"{case['model']}-{len(case['without'])}"
)
def test_a_tower_of_refused_modalities_is_not_built(case: dict[str, Any]) -> None:
    """A limit of 0 leaves out the towers that encode nothing else, and only those."""
    found = weights_bytes(configs()[case["model"]], without=case["without"])
    assert found == (case["bytes"],)


@pytest.mark.parametrize("case", recorded("by-request"), ids=lambda case: case["model"])
def test_ranks_that_share_out_requests_hold_whole_towers(case: dict[str, Any]) -> None:
    """With ``--mm-encoder-tp-mode data`` each of two ranks holds the tower, where a class can."""
    found = weights_bytes(configs()[case["model"]], tensor_parallel=2, towers_by_request=True)
    assert found == (case["bytes"],)


def test_every_stage_holds_the_towers() -> None:
    """Two stages of a LLaVA hold one more copy of its tower than one stage does."""
    config = configs()["llava-clip"]
    bare = {name: value for name, value in config.items() if name != "vision_config"}
    towers = weights_bytes(config)[0] - weights_bytes(bare)[0]

    assert towers > 0
    assert sum(weights_bytes(config, pipeline_parallel=2)) == (
        sum(weights_bytes(bare, pipeline_parallel=2)) + 2 * towers
    )


FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def test_a_quantization_stated_inside_the_text_counts() -> None:
    """vLLM looks into ``text_config`` where the file itself states no quantization."""
    config = configs()["llava-clip"]
    inside = {**config, "text_config": {**config["text_config"], "quantization_config": FP8}}

    assert weights_bytes(inside) == weights_bytes({**config, "quantization_config": FP8})


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model.", "model."])
def test_ignored_modules_are_found_behind_any_prefix(prefix: str) -> None:
    """Files of vision models spell a text layer in several ways; each keeps it in 16 bits."""
    ignored = [f"{prefix}layers.0.mlp.{name}_proj" for name in ("gate", "up", "down")]
    quantization = {**FP8, "modules_to_not_convert": ignored}
    skipped = weights_bytes({**configs()["llava-clip"], "quantization_config": quantization})[0]
    everything = weights_bytes({**configs()["llava-clip"], "quantization_config": FP8})[0]

    # One byte more for each of 3 x 512 x 1408 weights, less a float32 for each block of 128 x 128.
    assert skipped - everything == 3 * 512 * 1408 - 4 * 3 * 4 * 11


def test_a_wrapper_of_an_unknown_text_is_refused() -> None:
    """A known tower before an unknown language model is an error that names the class."""
    config = {**configs()["llava-clip"], "text_config": {"model_type": "mystery"}}
    with pytest.raises(ModelConfigError, match="LlavaForConditionalGeneration"):
        weights_bytes(config)


def changed(config: dict[str, Any], value: object) -> Iterator[Any]:
    """Return *config* with one field at a time, however deep, replaced by *value*."""
    for name, inner in config.items():
        yield {**config, name: value}
        if isinstance(inner, dict):
            for deeper in changed(inner, value):
                yield {**config, name: deeper}


def outcome(config: Mapping[str, Any]) -> int | str:
    """Return the bytes, or the text of the error."""
    try:
        return weights_bytes(config)[0]
    except ModelConfigError as error:
        return str(error)


def one_of_each_class() -> list[str]:
    """Return the first small model of every class."""
    return sorted({config["architectures"][0]: name for name, config in configs().items()}.values())


@pytest.mark.parametrize("name", one_of_each_class())
def test_a_field_of_any_value_ends_in_bytes_or_one_line(name: str) -> None:
    """Whatever a field holds, however deep, the answer is bytes or an error of one line."""
    for value in JUNK:
        for config in changed(configs()[name], value):
            answer = outcome(config)
            assert "\n" not in answer if isinstance(answer, str) else answer > 0
