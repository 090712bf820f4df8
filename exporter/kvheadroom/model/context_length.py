"""How long a request a config.json allows, and how long vLLM allows when nobody says."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvheadroom.errors import ModelConfigError
from kvheadroom.model.fields import Config, section

# What vLLM assumes of a model whose config names no length.
UNSAID_TOKENS: Final = 2048

_LENGTH_FIELDS: Final = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
# Scalings whose factor the length field already includes …
_SCALED_ALREADY: Final = frozenset({"longrope", "llama3"})
# … and those that vLLM takes so since 0.32 (pull request 56446).
_SCALED_ALREADY_YARN: Final = frozenset({"yarn", "deepseek_yarn", "deepseek_llama_scaling"})

# Length that the config class of a model type (transformers' or vLLM's own) assumes when
# config.json omits it.
_CLASS_TOKENS: Final[Mapping[int, str]] = {
    448: "whisper",
    512: "bert ernie roberta xlm-roberta",
    1024: "bart cohere_asr florence2 gpt2 gpt_bigcode mbart",
    2048: """aria aria_text blip-2 dbrx deepseek_ocr2 deepseek_v2 deepseek_vl dots1 exaone4
        exaone4_5 exaone_moe falcon gpt_neo gpt_neox gptj granite granite4_vision granite_speech
        granitemoe granitemoe_swa granitemoehybrid granitemoeshared hunyuan_vl hunyuan_vl_text
        hyperclovax idefics3 llama llava llava_next llava_next_video mpt nomic_bert olmo olmo2
        olmo3 opt phi smolvlm""",
    4096: """arcee chameleon deepseek_v3 deepseek_v32 flex_olmo kimi_k25 kimi_linear nemotron
        nemotron_h olmoe phi3 stablelm starcoder2 zamba zamba2""",
    8192: """aya_vision cohere cohere2 cohere2_moe cohere2_vision falcon_h1 gemma gemma2 granite_swa
        gte modernbert paligemma""",
    16384: "afmoe fuyu persimmon",
    32768: """axk1 gemma3n gemma3n_text glm4v glm4v_text internvl llava_onevision minicpm3 ovis2
        qwen2 qwen2_5_omni qwen2_5_omni_text qwen2_5_vl qwen2_5_vl_text qwen2_audio qwen2_moe
        qwen2_vl qwen2_vl_text qwen3 qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen3_moe
        qwen3_next qwen3_omni_moe qwen3_omni_moe_text qwen4_exp qwen4_exp_text smollm3""",
    40960: "lighton_ocr",
    65536: "apertus glm4v_moe glm4v_moe_text olmo_hybrid qwen3_asr step3_text",
    128000: """lfm2 lfm2_moe lfm2_vl qwen3_vl qwen3_vl_moe qwen3_vl_moe_text qwen3_vl_text step3p5
        step3p7""",
    131072: """cwm diffusion_gemma diffusion_gemma_text ernie4_5 ernie4_5_moe ernie4_5_vl_moe
        ernie4_5_vl_moe_text gemma3 gemma3_text gemma4 gemma4_text glm glm4 glm4_moe glm_ocr gpt_oss
        hy_v3 laguna llama4 llama4_text longcat_flash mellum mimo_v2_flash minimax ministral mistral
        mistral3 mixtral mllama muse_glimmer phi4_multimodal phimoe voxtral""",
    196608: "minimax_m2",
    202752: "glm4_moe_lite glm_moe_dsa",
    262144: "bamba embedding_gemma2 gemma4_unified hy_v4 jamba ministral3",
    524288: "seed_oss",
    1048576: "deepseek_v4 glm5_next",
}
_TOKENS_OF_TYPE: Final = {
    model_type: tokens for tokens, types in _CLASS_TOKENS.items() for model_type in types.split()
}


@dataclass(frozen=True, slots=True)
class ContextLength:
    """Lengths a config.json allows, in tokens.

    Attributes:
        default: What vLLM serves when ``--max-model-len`` is not given.
        largest: The most that may be asked for; ``None`` where the config sets no bound.
        declared: What ``model_max_length`` allows beyond that; ``None`` when absent.
    """

    default: int
    largest: int | None
    declared: int | None


def read_context_length(text: Config, *, model_type: str, before_0_32: bool) -> ContextLength:
    """Return the context lengths that the text model's config *text* allows.

    Args:
        text: The language model's part of config.json.
        model_type: ``model_type`` of that part.
        before_0_32: Apply a yarn factor to the original length, as earlier versions did.

    Raises:
        ModelConfigError: A length is not a number.

    Source:
        vLLM 0.32, the model configuration's check of the maximum length.
    """
    declared = _length(text, "model_max_length")
    bounds = [tokens for name in _LENGTH_FIELDS if (tokens := _length(text, name)) is not None]
    unscaled = declared or (min(bounds) if bounds else _TOKENS_OF_TYPE.get(model_type))
    rope = tuple(rope_parameters(text))
    largest = unscaled or UNSAID_TOKENS
    if "gemma3" not in model_type:
        # A Gemma 3 length includes its scaling, whatever the kind.
        largest = int(_scaled(largest, rope, before_0_32=before_0_32))
    if unscaled is None:
        return ContextLength(largest, None, declared)
    default = largest
    if any(_rope_type(one) == "longrope" for one in rope):
        # vLLM keeps short prompts fast unless asked for the long ones.
        default = _length(text, "original_max_position_embeddings") or largest
    return ContextLength(default, largest, declared)


def rope_parameters(text: Config) -> Iterator[Config]:
    """Yield the rope parameters in *text*, one mapping per kind of layer where they differ."""
    given = section(text, "rope_parameters") or section(text, "rope_scaling")
    nested = [value for value in given.values() if isinstance(value, Mapping)]
    if nested:
        yield from (value for value in nested if value)
    elif given:
        yield given


def _rope_type(rope: Config) -> str:
    kind = rope.get("rope_type", rope.get("type", "default"))
    return {"su": "longrope", "mrope": "default"}.get(str(kind), str(kind))


def _scaled(tokens: int, ropes: tuple[Config, ...], *, before_0_32: bool) -> float:
    factor: Any = 1.0
    for rope in ropes:
        kind = _rope_type(rope)
        if kind in _SCALED_ALREADY or (kind in _SCALED_ALREADY_YARN and not before_0_32):
            continue
        factor = rope.get("factor", factor)
        if kind == "yarn":
            original = rope.get("original_max_position_embeddings")
            tokens = original if isinstance(original, int) else tokens
    if factor is None:
        factor = 1.0
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < 1e6:  # noqa: PLR2004
        raise ModelConfigError("config.json: the rope scaling's factor must be a number above 0")
    return tokens * factor


def _length(text: Config, name: str) -> int | None:
    value = text.get(name)
    if value is None or value == 0:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:  # noqa: PLR2004
        raise ModelConfigError(f"config.json: {name} must be a number of tokens")
    return int(value)
