import errno
import gzip
import socket
import threading
import time
from collections.abc import Callable
from email.parser import Parser

import pytest
from tests.unit.evidence import page
from tests.unit.hostile_server import Behave, Peer, each_request, hostile_server
from tests.unit.vllm_harness import (
    GRACE_SECONDS,
    PAGE,
    Respond,
    answered,
    failure,
    serve,
    source_of,
)

from kvheadroom.errors import SourceError
from kvheadroom.node.engine_url import parse_engine_url
from kvheadroom.node.http import EngineHttp

DEADLINE_SECONDS = 0.4


# --- how a server can fail --------------------------------------------------------------------


Act = Callable[[Peer], None]


def after_request(*acts: Act) -> Behave:
    def behave(peer: Peer) -> None:
        peer.next_request()
        for act in acts:
            act(peer)

    return behave


def sending(data: bytes) -> Act:
    return lambda peer: peer.send(data)


def dripping(data: bytes) -> Act:
    return lambda peer: peer.drip(data)


def answering(body: bytes, *, status: str = "200 OK", headers: str = "") -> Act:
    return lambda peer: peer.answer(body, status=status, headers=headers)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"
UNTIL_CLOSED = b"HTTP/1.1 200 OK\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
GZIP = "Content-Encoding: gzip\r\n"
ONE_CHUNK = b"%x\r\n%b\r\n" % (len(PAGE), PAGE)
BOMB = gzip.compress(b"\n" * 50_000_000)


def endless(peer: Peer) -> None:
    peer.send(UNTIL_CLOSED)
    while not peer.stopping.is_set():
        peer.send(b'vllm:x{y="z"} 1\n' * 4096)


def endless_headers(peer: Peer) -> None:
    peer.send(b"HTTP/1.1 200 OK\r\n")
    while not peer.stopping.wait(0.005):
        peer.send(b"HTTP/1.1 100 Continue\r\n\r\n")


def half_then_reset(peer: Peer) -> None:
    peer.send(HEAD + PAGE[:5000])
    # The client must have taken the first half, or the reset discards it.
    time.sleep(0.05)
    peer.reset()


FAILURES: dict[str, tuple[str, Behave]] = {
    "silence": ("timeout", Peer.stay_silent),
    "silence after the request": ("timeout", after_request(Peer.stay_silent)),
    "header drip": ("timeout", after_request(dripping(b"HTTP/1.1 200 OK\r\nX: " + PAGE))),
    "body drip": ("timeout", after_request(sending(HEAD), dripping(PAGE))),
    "chunk drip": ("timeout", after_request(sending(CHUNKED), dripping(b"1\r\nx\r\n" * 999))),
    "silence in the body": ("timeout", after_request(sending(HEAD + PAGE), Peer.stay_silent)),
    "endless answers that are none": ("timeout", after_request(endless_headers)),
    "endless body": ("too_large", after_request(endless)),
    "50 MB": ("too_large", after_request(answering(b'vllm:x{y="z"} 1\n' * 3_300_000))),
    "gzip bomb": ("too_large", after_request(answering(BOMB, headers=GZIP))),
    "reset": ("reset", after_request(Peer.reset)),
    "hang-up": ("reset", after_request()),
    "reset in the body": ("reset", after_request(half_then_reset)),
    "shorter than announced": ("truncated", after_request(sending(HEAD + PAGE))),
    "chunks without end": ("truncated", after_request(sending(CHUNKED + ONE_CHUNK))),
    "cut in a line": ("truncated", after_request(sending(UNTIL_CLOSED + PAGE[:-9]))),
    "cut gzip": ("truncated", after_request(answering(gzip.compress(PAGE)[:-20], headers=GZIP))),
    "no gzip": ("not_metrics", after_request(answering(PAGE, headers=GZIP))),
    "unasked encoding": (
        "not_metrics",
        after_request(answering(PAGE, headers="Content-Encoding: br\r\n")),
    ),
    "not HTTP": ("not_metrics", sending(b"SSH-2.0-OpenSSH_9.2\r\n")),
    "two lengths": (
        "not_metrics",
        after_request(answering(PAGE, headers="Content-Length: 7\r\n")),
    ),
    "empty": ("not_metrics", after_request(answering(b""))),
    "html": ("not_metrics", after_request(answering(page("pages/made-html-502-body")))),
    "json": ("not_metrics", after_request(answering(b'{"detail":"Not Found"}'))),
    "unauthorized": ("unauthorized", after_request(answering(b"", status="401 Unauthorized"))),
    "forbidden": ("unauthorized", after_request(answering(b"", status="403 Forbidden"))),
    "unavailable": ("http_error", after_request(answering(b"", status="503 Down"))),
    "no content": ("http_error", after_request(answering(b"", status="204 No Content"))),
}


@pytest.mark.parametrize("name", FAILURES)
def test_every_failure_has_its_reason_and_keeps_the_deadline(name: str) -> None:
    """The reason is bounded, the text one line that names the URL, and no thread stays behind."""
    reason, behave = FAILURES[name]
    # Only those that wait for it need a short one; megabytes take their time on a busy machine.
    deadline_seconds = DEADLINE_SECONDS if reason == "timeout" else 5.0
    with (
        hostile_server(behave) as server,
        source_of(server.url, deadline_seconds=deadline_seconds) as source,
    ):
        before = set(threading.enumerate())
        started = time.monotonic()
        error = failure(source)
        took_seconds = time.monotonic() - started
        added = {thread.name for thread in set(threading.enumerate()) - before}

    assert error.reason == reason
    assert str(error).startswith(f"GET {server.url}/metrics: ")
    assert "\n" not in str(error)
    assert took_seconds < deadline_seconds + GRACE_SECONDS
    assert added <= {"hostile"}


def test_nobody_there() -> None:
    """A refused connection says so."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]

    with source_of(f"http://127.0.0.1:{port}") as source:
        error = failure(source)

    assert error.reason == "unreachable"
    assert str(error) == f"GET http://127.0.0.1:{port}/metrics: connection refused"


def test_a_full_listen_queue_keeps_the_deadline() -> None:
    """A connection that is never accepted is a timeout."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        with source_of(f"http://127.0.0.1:{address[1]}", deadline_seconds=0.3) as source:
            started = time.monotonic()
            error = failure(source)
            took_seconds = time.monotonic() - started
        for filler in fillers:
            filler.close()

    assert error.reason == "timeout"
    assert took_seconds < 0.3 + GRACE_SECONDS


def test_a_resolver_that_hangs_keeps_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """getaddrinfo has no time limit of its own."""
    release = threading.Event()
    genuine = socket.getaddrinfo

    def hang(host: str, *args: int, **kwargs: int) -> object:
        if not kwargs.get("flags", 0) & socket.AI_NUMERICHOST:
            release.wait(5)
        return genuine(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    with source_of("http://localhost:9", deadline_seconds=0.2) as source:
        started = time.monotonic()
        error = failure(source)
        took_seconds = time.monotonic() - started
    release.set()

    assert error.reason == "timeout"
    assert took_seconds < 0.2 + GRACE_SECONDS


def test_a_name_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """The resolver's refusal is unreachable, whatever number the platform gives it."""

    def refuse(*_: object, **__: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    with source_of("http://engine.invalid:8000") as source:
        error = failure(source)

    assert error.reason == "unreachable"
    assert "engine.invalid:8000" in str(error)


# --- how a server can answer ------------------------------------------------------------------


def test_chunked_and_compressed_pages_are_read() -> None:
    """A proxy may do both, asked or not."""

    def respond(peer: Peer, path: str) -> None:
        if path != "/metrics":
            peer.answer(b"", status="404 Not Found")
            return
        body = gzip.compress(PAGE)
        head = CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
        pieces = [body[at : at + 700] for at in range(0, len(body), 700)]
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
        peer.send(head + chunks + b"0\r\n\r\n")

    assert answered(respond).engines[0].kv_used_ratio == 0.97


def test_the_request_asks_for_the_text_format() -> None:
    """OpenMetrics would come with rewritten names; compressing on loopback is wasted work."""
    with (
        hostile_server(each_request(serve())) as server,
        source_of(server.url) as source,
    ):
        source.read()
        request = server.requests[0]

    assert "Accept: text/plain;version=0.0.4\r\n" in request
    assert "Accept-Encoding: identity\r\n" in request


def test_two_connections_serve_many_polls() -> None:
    """Keep-alive: no handshake per poll. The second one is of /health, which may hang."""
    numbers: list[int] = []

    def behave(peer: Peer) -> None:
        numbers.append(peer.number)
        each_request(serve())(peer)

    with hostile_server(behave) as server, source_of(server.url) as source:
        for _ in range(5):
            source.read()

    assert numbers == [0, 1]


@pytest.mark.parametrize("end", ["close", "reset"])
def test_a_kept_connection_that_the_server_dropped_is_no_failure(end: str) -> None:
    """A restarted server takes the old connection down with it, just as the request arrives."""

    def behave(peer: Peer) -> None:
        for _ in range(3):
            serve()(peer, peer.next_request().split(" ")[1])
        peer.next_request()
        if end == "reset":
            peer.reset()

    with hostile_server(behave) as server, source_of(server.url) as source:
        for _ in range(4):
            assert source.read().engines

    assert server.paths().count("/metrics") > 4


def test_a_server_that_always_hangs_up_is_tried_at_most_twice() -> None:
    """The second attempt is for a stale connection only."""

    def behave(peer: Peer) -> None:
        if peer.number == 0:
            for _ in range(3):
                serve()(peer, peer.next_request().split(" ")[1])
        peer.next_request()

    with hostile_server(behave) as server, source_of(server.url) as source:
        source.read()
        assert failure(source).reason == "reset"
        page_connection = [path for path in server.paths() if path != "/health"]
        assert page_connection == ["/metrics", "/version", "/v1/models", "/metrics", "/metrics"]


def test_a_path_asked_in_another_way_is_another_request() -> None:
    """A second media type or token on the same path is what goes out, and the first again."""
    asked = [("text/plain", None), ("application/json", None), ("text/plain", "t1"),
             ("text/plain", "t2"), ("text/plain", None)]  # fmt: skip
    with hostile_server(each_request(serve())) as server:
        http = EngineHttp(parse_engine_url(server.url))
        for accept, bearer in asked:
            http.get(
                "/metrics",
                accept=accept,
                bearer=bearer,
                deadline_monotonic_seconds=time.monotonic() + 5.0,
                max_bytes=10**6,
            )
        http.close()
        sent = [Parser().parsestr(head.partition("\r\n")[2]) for head in server.requests]

    authorizations = [bearer and f"Bearer {bearer}" for _, bearer in asked]
    assert [head["Accept"] for head in sent] == [accept for accept, _ in asked]
    assert [head["Authorization"] for head in sent] == authorizations


# --- redirects --------------------------------------------------------------------------------


def redirecting(location: str, *, times: int = 10**6) -> Respond:
    left = iter(range(times))

    def respond(peer: Peer, path: str) -> None:
        if path.startswith("/metrics") and next(left, None) is not None:
            peer.answer(b"see there", status="307 Moved", headers=f"Location: {location}\r\n")
        else:
            serve()(peer, path.rstrip("/"))

    return respond


def test_a_redirect_on_the_same_server_is_followed() -> None:
    """vLLM before 0.7 mounts its metrics so that /metrics redirects to /metrics/."""
    assert answered(redirecting("/metrics/", times=1)).engines[0].kv_used_ratio == 0.97


def test_three_redirects_are_followed_and_no_more() -> None:
    """A loop ends."""
    assert answered(redirecting("/metrics", times=3)).engines

    with (
        hostile_server(each_request(redirecting("/metrics", times=4))) as server,
        source_of(server.url) as source,
    ):
        assert failure(source).reason == "redirect"


@pytest.mark.parametrize(
    "location",
    [
        "http://sso.example.com/login?token=s3cret",
        "https://127.0.0.1/metrics?token=s3cret",
        "http://127.0.0.1:1/s3cret",
        "//u:s3cret@sso.example.com:1/s3cret",
        "ftp://127.0.0.1/s3cret",
        "http://[s3cret",
    ],
)
def test_a_redirect_elsewhere_is_refused(location: str) -> None:
    """Another host, port or scheme is not the server the operator named; no secret is shown."""
    with (
        hostile_server(each_request(redirecting(location))) as server,
        source_of(server.url) as source,
    ):
        error = failure(source)

    assert error.reason == "redirect"
    assert "s3cret" not in str(error)


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("https://127.0.0.1/metrics?token=s3cret", "https://127.0.0.1:443"),
        ("http://127.0.0.1:1/", "http://127.0.0.1:1"),
        ("http://u:s3cret@sso.example.com/login", "http://sso.example.com:80"),
        ("http://[2001:db8::1]/", "http://[2001:db8::1]:80"),
    ],
)
def test_a_refused_redirect_names_where_to(location: str, shown: str) -> None:
    """Scheme, host and port, since any one of them can be what differs."""
    with (
        hostile_server(each_request(redirecting(location))) as server,
        source_of(server.url) as source,
    ):
        error = failure(source)

    assert str(error).endswith(f"redirected to another server, {shown}")


def test_a_question_that_is_closed_under_way_fails_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is no longer watched is closed by another thread, whatever urllib3 makes of it.

    Source: urllib3 2.5 raises AttributeError, its connection having no socket any more.
    """
    http = EngineHttp(parse_engine_url("http://127.0.0.1:9"))

    def send(*_: object, **__: object) -> None:
        http.close()
        raise AttributeError("settimeout")

    monkeypatch.setattr(http._adapter, "send", send)

    with pytest.raises(SourceError) as failed:
        http.get(
            "/metrics",
            accept="*/*",
            deadline_monotonic_seconds=time.monotonic() + 1,
            max_bytes=10,
        )
    assert failed.value.reason == "reset"


@pytest.mark.parametrize("code", [errno.ECONNRESET, errno.EPIPE])
def test_a_connection_that_breaks_while_it_is_made_is_reset(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A server that ends with connections waiting resets them; that is no fault of ours."""

    def connect(*_: object) -> None:
        raise OSError(code, "broken")

    monkeypatch.setattr(socket.socket, "connect", connect)

    with source_of("http://127.0.0.1:9") as source:
        assert failure(source).reason == "reset"
