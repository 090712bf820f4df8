"""What the config classes of newer models fill in for a field that the file leaves out."""

from collections.abc import Mapping
from typing import Final

Value = int | float | bool | str
OwnFields = Mapping[str, Value]

_GLM5_NEXT: Final[OwnFields] = {
    "vocab_size": 154880,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 45,
    "num_attention_heads": 64,
    "n_shared_experts": 1,
    "n_routed_experts": 288,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 0,
    "qk_nope_head_dim": 256,
    "v_head_dim": 256,
    "max_position_embeddings": 1048576,
    "index_topk": 2048,
    "index_head_dim": 128,
    "index_n_heads": 32,
    "index_kpool": 16,
    "linear_head_dim": 128,
    "linear_num_heads": 64,
    "linear_conv_kernel_dim": 4,
    "hc_mult": 4,
}
_HY_V4: Final[OwnFields] = {
    "vocab_size": 120832,
    "hidden_size": 2816,
    "intermediate_size": 6912,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 34,
    "num_attention_heads": 32,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "max_position_embeddings": 262144,
    "index_topk": 2048,
    "index_head_dim": 128,
    "index_n_heads": 16,
    "enable_ihc": True,
    "hc_mult": 4,
    "gated_mla": True,
    "gating_type": "elementwise",
    "learnable_sink": True,
    "num_nextn_predict_layers": 1,
}
_QWEN4_EXP: Final[OwnFields] = {
    "vocab_size": 248320,
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "max_position_embeddings": 32768,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 512,
    "hc_count": 4,
    "hc_lowrank": 320,
    "ple_conv_kernel_size": 4,
    "ngram_size": 3,
    "heads_per_ngram": 8,
    "ngram_vocab_size_base": 20_000_000,
}
_INKLING: Final[OwnFields] = {
    "vocab_size": 201024,
    "hidden_size": 1536,
    "intermediate_size": 768,
    "num_hidden_layers": 16,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "d_rel": 16,
    "rel_extent": 1024,
    "sliding_window_size": 512,
}
_MUSE_GLIMMER: Final[OwnFields] = {
    "vocab_size": 202048,
    "hidden_size": 6656,
    "intermediate_size": 19968,
    "num_hidden_layers": 52,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 16384,
    "use_attn_output_gate": True,
}
_BAILING_HYBRID: Final[OwnFields] = {
    "vocab_size": 157184,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "num_hidden_layers": 20,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 32768,
    "num_experts": 256,
    "num_shared_experts": 1,
    "moe_intermediate_size": 512,
    "moe_shared_expert_intermediate_size": 512,
    "first_k_dense_replace": 1,
    "layer_group_size": 5,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "short_conv_kernel_size": 4,
}

OWN_FIELDS: Final[Mapping[str, OwnFields]] = {
    "glm5_next_text": _GLM5_NEXT,
    "hy_v4": _HY_V4,
    "inkling_model": _INKLING,
    "muse_glimmer_text": _MUSE_GLIMMER,
    "qwen4_exp_text": _QWEN4_EXP,
}
"""By the ``model_type`` of the text."""

OWN_FIELDS_OF_WRAPPER: Final[Mapping[str, OwnFields]] = {
    "bailing_moe_v3_vl": _BAILING_HYBRID,
    "glm5_next": _GLM5_NEXT,
    "inkling_mm_model": _INKLING,
    "muse_glimmer": _MUSE_GLIMMER,
    "qwen4_exp": _QWEN4_EXP,
}
"""By the ``model_type`` of the whole file, where the text's may be missing."""
