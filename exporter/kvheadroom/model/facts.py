"""What a server's defaults depend on of a model: its kind, dtype, context and quantization."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from kvheadroom.errors import ModelConfigError
from kvheadroom.model.config import language_config
from kvheadroom.model.fields import Config, section

Runner = Literal["generate", "pooling"]
# How a model attends, as far as the defaults of prefix caching and chunked prefill go.
AttentionKind = Literal["decoder", "encoder_only", "hybrid", "attention_free", "encoder_decoder"]

_HYBRID_CLASSES: Final = frozenset(
    """
    BailingMoeV2_5ForCausalLM BailingMoeV3ForCausalLM BailingMoeV3VLForConditionalGeneration
    BambaForCausalLM ColBERTLfm2Model FalconH1ForCausalLM Glm5NextForCausalLM
    Glm5NextForConditionalGeneration GraniteMoeHybridForCausalLM
    InternS2MobiusForConditionalGeneration InternS2PreviewForConditionalGeneration
    JambaForCausalLM JambaForSequenceClassification KimiK3ForConditionalGeneration
    KimiLinearForCausalLM Lfm2ForCausalLM Lfm2MoeForCausalLM Lfm2VlForConditionalGeneration
    MiniCPMV4_6ForConditionalGeneration MiniCPMV4_7ForConditionalGeneration
    MiniMaxForCausalLM MiniMaxM1ForCausalLM
    MiniMaxText01ForCausalLM NemotronHForCausalLM NemotronHPuzzleForCausalLM
    NemotronH_Nano_Omni_Reasoning_V3 NemotronH_Nano_VL_V2 NemotronH_Omni_Reasoning_V3
    NemotronH_Super_Omni_Reasoning_V3 OlmoHybridForCausalLM Plamo2ForCausalLM Qwen3NextForCausalLM
    Qwen3_5ForCausalLM Qwen3_5ForConditionalGeneration Qwen3_5MoeForCausalLM
    Qwen3_5MoeForConditionalGeneration Qwen4ExpForCausalLM Qwen4ExpForConditionalGeneration
    Zamba2ForCausalLM
    """.split()  # noqa: SIM905
)
_ATTENTION_FREE_CLASSES: Final = frozenset(
    {"MambaForCausalLM", "Mamba2ForCausalLM", "FalconMambaForCausalLM", "Terratorch"}
)
_ENCODER_DECODER_CLASSES: Final = frozenset(
    {
        *("CohereAsrForConditionalGeneration", "NemotronParseForConditionalGeneration"),
        "WhisperForConditionalGeneration",
    }
)
# Classes that pool the first token's state, which every layer must have seen the whole text for.
_CLS_POOLING_PREFIXES: Final = (
    *("Bert", "Roberta", "XLMRoberta", "ModernBert", "NomicBert", "Gte", "BgeM3", "HF_ColBERT"),
    *("ColBERT", "ColPali", "ColModernVBert", "ColQwen3", "OpsColQwen3", "Siglip"),
)
_ENCODER_ONLY_CLASSES: Final = frozenset(
    {"VoyageQwen3BidirectionalEmbedModel", "OpenAIPrivacyFilterForTokenClassification"}
)
_POOLING_ENDINGS: Final = (
    *("ForTextEncoding", "EmbeddingModel", "ForSequenceClassification"),
    *("ForTokenClassification", "ForAudioClassification", "ForImageClassification"),
    *("ForVideoClassification", "ClassificationModel", "ForRewardModeling", "RewardModel"),
    *("ForProcessRewardModel", "ForMaskedLM", "ForRetrieval", "ForRanking", "Model"),
)
_GENERATING_ENDINGS: Final = (
    "ForCausalLM",
    "ForConditionalGeneration",
    "ChatModel",
    "LMHeadModel",
)
# Named like a headless model, and served as the generating class of the same family.
_GENERATING_MODELS: Final = frozenset(
    {
        *("ChatGLMModel", "DeepseekV3BidirectionalModel", "Gemma2Model", "LlamaModel"),
        *("MiDashengLMModel", "MistralModel", "MossAudioModel", "Qwen2Model", "Qwen2_5OmniModel"),
        "UltravoxModel",
    }
)
_POOLING_MODELS: Final = frozenset(
    {"ClefOmniForJointSchema", "ColQwen3", "ColQwen3_5", "HF_ColBERT", "Terratorch"}
)
_MLA_FIELD: Final = "kv_lora_rank"
# Have the field and keep keys and values of every head all the same.
_HEADWISE_TYPES: Final = frozenset({"minicpm3"})
# Says `attention_chunk_size` and attends to no chunks.
_CHUNKLESS_TYPES: Final = frozenset({"mimo_v2", "mimo_v2_flash"})


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model as far as vLLM's defaults depend on it.

    Attributes:
        architecture: Class name in ``architectures``.
        model_type: Of the whole model.
        text: The language model's part of config.json.
        runner: What ``--runner auto`` means for the class.
        attention: How it attends.
        pools_first_token: As a pooling model it needs the whole text at once.
        dtype: What the checkpoint says, ``"bfloat16"``; ``None`` when it does not.
        layers: Decoder layers; ``None`` when the config does not say.
        query_heads: Of the whole model; ``None`` when the config does not say.
        kv_heads: Of the whole model; 1 where all ranks keep the same latent.
        is_latent: Multi-head latent attention.
        is_sparse_latent: Latent attention with a sparse indexer.
        is_chunked_local: Some layers attend within chunks.
        sliding_window: ``sliding_window`` as the config has it, tokens.
        draft_layers: Layers that predict further tokens; 0 without.
        state_dtype: What the class makes of ``--mamba-ssm-cache-dtype auto``; ``None`` leaves it.
        prescribed_kv_dtype: What the checkpoint makes of ``--kv-cache-dtype auto``.
    """

    architecture: str
    model_type: str
    text: Config
    runner: Runner
    attention: AttentionKind
    pools_first_token: bool
    dtype: str | None
    layers: int | None
    query_heads: int | None
    kv_heads: int | None
    is_latent: bool
    is_sparse_latent: bool
    is_chunked_local: bool
    sliding_window: int | None
    draft_layers: int
    state_dtype: str | None
    prescribed_kv_dtype: str | None


def read_facts(config: Config) -> ModelFacts:
    """Return what defaults depend on of the model that *config* (config.json) describes.

    Raises:
        ModelConfigError: ``architectures`` is missing.

    Source:
        vLLM 0.32: the model registry's interfaces, the converters of model types.
    """
    architecture = _architecture(config)
    text = language_config(config)
    model_type = str(config.get("model_type", ""))
    is_latent = _is_latent(text)
    heads = _count(text, "num_attention_heads", "n_head", "n_heads", "decoder_attention_heads")
    return ModelFacts(
        architecture=architecture,
        model_type=model_type,
        text=text,
        runner=_runner(architecture),
        attention=_attention(architecture, config, text),
        pools_first_token=architecture.startswith(_CLS_POOLING_PREFIXES),
        dtype=_dtype(config, text),
        layers=_layers(architecture, text),
        query_heads=heads,
        kv_heads=1 if is_latent else _kv_heads(architecture, text, heads) or heads,
        is_latent=is_latent,
        is_sparse_latent=is_latent and "index_topk" in text and "compress_ratios" not in text,
        is_chunked_local=bool(text.get("attention_chunk_size"))
        and model_type not in _CHUNKLESS_TYPES,
        sliding_window=_count(text, "sliding_window"),
        draft_layers=_count(text, "num_nextn_predict_layers", "mtp_num_hidden_layers") or 0,
        state_dtype=_state_dtype(architecture, config, text),
        prescribed_kv_dtype=_prescribed_kv_dtype(config, is_latent=is_latent),
    )


def _layers(architecture: str, text: Config) -> int | None:
    # There `num_hidden_layers` counts attentions, two of them in each layer.
    if architecture.startswith("LongcatFlash"):
        return _count(text, "num_layers")
    return _count(text, "num_hidden_layers", "n_layer", "n_layers", "num_layers")


def _kv_heads(architecture: str, text: Config, query_heads: int | None) -> int | None:
    match architecture:
        case "DbrxForCausalLM":
            return _count(section(text, "attn_config"), "kv_n_heads")
        case "DeciLMForCausalLM" if query_heads:
            return _searched_kv_heads(text, query_heads)
        case "GPTBigCodeForCausalLM" if text.get("multi_query", True):
            return 1
    return _count(
        text, "n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num",
        "num_attention_groups",
    )  # fmt: skip


def _searched_kv_heads(text: Config, query_heads: int) -> int | None:
    """Return the key-value heads of the first layer that a search left its attention."""
    blocks = text.get("block_configs")
    for block in blocks if isinstance(blocks, list) else ():
        group = _count(section(section({"": block}, ""), "attention"), "n_heads_in_group")
        if group:
            return query_heads // group
    return None


def _architecture(config: Config) -> str:
    names = config.get("architectures")
    if isinstance(names, list) and names and isinstance(names[0], str):
        return names[0]
    raise ModelConfigError("config.json lacks architectures, the model's class name")


def _runner(architecture: str) -> Runner:
    if architecture.endswith(_GENERATING_ENDINGS) or architecture in _GENERATING_MODELS:
        return "generate"
    pools = architecture.endswith(_POOLING_ENDINGS) or architecture in _POOLING_MODELS
    return "pooling" if pools else "generate"


def _attention(architecture: str, config: Config, text: Config) -> AttentionKind:
    if _sees_both_ways(architecture, config, text):
        return "encoder_only"
    if architecture in _ATTENTION_FREE_CLASSES:
        return "attention_free"
    if architecture in _HYBRID_CLASSES and not _all_attention(config):
        return "hybrid"
    if (
        config.get("is_encoder_decoder")
        or text.get("is_encoder_decoder")
        or architecture in _ENCODER_DECODER_CLASSES
    ):
        return "encoder_decoder"
    return "decoder"


def _sees_both_ways(architecture: str, config: Config, text: Config) -> bool:
    if architecture.startswith(_CLS_POOLING_PREFIXES) or architecture in _ENCODER_ONLY_CLASSES:
        return True
    if (
        architecture.startswith(("LlamaBidirectional", "LlamaNemotronVL"))
        or config.get("is_causal") is False
    ):
        return True
    if architecture == "Gemma3TextModel":
        return bool(text.get("use_bidirectional_attention"))
    return architecture == "JinaEmbeddingsV5Model" and config.get("is_decoder") is False


def _all_attention(config: Config) -> bool:
    kinds = config.get("layer_types")
    return isinstance(kinds, list) and all(k in ("attention", "full_attention") for k in kinds)


def _is_latent(text: Config) -> bool:
    if text.get("is_causal") is False:
        return False
    if "compress_ratios" in text:
        return text.get("head_dim") is not None
    return text.get(_MLA_FIELD) is not None and text.get("model_type") not in _HEADWISE_TYPES


def _dtype(config: Config, text: Config) -> str | None:
    parts = (config, text, section(config, "vision_config"), section(config, "encoder_config"))
    for part in parts:
        for name in ("dtype", "torch_dtype"):
            value = part.get(name)
            if isinstance(value, str) and value not in ("", "auto"):
                return value.removeprefix("torch.")
    return None


def _state_dtype(architecture: str, config: Config, text: Config) -> str | None:
    if architecture.startswith(("Qwen3_5", "Qwen4Exp")):
        value = text.get("mamba_ssm_dtype")
    elif architecture.startswith("NemotronH"):
        part = text if "_VL_" in architecture else config
        value = part.get("mamba_ssm_cache_dtype", "float32")
    else:
        value = None
    return value if isinstance(value, str) else None


def quantization_section(config: Config) -> Config:
    """Return how the checkpoint is quantized; empty when it is not."""
    for part in (config, section(config, "text_config")):
        for name in ("quantization_config", "compression_config"):
            found = section(part, name)
            if found:
                return found
    return {}


def _prescribed_kv_dtype(config: Config, *, is_latent: bool) -> str | None:
    quantization = quantization_section(config)
    method = str(quantization.get("quant_method", "")).lower().replace("_", "-")
    producer = section(quantization, "producer").get("name")
    if producer == "modelopt" or method.startswith("modelopt"):
        return _modelopt_kv_dtype(quantization)
    if method == "compressed-tensors" and not is_latent:
        return "fp8" if quantization.get("kv_cache_scheme") is not None else None
    return None


def _modelopt_kv_dtype(quantization: Config) -> str | None:
    inner = section(quantization, "quantization") or quantization
    algorithm: Any = next(
        (
            value
            for name in ("kv_cache_scheme", "kv_cache_quant_algo")
            for part in (inner, quantization)
            if (value := part.get(name))
        ),
        None,
    )
    if isinstance(algorithm, Mapping):
        bits, is_float = algorithm.get("num_bits"), algorithm.get("type") == "float"
        if bits == 8 and is_float and algorithm.get("dynamic") is False:  # noqa: PLR2004
            algorithm = "fp8"
        elif bits == 4 and is_float:  # noqa: PLR2004
            algorithm = "nvfp4"
    known = {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}
    return known.get(algorithm.lower()) if isinstance(algorithm, str) else None


def _count(text: Config, *names: str) -> int | None:
    for name in names:
        value = text.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
