"""Caches of newer models against what vLLM's own classes ask for and allocate.

Source of every expected value: vLLM 0.32.0's model classes, built without data, and its own
grouping of their caches, as recorded in tests/evidence/layers.
"""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kvheadroom.engine.capacity import Allocation, allocate
from kvheadroom.engine.options import Device, EngineOptions, Speculation
from kvheadroom.engine.refusal import Refusal
from kvheadroom.errors import KvHeadroomError, ModelConfigError
from kvheadroom.model.config import read_model
from kvheadroom.model.facts import read_facts
from kvheadroom.model.layers import ModelLayers
from kvheadroom.units import GIB

EVIDENCE = Path(__file__).parent.parent / "evidence"
MEMORY = 64 * GIB

Case = dict[str, Any]


def read(path: str) -> list[Case]:
    found: list[Case] = json.loads((EVIDENCE / path).read_text())
    return found


@cache
def configs() -> dict[str, Any]:
    return {case["name"]: case["config"] for case in read("weights/small-newer.json")}


@cache
def model(name: str) -> ModelLayers:
    return read_model(configs()[name])


def cases() -> list[Case]:
    return read("layers/newer.json")


def name_of(case: Case) -> str:
    return f"{case['model']}-{case['tp']}-{case['capability']}-{case['kv_cache_dtype']}"


def options_of(case: Case) -> EngineOptions:
    major, minor = case["capability"].split(".")
    return EngineOptions(
        version=(0, 32, 0),
        device=Device(80 * GIB, (int(major), int(minor)), None),
        max_model_len=8192,
        max_num_batched_tokens=8192,
        max_num_seqs=64,
        concurrent_batches=2,
        tensor_parallel=case["tp"],
        dtype="bfloat16",
        kv_cache_dtype=case["kv_cache_dtype"],
        mamba_cache_mode=case["mamba_cache_mode"],
        attention_backend=case.get("attention_backend"),
    )


@pytest.mark.parametrize("case", cases(), ids=name_of)
def test_the_groups_are_vllms_own(case: Case) -> None:
    """Kinds, blocks, pages, a request's blocks and the bytes of a block are what vLLM makes."""
    found = allocate(model(case["model"]), options_of(case), MEMORY)

    assert isinstance(found, Allocation), found
    groups = [
        [group.kind, group.layers, group.block_size, group.page_bytes, own.blocks_for(found.demand)]
        for group, own in zip(found.groups, found.layer_groups, strict=True)
    ]
    assert groups == case["groups"]
    assert found.bytes_per_block == (case["bytes_per_block"],)


@pytest.mark.parametrize("case", [c for c in cases() if "facts" in c], ids=name_of)
def test_what_defaults_depend_on_is_read_as_vllm_reads_it(case: Case) -> None:
    """Whether a class is hybrid, latent and generates is what vLLM's configuration says."""
    facts = read_facts(configs()[case["model"]])

    assert (facts.attention == "hybrid") == case["facts"]["hybrid"]
    assert facts.runner == case["facts"]["runner"]
    assert facts.is_latent == case["facts"]["use_mla"]


def test_a_ring_grows_until_drafts_cannot_overwrite_it() -> None:
    """With two drafts the open group of 16 keys needs two groups: 32 tokens.

    Expected: vLLM 0.32's rule, whole groups that hold the open one and every draft.
    """
    case = {"capability": "9.0", "tp": 1, "kv_cache_dtype": "auto", "mamba_cache_mode": "align"}
    drafting = replace(options_of(case), speculation=Speculation("mtp", 2, None))

    found = allocate(model("qwen4exp"), drafting, MEMORY)

    assert isinstance(found, Allocation), found
    (ring,) = [
        spec
        for group in found.layer_groups
        for spec in {spec for _, spec in group.members}
        if spec.kind == "CircularBufferSpec"
    ]
    assert ring.block_size == 32


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("plamo3", {"interleaved_sliding_window": [2048]}),
        ("rnj1", {"layer_types": ["full_attention"]}),
        ("muse-glimmer-text", {"no_rope_layers": [0, 1]}),
        ("hy-v4", {"indexer_types": ["full"]}),
        ("glm5next", {"layer_types": ["sideways"] * 9}),
        ("qwen4exp", {"layer_types": ["sideways"] * 8}),
        ("pangu-pro", {"v_channels": None}),
    ],
)
def test_a_list_that_is_short_or_strange_is_refused(name: str, changed: dict[str, Any]) -> None:
    """A field that does not describe every layer, or is missing, is named, never guessed."""
    with pytest.raises(ModelConfigError):
        read_model({**configs()[name], **changed})


def test_a_compressed_ratio_the_class_has_not_is_refused() -> None:
    """DeepSeek-V4.1 knows ratios of 0, 1 and 2; 4 is DeepSeek-V4's."""
    config = configs()["deepseek-v41"]
    text = {**config["text_config"], "compress_ratios": [4] * 9}

    with pytest.raises(ModelConfigError, match="compress_ratios holds 4"):
        read_model({**config, "text_config": text})


@pytest.mark.parametrize(
    ("name", "capability", "kv_cache_dtype"),
    [("dots3-note", "9.0", "fp8"), ("glm5next", "8.0", "auto"), ("hy-v4", "8.0", "auto")],
)
def test_what_no_kernel_serves_is_refused(name: str, capability: str, kv_cache_dtype: str) -> None:
    """Where vLLM finds no backend for a sparse latent layer, no allocation is made up."""
    case = {"capability": capability, "tp": 1, "kv_cache_dtype": kv_cache_dtype}
    try:
        found = allocate(model(name), options_of({**case, "mamba_cache_mode": "align"}), MEMORY)
    except KvHeadroomError:
        return
    assert not isinstance(found, Allocation)


@pytest.mark.parametrize("name", ["rnj1", "rnj1-full"])
def test_attention_to_the_chunk_before_needs_its_kernel(name: str) -> None:
    """RNJ-1 ends vLLM's start with the backend that would be chosen; the refusal says which serves.

    Expected: vLLM 0.32's ``Attention`` layer, built for a GPU of compute capability 9.0, which
    asserts the backend or fails on an argument that only one backend takes.
    """
    case = {"capability": "9.0", "tp": 1, "kv_cache_dtype": "auto", "mamba_cache_mode": "none"}

    found = allocate(model(name), options_of(case), MEMORY)

    assert isinstance(found, Refusal)
    assert "FLASH_ATTN" in found.message
    assert "--attention-backend TRITON_ATTN" in found.message


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("minimax-m3-text", [["AttentionLayer", "KeyLayer"]]),
        ("deepseek-v41", [["SourceLayer"]]),
        ("qwen4exp", [["AttentionLayer", "KeyLayer", "RingLayer"]]),
        ("inkling-text", [["AttentionLayer", "ConvolutionLayer"]]),
        ("glm5next", [["KeyLayer", "LatentLayer", "RingLayer"]]),
    ],
)
def test_a_draft_module_caches_what_its_class_builds(name: str, kinds: list[list[str]]) -> None:
    """A module of the model's own draft head is one layer of the kind that vLLM gives it.

    Expected: vLLM 0.32's draft classes: MiniMax-M3 forces a sparse layer, DeepSeek-V4.1 a window,
    the others one that sees everything.
    """
    drafts = model(name).draft_blocks

    assert [sorted(type(layer).__name__ for layer in block) for block in drafts] == kinds
