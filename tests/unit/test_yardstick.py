"""Eleven questions that every calculator on the market was asked; the best one answered nine."""

from typing import Any

import pytest

from kvheadroom.engine.options import Device, EngineOptions
from kvheadroom.engine.request_bytes import growing_token_bytes, request_bytes
from kvheadroom.model.config import read_model
from kvheadroom.units import GIB, KIB, MIB

LLAMA_33_70B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "hidden_size": 8192,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN25_7B = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "hidden_size": 3584,
    "max_position_embeddings": 32768, "torch_dtype": "bfloat16", "sliding_window": 131072,
    "use_sliding_window": False,
}  # fmt: skip
QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 36,
    "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096, "head_dim": 128,
    "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
}  # fmt: skip
GLM_47_FLASH = {
    "architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite",
    "num_hidden_layers": 47, "num_attention_heads": 20, "num_key_value_heads": 20,
    "hidden_size": 2048, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 192,
    "v_head_dim": 256, "q_lora_rank": 768, "max_position_embeddings": 202752,
    "torch_dtype": "bfloat16",
}  # fmt: skip
GPT_OSS_120B = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_hidden_layers": 36,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "hidden_size": 2880,
    "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 18,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
}  # fmt: skip
# Ships no layer_types: five sliding layers, then a full one, is the class' own pattern.
GEMMA_3_27B = {
    "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text", "num_hidden_layers": 62, "num_attention_heads": 32,
        "num_key_value_heads": 16, "head_dim": 128, "hidden_size": 5376, "sliding_window": 1024,
        "max_position_embeddings": 131072,
    },
    "torch_dtype": "bfloat16",
}  # fmt: skip
GEMMA_4_31B = {
    "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text",
    "num_hidden_layers": 60, "num_attention_heads": 32, "num_key_value_heads": 16,
    "num_global_key_value_heads": 4, "head_dim": 256, "global_head_dim": 512,
    "hidden_size": 5376, "sliding_window": 1024, "attention_k_eq_v": True,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 10,
    "max_position_embeddings": 262144, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN3_NEXT_80B = {
    "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next",
    "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2,
    "head_dim": 256, "hidden_size": 2048, "full_attention_interval": 4,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 262144, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN36_35B = {
    "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text",
    "num_hidden_layers": 40, "num_attention_heads": 16, "num_key_value_heads": 2,
    "head_dim": 256, "hidden_size": 2048, "full_attention_interval": 4,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 262144, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN3_235B = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_hidden_layers": 94,
    "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128, "hidden_size": 4096,
    "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
}  # fmt: skip


def options(**settings: Any) -> EngineOptions:  # noqa: ANN401
    return EngineOptions(
        version=(0, 32, 0), device=Device(), max_model_len=8192, max_num_batched_tokens=8192,
        max_num_seqs=256, **settings,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("config", "settings", "kib"),
    [
        (LLAMA_33_70B, {}, 320),
        (LLAMA_33_70B, {"kv_cache_dtype": "fp8"}, 160),
        (QWEN25_7B, {}, 56),
        (QWEN3_8B, {}, 144),
        (QWEN3_8B, {"kv_cache_dtype": "fp8"}, 72),
        (GLM_47_FLASH, {}, 52.875),
        (GLM_47_FLASH, {"tensor_parallel": 4}, 52.875),
        (GPT_OSS_120B, {"kv_cache_dtype": "fp8"}, 18),
        (QWEN3_NEXT_80B, {}, 24),
        (QWEN36_35B, {}, 20),
        (QWEN3_235B, {"tensor_parallel": 8}, 47),
    ],
)
def test_bytes_that_each_token_adds_per_gpu(
    config: dict[str, Any], settings: dict[str, Any], kib: float
) -> None:
    """Q1 to Q8 of the comparison of calculators, per rank."""
    assert growing_token_bytes(read_model(config), options(**settings)) == kib * KIB


@pytest.mark.parametrize(
    ("config", "settings", "tokens", "gib"),
    [
        (QWEN25_7B, {}, 4 * 32_768, 7.0),
        (QWEN3_8B, {"kv_cache_dtype": "fp8"}, 8192, 0.5625),
        (GLM_47_FLASH, {}, 8192, 0.413),
        (GPT_OSS_120B, {"kv_cache_dtype": "fp8"}, 8192, 0.1428),
        (GEMMA_3_27B, {}, 8192, 1.031),
        (GEMMA_4_31B, {}, 8192, 1.406),
        (QWEN36_35B, {}, 8192, 0.216),
        (QWEN3_235B, {"tensor_parallel": 8}, 8192, 0.367),
    ],
)
def test_bytes_of_a_whole_request(
    config: dict[str, Any], settings: dict[str, Any], tokens: int, gib: float
) -> None:
    """The same comparison's answers for whole requests, to the last digit it prints."""
    found = request_bytes(read_model(config), options(**settings), tokens) / GIB

    assert found == pytest.approx(gib, abs=0.0006)


@pytest.mark.parametrize(
    ("config", "settings", "mib"),
    [
        (GPT_OSS_120B, {"kv_cache_dtype": "fp8"}, 2.25),
        (QWEN3_NEXT_80B, {}, 37.7),
        (QWEN3_NEXT_80B, {"mamba_ssm_cache_dtype": "float32"}, 73.7),
        (QWEN36_35B, {}, 61.4),
    ],
)
def test_the_fixed_part_of_a_request(
    config: dict[str, Any], settings: dict[str, Any], mib: float
) -> None:
    """Windows and states cost the same however long the request."""
    layers, long = read_model(config), 100_000
    fixed = request_bytes(layers, options(**settings), long) - long * growing_token_bytes(
        layers, options(**settings)
    )

    assert fixed / MIB == pytest.approx(mib, abs=0.06)
