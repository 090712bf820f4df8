"""Fields of encoders that their config classes fill in where a file leaves them out."""

from collections.abc import Mapping
from typing import Any, Final

_CLIP: Final = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 32,
}
_SIGLIP: Final = {**_CLIP, "patch_size": 16}
_IDEFICS: Final = {**_CLIP, "hidden_size": 1152, "num_attention_heads": 16}
_PIXTRAL: Final = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 1024,
    "patch_size": 16,
}
_INTERN: Final = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 448,
    "patch_size": 14,
    "norm_type": "layer_norm",
}
_GLM: Final = {
    "hidden_size": 1536,
    "intermediate_size": 13696,
    "depth": 24,
    "num_heads": 12,
    "image_size": 336,
    "patch_size": 14,
    "out_hidden_size": 4096,
}
_GLM_OCR: Final = {
    **_GLM,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_heads": 16,
    "out_hidden_size": 1536,
    "attention_bias": True,
}
_QWEN2: Final = {
    "hidden_size": 3584,
    "embed_dim": 1280,
    "depth": 32,
    "num_heads": 16,
    "patch_size": 14,
}
_QWEN2_5: Final = {
    "hidden_size": 3584,
    "intermediate_size": 3420,
    "depth": 32,
    "num_heads": 16,
    "patch_size": 14,
    "out_hidden_size": 3584,
}
_QWEN3: Final = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "depth": 27,
    "num_heads": 16,
    "patch_size": 16,
    "out_hidden_size": 3584,
    "num_position_embeddings": 2304,
}
_QWEN3_DEEP: Final = {**_QWEN3, "deepstack_visual_indexes": [8, 16, 24]}
_PADDLE: Final = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 384,
    "patch_size": 14,
}
_WHISPER_LARGE: Final = {
    "d_model": 1280,
    "encoder_ffn_dim": 5120,
    "encoder_layers": 32,
    "num_mel_bins": 128,
    "max_source_positions": 1500,
}
# The same encoder in the words of newer config classes.
_WHISPER_RENAMED: Final = {
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_mel_bins": 128,
    "max_source_positions": 1500,
}
_OMNI: Final = {**_WHISPER_LARGE, "output_dim": 3584}

FIELDS_OF_TOWER: Final[Mapping[str, Mapping[str, Any]]] = {
    "audioflamingo3_encoder": _WHISPER_RENAMED,
    "clip_vision_model": _CLIP,
    "exaone4_5_vision": {**_QWEN2_5, "num_key_value_heads": 8},
    "glm4v": _GLM,
    "glm4v_moe": _GLM,
    "glm4v_moe_vision": _GLM,
    "glm4v_vision": _GLM,
    "glm_ocr_vision": _GLM_OCR,
    "glmasr_encoder": _WHISPER_RENAMED,
    "idefics3": _IDEFICS,
    "idefics3_vision": _IDEFICS,
    "internvl_vision": _INTERN,
    "paddleocr_vl_vision": _PADDLE,
    "pixtral": _PIXTRAL,
    "qwen2_5_omni_audio_encoder": _OMNI,
    "qwen2_5_omni_vision_encoder": _QWEN2_5,
    "qwen2_5_vl": _QWEN2_5,
    "qwen2_5_vl_vision": _QWEN2_5,
    "qwen2_audio_encoder": _WHISPER_LARGE,
    "qwen2_vl": _QWEN2,
    "qwen2_vl_vision": _QWEN2,
    "qwen3_5_moe_vision": _QWEN3,
    "qwen3_5_vision": _QWEN3,
    "qwen3_omni_moe_audio_encoder": _OMNI,
    "qwen3_omni_moe_vision_encoder": _QWEN3_DEEP,
    "qwen3_vl": _QWEN3_DEEP,
    "qwen3_vl_moe": _QWEN3_DEEP,
    "qwen3_vl_moe_vision": _QWEN3_DEEP,
    "qwen3_vl_vision": _QWEN3_DEEP,
    "siglip2_vision_model": {**_SIGLIP, "num_patches": 256},
    "siglip_vision_model": _SIGLIP,
    "smolvlm_vision": _IDEFICS,
    "voxtral_encoder": _WHISPER_RENAMED,
}
