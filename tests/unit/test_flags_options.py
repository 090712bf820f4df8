from collections.abc import Mapping
from typing import Any

import pytest

from kvheadroom.engine.flags import STRAY_WORD, parse_serve_command
from kvheadroom.engine.option_names import CURRENT_OPTIONS, SHORT_FORMS
from kvheadroom.errors import ConfigError


def options(words: str) -> Mapping[str, Any]:
    return parse_serve_command(f"vllm serve org/model {words}").options


def test_a_unique_prefix_is_the_option() -> None:
    """vLLM itself suggests ``--kv-cache-memory``, a prefix of the real name."""
    assert options("--kv-cache-memory=7G") == {"kv-cache-memory-bytes": 7 * 2**30}


def test_a_shared_prefix_is_refused_with_the_candidates() -> None:
    """An ambiguous prefix is an error that names what it may mean."""
    with pytest.raises(ConfigError, match=r"--max-num-batched-tokens.*--max-num-seqs"):
        options("--max-num 4")


def test_underscores_and_dashes_are_one() -> None:
    """``--max_model_len`` is ``--max-model-len``."""
    assert options("--max_model_len 4096") == {"max-model-len": 4096}


def test_the_last_one_wins() -> None:
    """An option given twice has its second value."""
    assert options("--max-model-len 1k --max-model-len=2k") == {"max-model-len": 2000}


def test_dotted_options_build_one_object_and_lists_grow() -> None:
    """Keys given one by one are laid into one JSON object."""
    given = options(
        "--speculative-config.method mtp --speculative-config.num_speculative_tokens=2 "
        "-cc.cudagraph_mode=NONE -cc.custom_ops+ a,b -cc.custom_ops+=c"
    )

    assert given["speculative-config"] == {"method": "mtp", "num_speculative_tokens": 2}
    assert given["compilation-config"] == {"cudagraph_mode": "NONE", "custom_ops": ["a", "b", "c"]}


def test_a_negative_number_is_a_value() -> None:
    """``-1`` after an option is its value, not another option."""
    assert options("--max-model-len -1") == {"max-model-len": -1}


def test_a_switch_has_a_twin_that_turns_it_off() -> None:
    """``--no-enable-prefix-caching`` is the same option, off."""
    assert options("--no-enable-prefix-caching") == {"enable-prefix-caching": False}


def test_an_option_of_a_newer_version_is_reported_and_skipped() -> None:
    """An unknown option takes its value with it, and its name is kept."""
    command = parse_serve_command("vllm serve org/model --octave-mode k3v4 --max-num-seqs 8")

    assert command.unknown == ("--octave-mode",)
    assert command.options == {"max-num-seqs": 8}
    assert command.model == "org/model"


def test_an_option_of_an_older_version_is_still_read() -> None:
    """``--swap-space`` is gone from vLLM and people's scripts have it all the same."""
    command = parse_serve_command("vllm serve m --swap-space 4 --disable-log-requests")

    assert command.options == {"swap-space": 4.0, "disable-log-requests": True}
    assert not command.unknown


@pytest.mark.parametrize(
    "words", ["--max-model-len", "--served-model-name", "--max-model-len --enforce-eager"]
)
def test_a_missing_value_is_refused(words: str) -> None:
    """An option without its value is an error that names it."""
    with pytest.raises(ConfigError, match="needs a value"):
        options(words)


def test_served_names_and_port_are_set_apart() -> None:
    """Names clients use may be several; the port is a number."""
    command = parse_serve_command("vllm serve m --served-model-name a b --port 9000")

    assert command.served_names == ("a", "b")
    assert command.port == 9000


def test_a_word_too_many_is_reported_without_its_text() -> None:
    """A stray word may be a secret, so only its presence is told."""
    command = parse_serve_command(["serve", "m", "sk-stray"])

    assert command.unknown == (STRAY_WORD,)


def test_the_model_may_be_an_option_or_come_late() -> None:
    """The old server takes ``--model``; a positional model may follow options."""
    assert parse_serve_command(["--model", "a/b", "-tp", "2"]).model == "a/b"
    assert parse_serve_command(["serve", "-tp", "2", "a/b"]).model == "a/b"


def test_yaml_options_come_before_the_command_lines() -> None:
    """Options of ``--config`` are overruled by those typed, and maps become JSON."""
    content = {
        "model": "from/yaml",
        "max-model-len": "16K",
        "tensor_parallel_size": 2,
        "enforce-eager": True,
        "enable-prefix-caching": False,
        "served-model-name": ["x", "y"],
        "speculative-config": {"method": "ngram", "num_speculative_tokens": 2},
    }

    command = parse_serve_command(
        "vllm serve --config serve.yaml --max-model-len 8K", read_config=lambda _: content
    )

    assert command.model == "from/yaml"
    assert command.served_names == ("x", "y")
    assert command.options == {
        "max-model-len": 8192,
        "tensor-parallel-size": 2,
        "enforce-eager": True,
        "enable-prefix-caching": False,
        "speculative-config": {"method": "ngram", "num_speculative_tokens": 2},
    }


def test_a_config_file_that_is_not_at_hand_is_an_error() -> None:
    """Settings that cannot be read are not taken for defaults."""
    with pytest.raises(ConfigError, match="--config"):
        parse_serve_command("vllm serve m --config serve.yaml")


def test_the_list_of_options_is_whole() -> None:
    """vLLM 0.32's parser of ``vllm serve`` has 316 options, 23 of them with a short form.

    Source: that parser, counted by running it.
    """
    assert len(CURRENT_OPTIONS) == 316
    assert len(SHORT_FORMS) == 23
    assert set(SHORT_FORMS.values()) <= set(CURRENT_OPTIONS)
