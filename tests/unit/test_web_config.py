from pathlib import Path

import pytest

from kvheadroom.errors import ConfigError
from kvheadroom.faces.web_options import WebOptions
from kvheadroom.settings import Settings
from kvheadroom.web_config import web_options


def options(tmp_path: Path, text: str) -> WebOptions:
    path = tmp_path / "web.yml"
    path.write_text(text)
    return web_options(Settings(web_config_file=path))


def test_without_a_file_it_is_plain_http() -> None:
    """The default of every exporter."""
    assert web_options(Settings()).tls is None


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    """exporter-toolkit joins them to the folder of the file, whatever the current one is."""
    found = options(tmp_path, "tls_server_config: {cert_file: a.crt, key_file: k/a.key}\n")

    assert found.tls is not None
    assert found.tls.cert_file == tmp_path / "a.crt"
    assert found.tls.key_file == tmp_path / "k" / "a.key"


def test_users_are_taken_over(tmp_path: Path) -> None:
    """A user and a bcrypt hash."""
    found = options(tmp_path, "basic_auth_users: {alice: $2y$10$abc}\n")

    assert dict(found.basic_auth_users) == {"alice": "$2y$10$abc"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tls_server_config: {cert_file: a}\n", "key_file"),
        ("http_server_config: {http2: true}\n", "http2"),
        ("rate_limit: {interval: 1s, burst: 20}\n", "rate_limit"),
        ("tls_server_config: {cert_file: a, key_file: b, cipher_suites: [X]}\n", "cipher_suites"),
        (
            "tls_server_config: {cert_file: a, key_file: b, client_auth_type: RequestClientCert}\n",
            "RequestClientCert",
        ),
        ("tls_server_config: {cert_file: a, key_file: b, client_auth_type: X}\n", "'X'"),
        ("tls_server_config: {cert_file: a, key_file: b, min_version: TLS9}\n", "min_version"),
        ("basic_auth_user: {}\n", "did you mean 'basic_auth_users'?"),
    ],
)
def test_what_cannot_be_honored_is_refused(tmp_path: Path, text: str, said: str) -> None:
    """A security setting that is silently ignored is worse than a server that does not start."""
    with pytest.raises(ConfigError) as caught:
        options(tmp_path, text)

    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
