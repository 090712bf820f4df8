import pytest
from tests.unit.oracle import config_at

from kvheadroom.engine.defaults import resolve_options
from kvheadroom.engine.flags import parse_serve_command
from kvheadroom.engine.options import Device
from kvheadroom.errors import ConfigError, ModelConfigError
from kvheadroom.model.context_length import read_context_length
from kvheadroom.model.facts import read_facts


@pytest.mark.parametrize(
    ("model", "words", "reason"),
    [
        ("qwen3-8b", "--max-model-len 41k", "40960"),
        ("qwen3-8b", "-tp 5", "32 attention heads"),
        ("qwen3-8b", "--max-num-seqs 4096 --max-num-batched-tokens 2048", "below"),
        ("qwen3-8b", "--no-enable-chunked-prefill --max-num-batched-tokens 2048", "not chunked"),
        ("qwen3-8b", "--gpu-memory-utilization 1.5", "at most 1"),
        ("qwen3-8b", "--max-model-len 0", "above 0"),
        ("qwen3-8b", "--dtype int8", "--dtype"),
        ("gemma-2-9b", "--dtype half", "unstable"),
        ("qwen3-8b", "-tp 4 -dcp 2", "key-value heads"),
        ("qwen3-8b", "-tp 2 -dcp 4", "does not divide"),
        ("bge-m3", "--runner generate", "does not generate"),
        ("qwen3-8b", "--speculative-config.model d", "num_speculative_tokens"),
        ("falcon-h1-3b", "--mamba-cache-mode all", "gone"),
        ("falcon-h1-3b", "--no-enable-prefix-caching --mamba-block-size 64", "prefix-caching"),
        ("qwen3-8b", "--block-size 0", "above 0"),
    ],
)
def test_what_vllm_refuses_is_refused_in_one_line(model: str, words: str, reason: str) -> None:
    """Settings vLLM 0.32 stops at are an error that says which and why."""
    command = parse_serve_command(f"vllm serve m {words}")

    with pytest.raises(ConfigError, match=reason) as caught:
        resolve_options(
            command,
            read_facts(config_at(f"configs/{model}.json")),
            version=(0, 32, 0),
            device=Device(85_029_158_912, (9, 0)),
        )

    assert "\n" not in str(caught.value)


def test_the_environment_may_allow_a_longer_context() -> None:
    """``VLLM_ALLOW_LONG_MAX_MODEL_LEN=1`` lifts the model's bound."""
    command = parse_serve_command(
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 vllm serve m --max-model-len 100k"
    )

    options = resolve_options(
        command, read_facts(config_at("configs/qwen3-8b.json")), version=(0, 32, 0), device=Device()
    )

    assert options.max_model_len == 100_000


@pytest.mark.parametrize(
    ("text", "model_type", "before", "default", "largest"),
    [
        ({"max_position_embeddings": 4096}, "llama", False, 4096, 4096),
        ({"n_positions": 1024, "n_ctx": 2048}, "gpt2", False, 1024, 1024),
        ({}, "falcon", False, 2048, 2048),
        ({}, "gemma3_text", False, 131072, 131072),
        ({}, "unheard_of", False, 2048, None),
        ({"max_position_embeddings": 8192, "model_max_length": 131072}, "cohere", False,
         131072, 131072),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 4.0}},
         "llama", False, 16384, 16384),
        ({"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "llama3", "factor": 8}},
         "llama", False, 4096, 4096),
        ({"max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
          "rope_scaling": {"type": "su", "long_factor": [1.0]}}, "phi3", False, 4096, 131072),
        ({"max_position_embeddings": 32768, "rope_scaling":
          {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
         "qwen2", True, 131072, 131072),
        ({"max_position_embeddings": 32768, "rope_scaling":
          {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
         "qwen2", False, 32768, 32768),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "linear", "factor": 8}},
         "gemma3_text", False, 131072, 131072),
    ],
)  # fmt: skip
def test_context_lengths(
    text: dict[str, object], model_type: str, before: bool, default: int, largest: int | None
) -> None:
    """A length is scaled by the kinds of rope scaling that extend it, and by no others.

    Source: vLLM 0.32's check of the maximum length; pull request 56446 for yarn.
    """
    length = read_context_length(text, model_type=model_type, before_0_32=before)

    assert (length.default, length.largest) == (default, largest)


@pytest.mark.parametrize("broken", ["long", -1, True, [1]])
def test_a_length_that_is_no_number_is_an_error(broken: object) -> None:
    """A config that gives something else for a length is refused."""
    with pytest.raises(ModelConfigError, match="max_position_embeddings"):
        read_context_length(
            {"max_position_embeddings": broken}, model_type="llama", before_0_32=False
        )
