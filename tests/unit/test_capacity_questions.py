import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.unit.oracle import config_at

from kvheadroom.errors import ConfigError
from kvheadroom.node.model_files import read_config
from kvheadroom.plan.batch import answer, answer_lines
from kvheadroom.plan.explain_log import explain_file

CONFIG = dict(config_at("configs/llama-3.1-8b.json"))
LLAMA = {
    "id": 7,
    "config": CONFIG,
    "args": ["--max-model-len", "8192"],
    "available_bytes": 2 * 2**30,
    "gpu": {"total_bytes": 85_029_158_912, "compute_capability": "9.0"},
}
BLOCK = 2 * 2**20


def ask(**changed: Any) -> dict[str, Any]:  # noqa: ANN401  (JSON values)
    return answer(json.dumps({**LLAMA, **changed}))


def test_overrides_of_the_config_are_applied() -> None:
    """Half the layers take half the bytes of a block: 32 layers of 64 KiB, then 16."""
    found = ask(args="vllm serve m --max-model-len 8K --hf-overrides.num_hidden_layers 16")

    assert ask()["bytes_per_block"] == [BLOCK]
    assert found["bytes_per_block"] == [BLOCK // 2]


def test_an_unknown_option_is_a_warning() -> None:
    """A mistyped option does not stop the answer, and does not stay unseen."""
    found = ask(args="vllm serve m --max-model-len 8K --kv-cache-dytpe fp8")

    assert found["error"] is None
    assert found["warnings"] == ["unknown option --kv-cache-dytpe; did you mean --kv-cache-dtype?"]
    assert ask()["warnings"] == []


def test_the_images_tag_is_the_version_where_none_is_given() -> None:
    """Up to 0.19 the size in tokens is whole blocks; later it is requests times their length."""
    run = "docker run vllm/vllm-openai:v0.8.5 --model m --max-model-len 8K"
    odd = 2**31 + 5 * BLOCK

    by_tag = ask(args=run, available_bytes=odd)
    by_field = ask(args=run, available_bytes=odd, vllm_version="0.32.0")

    assert by_tag == ask(available_bytes=odd, vllm_version="0.8.5")
    assert by_field == ask(available_bytes=odd)


@pytest.mark.parametrize("given", [[2**31, 2**31 + 1, 2**30, 2**31], [2**31, 2**30]])
def test_engines_alike_count_as_their_poorest(given: list[int]) -> None:
    """Two engines of two ranks may be given by rank; the least memory binds."""
    args = "--max-model-len 8192 -tp 2 -dp 2"

    assert ask(args=args, available_bytes=given) == ask(args=args, available_bytes=2**30)


def test_a_wrong_number_of_figures_is_named() -> None:
    """Three figures for two ranks are an error that names both numbers."""
    error = ask(args="--max-model-len 8192 -tp 2", available_bytes=[2**30] * 3)["error"]

    assert error["kind"] == "config"
    assert "3 figures" in error["message"]
    assert "2 ranks" in error["message"]


def test_unknown_weights_are_explained() -> None:
    """Where the weights are not known a warning says why."""
    speculation = '{"method": "mtp", "num_speculative_tokens": 1}'
    found = answer(
        json.dumps(
            {
                **LLAMA,
                "config": config_at("configs/deepseek-v3.2.json"),
                "args": ["-tp", "8", "--speculative-config", speculation],
                "available_bytes": 60 * 2**30,
            }
        )
    )

    assert found["weights_bytes"] is None
    assert [line for line in found["warnings"] if line.startswith("weights_bytes: ")]


@pytest.mark.parametrize("identity", ["NaN", "Infinity", "-Infinity", "1e999", "[1e999]"])
def test_every_answer_is_json(identity: str) -> None:
    """An id that JSON cannot hold comes back as text or null."""
    line = json.dumps({**LLAMA, "id": 0}).replace('"id": 0', f'"id": {identity}')

    def refuse(name: str) -> None:
        pytest.fail(f"{name} is no JSON")

    (text,) = answer_lines([line])

    assert json.loads(text, parse_constant=refuse)["num_blocks"] == 1024


def test_a_byte_order_mark_is_passed_over() -> None:
    """The first line of a file that begins with a mark is read all the same."""
    assert answer("\ufeff" + json.dumps(LLAMA)) == ask()


@pytest.mark.parametrize("given", ["9.0", 9.0, [9, 0], 90, "90", "sm_90", 9], ids=repr)
def test_a_compute_capability_is_read_as_people_write_it(given: object) -> None:
    """With a point, without one and as a list it is the same GPU."""
    found = ask(gpu={**LLAMA["gpu"], "compute_capability": given})  # type: ignore[dict-item]

    assert found == ask()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"gpu": {"total_bytes": 0}}, "gpu.total_bytes"),
        ({"gpu": {"total_bytes": -1}}, "gpu.total_bytes"),
        ({"gpu": {"compute_capability": "Hopper"}}, "gpu.compute_capability"),
        ({"available_bytes": 2**64}, "more than 2^60"),
        ({"available_bytes": 1.5}, "whole number"),
        ({"args": "--max-model-len auto", "vllm_version": "0.13.0"}, "0.14.0"),
        ({"config": None, "path": "/dev/zero"}, "not a regular file"),
    ],
)
def test_what_cannot_be_is_a_config_error(changed: Mapping[str, Any], told: str) -> None:
    """A figure no GPU has, or a file that never ends, is refused in words that say so."""
    error = ask(**changed)["error"]

    assert error["kind"] == "config"
    assert told in error["message"]


@pytest.mark.parametrize(("version", "age"), [("0.7.3", "older"), ("0.40.0", "newer")])
def test_a_version_without_known_rules_is_told(version: str, age: str) -> None:
    """Before 0.8 and after 0.33 there is an answer, and a warning beside it."""
    found = ask(vllm_version=version)

    assert found["num_blocks"] == 1024
    assert [line for line in found["warnings"] if age in line and version in line]


@pytest.mark.parametrize("have", [-(2**30), 0, BLOCK])
def test_a_refusal_for_want_of_memory_tells_what_there_was(have: int) -> None:
    """The figure is what was given, not that less the block which serves no request."""
    error = ask(available_bytes=have)["error"]

    assert error["kind"] == "no_cache_memory"
    assert error["available_bytes"] == have


def test_a_file_of_arguments_is_read_where_a_reader_is_at_hand(tmp_path: Path) -> None:
    """``--config FILE`` counts, and a file that is not there is an error."""
    file = tmp_path / "serve.yaml"
    file.write_text("")

    def read(name: str) -> Mapping[str, Any]:
        assert name == str(file)
        return {"max-model-len": 8192}

    line = json.dumps({**LLAMA, "args": f"vllm serve m --config {file}"})
    absent = json.dumps({**LLAMA, "args": "vllm serve m --config /no/such.yaml"})

    assert answer(line, read_yaml=read) == ask()
    assert answer(line)["error"]["kind"] == "config"
    assert answer(absent, read_yaml=read)["error"]["kind"] == "config"


def test_a_pipe_is_no_file_to_read(tmp_path: Path) -> None:
    """A named pipe without a writer is refused at once, as a config and as a log."""
    pipe = tmp_path / "config.json"
    os.mkfifo(pipe)

    with pytest.raises(ConfigError, match="not a regular file"):
        read_config(pipe)
    with pytest.raises(ConfigError, match="not a regular file"):
        explain_file(str(pipe))


def test_a_config_is_no_file_of_megabytes(tmp_path: Path) -> None:
    """More than 4 MiB is something else, and not read."""
    file = tmp_path / "config.json"
    file.write_bytes(b" " * (4 * 2**20) + b"{}")

    with pytest.raises(ConfigError, match="too large"):
        read_config(file)


@pytest.mark.parametrize("model", ["llama-3.1-405b", "granite-4.0-h-small"])
def test_ten_thousand_different_questions_take_seconds(model: str) -> None:
    """10,000 lengths and memories of one model take at most 3 s of CPU."""
    config = config_at(f"configs/{model}.json")
    lines = [
        json.dumps(
            {
                **LLAMA,
                "config": config,
                "args": ["--max-model-len", str(2000 + number)],
                "available_bytes": 40 * 2**30 + number * 4096,
            }
        )
        for number in range(10_000)
    ]

    began = time.process_time()
    count = sum(1 for _ in answer_lines(lines))

    assert count == 10_000
    assert time.process_time() - began <= 3


def test_a_saved_answer_of_the_hub_settles_weights_that_are_not_known(tmp_path: Path) -> None:
    """8,030,261,248 parameters in 16 bits over two ranks; by path, as an object, or not at all."""
    answer = {"safetensors": {"parameters": {"BF16": 8_030_261_248}}}
    (tmp_path / "hub.json").write_text(json.dumps(answer))
    question = {
        "config": {**CONFIG, "quantization_config": {"quant_method": "never-heard-of"}},
        "args": "--max-model-len 8K -tp 2",
    }

    for given in (answer, str(tmp_path / "hub.json")):
        assert ask(**question, weights_from=given)["weights_bytes"] == [8_030_261_248]
    assert ask(**question)["weights_bytes"] is None


@pytest.mark.parametrize("given", [7, "", [], {}, {"safetensors": None}, "nowhere.json"])
def test_weights_from_nothing_are_an_error_of_their_line(given: object) -> None:
    """What tells no bytes is named, not passed over."""
    error = ask(weights_from=given)["error"]

    assert error["kind"] in ("config", "model_config")
