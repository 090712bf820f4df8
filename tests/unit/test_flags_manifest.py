import contextlib

import pytest

from kvheadroom.engine.flags import parse_serve_command
from kvheadroom.engine.unknown_options import unknown_option_warnings
from kvheadroom.errors import ConfigError

JSON_LIST = '["--model", "org/m", "--max-model-len", "32K"]'
BLOCK_LIST = """
  - --model
  - org/m            # the model
  - "--max-model-len"
  - '32K'
"""


@pytest.mark.parametrize(
    "text",
    [
        JSON_LIST,
        f"args: {JSON_LIST}",
        "args: [--model, org/m, '--max-model-len', \"32K\",]",
        f'command: ["vllm", "serve"]\nargs: {JSON_LIST}',
        f"args: {JSON_LIST}\ncommand: [vllm, serve]",
        f"args:{BLOCK_LIST}",
        BLOCK_LIST,
        "- --model=org/m\n- --max-model-len=32K",
        "- --model org/m\n- --max-model-len 32K",
        'command: ["/bin/sh", "-c"]\nargs: ["vllm serve org/m --max-model-len 32K"]',
        'command:\n- sh\n- -c\n- |\n  vllm serve org/m \\\n    --max-model-len 32K\n',
    ],
)  # fmt: skip
def test_a_manifests_list_pasted_as_text_is_read(text: str) -> None:
    """JSON, YAML in brackets and YAML with dashes mean the same words."""
    command = parse_serve_command(text)

    assert (command.model, dict(command.options)) == ("org/m", {"max-model-len": 32768})
    assert not command.unknown


def test_a_hostile_list_is_words_or_an_error() -> None:
    """A megabyte of blanks, quotes and dashes; read in a way that backtracks, it never ends."""
    for inside in (" " * 1_000_000 + "'", '"' + "\\" * 500_000, "- " * 500_000, "," * 100_000):
        with contextlib.suppress(ConfigError):
            parse_serve_command(f"[{inside}]")


def test_an_option_and_its_value_in_one_item_are_two_words() -> None:
    """An item that begins an option and holds a space is split, its JSON kept whole."""
    command = parse_serve_command(
        ["--max-model-len 8192", '--hf-overrides {"a b": [1, 2]}', "--served-model-name", "a b"]
    )

    assert command.options == {"max-model-len": 8192, "hf-overrides": {"a b": [1, 2]}}
    assert command.served_names == ("a b",)


@pytest.mark.parametrize("command", ["", "  \n ", "\\\n"])
def test_an_empty_line_is_refused(command: str) -> None:
    """Nothing typed is no server."""
    with pytest.raises(ConfigError, match="empty"):
        parse_serve_command(command)


def test_a_command_may_leave_the_model_to_the_caller() -> None:
    """``vllm serve`` alone names no model."""
    assert parse_serve_command("vllm serve").model is None


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("vllm/vllm-openai:v0.8.5", "v0.8.5"),
        ("docker.io/vllm/vllm-openai:v0.11.0-x86_64@sha256:00", "v0.11.0-x86_64"),
        ("registry:5000/team/vllm:0.9.2", "0.9.2"),
        ("vllm/vllm-openai:latest", None),
        ("nvcr.io/other:1.2", None),
    ],
)
def test_the_images_tag_tells_the_version(image: str, version: str | None) -> None:
    """A vLLM image's tag is kept when it is a version, and that of another image is not."""
    command = parse_serve_command(f"docker run --gpus all {image} --model org/m")

    assert (command.model, command.image_version) == ("org/m", version)


DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      initContainers:
      - name: fetch
        image: alpine:3.20
        command: ["sh", "-c", "true"]
      containers:
      - name: server
        image: vllm/vllm-openai:v0.9.2  # pinned
        env:
        - name: VLLM_ATTENTION_BACKEND
          value: "FLASHINFER"
        - name: HF_TOKEN
          valueFrom:
            secretKeyRef: {name: hub, key: token}
        args:
        - --model
        - org/m
        - --max-model-len=32K
        ports:
        - containerPort: 8000
      - name: proxy
        image: envoy:1.30
        args: ["-c", "/etc/envoy.yaml"]
"""
COMPOSE = """
services:
  web:
    image: nginx:1.27
  llm:
    image: "vllm/vllm-openai:v0.9.2"
    environment:
      VLLM_ATTENTION_BACKEND: FLASHINFER
    command: >
      --model org/m
      --max-model-len 32K
"""
COMPOSE_LIST = """
llm:
  environment:
    - VLLM_ATTENTION_BACKEND=FLASHINFER
    - HF_TOKEN=hf_secret
  command: --model=org/m --max-model-len 32K
  image: vllm/vllm-openai:v0.9.2
"""
CHART = """
image:
  repository: vllm/vllm-openai
  tag: "v0.9.2"
env:
  - name: VLLM_ATTENTION_BACKEND
    value: FLASHINFER
command: [vllm, serve, org/m]
args: ["--max-model-len", "32K"]
"""


@pytest.mark.parametrize("text", [DEPLOYMENT, COMPOSE, COMPOSE_LIST, CHART])
def test_a_manifest_tells_the_version_and_the_environment_too(text: str) -> None:
    """Of a whole manifest the container that runs vLLM is read: image, variables and words."""
    command = parse_serve_command(text)

    assert (command.model, dict(command.options)) == ("org/m", {"max-model-len": 32768})
    assert command.image_version == "v0.9.2"
    assert command.environment == {"VLLM_ATTENTION_BACKEND": "FLASHINFER"}
    assert not command.unknown


def test_a_manifests_image_of_something_else_tells_no_version() -> None:
    """A tag is vLLM's version only on an image of vLLM."""
    command = parse_serve_command("image: org/server:v1.2.3\nargs: [--model, org/m]")

    assert (command.model, command.image_version) == ("org/m", None)


def test_a_quote_left_open_in_a_manifest_is_refused() -> None:
    """Compose splits a string as a shell does, and a shell would wait for the quote."""
    with pytest.raises(ConfigError, match="quote"):
        parse_serve_command("command: --model 'org/m\nimage: vllm/vllm-openai:v0.9.2")


def test_a_hostile_manifest_ends() -> None:
    """Half a million dashes, keys and indents are read once each."""
    for line in ("- " * 500_000 + "args:", "image: x\n" * 100_000, "args:\n" + " - a\n" * 100_000):
        with contextlib.suppress(ConfigError):
            parse_serve_command(line)


def test_an_unknown_option_is_told_with_the_nearest_known_one() -> None:
    """A typing mistake is passed over and named, with what may have been meant."""
    command = parse_serve_command("vllm serve m --kv-cache-dytpe fp8 --zzz 1 stray --enforce-eager")

    warnings = unknown_option_warnings(command)

    assert warnings[0] == "unknown option --kv-cache-dytpe; did you mean --kv-cache-dtype?"
    assert warnings[1] == "unknown option --zzz"
    assert len(warnings) == 3
    assert "stray" not in warnings[2]


def test_a_known_command_warns_of_nothing() -> None:
    """Options vLLM knows, retired ones included, are passed without a word."""
    assert unknown_option_warnings(parse_serve_command("vllm serve m -tp 2 --task embed")) == ()
