from typing import Any

import pytest

from kvheadroom.engine.kv_pages import bytes_per_block, kv_element_bytes
from kvheadroom.errors import ModelConfigError
from kvheadroom.model.attention import FullAttention, read_full_attention

LLAMA_33_70B = {
    "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8, "hidden_size": 8192, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN25_7B = {
    "architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "hidden_size": 3584, "torch_dtype": "bfloat16",
    "sliding_window": 131072, "use_sliding_window": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "kib_per_token"),
    [(LLAMA_33_70B, 320), (QWEN25_7B, 56)],
    ids=["Llama-3.3-70B", "Qwen2.5-7B"],
)
def test_bytes_per_token(config: dict[str, Any], kib_per_token: int) -> None:
    """Published figures: 320 KiB per token for Llama 3.3 70B, 56 KiB for Qwen2.5 7B, in BF16."""
    shape = read_full_attention(config)
    element = kv_element_bytes(shape, "auto")

    assert element is not None
    per_token = bytes_per_block(shape, block_tokens=1, element_bytes=element)
    assert per_token == kib_per_token * 1024


def test_a_stated_head_dim_wins_over_the_quotient() -> None:
    """Qwen3-MoE: hidden 2048 over 32 heads is 64, and the config says 128."""
    shape = read_full_attention(
        LLAMA_33_70B
        | {
            "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 2048,
            "num_attention_heads": 32, "head_dim": 128,
        }
    )  # fmt: skip

    assert shape.head_dim == 128


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"architectures": ["Gemma3ForCausalLM"]}, "Gemma3ForCausalLM"),
        ({"architectures": []}, "none"),
        ({"sliding_window": 4096}, "sliding_window"),
        ({"kv_lora_rank": 512}, "kv_lora_rank"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"layer_types": 5}, "layer_types"),
        ({"hidden_size": 8}, "hidden_size"),
        ({"num_hidden_layers": 10**400}, "num_hidden_layers"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_key_value_heads": "8"}, "num_key_value_heads"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
    ],
)
def test_what_is_not_plain_attention_is_refused_by_name(change: dict[str, Any], said: str) -> None:
    """An unknown cache is an error that names its cause, never a guess."""
    with pytest.raises(ModelConfigError, match=said):
        read_full_attention(LLAMA_33_70B | change)


def test_auto_is_unknown_when_the_checkpoint_prescribes_a_cache_dtype() -> None:
    """Workers then cache in fp8 while the front end still says auto."""
    quantized = read_full_attention(
        LLAMA_33_70B | {"quantization_config": {"kv_cache_scheme": {"num_bits": 8}}}
    )

    assert kv_element_bytes(quantized, "auto") is None
    assert kv_element_bytes(quantized, "fp8") == 1


def test_an_unlisted_cache_dtype_is_unknown() -> None:
    """A packed format costs scales that are not a plain element size."""
    shape = FullAttention("LlamaForCausalLM", 1, 1, 128, "bfloat16", quantized_kv=False)

    assert kv_element_bytes(shape, "nvfp4") is None
