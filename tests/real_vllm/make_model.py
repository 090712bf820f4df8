"""Write a tiny model with random weights; runs in vLLM's environment, not in ours.

usage: make_model.py KIND DIR      KIND is one of FAMILIES
"""

import sys
from collections.abc import Callable

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

VOCABULARY = {f"<{number}>": number for number in range(256)} | {"<unk>": 256, "<s>": 257}
COMMON = {
    "vocab_size": 320,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}


def llama() -> transformers.PretrainedConfig:
    """Return plain attention: four layers, two KV heads of 32."""
    return transformers.LlamaConfig(**COMMON, num_hidden_layers=4, head_dim=32)


def gemma3() -> transformers.PretrainedConfig:
    """Return five layers with a window of 256 tokens to one that sees everything."""
    return transformers.Gemma3TextConfig(
        **COMMON,
        num_hidden_layers=6,
        head_dim=32,
        query_pre_attn_scalar=32,
        sliding_window=256,
        layer_types=["sliding_attention"] * 5 + ["full_attention"],
    )


def qwen3_next() -> transformers.PretrainedConfig:
    """Return three gated delta nets to one layer of attention."""
    return transformers.Qwen3NextConfig(
        **COMMON,
        num_hidden_layers=4,
        head_dim=32,
        linear_num_key_heads=4,
        linear_num_value_heads=8,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
        full_attention_interval=4,
    )


def granite_hybrid() -> transformers.PretrainedConfig:
    """Return six Mamba 2 layers and two of attention, no experts."""
    return transformers.GraniteMoeHybridConfig(
        **COMMON,
        num_hidden_layers=8,
        layer_types=["mamba", "mamba", "mamba", "attention"] * 2,
        mamba_n_heads=16,
        mamba_d_head=32,
        mamba_n_groups=1,
        mamba_d_state=64,
        mamba_chunk_size=64,
        num_local_experts=0,
        num_experts_per_tok=0,
        shared_intermediate_size=512,
    )


FAMILIES: dict[str, Callable[[], transformers.PretrainedConfig]] = {
    "llama": llama,
    "gemma3": gemma3,
    "qwen3-next": qwen3_next,
    "granite-hybrid": granite_hybrid,
}


def main(kind: str, directory: str) -> None:
    """Write the config, the weights and a tokenizer of one token a word."""
    tokenizer = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="<s>"
    ).save_pretrained(directory)
    model = transformers.AutoModelForCausalLM.from_config(FAMILIES[kind]())
    model.to(torch.bfloat16).save_pretrained(directory)


if __name__ == "__main__":
    main(*sys.argv[1:])
