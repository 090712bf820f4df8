"""``kvheadroom plan`` on what people type, judged by the worked cases."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kvheadroom.cli import main
from kvheadroom.errors import ConfigError, ModelConfigError
from kvheadroom.plan.gpus import find_gpu
from kvheadroom.units import GIB

LLM = (
    "vllm serve Qwen/Qwen3-8B-AWQ --gpu-memory-utilization 0.60 --max-model-len 8192 "
    "--kv-cache-dtype fp8"
)
EMBEDDER = (
    "vllm serve Qwen/Qwen3-Embedding-0.6B --runner pooling --convert embed "
    "--gpu-memory-utilization 0.16 --max-model-len 1024 --max-num-batched-tokens 1024"
)
RERANKER = (
    "vllm serve BAAI/bge-reranker-v2-m3 --runner pooling --gpu-memory-utilization 0.14 "
    "--max-model-len 1024 --max-num-batched-tokens 1024"
)
KNOWN = ("--non-torch", "0", "--cuda-graphs", "0", "--context-memory", "0.28GiB")
CASE_A = (
    *("--serve", LLM, "--serve", EMBEDDER, "--serve", RERANKER),
    *("--activation", "0.8GiB", "--activation", "0.5GiB", "--activation", "0.5GiB"),
    *KNOWN,
)
QWEN25_7B = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "hidden_size": 3584,
    "intermediate_size": 18944, "vocab_size": 152064, "max_position_embeddings": 32768,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "sliding_window": 131072,
    "use_sliding_window": False,
}  # fmt: skip


def planned(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["plan", "--json", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    record: dict[str, Any] = json.loads(result.output)
    return record


def refused(*arguments: str) -> str:
    with pytest.raises(ConfigError) as caught:
        CliRunner().invoke(
            main, ["plan", *arguments], standalone_mode=False, catch_exceptions=False
        )
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("position", "weights_gib", "left_gib"), [(0, 5.68, 0.72), (1, 1.11, 0.31), (2, 1.06, 0.12)]
)
def test_case_a_weights_and_what_is_left(
    position: int, weights_gib: float, left_gib: float
) -> None:
    """Three services on 12 GiB: the weights follow from the configs, the rest is subtraction."""
    service = planned("--gpu", "12GiB", *CASE_A)["services"][position]

    assert service["weights"]["bytes"] / GIB == pytest.approx(weights_gib, abs=0.006)
    assert service["remainder"]["bytes"] / GIB == pytest.approx(left_gib, abs=0.006)


def test_case_a_fits_with_a_margin() -> None:
    """0.36 GiB stay unallocated, and one full 8K request fits into the LLM's cache."""
    plan = planned("--gpu", "12GiB", *CASE_A)

    assert plan["fits"]
    assert plan["unallocated_bytes"] / GIB == pytest.approx(0.36, abs=0.01)
    assert plan["services"][0]["resident_requests"] == 1


def test_case_a_the_encoder_has_no_cache_and_is_not_refused() -> None:
    """Its remainder is margin: nothing happens where a decoder would refuse to start."""
    plan = planned("--gpu", "12GiB", "--serve", RERANKER, "--activation", "0.7GiB", *KNOWN)

    (service,) = plan["services"]
    assert not service["caches_kv"]
    assert service["error"] is None
    assert plan["fits"]


def test_case_a_fp16_cache_holds_half_the_length() -> None:
    """8K tokens in 16 bits are 1.125 GiB, more than the 0.72 there are; 4K fit."""
    plan = planned(
        "--gpu", "12GiB", "--serve", LLM.replace("--kv-cache-dtype fp8", ""),
        "--activation", "0.8GiB", *KNOWN,
    )  # fmt: skip

    error = plan["services"][0]["error"]
    assert error["kind"] == "request_does_not_fit"
    assert error["needed_bytes"] / GIB == 1.125
    assert 4096 <= error["estimated_max_model_len"] < 8192
    assert not plan["fits"]


def test_case_a_on_8_gib_even_the_weights_are_too_much() -> None:
    """0.60 x 8 GiB is 4.8 GiB, below 5.68 GiB of weights."""
    plan = planned("--gpu", "8GiB", "--serve", LLM, "--activation", "0.8GiB", *KNOWN)

    assert plan["services"][0]["error"]["kind"] == "no_cache_memory"


def test_case_b_two_of_four_requests_are_resident(tmp_path: Path) -> None:
    """24 GiB, utilization 0.9, weights 15, other 2: 4.6 GiB left, requests of 1.75 GiB."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(QWEN25_7B))
    arguments = (
        "--gpu", "24GiB", "--serve", "vllm serve Qwen/Qwen2.5-7B-Instruct --gpu-mem 0.9",
        "--model-config", str(config), "--weights", "15GiB", "--activation", "2GiB", *KNOWN,
        "--context", "32K", "--requests", "4",
    )  # fmt: skip

    (service,) = planned(*arguments)["services"]
    said = CliRunner().invoke(main, ["plan", *arguments]).output

    assert service["request_bytes"] / GIB == 1.75
    assert service["resident_requests"] == 2
    assert "2 of 4 requests" in said
    assert "2.40 GiB short" in said


def test_two_defaults_on_one_card_cannot_both_start() -> None:
    """0.92 is of the whole card, for each of them."""
    serve = ("--serve", "vllm serve Qwen/Qwen3-8B", "--serve", "vllm serve Qwen/Qwen3-4B")

    plan = planned("--gpu", "h100", *serve)

    assert plan["refused_at_start"] == ["Qwen3-4B"]
    assert not plan["fits"]


def test_estimates_say_that_they_are_and_from_what() -> None:
    """An unpinned activation is a range from a table, not a figure."""
    (service,) = planned("--gpu", "h100", "--serve", "vllm serve Qwen/Qwen3-8B")["services"]

    activation = service["activation"]
    assert activation["source"] == "table"
    assert activation["low_bytes"] < activation["bytes"] < activation["high_bytes"]


def test_an_earlier_start_replaces_the_estimates(tmp_path: Path) -> None:
    """A posted log: 15.27 GiB of weights and a peak of 1.40 GiB are what the plan reckons with."""
    log = tmp_path / "startup.log"
    log.write_text(
        "INFO 11-30 09:00:00 [core.py:1] Initializing a V1 LLM engine (v0.10.2) with config: "
        "model='Qwen/Qwen3-8B'\n"
        "INFO 11-30 09:01:00 [gpu_model_runner.py:1] Model loading took 15.2700 GiB and 9 seconds\n"
        "INFO 11-30 09:02:00 [gpu_worker.py:1] Free memory on device (78.6/79.19 GiB) on startup. "
        "Desired GPU memory utilization is (0.9, 71.27 GiB). Actual usage is 15.27 GiB for weight, "
        "1.4 GiB for peak activation, 0.02 GiB for non-torch memory, and 0.5 GiB for CUDAGraph "
        "memory. Current kv cache memory in use is 54.58 GiB.\n"
    )

    (service,) = planned(
        "--gpu", "h100", "--serve", "vllm serve Qwen/Qwen3-8B", "--startup-log", str(log)
    )["services"]

    for part, printed_gib in (("weights", 15.27), ("activation", 1.4), ("non_torch", 0.02)):
        assert service[part]["source"] == "log"
        assert service[part]["bytes"] / GIB == pytest.approx(printed_gib, abs=0.005)


def test_check_turns_the_verdict_into_an_exit_status() -> None:
    """For a pipeline: 1 when it does not fit."""
    command = ["plan", "--check", "--gpu", "8GiB", "--serve", LLM]

    assert CliRunner().invoke(main, command, standalone_mode=False).return_value == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--gpu", "12GiB"), "--serve"),
        (("--gpu", "twelve", "--serve", LLM), "no such GPU"),
        (("--gpu", "0GiB", "--serve", LLM), "more memory"),
        (("--gpu", "80", "--serve", LLM), "more memory"),
        (("--gpu", "12GiB", "--serve", "vllm serve no/such-model"), "no config.json"),
        (("--gpu", "12GiB", "--serve", LLM, "--activation", "much"), "amount of memory"),
        (("--gpu", "12GiB", "--serve", LLM, "--weights", "1", "--weights", "2"), "--weights"),
        (("--gpu", "12GiB", "--serve", LLM, "--vllm-version", "new"), "version"),
        (("--gpu", "12GiB", "--serve", LLM, "--model-config", "/nowhere"), "/nowhere"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], said: str) -> None:
    """It names what was given and what would do."""
    assert said in refused(*arguments)


def test_a_secret_in_a_serve_command_is_not_repeated() -> None:
    """The plan is pasted into tickets."""
    serve = LLM + " --api-key sk-never-shown"

    result = CliRunner().invoke(main, ["plan", "--gpu", "12GiB", "--serve", serve])

    assert "sk-never-shown" not in result.output


@pytest.mark.parametrize(
    ("text", "total"),
    [
        ("H100", 85_029_158_912),
        ("24GB", 24 * 10**9),
        ("NVIDIA H200", 143_156 * 2**20),
        ("A100-40GB", 42_298_834_944),
        ("a100/1g.10gb", 9728 * 2**20),
        ("H100-80GB/3g.40gb", 40_192 * 2**20),
        ("NVIDIA H200 MIG 1g.18gb", 16 * 2**30),
    ],
)
def test_a_gpu_is_named_or_measured(text: str, total: int) -> None:
    """What CUDA reports of the card or its slice, and decimal gigabytes as such.

    Source: public device properties and profile lists, named beside the presets.
    """
    assert find_gpu(text).total_bytes == total


def text_of(*arguments: str) -> str:
    return CliRunner().invoke(main, ["plan", *arguments], catch_exceptions=False).output


def test_an_order_for_more_blocks_than_there_is_memory_does_not_fit() -> None:
    """20,000 blocks of 2.25 MiB are 44 GiB; vLLM believes the flag and runs out of memory."""
    serve = "vllm serve Qwen/Qwen3-4B --max-model-len 4K --num-gpu-blocks-override 20000"

    plan = planned("--gpu", "12GiB", "--serve", serve, "--activation", "0.5GiB", *KNOWN)

    assert plan["verdict"] == "does not fit"
    assert plan["services"][0]["overrun_bytes"] > 30 * GIB


def test_an_estimate_that_straddles_the_edge_depends() -> None:
    """Without pins, case A's embedder may or may not have memory left for a cache."""
    plan = planned("--gpu", "12GiB", "--serve", EMBEDDER)

    remainder = plan["services"][0]["remainder"]
    assert remainder["low_bytes"] < 0 < remainder["high_bytes"]
    assert plan["verdict"] == "depends"


def test_a_share_that_cannot_exist_is_not_advised() -> None:
    """Case A on 8 GiB: no re-sharing saves it, and the text says what would."""
    said = text_of("--gpu", "8GiB", "--serve", LLM, "--activation", "2.4GiB", *KNOWN)

    assert "no share of this card is enough" in said
    assert "--gpu-memory-utilization 1" not in said


def test_requests_that_do_not_fit_fail_the_check() -> None:
    """Two of four resident: the server starts, and the question is still answered with no."""
    arguments = (
        "--gpu", "24GiB", "--serve", "vllm serve Qwen/Qwen3-8B --max-model-len 32K",
        "--activation", "1GiB", *KNOWN, "--context", "32K", "--requests", "99",
    )  # fmt: skip

    plan = planned(*arguments)

    assert plan["verdict"] == "fits"
    assert not plan["fits"]
    command = ["plan", "--check", *arguments]
    assert CliRunner().invoke(main, command, standalone_mode=False).return_value == 1


def test_max_num_seqs_bounds_the_residents() -> None:
    """Memory for more does not help a server that runs two at a time."""
    serve = "vllm serve Qwen/Qwen3-8B --max-model-len 4K --max-num-seqs 2"

    said = text_of("--gpu", "h100", "--serve", serve, "--context", "4K", "--requests", "4")

    assert "2 of 4 requests" in said
    assert "--max-num-seqs 2" in said


def test_a_request_longer_than_the_server_takes_is_rejected_not_queued() -> None:
    """It never waits."""
    serve = "vllm serve Qwen/Qwen3-8B --max-model-len 8K"

    said = text_of("--gpu", "h100", "--serve", serve, "--context", "32K", "--requests", "1")

    assert "rejects a request of 32,768 tokens" in said


def test_a_log_of_another_model_is_refused(tmp_path: Path) -> None:
    """Its figures would replace estimates with somebody else's facts."""
    log = tmp_path / "startup.log"
    log.write_text(
        "INFO 11-30 09:00:00 [core.py:1] Initializing a V1 LLM engine (v0.10.2) with config: "
        "model='google/gemma-3-4b-it'\n"
    )

    said = refused("--gpu", "h100", "--serve", LLM, "--startup-log", str(log))

    assert "gemma-3-4b-it" in said


LLAMA_33_70B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "hidden_size": 8192,
    "intermediate_size": 28672, "vocab_size": 128256, "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--memory", "107.52GiB", "--context", "8K"), "26 slots"),
        (("--memory", "107.52GiB", "--context", "8K", "--kv-dtype", "q8_0"), "49 slots"),
        (("--memory", "107.52GiB", "--context", "128K"), "1 slots (1.6)"),
        (("--memory", "12GiB", "--context", "8K"), "do not fit"),
    ],
)
def test_case_c_llama_cpp(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    """Llama 3.3 70B Q4, 42.52 GB: the Mac's tiers and the 12 GiB card of case C."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA_33_70B))

    result = CliRunner().invoke(
        main, ["slots", "--weights", "42.52GB", "--model-config", str(config), *arguments]
    )

    assert said in result.output


def test_overrides_of_the_config_are_planned_with() -> None:
    """Half of Qwen3 8B's 36 layers make blocks of half the bytes: 1,179,648."""
    serve = "vllm serve Qwen/Qwen3-8B --hf-overrides '{\"num_hidden_layers\": 18}'"

    (service,) = planned("--gpu", "h100", "--serve", serve)["services"]

    assert service["bytes_per_block"] == [1_179_648]


def test_a_misspelt_flag_is_named() -> None:
    """vLLM would refuse it; a plan without it answers another question."""
    said = text_of("--gpu", "h100", "--serve", "vllm serve Qwen/Qwen3-8B --kv-cache-dytpe fp8")

    assert "--kv-cache-dytpe" in said
    assert "--kv-cache-dtype" in said


def test_an_images_tag_is_its_version() -> None:
    """vLLM 0.8.5 manages 0.90 of the card by default, 0.32 manages 0.92."""
    serve = "docker run --gpus all vllm/vllm-openai:v0.8.5 --model Qwen/Qwen3-8B"

    (service,) = planned("--gpu", "h100", "--serve", serve)["services"]

    assert service["gpu_memory_utilization"] == 0.9


def test_a_manifests_arguments_can_be_pasted() -> None:
    """The list as it stands in a pod."""
    serve = '["--model", "Qwen/Qwen3-8B", "--max-model-len", "8K", "--kv-cache-dtype", "fp8"]'

    (service,) = planned("--gpu", "h100", "--serve", serve)["services"]

    assert (service["name"], service["max_model_len"]) == ("Qwen3-8B", 8192)


# Its cache is known, the bytes of its weights are not.
PACKED_SOMEHOW = {**QWEN25_7B, "quantization_config": {"quant_method": "never-heard-of"}}
HUB_ANSWER = {"id": "org/m", "safetensors": {"parameters": {"BF16": 7_615_616_512}}}
INDEX = {"metadata": {"total_size": 15_231_233_024}, "weight_map": {}}
WHOLE = 15_231_233_024


def saved(folder: Path, name: str, content: object) -> str:
    (folder / name).write_text(json.dumps(content))
    return str(folder / name)


@pytest.mark.parametrize(
    ("content", "flags", "expected_bytes"),
    [
        (HUB_ANSWER, "", WHOLE),
        (INDEX, "", WHOLE),
        (HUB_ANSWER, "-tp 4", WHOLE // 4),
        (HUB_ANSWER, "--dtype float32", 2 * WHOLE),
        ({"safetensors": {"parameters": {"F32": 7_615_616_512}}}, "", WHOLE),
        ({"safetensors": {"parameters": {"I32": 100, "F32": 10}}}, "", 440),
    ],
)
def test_weights_that_are_not_known_are_read_from_what_was_saved(
    tmp_path: Path, content: object, flags: str, expected_bytes: int
) -> None:
    """The hub counts 7,615,616,512 parameters of Qwen2.5-7B, its index twice as many bytes.

    Ranks share them evenly; a float32 checkpoint is served in 16 bits, scales beside packed
    integers stay what they are.
    """
    plan = planned(
        *("--gpu", "h100", "--serve", f"vllm serve org/m --max-model-len 8K {flags}"),
        *("--model-config", saved(tmp_path, "config.json", PACKED_SOMEHOW)),
        *("--weights-from", "org/m=" + saved(tmp_path, "saved.json", content)),
    )

    weights = plan["services"][0]["weights"]
    assert (weights["bytes"], weights["source"]) == (expected_bytes, "files")


def test_an_index_beside_the_config_is_found(tmp_path: Path) -> None:
    """People copy config.json and the index, not 15 GB of shards."""
    saved(tmp_path, "model.safetensors.index.json", INDEX)
    config = saved(tmp_path, "config.json", PACKED_SOMEHOW)

    plan = planned("--gpu", "h100", "--serve", "vllm serve org/m", "--model-config", config)

    assert plan["services"][0]["weights"]["bytes"] == WHOLE


def test_a_saved_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    """A config.json where the weights should be says neither bytes nor parameters."""
    config = saved(tmp_path, "config.json", PACKED_SOMEHOW)

    said = refused(
        *("--gpu", "h100", "--serve", "vllm serve org/m"),
        *("--model-config", config, "--weights-from", config),
    )

    assert "safetensors.parameters" in said
    assert config in said


def test_adapters_and_offloading_change_the_weights() -> None:
    """Llama-3.1-8B has 554,139,648 B of buffers for three adapters of rank 32.

    Source: tests/evidence/weights/adapters.json; the model's own bytes are of the oracle.
    """
    config = Path(__file__).parent.parent / "evidence/oracle/configs/llama-3.1-8b.json"

    def weights(flags: str) -> int:
        serve = f"vllm serve m --max-model-len 8K {flags}"
        plan = planned("--gpu", "h100", "--serve", serve, "--model-config", str(config))
        count: int = plan["services"][0]["weights"]["bytes"]
        return count

    alone = weights("")
    assert weights("--enable-lora --max-loras 3 --max-lora-rank 32") == alone + 554_139_648
    assert weights("--cpu-offload-gb 1000") == 2 * 128256 * 4096 * 2 + 4096 * 2


LLAMA_8B = str(Path(__file__).parent.parent / "evidence/oracle/configs/llama-3.1-8b.json")
NOTHING_ELSE = ("--activation", "0", "--non-torch", "0", "--cuda-graphs", "0")


def test_stages_have_weights_of_their_own_and_the_poorest_binds() -> None:
    """Two stages of Llama-3.1-8B hold 8,030,257,152 and 8,030,265,344 B; a block is 1 MiB on each.

    Source: vLLM 0.32.0's model class built without data; 16 layers x 16 tokens x 4 KiB a block.
    """
    plan = planned(
        *("--gpu", "24GiB", "--serve", "vllm serve m -pp 2 --gpu-mem 0.5 --max-model-len 8K"),
        *("--model-config", LLAMA_8B, *NOTHING_ELSE),
    )

    (service,) = plan["services"]
    assert service["stage_weights_bytes"] == [8_030_257_152, 8_030_265_344]
    assert service["num_blocks"] == (12 * GIB - 8_030_265_344) // 2**20
    assert (plan["gpus"], service["gpus"]) == (2, 2)


def test_more_ranks_than_gpus_do_not_fit() -> None:
    """Two tensor ranks in each of two engines take four GPUs."""
    asked = (
        *("--gpu", "h100", "--serve", "vllm serve m -tp 2 -dp 2", "--model-config", LLAMA_8B),
        *KNOWN,
    )

    assert planned(*asked, "--gpus", "4")["fits"]
    assert not planned(*asked, "--gpus", "3")["fits"]
    assert "asks for 4 GPUs" in CliRunner().invoke(main, ["plan", *asked, "--gpus", "3"]).output


def test_a_slice_that_is_not_known_is_not_guessed() -> None:
    """A slice's memory is not the profile's name, so the reader is asked for it."""
    said = refused("--gpu", "h100/1g.10gb", "--serve", "vllm serve m")

    assert "nvidia-smi" in said
    assert "h100/3g.40gb" in said


def test_what_adapters_took_in_older_versions_is_not_guessed() -> None:
    """Until vLLM 0.12 every adapter had room for a vocabulary of its own (pull request 28545)."""
    arguments = (
        "--gpu",
        "h100",
        "--serve",
        "vllm serve m --enable-lora",
        "--vllm-version",
        "0.9.2",
    )

    result = CliRunner().invoke(main, ["plan", *arguments, "--model-config", LLAMA_8B])

    assert isinstance(result.exception, ModelConfigError)
    assert "0.12" in str(result.exception)
