"""Weight bytes against what vLLM's own model classes allocate.

Source of every expected value: vLLM 0.32.0's model classes built without data, as recorded in
tests/evidence/oracle and tests/evidence/weights.
"""

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kvheadroom.model.weights import weights_bytes

EVIDENCE = Path(__file__).parent.parent / "evidence"
ORACLE = EVIDENCE / "oracle"

Case = tuple[str, dict[str, Any], tuple[int, ...]]


def option(flags: list[str], name: str) -> str | None:
    return flags[flags.index(name) + 1] if name in flags else None


def settings(case: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that a recorded case asks for."""
    flags = case["flags"]
    major, minor = case["capability"].split(".")
    return {
        "tensor_parallel": int(option(flags, "--tensor-parallel-size") or 1),
        "pipeline_parallel": int(option(flags, "--pipeline-parallel-size") or 1),
        "data_parallel": int(option(flags, "--data-parallel-size") or 1),
        "expert_parallel": "--enable-expert-parallel" in flags,
        "dtype": option(flags, "--dtype"),
        "quantization": option(flags, "--quantization"),
        "capability": (int(major), int(minor)),
    }


def oracle_cases() -> list[Case]:
    """Return the recorded cases that differ in what decides about weights."""
    with gzip.open(ORACLE / "cases.jsonl.gz", "rt") as lines:
        cases = [json.loads(line) for line in lines]
    distinct = {}
    for case in cases:
        if case["weights_bytes"] is not None:
            asked = settings(case)
            key = (case["model"], json.dumps(asked))
            distinct[key] = (case["model"], asked, tuple(case["weights_bytes"]))
    return list(distinct.values())


def name_of(case: Case) -> str:
    model, asked, _ = case
    return f"{model}-" + "-".join(f"{value}" for value in asked.values() if value)


@cache
def oracle_config(model: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((ORACLE / "configs" / f"{model}.json").read_text())
    return config


@pytest.mark.parametrize("case", oracle_cases(), ids=name_of)
def test_a_rank_holds_what_vllm_allocates(case: Case) -> None:
    """The bytes of every pipeline stage are those that vLLM's model class allocates, exactly."""
    model, asked, expected = case
    assert weights_bytes(oracle_config(model), **asked) == expected


def stage_cases() -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((EVIDENCE / "weights" / "stages.json").read_text())
    return cases


@pytest.mark.parametrize("case", stage_cases(), ids=lambda case: f"{case['model']}-{case['stage']}")
def test_a_stage_holds_its_layers_and_its_ends(case: dict[str, Any]) -> None:
    """Of three stages each holds the ends and layers that the model's class gives it."""
    config = {**oracle_config(case["model"])}
    config.pop("quantization_config", None)
    assert weights_bytes(config, pipeline_parallel=3)[case["stage"]] == case["bytes"]


def small_cases() -> list[dict[str, Any]]:
    files = sorted((EVIDENCE / "weights").glob("small*.json"))
    return [case for file in files for case in json.loads(file.read_text())]


@pytest.mark.parametrize("case", small_cases(), ids=lambda case: f"{case['name']}-{case['tp']}")
def test_rarer_classes_and_settings_hold_what_vllm_allocates(case: dict[str, Any]) -> None:
    """Classes and fields that no case above has are exact, too."""
    found = weights_bytes(case["config"], tensor_parallel=case["tp"])
    assert found == (case["bytes"],)
