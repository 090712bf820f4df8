"""Read a Hugging Face config.json into what each layer of the model keeps between tokens."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from kvheadroom.errors import ModelConfigError
from kvheadroom.model.classes import (
    ATTENTION_CLASSES,
    CLASS_OF_FLAT_WRAPPER,
    CLASS_OF_TYPE,
    DECODER_SECTIONS,
    ENCODER_CLASSES,
    FIELDS_OF_TYPE,
    LATENT_CLASSES,
    PLUGIN_CLASSES,
    STATE_CLASSES,
)
from kvheadroom.model.context_length import read_context_length
from kvheadroom.model.families.indexed import (
    convolved_blocks,
    delta_net_key_blocks,
    delta_net_positioned_key_blocks,
    listed_indexer_blocks,
    own_draft_blocks,
    padded_latent_blocks,
    pooled_key_blocks,
    scored_blocks,
    sourced_blocks,
)
from kvheadroom.model.families.latent import (
    compressed_block,
    compressed_blocks,
    latent_blocks,
    latent_layer,
    longcat_blocks,
)
from kvheadroom.model.families.recurrent import recurrent_blocks, softmax_block
from kvheadroom.model.families.softmax import (
    bigcode_blocks,
    dbrx_blocks,
    expanded_latent_blocks,
    falcon_blocks,
    gemma4_blocks,
    hrm_blocks,
    llama4_blocks,
    mimo2_blocks,
    mimo2_sliding,
    own_caches,
    searched_blocks,
    softmax_blocks,
    step3p5_blocks,
)
from kvheadroom.model.families.speech import decoder_blocks
from kvheadroom.model.families.windows import (
    chunk_as_window_blocks,
    listed_window_blocks,
    looped_blocks,
    paired_blocks,
    pangu_blocks,
    unrotated_full_blocks,
)
from kvheadroom.model.fields import (
    Config,
    optional_whole,
    section,
    strings,
)
from kvheadroom.model.layers import (
    AttentionLayer,
    Block,
    KernelTraits,
    LatentLayer,
    Layer,
    ModelLayers,
    RingLayer,
    SourceLayer,
    StateLayer,
)
from kvheadroom.model.own_fields import OWN_FIELDS, OWN_FIELDS_OF_WRAPPER

_TEXT_SECTIONS: Final = ("text_config", "llm_config", "language_config", "language_model_config")
_MOST_DRAFT_MODULES: Final = 100
_POOLING_SUFFIXES: Final = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForProcessRewardModel",
    "ForRewardModel",
    "TextModel",
    "Model",
)
_DRAFT_MARKS: Final = ("Eagle3", "Eagle")
_IMAGE_PREFIX_TYPES: Final = frozenset({"gemma3", "bagel", "molmo2", "moondream3", "paligemma"})
# Classes whose layers no field describes in the common way.
_OWN_READERS: Final[Mapping[str, Callable[[Config], tuple[Block, ...]]]] = {
    **dict.fromkeys(DECODER_SECTIONS, decoder_blocks),
    "Cosmos3EdgeForConditionalGeneration": paired_blocks,
    "DbrxForCausalLM": dbrx_blocks,
    "DeciLMForCausalLM": searched_blocks,
    "DeepseekV4ForCausalLM": compressed_blocks,
    "DeepseekV41ForCausalLM": sourced_blocks,
    "Dots3NoteForCausalLM": padded_latent_blocks,
    "FalconForCausalLM": falcon_blocks,
    "GPTBigCodeForCausalLM": bigcode_blocks,
    "Glm5NextForCausalLM": pooled_key_blocks,
    "HrmTextForCausalLM": hrm_blocks,
    "HYV4ForCausalLM": listed_indexer_blocks,
    "IQuestLoopCoderForCausalLM": looped_blocks,
    "InklingForCausalLM": convolved_blocks,
    "Llama4ForCausalLM": llama4_blocks,
    "MiMoV2FlashForCausalLM": mimo2_blocks,
    "MiMoV2ForCausalLM": mimo2_blocks,
    "MiMoV2OmniForCausalLM": mimo2_blocks,
    "MPTForCausalLM": dbrx_blocks,
    "MptForCausalLM": dbrx_blocks,
    "MiniMaxM3SparseForCausalLM": scored_blocks,
    "MiniCPM3ForCausalLM": expanded_latent_blocks,
    "MuseGlimmerForCausalLM": unrotated_full_blocks,
    "PanguProMoEV2ForCausalLM": pangu_blocks,
    "Plamo3ForCausalLM": listed_window_blocks,
    "Qwen4ExpForCausalLM": delta_net_key_blocks,
    "Qwen4ExpForConditionalGeneration": delta_net_positioned_key_blocks,
    "RWForCausalLM": falcon_blocks,
    "Rnj1ForCausalLM": chunk_as_window_blocks,
    "Step3p5ForCausalLM": step3p5_blocks,
    "WhisperForConditionalGeneration": decoder_blocks,
}
_KNOWN_CLASSES: Final = frozenset(
    {*ATTENTION_CLASSES, *LATENT_CLASSES, *STATE_CLASSES, *ENCODER_CLASSES, *_OWN_READERS}
)


def read_model(config: Mapping[str, Any]) -> ModelLayers:
    """Return what the model that *config* (a parsed config.json) describes keeps per layer.

    Raises:
        ModelConfigError: The class is not known, or a field is missing or says something else
            than the class can have.
    """
    text = language_config(config)
    named = _architecture(config)
    architecture = text_class(config)
    encoder = architecture in ENCODER_CLASSES or _is_bidirectional(named, config, text)
    blocks = () if encoder else _blocks(architecture, text)
    return ModelLayers(
        architecture=named,
        blocks=blocks,
        dtype=_dtype(config) or _dtype(text),
        max_position=read_context_length(
            text,
            model_type=str(text.get("model_type") or config.get("model_type")),
            before_0_32=False,
        ).largest,
        prescribed_kv_dtype=_prescribed_kv_dtype(config) or _prescribed_kv_dtype(text),
        is_encoder=encoder,
        draft_blocks=() if encoder else _draft_blocks(architecture, text, blocks),
        traits=_traits(config, text, blocks),
        ignores_kv_cache_dtype=architecture in {"FalconForCausalLM", "RWForCausalLM"},
        attention_first=architecture == "Zamba2ForCausalLM",
        block_outermost=any(map(_packs_pages, {layer for block in set(blocks) for layer in block})),
    )


def language_config(config: Config) -> Config:
    """Return the fields of the language model in *config*, which may lie in a section of it."""
    named = strings(config, "architectures")
    if named is not None and named[0] in DECODER_SECTIONS:
        return _decoder_section(config, DECODER_SECTIONS[named[0]])
    inner = section(config, "thinker_config") or section(config, "vlm_config") or config
    for name in _TEXT_SECTIONS:
        text = section(inner, name)
        if text:
            defaults = FIELDS_OF_TYPE.get(str(text.get("model_type")), {})
            return {**defaults, **_own_fields(config, text), **text}
    own = _own_fields(config, inner)
    return {**own, **inner} if own else inner


def _own_fields(config: Config, text: Config) -> Config:
    """Return what the class of the text's config fills in."""
    own = OWN_FIELDS.get(str(text.get("model_type")))
    return OWN_FIELDS_OF_WRAPPER.get(str(config.get("model_type")), {}) if own is None else own


def _decoder_section(config: Config, path: tuple[str, ...]) -> Config:
    text = config
    for name in path:
        text = section(text, name)
    # The model's longest request is stated for all of it, or by the class of its type.
    return {
        **{name: config[name] for name in ("max_position_embeddings",) if name in config},
        **text,
    }


def _architecture(config: Config) -> str:
    names = strings(config, "architectures")
    if names is None:
        raise ModelConfigError("config.json names no class in architectures")
    return names[0].partition(" ")[0]


def text_class(config: Config) -> str:
    """Return the class whose rules the text layers of *config* follow.

    Raises:
        ModelConfigError: No class of that name is known, nor one for the text's ``model_type``.
    """
    named, text = _architecture(config), language_config(config)
    if named in PLUGIN_CLASSES:
        raise ModelConfigError(
            f"{named} is served by vLLM only with a plug-in, whose cache is not known here"
        )
    for candidate in _names_of(named):
        if candidate in _KNOWN_CLASSES:
            return candidate
    if text is not config or _flat(named):
        inner = strings(text, "architectures") or ()
        by_type = CLASS_OF_TYPE.get(str(text.get("model_type")))
        for inner_name in (*inner, by_type, *_flat(named)):
            if inner_name in _KNOWN_CLASSES:
                return str(inner_name)
    raise ModelConfigError(
        f"{named} is not a class whose cache is known here; architectures, layer_types, "
        "sliding_window, kv_lora_rank and the state sizes of its layers would settle it"
    )


def _flat(named: str) -> tuple[str, ...]:
    """Return the class a wrapper serves whose text fields lie at the top of the file."""
    if named in CLASS_OF_FLAT_WRAPPER:
        return (CLASS_OF_FLAT_WRAPPER[named],)
    stem = named.removesuffix("ForConditionalGeneration")
    return (f"{stem}ForCausalLM",) if stem != named else ()


def _names_of(named: str) -> tuple[str, ...]:
    """Return *named* and the generating class it is a draft or a pooling variant of."""
    names = [named]
    for mark in _DRAFT_MARKS:
        if mark in named:
            names.append(named.replace(mark, ""))
            break
    for suffix in _POOLING_SUFFIXES:
        if named.endswith(suffix):
            names.append(f"{named.removesuffix(suffix)}ForCausalLM")
            break
    return tuple(names)


def _is_bidirectional(named: str, config: Config, text: Config) -> bool:
    if named == "JinaEmbeddingsV5Model" and config.get("is_decoder") is False:
        return True
    return bool(text.get("use_bidirectional_attention")) or config.get("is_causal") is False


def _blocks(architecture: str, text: Config) -> tuple[Block, ...]:
    if architecture in STATE_CLASSES:
        if text.get("retrieval_attention_contract") == "bidirectional":
            raise ModelConfigError(
                "config.json: what is cached is not known where retrieval_attention_contract is "
                "bidirectional and layers keep states"
            )
        return recurrent_blocks(architecture, text)
    if architecture in LATENT_CLASSES:
        if architecture.startswith("LongcatFlash"):
            return longcat_blocks(text)
        return latent_blocks(text)
    if architecture in _OWN_READERS:
        return _OWN_READERS[architecture](text)
    facts = ATTENTION_CLASSES[architecture]
    if architecture in {"Gemma4ForCausalLM", "DiffusionGemmaForBlockDiffusion"}:
        return gemma4_blocks(text, facts)
    return own_caches(text, softmax_blocks(text, facts))


def _draft_blocks(architecture: str, text: Config, blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """Return what each module of the model's own draft head adds."""
    count = optional_whole(text, "num_nextn_predict_layers", "mtp_num_hidden_layers")
    count = 1 if count is None else count
    if count > _MOST_DRAFT_MODULES:
        raise ModelConfigError(f"config.json: {count} draft modules are not credible")
    own = own_draft_blocks(architecture, text, blocks, count)
    if own is not None:
        return own
    match architecture:
        case "DeepseekV4ForCausalLM":
            return (compressed_block(text, 1),) * count
        case "MiMoV2FlashForCausalLM" | "MiMoV2ForCausalLM" | "MiMoV2OmniForCausalLM":
            return (mimo2_sliding(text),)
        case "Qwen3NextForCausalLM" | "Qwen3_5ForCausalLM" | "Qwen3_5MoeForCausalLM":
            return (softmax_block(text),) * count
    if architecture in LATENT_CLASSES and optional_whole(text, "kv_lora_rank"):
        indexed = optional_whole(text, "index_topk") is not None
        return ((latent_layer(text, indexed=indexed),),) * count
    full = next((block for block in blocks if _is_full(block)), None)
    return (full,) * count if full else ()


def _is_full(block: Block) -> bool:
    return any(
        isinstance(layer, LatentLayer)
        or (isinstance(layer, AttentionLayer) and not layer.window and not layer.chunk)
        for layer in block
    ) and not any(isinstance(layer, StateLayer) for layer in block)


def _packs_pages(layer: Layer) -> bool:
    """Return whether the kernels of *layer* read pages of several sizes side by side."""
    if isinstance(layer, LatentLayer):
        return layer.compressed or layer.stored_dim > 0
    return isinstance(layer, RingLayer | SourceLayer)


def _traits(config: Config, text: Config, blocks: tuple[Block, ...]) -> KernelTraits:
    attention = {
        layer for block in set(blocks) for layer in block if isinstance(layer, AttentionLayer)
    }
    latent = any(isinstance(layer, LatentLayer) for block in set(blocks) for layer in block)
    dims = {layer.head_dim for layer in attention}
    first_heads = max((layer.kv_heads for layer in attention), default=0)
    return KernelTraits(
        query_heads=optional_whole(text, "num_attention_heads", "n_head", "num_heads") or 0,
        kv_heads=first_heads,
        head_dim=max(dims, default=0),
        nope_dim=optional_whole(text, "qk_nope_head_dim") if latent else None,
        value_dim=optional_whole(text, "v_head_dim") if latent else None,
        index_topk=optional_whole(text, "index_topk"),
        image_prefix=str(config.get("model_type")) in _IMAGE_PREFIX_TYPES,
        mixed_head_dims=len(dims) > 1,
        looks_ahead=_architecture(config) == "DiffusionGemmaForBlockDiffusion",
        looks_back=_architecture(config) == "Rnj1ForCausalLM",
    )


def _dtype(config: Config) -> str | None:
    value = config.get("torch_dtype") or config.get("dtype")
    return value.removeprefix("torch.") if isinstance(value, str) else None


def _prescribed_kv_dtype(config: Config) -> str | None:
    """Return the cache's dtype that a quantized checkpoint was calibrated for."""
    quantization = section(config, "quantization_config")
    inner = section(quantization, "quantization") or quantization
    method = str(quantization.get("quant_method", "")).lower()
    algorithm = inner.get("kv_cache_quant_algo")
    if isinstance(algorithm, str):
        return {"FP8": "fp8_e4m3", "NVFP4": "nvfp4"}.get(algorithm.upper())
    scheme = inner.get("kv_cache_scheme")
    if isinstance(scheme, str):
        return {"FP8": "fp8_e4m3", "NVFP4": "nvfp4"}.get(scheme.upper())
    if not isinstance(scheme, Mapping) or not scheme:
        return None
    if "modelopt" not in method:
        return "fp8"
    return "fp8_e4m3" if scheme.get("num_bits") == 8 else "nvfp4"  # noqa: PLR2004
