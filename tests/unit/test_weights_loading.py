"""What adapters add to the weights and what offloading takes away.

Source of every expected value: vLLM 0.32.0's model classes and LoRA layers built without data, as
recorded in tests/evidence/weights.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from kvheadroom.engine.flags import parse_serve_command
from kvheadroom.engine.loading import read_loading
from kvheadroom.engine.options import AdapterBuffers, Loading
from kvheadroom.errors import ConfigError, ModelConfigError
from kvheadroom.model.weights import adapter_bytes, weights_bytes
from kvheadroom.units import GIB

EVIDENCE = Path(__file__).parent.parent / "evidence"


def recorded(name: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((EVIDENCE / "weights" / name).read_text())
    return cases


def small_configs() -> dict[str, dict[str, Any]]:
    return {case["name"]: case["config"] for case in recorded("small.json")}


def config_of(model: str) -> dict[str, Any]:
    small = small_configs()
    if model in small:
        return small[model]
    config: dict[str, Any] = json.loads((EVIDENCE / "oracle/configs" / f"{model}.json").read_text())
    return config


def name_of(case: dict[str, Any]) -> str:
    return "-".join(str(value) for name, value in case.items() if name != "bytes")


@pytest.mark.parametrize("case", recorded("adapters.json"), ids=name_of)
def test_adapters_take_what_vllms_layers_allocate(case: dict[str, Any]) -> None:
    """The buffers of every stage are those of vLLM's own LoRA layers, exactly."""
    found = adapter_bytes(
        config_of(case["model"]),
        slots=3,
        rank=32,
        tensor_parallel=case["tp"],
        pipeline_parallel=case["pp"],
    )

    assert found[case["stage"]] == case["bytes"]


@pytest.mark.parametrize("case", recorded("offload.json"), ids=name_of)
def test_offloading_moves_whole_parameters_until_the_limit(case: dict[str, Any]) -> None:
    """What stays is all but the layers' first parameters that reach the limit together."""
    found = weights_bytes(
        config_of(case["model"]),
        tensor_parallel=case["tp"],
        offload_bytes=int(case["gib"] * GIB),
    )

    assert found == (case["bytes"],)


def test_a_class_without_known_adapters_is_named() -> None:
    """Latent attention's buffers are not those of its matrices; a sum of them would be a guess."""
    with pytest.raises(ModelConfigError, match="DeepseekV2ForCausalLM"):
        adapter_bytes(config_of("deepseek-v2-lite"), slots=3, rank=32)


def test_what_offloading_moves_of_a_vision_tower_is_not_guessed() -> None:
    """Towers are offloaded too, in an order that is not known."""
    with pytest.raises(ModelConfigError, match="cpu-offload-gb"):
        weights_bytes(config_of("qwen2.5-vl-7b"), offload_bytes=GIB)


def loading(flags: str) -> Loading:
    return read_loading(parse_serve_command(f"vllm serve m {flags}").options, "bfloat16")


def test_adapters_default_to_one_of_rank_16_in_the_models_dtype() -> None:
    """vLLM 0.32: max_loras 1, max_lora_rank 16, lora_dtype auto; none without --enable-lora."""
    assert loading("--enable-lora").adapters == AdapterBuffers(1, 16, "bfloat16")
    assert loading("--max-loras 4").adapters is None


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--enable-lora --max-lora-rank 24", "--max-lora-rank"),
        ("--enable-lora --max-loras 0", "--max-loras"),
        ("--enable-lora --max-loras 4 --max-cpu-loras 2", "--max-cpu-loras"),
        ("--enable-lora --lora-dtype float32", "--lora-dtype"),
        ("--cpu-offload-gb -1", "--cpu-offload-gb"),
    ],
)
def test_what_vllm_refuses_is_refused(flags: str, named: str) -> None:
    """vLLM 0.32 takes ranks 1, 8, 16, 32, 64, 128, 256, 320 and 512, and no negative offload."""
    with pytest.raises(ConfigError, match=named):
        loading(flags)


@pytest.mark.parametrize(
    ("flags", "unknown"),
    [
        ("--enable-lora --fully-sharded-loras", "fully-sharded-loras"),
        ("--cpu-offload-gb 2 --offload-group-size 4", "offload-group-size"),
        ("--lora-target-modules q_proj", None),
    ],
)
def test_an_option_whose_effect_is_not_known_is_kept_by_name(
    flags: str, unknown: str | None
) -> None:
    """It stops the weights from being computed, and only where it changes anything."""
    assert loading(flags).unknown == unknown
