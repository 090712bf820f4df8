from collections import Counter
from contextlib import suppress

import pytest
from tests.unit.oracle import config_at

from kvheadroom.errors import ModelConfigError
from kvheadroom.model.config import read_model
from kvheadroom.model.layers import AttentionLayer, CrossAttentionLayer, LatentLayer, StateLayer


def config(name: str, **changes: object) -> dict[str, object]:
    return {**config_at(f"configs/{name}.json"), **changes}


def test_an_unknown_class_is_named_and_not_guessed() -> None:
    """The error names the class and fields that would settle what it caches."""
    with pytest.raises(ModelConfigError, match=r"BrandNewForCausalLM.*layer_types"):
        read_model(config("qwen3-8b", architectures=["BrandNewForCausalLM"]))


@pytest.mark.parametrize("architectures", [None, [], "LlamaForCausalLM", [1]])
def test_a_config_without_a_class_is_refused(architectures: object) -> None:
    """``architectures`` must be a list of names."""
    with pytest.raises(ModelConfigError):
        read_model(config("llama-3.1-8b", architectures=architectures))


@pytest.mark.parametrize("value", [None, -1, 0, 1.5, True, "32", 10**12])
def test_a_senseless_number_is_refused(value: object) -> None:
    """The number of layers must be a whole number above zero."""
    with pytest.raises(ModelConfigError):
        read_model(config("llama-3.1-8b", num_hidden_layers=value))


def test_a_nested_text_config_is_read_with_its_class_defaults() -> None:
    """Gemma 3 4B omits heads that its class defaults to: 8 query, 4 key-value, 256 wide."""
    model = read_model(config("gemma-3-4b"))

    assert {layer for block in model.blocks for layer in block} == {
        AttentionLayer(4, 256, 256, window=1024),
        AttentionLayer(4, 256, 256),
    }


def test_a_wrapper_is_known_by_the_type_of_its_text() -> None:
    """A multi-modal class never heard of serves the language model inside it."""
    text = config_at("configs/qwen3-8b.json")
    model = read_model({"architectures": ["SomeVLForConditionalGeneration"], "text_config": text})

    assert model.blocks == read_model(text).blocks


def test_a_thinker_is_looked_into() -> None:
    """Omni models keep the language model in ``thinker_config.text_config``."""
    text = config_at("configs/qwen3-30b-a3b.json")
    model = read_model(
        {
            "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
            "thinker_config": {"text_config": text},
        }
    )

    assert model.blocks == read_model(text).blocks


@pytest.mark.parametrize(
    ("name", "windows"),
    # vLLM's groups of each model: layers with a window, and with none.
    [
        ("gemma-2-9b", {4096: 21, None: 21}),
        ("gemma-3-27b", {1024: 52, None: 10}),
        ("command-a", {4097: 48, None: 16}),
        ("gpt-oss-120b", {128: 18, None: 18}),
        ("olmo-3-7b", {4096: 24, None: 8}),
        ("phi-3-mini-4k", {2047: 32}),
        ("mistral-nemo-12b", {None: 40}),
        ("qwen2.5-72b", {None: 80}),
    ],
)
def test_windows_follow_the_class_or_the_fields(name: str, windows: dict[int | None, int]) -> None:
    """Each layer has the window that vLLM gives it."""
    model = read_model(config(name))

    found = Counter(
        layer.window
        for block in model.blocks
        for layer in block
        if isinstance(layer, AttentionLayer)
    )
    assert found == windows


def test_the_default_pattern_stands_in_for_layer_types() -> None:
    """Without ``layer_types`` the last of every six Gemma 3 layers sees everything."""
    given = config("gemma-3-27b-text")
    given.pop("layer_types", None)
    model = read_model(given)

    full = [
        index
        for index, block in enumerate(model.blocks)
        if isinstance(block[0], AttentionLayer) and block[0].window is None
    ]
    assert full == list(range(5, 62, 6))


def test_latent_attention_is_known_by_its_fields() -> None:
    """DeepSeek-V2 without ``kv_lora_rank`` caches ordinary heads."""
    latent = read_model(config("deepseek-v2.5"))
    plain = read_model(config("deepseek-v2.5", kv_lora_rank=None))

    assert isinstance(latent.blocks[0][0], LatentLayer)
    assert isinstance(plain.blocks[0][0], AttentionLayer)


def test_shared_layers_keep_nothing() -> None:
    """The last 15 of 35 layers of Gemma 3n read the caches of earlier ones."""
    model = read_model(config("gemma-3n-e4b-text"))

    assert [bool(block) for block in model.blocks] == [True] * 20 + [False] * 15


def test_both_halves_of_a_parallel_hybrid_are_kept() -> None:
    """Every Falcon-H1 layer caches attention and a state."""
    model = read_model(config("falcon-h1-3b"))

    assert {tuple(type(layer) for layer in block) for block in model.blocks} == {
        (AttentionLayer, StateLayer)
    }


def test_a_decoder_of_speech_also_caches_the_encoder() -> None:
    """Every Whisper decoder layer has a second cache for the encoder's output."""
    model = read_model(config("whisper-large-v3"))

    assert model.blocks[0] == (AttentionLayer(20, 64, 64), CrossAttentionLayer(20, 64))


@pytest.mark.parametrize("name", ["bge-m3", "modernbert-base", "embeddinggemma-300m"])
def test_an_encoder_caches_nothing(name: str) -> None:
    """What sees the whole text at once keeps nothing between tokens."""
    model = read_model(config(name))

    assert model.is_encoder
    assert model.blocks == ()


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}, "fp8_e4m3"),
        ({"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "NVFP4"}}, "nvfp4"),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8}}, "fp8"),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": None}, None),
        ({"quant_method": "awq", "bits": 4}, None),
    ],
)
def test_a_checkpoint_may_prescribe_its_cache(
    quantization: dict[str, object], expected: str | None
) -> None:
    """``auto`` means what the checkpoint was calibrated for."""
    model = read_model(config("llama-3.1-8b", quantization_config=quantization))

    assert model.prescribed_kv_dtype == expected


def test_a_pooling_variant_is_read_like_the_model_it_pools() -> None:
    """A reranker on Qwen3 has Qwen3's layers."""
    base = read_model(config("qwen3-4b"))
    pooled = read_model(config("qwen3-4b", architectures=["Qwen3ForSequenceClassification"]))

    assert pooled.blocks == base.blocks


FAMILIES = (
    *("llama-3.1-8b", "gemma-3-27b", "gemma-4-e2b-text", "llama-4-maverick-text", "mimo-v2-flash"),
    *("deepseek-v3.2", "deepseek-v4-flash", "kimi-linear-48b-a3b", "qwen3.5-9b", "falcon-h1-3b"),
    *("zamba2-2.7b", "nemotron-h-8b", "lfm2-1.2b", "jamba-1.5-large", "whisper-large-v3"),
)


@pytest.mark.parametrize(
    "value", [None, True, -1, 1.5, 10**12, "x", [], ["x"], [7], {}, {"x": 1}], ids=repr
)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_hostile_field_is_read_or_refused(name: str, value: object) -> None:
    """Whatever one field holds, the model is read or the config is refused, and nothing else."""
    given = config(name)
    text = given.get("text_config")
    for field in text if isinstance(text, dict) else given:
        nested = {**given, "text_config": {**text, field: value}} if isinstance(text, dict) else {}
        changed = nested or {**given, field: value}
        with suppress(ModelConfigError):
            read_model(changed)
