"""Which classes cache what: the facts about a class that its config.json need not repeat."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class AttentionFacts:
    """What a class of softmax-attention models takes for granted.

    Attributes:
        full_every: Of each so many layers the last sees everything and the others a window, where
            ``layer_types`` is not given; ``None`` has no such default.
        full_first: It is the first of them instead.
        pattern_field: Field that holds another period.
        window: Tokens of the window when ``sliding_window`` is not given.
        window_extra: Tokens the class adds to ``sliding_window``.
        head_dim: Elements of a head when ``head_dim`` is not given.
        sink: Every layer attends to a learned sink.
        uniform: The class ignores a mixed ``layer_types``: all layers see everything.
    """

    full_every: int | None = None
    full_first: bool = False
    pattern_field: str = "sliding_window_pattern"
    window: int | None = None
    window_extra: int = 0
    head_dim: int | None = None
    sink: bool = False
    uniform: bool = False


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PLAIN: Final = AttentionFacts()
_UNIFORM: Final = AttentionFacts(uniform=True)

# Classes whose layers differ from plain attention only in what the fields say.
_PLAIN_CLASSES: Final = _names("""
    Apertus Aquila Arcee Baichuan BaiChuan BailingMoe BailingMoeV2 Bloom Cohere Deepseek Dots1
    Ernie4_5 Ernie4_5_Moe Exaone Flex FlexOlmo GPTJ GPTNeoX Gemma Glm Glm4 Glm4Moe Granite
    GraniteMoe GraniteMoeShared Helium HunYuanDenseV1 HunYuanMoEV1 HyperCLOVAX IQuestCoder
    InternLM InternLM2 InternLM3 JAIS Jais2 LLaMA Llama Lucie MiMo MiniCPM MiniMaxM2 Molmo
    Nanbeige Mixtral Nemotron OLMo OPT Olmo Olmo2 Olmoe Orion PanguEmbedded Param2MoE Persimmon
    Phi Phi3 PhiMoE QWen SarvamMoE SeedOss SmolLM3 Solar Starcoder2 StableLm Step1 TeleChat2
    TeleChat3 TeleFLM Xverse Yi
""")

_UNIFORM_CLASSES: Final = _names("Qwen2 Qwen2Moe Qwen3 Qwen3Moe")

ATTENTION_CLASSES: Final[Mapping[str, AttentionFacts]] = {
    **{f"{name}ForCausalLM": _PLAIN for name in _PLAIN_CLASSES},
    **{f"{name}ForCausalLM": _UNIFORM for name in _UNIFORM_CLASSES},
    "GPT2LMHeadModel": _PLAIN,
    "GPT2ForSequenceClassification": _PLAIN,
    "ChatGLMModel": _PLAIN,
    "ChatGLMForConditionalGeneration": _PLAIN,
    "JinaEmbeddingsV5Model": _PLAIN,
    "QWenLMHeadModel": _PLAIN,
    "Step3TextForCausalLM": _PLAIN,
    "K2HorizonForCausalLM": _PLAIN,
    "MistralForCausalLM": AttentionFacts(window=4096),
    "MinistralForCausalLM": AttentionFacts(window=4096),
    "AfmoeForCausalLM": AttentionFacts(
        full_every=4, pattern_field="global_attn_every_n_layers", window=1024, head_dim=128
    ),
    "CwmForCausalLM": AttentionFacts(full_every=4, full_first=True, window=8192, head_dim=128),
    "GraniteMoeSWAForCausalLM": AttentionFacts(full_every=4, full_first=True, window=128),
    "GraniteSWAForCausalLM": AttentionFacts(full_every=4, full_first=True, window=128),
    "HYV3ForCausalLM": AttentionFacts(head_dim=128),
    "LagunaForCausalLM": AttentionFacts(full_every=1, window=512, head_dim=128),
    "MellumForCausalLM": AttentionFacts(full_every=1, window=1024, head_dim=128),
    "Ministral3ForCausalLM": AttentionFacts(head_dim=128),
    "Cohere2ForCausalLM": AttentionFacts(full_every=4, window=4096, window_extra=1),
    "Cohere2MoeForCausalLM": AttentionFacts(
        full_every=4, window=4096, window_extra=1, head_dim=128
    ),
    "CohereCompassForCausalLM": AttentionFacts(full_every=1, window=4096),
    "DiffusionGemmaForBlockDiffusion": AttentionFacts(full_every=6, window=512, head_dim=256),
    "Exaone4ForCausalLM": AttentionFacts(full_every=4, window=4096),
    "ExaoneMoeForCausalLM": AttentionFacts(full_every=4, window=4096),
    "ExaoneMoEForCausalLM": AttentionFacts(full_every=4, window=4096),
    "Gemma2ForCausalLM": AttentionFacts(full_every=2, window=4096, head_dim=256),
    "Gemma3ForCausalLM": AttentionFacts(full_every=6, window=4096, head_dim=256),
    "VaultGemmaForCausalLM": AttentionFacts(full_every=2, window=4096, head_dim=256),
    "Gemma3nForCausalLM": AttentionFacts(full_every=5, window=512, head_dim=256),
    "Gemma4ForCausalLM": AttentionFacts(full_every=6, window=512, head_dim=256),
    "GptOssForCausalLM": AttentionFacts(full_every=2, window=128, head_dim=64, sink=True),
    "Olmo3ForCausalLM": AttentionFacts(full_every=4, window=4096),
}

# Layers of one kind each, read by code of their own.
LATENT_CLASSES: Final = frozenset(
    f"{name}ForCausalLM"
    for name in _names("""
        AXK1 DeepseekV2 DeepseekV3 DeepseekV32 Glm4MoeLite GlmMoeDsa KimiK2 LongcatFlash
        LongcatFlashNgram MistralLarge3 PanguUltraMoE SarvamMLA
    """)
)
STATE_CLASSES: Final = frozenset(
    f"{name}ForCausalLM"
    for name in _names("""
        BailingMoeV2_5 BailingMoeV3 Bamba FalconH1 FalconMamba GraniteMoeHybrid Jamba KimiLinear
        Lfm2 Lfm2Moe Mamba Mamba2 MiniMax MiniMaxM1 MiniMaxText01 NemotronH NemotronHPuzzle
        OlmoHybrid Qwen3Next Qwen3_5 Qwen3_5Moe Zamba2
    """)
)

# Nothing is kept between tokens: the whole text is seen at once.
ENCODER_CLASSES: Final = _names("""
    BertForMaskedLM BertForSequenceClassification BertForTokenClassification BertModel
    BertSpladeSparseEmbeddingModel BgeM3EmbeddingModel CLIPModel ColBERTJinaRobertaModel
    ColBERTModernBertModel ColModernVBertForRetrieval DeepseekV3BidirectionalModel GteModel
    GteNewForSequenceClassification GteNewModel HF_ColBERT
    LlamaBidirectionalForSequenceClassification LlamaBidirectionalModel
    ModernBertForSequenceClassification ModernBertForTokenClassification ModernBertModel
    NomicBertModel OpenAIPrivacyFilterForTokenClassification RobertaForMaskedLM
    RobertaForSequenceClassification RobertaForTokenClassification RobertaModel SiglipModel
    Terratorch VoyageQwen3BidirectionalEmbedModel XLMRobertaForSequenceClassification
    XLMRobertaForTokenClassification XLMRobertaModel
""")

# The class that serves the text of a config, by the ``model_type`` of that text.
CLASS_OF_TYPE: Final[Mapping[str, str]] = {
    "afmoe": "AfmoeForCausalLM",
    "apertus": "ApertusForCausalLM",
    "aria_text": "LlamaForCausalLM",
    "chatglm": "ChatGLMModel",
    "cohere": "CohereForCausalLM",
    "cohere2": "Cohere2ForCausalLM",
    "deepseek": "DeepseekForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "deepseek_v32": "DeepseekV32ForCausalLM",
    "deepseek_v4": "DeepseekV4ForCausalLM",
    "deepseek_vl_v2": "DeepseekV2ForCausalLM",
    "ernie4_5": "Ernie4_5ForCausalLM",
    "ernie4_5_moe": "Ernie4_5_MoeForCausalLM",
    "ernie4_5_vl_moe_text": "Ernie4_5_MoeForCausalLM",
    "exaone4": "Exaone4ForCausalLM",
    "falcon_h1": "FalconH1ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma3n_text": "Gemma3nForCausalLM",
    "gemma4_text": "Gemma4ForCausalLM",
    "gemma4_unified_text": "Gemma4ForCausalLM",
    "glm4": "Glm4ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "glm4_moe_lite": "Glm4MoeLiteForCausalLM",
    "glm4v_text": "Glm4ForCausalLM",
    "glm4v_moe_text": "Glm4MoeForCausalLM",
    "glm_moe_dsa": "GlmMoeDsaForCausalLM",
    "glm_ocr_text": "Glm4ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "granite": "GraniteForCausalLM",
    "granitemoe": "GraniteMoeForCausalLM",
    "granitemoehybrid": "GraniteMoeHybridForCausalLM",
    "hunyuan_vl_text": "HunYuanDenseV1ForCausalLM",
    "hyperclovax": "HyperCLOVAXForCausalLM",
    "internlm2": "InternLM2ForCausalLM",
    "kimi_k2": "DeepseekV3ForCausalLM",
    "kimi_linear": "KimiLinearForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "lfm2_moe": "Lfm2MoeForCausalLM",
    "llama": "LlamaForCausalLM",
    "llama4_text": "Llama4ForCausalLM",
    "ministral": "MinistralForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "molmo2_text": "LlamaForCausalLM",
    "nemotron_h": "NemotronHForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "olmo3": "Olmo3ForCausalLM",
    "opt": "OPTForCausalLM",
    "paddleocr_vl_text": "Ernie4_5ForCausalLM",
    "persimmon": "PersimmonForCausalLM",
    "phi": "PhiForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen2_vl": "Qwen2ForCausalLM",
    "qwen2_vl_text": "Qwen2ForCausalLM",
    "qwen2_5_vl": "Qwen2ForCausalLM",
    "qwen2_5_vl_text": "Qwen2ForCausalLM",
    "qwen2_5_omni_text": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "qwen3_asr_text": "Qwen3ForCausalLM",
    "qwen3_vl_text": "Qwen3ForCausalLM",
    "qwen3_vl_moe_text": "Qwen3MoeForCausalLM",
    "qwen3_omni_moe_text": "Qwen3MoeForCausalLM",
    "qwen3_5": "Qwen3_5ForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_5_moe": "Qwen3_5MoeForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "seed_oss": "SeedOssForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "step3_text": "Step3TextForCausalLM",
    "step3p5": "Step3p5ForCausalLM",
}

# Wrappers around one language model whose text fields may lie at the top of the file.
CLASS_OF_FLAT_WRAPPER: Final[Mapping[str, str]] = {
    "BailingMoeV3VLForConditionalGeneration": "BailingMoeV3ForCausalLM",
    "ColBERTLfm2Model": "Lfm2ForCausalLM",
    "ColPaliForRetrieval": "GemmaForCausalLM",
    "Cosmos3ForConditionalGeneration": "Qwen3ForCausalLM",
    "DotsOCRForCausalLM": "Qwen2ForCausalLM",
    "Ernie4_5_VLMoeForConditionalGeneration": "Ernie4_5_MoeForCausalLM",
    "GLM4VForCausalLM": "ChatGLMModel",
    "IsaacForConditionalGeneration": "Qwen3ForCausalLM",
    "JinaForRanking": "Qwen3ForCausalLM",
    "JinaVLForRanking": "Qwen2ForCausalLM",
    "KeyeForConditionalGeneration": "Qwen3ForCausalLM",
    "KeyeVL1_5ForConditionalGeneration": "Qwen3ForCausalLM",
    "KimiK3ForConditionalGeneration": "KimiLinearForCausalLM",
    "Mistral3ForConditionalGeneration": "Ministral3ForCausalLM",
    "MiniCPMO": "Qwen2ForCausalLM",
    "MiniCPMV": "Qwen2ForCausalLM",
    "FuyuForCausalLM": "PersimmonForCausalLM",
    "Phi4MultimodalForCausalLM": "Phi3ForCausalLM",
    "MoonshotKimiaForCausalLM": "Qwen2ForCausalLM",
    "NVLM_D": "Qwen2ForCausalLM",
    "PaddleOCRVLForConditionalGeneration": "Ernie4_5ForCausalLM",
    "Phi3VForCausalLM": "Phi3ForCausalLM",
    "Phi4ForCausalLMV": "Phi3ForCausalLM",
    "Phi4MMForCausalLM": "Phi3ForCausalLM",
    "Qwen2VLForConditionalGeneration": "Qwen2ForCausalLM",
    "Qwen2_5_VLForConditionalGeneration": "Qwen2ForCausalLM",
}

# Fields a class's own defaults fill in when a nested text config leaves them out.
FIELDS_OF_TYPE: Final[Mapping[str, Mapping[str, int]]] = {
    "gemma": {
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 256,
        "num_hidden_layers": 28,
        "hidden_size": 3072,
        "intermediate_size": 24576,
        "vocab_size": 256000,
        "max_position_embeddings": 8192,
    },
    "gemma2": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "num_hidden_layers": 26,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "vocab_size": 256000,
        "max_position_embeddings": 8192,
    },
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "num_hidden_layers": 26,
        "hidden_size": 2304,
        "max_position_embeddings": 131072,
    },
    "llama": {
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
    },
    "mistral": {
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "vocab_size": 32000,
        "max_position_embeddings": 131072,
    },
    "opt": {
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "hidden_size": 768,
        "ffn_dim": 3072,
        "word_embed_proj_dim": 768,
        "vocab_size": 50272,
        "max_position_embeddings": 2048,
    },
    "qwen2": {
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "vocab_size": 151936,
        "max_position_embeddings": 32768,
    },
}

# Decoders whose fields lie in a section of their own, beside those of an encoder.
DECODER_SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "CohereAsrForConditionalGeneration": ("transf_decoder", "config_dict"),
    "NemotronParseForConditionalGeneration": ("decoder",),
}

# Served by vLLM only with a package beside it, which brings its own cache.
PLUGIN_CLASSES: Final = _names("""
    BartForConditionalGeneration BartModel Florence2ForConditionalGeneration
    MBartForConditionalGeneration Nemotron3_5AsrForRNNT
""")

# All that a server may take beside text; Kimi K2.5 takes images in pieces of its own.
MODALITIES: Final = frozenset({"image", "video", "audio", "vision_chunk"})
