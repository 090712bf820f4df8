import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme
from tests.unit.hostile_server import Behave, Peer, each_request, hostile_server
from tests.unit.vllm_harness import GRACE_SECONDS, PAGE, failure, serve, source_of

from kvheadroom.errors import ConfigError
from kvheadroom.node.vllm import EngineTarget, VllmSource

DEADLINE_SECONDS = 0.4


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> str:
    file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(file)
    return str(file)


@contextmanager
def tls_source(
    authority: trustme.CA,
    behave: Behave,
    ca_file: str | None,
    *,
    name: str = "127.0.0.1",
    deadline_seconds: float = 5.0,
) -> Iterator[VllmSource]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(name).configure_cert(context)
    with (
        hostile_server(behave, tls=context) as server,
        source_of(
            server.url.replace("http:", "https:"),
            deadline_seconds=deadline_seconds,
            ca_file=ca_file,
        ) as source,
    ):
        yield source


def test_a_private_authority_is_trusted_when_named(authority: trustme.CA, ca_file: str) -> None:
    """Inside a cluster certificates come from the cluster's own authority."""
    with tls_source(authority, each_request(serve()), ca_file) as source:
        reading = source.read()

    assert reading.engines[0].kv_used_ratio == 0.97
    assert reading.health == "ok"


def test_an_unknown_authority_is_refused(authority: trustme.CA) -> None:
    """Verification is never off."""
    with tls_source(authority, each_request(serve()), None) as source:
        assert failure(source).reason == "tls"


def test_a_certificate_of_another_host_is_refused(authority: trustme.CA, ca_file: str) -> None:
    """A trusted authority is not enough."""
    with tls_source(authority, each_request(serve()), ca_file, name="other.example") as source:
        assert failure(source).reason == "tls"


def test_a_drip_through_tls_keeps_the_deadline(authority: trustme.CA, ca_file: str) -> None:
    """Each byte is a TLS record of its own."""

    def behave(peer: Peer) -> None:
        peer.next_request()
        peer.drip(b"HTTP/1.1 200 OK\r\n\r\n" + PAGE)

    with tls_source(authority, behave, ca_file, deadline_seconds=DEADLINE_SECONDS) as source:
        started = time.monotonic()
        assert failure(source).reason == "timeout"
        assert time.monotonic() - started < DEADLINE_SECONDS + GRACE_SECONDS


def test_a_handshake_that_never_comes_keeps_the_deadline(ca_file: str) -> None:
    """A plain server that says nothing on a TLS port."""
    with (
        hostile_server(lambda peer: peer.stay_silent()) as server,
        source_of(
            server.url.replace("http:", "https:"),
            deadline_seconds=DEADLINE_SECONDS,
            ca_file=ca_file,
        ) as source,
    ):
        started = time.monotonic()
        assert failure(source).reason == "timeout"
        assert time.monotonic() - started < DEADLINE_SECONDS + GRACE_SECONDS


def test_plain_text_on_a_tls_port(ca_file: str) -> None:
    """https:// typed for a server without TLS."""
    with (
        hostile_server(lambda peer: peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as server,
        source_of(server.url.replace("http:", "https:"), ca_file=ca_file) as source,
    ):
        assert failure(source).reason == "tls"


def test_a_missing_ca_file_is_a_configuration_error(tmp_path: Path) -> None:
    """Named before the first poll, with its path."""
    with pytest.raises(ConfigError, match=r"none\.pem"):
        VllmSource(
            EngineTarget("https://h", ca_file=str(tmp_path / "none.pem")), deadline_seconds=1
        )
