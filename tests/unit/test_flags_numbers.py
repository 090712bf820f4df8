import pytest

from kvheadroom.engine.human_numbers import AUTO, parse_human_int, parse_human_int_or_auto
from kvheadroom.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1k", 1_000),
        ("1K", 1_024),
        ("25.6k", 25_600),
        ("32k", 32_000),
        ("32K", 32_768),
        ("7G", 7 * 2**30),
        ("7g", 7 * 10**9),
        ("2M", 2**21),
        ("8192", 8192),
    ],
)
def test_suffixes_are_decimal_small_and_binary_large(text: str, value: int) -> None:
    """``k`` is a thousand and ``K`` is 1024.

    Source: the help text of vLLM 0.32's ``--max-model-len``.
    """
    assert parse_human_int(text) == value


@pytest.mark.parametrize("text", ["1.5K", "abc", "", "1.5", "1kk", "0x10", "1e3"])
def test_what_is_no_whole_number_is_refused_in_one_line(text: str) -> None:
    """A fraction of a binary unit and anything else that is no integer is an error."""
    with pytest.raises(ConfigError) as caught:
        parse_human_int(text)

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["-1", "auto", "AUTO"])
def test_auto_is_spelled_two_ways(text: str) -> None:
    """``auto`` and ``-1`` both ask to fit the length to the memory."""
    assert parse_human_int_or_auto(text) == AUTO
