import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvheadroom.engine.command_line import find_vllm_arguments
from kvheadroom.engine.flags import parse_serve_command
from kvheadroom.errors import ConfigError


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve org/m --max-model-len 8K",
        "/opt/venv/bin/vllm serve org/m --max-model-len 8K",
        "python -m vllm.entrypoints.openai.api_server --model org/m --max-model-len 8K",
        "python3 /app/vllm/entrypoints/openai/api_server.py --model org/m --max-model-len=8K",
        "python -m vllm.entrypoints.cli.main serve org/m --max-model-len 8K",
        "CUDA_VISIBLE_DEVICES=0 nohup vllm serve org/m --max-model-len 8K > log 2>&1 &",
        "cd /srv && vllm serve org/m --max-model-len 8K | tee log",
        "export A=b; vllm serve org/m --max-model-len 8K; echo done",
        "vllm serve org/m \\\n  --max-model-len \\\n  8K",
        "uv run vllm serve org/m --max-model-len 8K",
        "numactl --membind=0 vllm serve org/m --max-model-len 8K",
        "docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.32.0 org/m --max-model-len 8K",
        "sudo docker run -itd --rm -v /m:/m -e A=b --name v img --model org/m --max-model-len 8K",
        "podman run -dp 8000:8000 --entrypoint bash img -c 'vllm serve org/m --max-model-len 8K'",
        ["vllm", "serve", "org/m", "--max-model-len", "8K"],
        ["serve", "org/m", "--max-model-len", "8K"],
        ["--model", "org/m", "--max-model-len", "8K"],
        ["--model=org/m", "--max-model-len=8K"],
        ["/bin/sh", "-c", "exec vllm serve org/m --max-model-len 8K"],
        ["vllm serve org/m --max-model-len 8K"],
        ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "org/m",
         "--max-model-len", "8K"],
    ],
)  # fmt: skip
def test_every_way_to_start_a_server_says_the_same(command: str | list[str]) -> None:
    """Shell, module, container and manifest forms all name the model and its length."""
    parsed = parse_serve_command(command)

    assert parsed.model == "org/m"
    assert parsed.options == {"max-model-len": 8192}
    assert not parsed.unknown


def test_variables_that_change_sizing_are_kept_and_others_are_not() -> None:
    """Of an environment only what sizes the cache is kept, so no token is."""
    found = find_vllm_arguments(
        "HF_TOKEN=hf_secret VLLM_USE_V1=0 docker run -e VLLM_ATTENTION_BACKEND=FLASHINFER "
        "-e VLLM_API_KEY=sk-secret image --model m"
    )

    assert dict(found.environment) == {"VLLM_USE_V1": "0", "VLLM_ATTENTION_BACKEND": "FLASHINFER"}


def test_quotes_keep_json_together() -> None:
    """A quoted JSON object is one value."""
    command = parse_serve_command(
        """vllm serve m --speculative-config '{"method": "mtp", "num_speculative_tokens": 2}'"""
    )

    assert command.options["speculative-config"] == {"method": "mtp", "num_speculative_tokens": 2}


@pytest.mark.parametrize("command", ["vllm serve 'm", "docker run --gpus all"])
def test_what_is_no_command_is_refused_in_one_line(command: str) -> None:
    """An open quote, or a container without an image, is an error."""
    with pytest.raises(ConfigError) as caught:
        parse_serve_command(command)

    assert "\n" not in str(caught.value)


@given(st.one_of(st.text(max_size=80), st.lists(st.text(max_size=20), max_size=8)))
def test_any_input_is_read_or_refused(command: str | list[str]) -> None:
    """Whatever is typed gives a command or an error of one line."""
    try:
        parse_serve_command(command)
        message = ""
    except ConfigError as error:
        message = str(error)

    assert "\n" not in message
