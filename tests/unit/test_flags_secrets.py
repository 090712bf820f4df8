import pytest

from kvheadroom.engine.flags import parse_serve_command
from kvheadroom.errors import ConfigError

SECRET = "sk-do-not-tell"


@pytest.mark.parametrize(
    "words",
    [
        f"--api-key {SECRET}",
        f"--api-key={SECRET}",
        f"--api_key {SECRET} second-{SECRET}",
        f"--api-k {SECRET}",
        f"--hf-token {SECRET}",
        f"--hf-token={SECRET}",
        f"--new-secret-option {SECRET}",
        f"--new-secret-option={SECRET}",
        f"-P{SECRET}",
        SECRET,
        f"--otlp-traces-endpoint https://user:{SECRET}@host/path",
        f"--otlp-traces-endpoint https://host/path?token={SECRET}",
        f"""--model-loader-extra-config '{{"aws_secret_access_key": "{SECRET}"}}'""",
        f"""--kv-transfer-config '{{"extra": {{"apiKey": "{SECRET}", "port": 1}}}}'""",
        f"--kv-transfer-config.auth_token {SECRET}",
        f"--additional-config.nested.password={SECRET}",
    ],
)
def test_no_secret_is_kept(words: str) -> None:
    """Keys, tokens and credentials are dropped while the line is read."""
    command = parse_serve_command(f"OPENAI_API_KEY={SECRET} vllm serve org/m {words}")

    assert SECRET not in repr(command)


@pytest.mark.parametrize(
    "words",
    [
        f"--max-model-len {SECRET}",
        f"--gpu-memory-utilization {SECRET}",
        f"--port={SECRET}",
        f"--enforce-eager={SECRET}",
        f"--speculative-config {{{SECRET}",
        f"--max-num {SECRET}",
        f"'{SECRET}",
    ],
)
def test_no_secret_is_in_an_error(words: str) -> None:
    """A value that lands in the wrong place does not come back in the error."""
    with pytest.raises(ConfigError) as caught:
        parse_serve_command(f"vllm serve org/m --api-key {SECRET} {words}")

    assert SECRET not in str(caught.value)


def test_what_is_no_secret_stays() -> None:
    """Counts of tokens and the like are not taken for tokens."""
    command = parse_serve_command(
        """vllm serve m --speculative-config '{"num_speculative_tokens": 3, "method": "mtp"}'"""
    )

    assert command.options["speculative-config"] == {"num_speculative_tokens": 3, "method": "mtp"}
