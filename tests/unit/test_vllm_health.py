"""/health beside the page: what its answers mean, and that it never costs the page."""

import threading
import time
from collections.abc import Callable

import pytest
from tests.unit.hostile_server import Peer, each_request, hostile_server
from tests.unit.vllm_harness import GRACE_SECONDS, PAGE, answered, serve, source_of

from kvheadroom.node import vllm


def answering(path: str, answer: Callable[[Peer], None]) -> Callable[[Peer, str], None]:
    def respond(peer: Peer, asked: str) -> None:
        if asked == path:
            answer(peer)
        else:
            serve()(peer, asked)

    return respond


@pytest.mark.parametrize(
    ("status", "health"),
    [
        ("200 OK", "ok"),
        ("503 Service Unavailable", "dead"),
        ("404 Not Found", None),
        ("401 Unauthorized", None),
        ("307 Moved", None),
    ],
)
def test_the_status_of_health(status: str, health: str | None) -> None:
    """200 and 503 are what vLLM answers; any other comes from something else."""
    server = answered(answering("/health", lambda peer: peer.answer(b"text", status=status)))

    assert server.health == health
    assert server.engines[0].kv_used_ratio == 0.97


@pytest.mark.parametrize(
    "answer",
    [
        Peer.reset,
        lambda peer: peer.send(b"no http\r\n\r\n"),
        lambda peer: peer.send(b"HTTP/1.1 2000 OK\r\n\r\n"),
        lambda peer: peer.send(b"x" * 200_000),
    ],
    ids=["reset", "no http", "no status", "no end"],
)
def test_an_answer_that_is_none_is_unknown(answer: Callable[[Peer], None]) -> None:
    """It says nothing of the engine, and the page is kept."""
    server = answered(answering("/health", answer))

    assert server.health is None
    assert server.engines[0].kv_used_ratio == 0.97


def test_a_chunked_answer_has_a_status_too() -> None:
    """A proxy may answer without a length."""
    chunked = b"HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"

    assert answered(answering("/health", lambda peer: peer.send(chunked))).health == "dead"


def test_a_health_that_hangs_delays_one_poll_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The question stays asked, and the next polls look whether its answer came."""
    monkeypatch.setattr(vllm, "_SMALL_ANSWER_SECONDS", 0.2)
    respond = answering("/health", Peer.stay_silent)
    with hostile_server(each_request(respond)) as server, source_of(server.url) as source:
        first = source.read()
        started = time.monotonic()
        later = [source.read() for _ in range(5)]
        took_seconds = time.monotonic() - started
        asked = server.paths().count("/health")

    assert {reading.health for reading in (first, *later)} == {"hanging"}
    assert all(reading.engines[0].kv_used_ratio == 0.97 for reading in later)
    assert took_seconds < GRACE_SECONDS
    assert asked == 1


def test_an_answer_that_comes_late_ends_the_hanging(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read by the poll after, and the path is asked again from then on."""
    monkeypatch.setattr(vllm, "_SMALL_ANSWER_SECONDS", 0.1)
    release = threading.Event()

    def late(peer: Peer) -> None:
        release.wait(5)
        peer.answer(b"")

    respond = answering("/health", late)
    with hostile_server(each_request(respond)) as server, source_of(server.url) as source:
        assert source.read().health == "hanging"
        release.set()
        time.sleep(0.05)
        assert [source.read().health for _ in range(2)] == ["ok", "ok"]


def test_a_server_without_health_is_not_asked_at_every_poll() -> None:
    """Only once a minute, with its version."""
    respond = answering("/health", lambda peer: peer.answer(b"", status="404 Not Found"))
    with hostile_server(each_request(respond)) as server, source_of(server.url) as source:
        for _ in range(5):
            source.read()
        assert server.paths().count("/health") == 1


def test_a_page_that_stands_still_is_asked_whether_it_is_paused() -> None:
    """The made page runs requests; vLLM tells a pause on a path of its own, and nowhere else."""
    pages = iter([PAGE, PAGE, PAGE.replace(b"} 0.97", b"} 0.96")])

    def respond(peer: Peer, path: str) -> None:
        if path == "/is_paused":
            peer.answer(b'{"is_paused": true}')
        else:
            serve(metrics=next(pages) if path == "/metrics" else PAGE)(peer, path)

    with hostile_server(each_request(respond)) as server, source_of(server.url) as source:
        paused = [source.read().paused for _ in range(3)]

    assert paused == [None, True, None]


def test_credentials_of_the_url_are_sent_to_health_and_never_shown() -> None:
    """A proxy with basic authentication guards every path."""
    with hostile_server(each_request(serve())) as server:
        with source_of(f"http://me:hunter2@127.0.0.1:{server.port}") as source:
            source.read()
        (request,) = (head for head in server.requests if "/health" in head)

    assert "\r\nAuthorization: Basic " in request
    assert f"\r\nHost: 127.0.0.1:{server.port}\r\n" in request
