"""Rules of weight bytes that a recorded total alone does not single out."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kvheadroom.errors import ModelConfigError
from kvheadroom.model.weights import weights_bytes

WEIGHTS = Path(__file__).parent.parent / "evidence" / "weights"


def small_models() -> list[dict[str, Any]]:
    """Return a small model of each rarer class."""
    files = sorted(WEIGHTS.glob("small*.json"))
    cases = [case for file in files for case in json.loads(file.read_text())]
    return [case for case in cases if case["tp"] == 1]


LLAMA: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}
# Llama-3.1-8B's published count of parameters.
LLAMA_PARAMETERS = 8_030_261_248


def test_a_model_takes_two_bytes_for_each_parameter() -> None:
    """Llama-3.1-8B's published 8,030,261,248 parameters are 16,060,522,496 bytes in bfloat16."""
    assert weights_bytes(LLAMA) == (2 * LLAMA_PARAMETERS,)


def test_an_asked_dtype_wins() -> None:
    """``--dtype float32`` doubles them."""
    assert weights_bytes(LLAMA, dtype="float32") == (4 * LLAMA_PARAMETERS,)


def test_a_float32_checkpoint_is_loaded_with_16_bits() -> None:
    """vLLM casts float32 checkpoints down unless it is told not to, so the file is no budget."""
    assert weights_bytes({**LLAMA, "torch_dtype": "float32"}) == (2 * LLAMA_PARAMETERS,)


def test_more_ranks_than_heads_replicate_them() -> None:
    """At 16 ranks each holds one of 8 key-value heads: 32 layers x 4096 x 128 x (K and V) each."""
    eight = weights_bytes(LLAMA, tensor_parallel=8)[0]
    sixteen = weights_bytes(LLAMA, tensor_parallel=16)[0]
    kv_at_eight = 32 * 4096 * 128 * 2 * 2
    norms = (2 * 32 + 1) * 4096 * 2
    assert sixteen == (eight - kv_at_eight - norms) // 2 + kv_at_eight + norms


def test_ranks_that_do_not_divide_the_heads_are_refused() -> None:
    """vLLM does not start with 3 ranks for 32 heads, and the error names what does not divide."""
    with pytest.raises(ModelConfigError, match="32 cannot be divided over 3 ranks"):
        weights_bytes(LLAMA, tensor_parallel=3)


def test_more_stages_than_layers_are_refused() -> None:
    """A stage without a layer is an error."""
    with pytest.raises(ModelConfigError, match="33 stages for 32 layers"):
        weights_bytes(LLAMA, pipeline_parallel=33)


def test_an_unknown_class_is_named() -> None:
    """A class that is not known is an error that names it, never a guess."""
    with pytest.raises(ModelConfigError, match="MysteryForCausalLM"):
        weights_bytes({**LLAMA, "architectures": ["MysteryForCausalLM"]})


def test_an_unknown_quantization_is_named() -> None:
    """A method that is not known is an error that names it."""
    with pytest.raises(ModelConfigError, match="mystery"):
        weights_bytes({**LLAMA, "quantization_config": {"quant_method": "mystery"}})


@pytest.mark.parametrize("value", [None, 0, -1, 1.5, "4096", True, 10**12])
def test_an_absurd_width_is_named(value: object) -> None:
    """A width that is no whole number above zero is an error that names the field."""
    with pytest.raises(ModelConfigError, match="intermediate_size"):
        weights_bytes({**LLAMA, "intermediate_size": value})


def test_modules_on_the_ignore_list_keep_their_dtype() -> None:
    """An fp8 checkpoint that excludes every MLP is only smaller by its attention."""
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    ignored = [
        f"model.layers.{index}.mlp.{name}_proj"
        for index in range(32)
        for name in ("gate", "up", "down")
    ]
    skipped = {**fp8, "modules_to_not_convert": ignored}
    mlps = 32 * 3 * 4096 * 14336
    whole = weights_bytes({**LLAMA, "quantization_config": fp8})[0]
    partly = weights_bytes({**LLAMA, "quantization_config": skipped})[0]
    # One byte more for each weight, less the float32 scale of each block of 128 x 128.
    assert partly - whole == mlps - 4 * mlps // (128 * 128)


def test_a_pattern_that_could_run_forever_is_refused() -> None:
    """A pattern on the ignore list that repeats a repetition is an error, not a hang."""
    weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
    quantization = {
        "quant_method": "compressed-tensors",
        "ignore": ["re:(.+)+x"],
        "config_groups": {"group_0": {"weights": weights, "targets": ["Linear"]}},
    }
    with pytest.raises(ModelConfigError, match="pattern"):
        weights_bytes({**LLAMA, "quantization_config": quantization})


@pytest.mark.parametrize("layers", [10**6, 10**8])
def test_absurdly_many_layers_are_refused_at_once(layers: int) -> None:
    """A file may hold any number; what would take forever to count is an error."""
    with pytest.raises(ModelConfigError, match="num_hidden_layers"):
        weights_bytes({**LLAMA, "num_hidden_layers": layers})


def test_a_pooling_model_has_no_output_head() -> None:
    """With ``--runner pooling`` vLLM builds no head: 128,256 x 4096 x 2 bytes less."""
    assert weights_bytes(LLAMA, runner="pooling") == (2 * LLAMA_PARAMETERS - 128256 * 4096 * 2,)


def test_whole_experts_are_shared_over_all_ranks() -> None:
    """With expert parallelism over 2 x 2 ranks each holds 2 of Mixtral's 8 experts."""
    mixtral = {
        **LLAMA,
        "architectures": ["MixtralForCausalLM"],
        "num_local_experts": 8,
        "vocab_size": 32000,
    }
    dense = weights_bytes(mixtral, tensor_parallel=2)[0]
    shared = weights_bytes(mixtral, tensor_parallel=2, data_parallel=2, expert_parallel=True)[0]
    experts_halved = 32 * 8 * 3 * 4096 * 14336 // 2 * 2
    assert dense - shared == experts_halved // 2


JUNK: tuple[Any, ...] = (
    None,
    0,
    -1,
    1.5,
    "x",
    True,
    [],
    {},
    10**12,
    [1],
    {"a": 1},
    float("nan"),
    [None] * 3,
    7,
)


def outcome(config: Mapping[str, Any]) -> int | str:
    """Return the bytes, or the text of the error."""
    try:
        return weights_bytes(config)[0]
    except ModelConfigError as error:
        return str(error)


@pytest.mark.parametrize("case", small_models(), ids=lambda case: case["name"])
def test_a_field_of_any_value_ends_in_bytes_or_one_line(case: dict[str, Any]) -> None:
    """Whatever a field holds, the answer is a number of bytes or an error of one line."""
    for name in case["config"]:
        for value in JUNK:
            answer = outcome({**case["config"], name: value})
            assert "\n" not in answer if isinstance(answer, str) else answer > 0


# Hidden size, layers, heads, width and vocabulary of files whose classes vLLM 0.32 dropped, and
# the billions of parameters that their publishers name.
RETIRED: Mapping[str, tuple[dict[str, Any], float]] = {
    "Baichuan2-7B": (
        {
            "architectures": ["BaichuanForCausalLM"],
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "intermediate_size": 11008,
            "vocab_size": 125696,
        },
        7.51,
    ),
    "Bamba-9B": (
        {
            "architectures": ["BambaForCausalLM"],
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 14336,
            "vocab_size": 128256,
            "attn_layer_indices": [9, 18, 27],
            "mamba_n_heads": 128,
            "mamba_d_head": 64,
            "mamba_n_groups": 1,
            "mamba_d_state": 128,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            "mamba_conv_bias": True,
        },
        9.78,
    ),
    "MiniMax-Text-01": (
        {
            "architectures": ["MiniMaxText01ForCausalLM"],
            "hidden_size": 6144,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 9216,
            "num_local_experts": 32,
            "vocab_size": 200064,
            "attn_type_list": ([0] * 7 + [1]) * 10,
        },
        456.1,
    ),
    "Qwen-7B": (
        {
            "architectures": ["QWenLMHeadModel"],
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "intermediate_size": 22016,
            "vocab_size": 151936,
        },
        7.72,
    ),
}


@pytest.mark.parametrize("name", RETIRED)
def test_a_class_that_vllm_dropped_holds_what_its_publisher_says(name: str) -> None:
    """Served by older versions only, it takes two bytes for each published parameter."""
    config, billions = RETIRED[name]
    assert weights_bytes(config)[0] / 2e9 == pytest.approx(billions, rel=1e-3)


def test_a_router_is_float32_where_a_gpu_has_no_kernel_for_it() -> None:
    """Nemotron-H's router (8 experts x 256) takes 4 bytes an element on an Ada, 2 on a Hopper.

    Source: vLLM 0.32's class built for either GPU.
    """
    config = next(case["config"] for case in small_models() if case["name"] == "nemotron-latent")
    ada = weights_bytes(config, capability=(8, 9))
    assert ada == (4_159_648,)
    assert weights_bytes(config, capability=(9, 0)) == (4_155_552,)
