import pytest

from kvheadroom.errors import ConfigError
from kvheadroom.node.engine_url import engine_address, parse_engine_url


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1:8000"),
        ("http://user:secret@GPU-1.example.com:8000/", "gpu-1.example.com:8000"),
        ("http://gpu-1", "gpu-1:80"),
        ("https://gpu-1/metrics", "gpu-1:443"),
        ("http://[::1]:8000", "[::1]:8000"),
        ("https://[2001:db8::1]", "[2001:db8::1]:443"),
        ("http://gateway:8080/vllm-a/", "gateway:8080/vllm-a"),
        ("http://gateway:8080/vllm-a/metrics", "gateway:8080/vllm-a"),
    ],
)
def test_a_target_is_named_without_credentials_and_with_its_port(url: str, target: str) -> None:
    """Two servers behind one gateway differ by path, so the path is part of the name."""
    assert engine_address(url) == target


@pytest.mark.parametrize(
    "url",
    [
        "gpu-1:8000",
        "ftp://hunter2@gpu-1",
        "http://",
        "http://u:hunter2@",
        "http://gpu-1:hunter2",
        "http://gpu-1:99999/hunter2",
        "http://gpu-1:0",
        "http://[::1:8000/hunter2",
        "http://gpu 1/hunter2",
        "http://gpu-1/a?key=hunter2",
        "http://gpu-1/#hunter2",
    ],
)
def test_what_is_no_base_url_is_refused_unshown(url: str) -> None:
    """A configuration error, before anything is sent, that repeats no part that may be secret."""
    with pytest.raises(ConfigError) as refused:
        parse_engine_url(url)

    assert "hunter2" not in str(refused.value)
