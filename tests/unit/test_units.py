import pytest

from kvheadroom.errors import ConfigError
from kvheadroom.units import format_bytes, parse_duration, parse_token_count


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("5s", 5), ("1m", 60), ("1m30s", 90), ("1.5s", 1.5)]
)
def test_durations_as_prometheus_writes_them(text: str, seconds: float) -> None:
    """The spellings operators know from Prometheus' own flags."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "5", "0s", "-5s", "5 s", "5x", "s", "99999999999d", "1" * 400 + "s"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    """A bare number has no unit, and guessing one is how outages start."""
    with pytest.raises(ConfigError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize(("text", "tokens"), [("8192", 8192), ("8K", 8192), ("8k", 8000)])
def test_lengths_as_vllm_reads_them(text: str, tokens: int) -> None:
    """vLLM's --max-model-len takes 32k as 32,000 and 32K as 32,768."""
    assert parse_token_count(text) == tokens


@pytest.mark.parametrize("text", ["", "0", "8KB", "-8K", "8.5K", "K", "1" * 400])
def test_what_is_no_length_is_refused(text: str) -> None:
    """A length is a whole number of tokens above zero."""
    with pytest.raises(ConfigError, match="tokens"):
        parse_token_count(text)


@pytest.mark.parametrize(
    ("count", "text"), [(512, "512 B"), (1536, "1.50 KiB"), (12 * 1024**3, "12.00 GiB")]
)
def test_bytes_are_binary(count: int, text: str) -> None:
    """GiB is 2^30, in every column."""
    assert format_bytes(count) == text
