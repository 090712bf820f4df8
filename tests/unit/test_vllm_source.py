import base64
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.unit.evidence import page
from tests.unit.hostile_server import HostileServer, Peer, each_request, hostile_server
from tests.unit.vllm_harness import GRACE_SECONDS, PAGE, answered, failure, read, serve, source_of

from kvheadroom.errors import ConfigError
from kvheadroom.node import vllm
from kvheadroom.node.vllm import EngineTarget, VllmSource

DEADLINE_SECONDS = 0.4


def test_a_server_read_whole() -> None:
    """The page, /version and the first model that is no adapter (recorded answers of 0.32.0)."""
    server = answered(serve())

    assert server.engines[0].kv_used_ratio == 0.97
    assert server.vllm_version == "0.32.0"
    assert server.max_model_len == 2048
    assert server.model_root == "m32/llama"
    assert server.endpoints == {"/version": None, "/v1/models": None}


# --- /version and /v1/models ------------------------------------------------------------------

HOSTILE_JSON = [
    b"",
    b"[]",
    b"null",
    b"no json",
    b"[" * 100_000,
    b'{"version": 32, "data": {}}',
    b'{"version": "", "data": [{}]}',
    b'{"version": "0.32\\n", "data": [{"id": "m", "max_model_len": "2048"}]}',
    b'{"version": null, "data": [{"id": "m", "max_model_len": true}]}',
    b'{"version": ["0.32"], "data": [{"id": "m", "max_model_len": -1}]}',
    b'{"version": {}, "data": [{"id": "m", "max_model_len": 1e999}]}',
    b'{"version": "' + b"9" * 10_000 + b'", "data": [{"id": 5}]}',
    b'{"data": [{"id": "m", "parent": "n", "max_model_len": 5}, 7]}',
    b'{"version": ' + b"9" * 5000 + b', "data": [{"id": "m", "max_model_len": ' + b"9" * 5000,
    b"\xff\xfe",
]


@pytest.mark.parametrize("body", HOSTILE_JSON, ids=range(len(HOSTILE_JSON)))
def test_an_unexpected_answer_is_unknown_and_does_not_fail_the_page(body: bytes) -> None:
    """Wrong types, no JSON, JSON without end: the reason is recorded, the values stay unknown."""
    server = answered(serve(version=body, models=body))

    assert server.engines[0].kv_used_ratio == 0.97
    assert server.vllm_version is None
    assert server.max_model_len is None
    assert server.model_root is None
    assert server.endpoints == {"/version": "not_metrics", "/v1/models": "not_metrics"}


def test_an_answer_over_one_mebibyte_is_not_read() -> None:
    """A version is not a megabyte long."""
    body = b'{"version": "0.32.0"}' + b" " * 1024**2

    assert answered(serve(version=body)).endpoints["/version"] == "too_large"


def test_a_missing_key_is_recorded() -> None:
    """401 from /v1/models is what a server with --api-key answers."""

    def respond(peer: Peer, path: str) -> None:
        if path == "/v1/models":
            peer.answer(b"", status="401 Unauthorized")
        else:
            serve()(peer, path)

    server = answered(respond)

    assert server.endpoints == {"/version": None, "/v1/models": "unauthorized"}
    assert server.vllm_version == "0.32.0"
    assert server.max_model_len is None


def test_a_server_that_does_not_say_the_length_leaves_it_unknown() -> None:
    """A gateway's OpenAI-compatible list has no max_model_len."""
    server = answered(serve(models=b'{"data": [{"id": "m"}]}'))

    assert server.endpoints["/v1/models"] is None
    assert server.max_model_len is None


def test_endpoints_that_hang_cost_no_more_than_the_deadline() -> None:
    """The page comes first and is kept."""

    def respond(peer: Peer, path: str) -> None:
        if path == "/metrics":
            peer.answer(PAGE)
        else:
            peer.stay_silent()

    started = time.monotonic()
    server = read(each_request(respond), deadline_seconds=DEADLINE_SECONDS)

    assert time.monotonic() - started < DEADLINE_SECONDS + GRACE_SECONDS
    assert server.engines[0].kv_used_ratio == 0.97
    assert server.endpoints == {"/version": "timeout", "/v1/models": "timeout"}


# --- when they are asked ----------------------------------------------------------------------


class Restartable:
    """A server whose page and version a test changes between polls."""

    def __init__(self, metrics: bytes = PAGE) -> None:
        self.metrics = metrics
        self.version = "0.31.0"

    def __call__(self, peer: Peer, path: str) -> None:
        version = f'{{"version": "{self.version}"}}'.encode()
        serve(metrics=self.metrics, version=version)(peer, path)


@contextmanager
def polled_once(state: Restartable) -> Iterator[VllmSource]:
    with (
        hostile_server(each_request(state)) as server,
        source_of(server.url) as source,
    ):
        assert source.read().vllm_version == "0.31.0"
        state.version = "0.32.0"
        yield source


def test_the_version_is_asked_once() -> None:
    """A server cannot change its version without a restart."""
    with polled_once(Restartable()) as source:
        assert source.read().vllm_version == "0.31.0"


def test_a_new_start_time_asks_again() -> None:
    """process_start_time_seconds moved: another process."""
    state = Restartable()
    with polled_once(state) as source:
        state.metrics = PAGE.replace(b"1796027738.7659597", b"1796027999.5")
        assert source.read().vllm_version == "0.32.0"


def test_a_counter_that_fell_asks_again() -> None:
    """Several API servers publish no start time; their counters begin again."""
    state = Restartable(page("real-servers/0.32.0-api2/after"))
    with polled_once(state) as source:
        state.metrics = page("real-servers/0.32.0-api2/fresh")
        assert source.read().vllm_version == "0.32.0"


def test_a_page_that_had_failed_asks_again() -> None:
    """The server was away, and what came back may be another."""
    state = Restartable()
    with polled_once(state) as source:
        state.metrics = b"<html>\n"
        assert failure(source).reason == "not_metrics"
        state.metrics = PAGE
        assert source.read().vllm_version == "0.32.0"


def test_a_minute_later_it_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart that nothing else showed."""
    with polled_once(Restartable()) as source:
        monkeypatch.setattr(vllm, "_IDENTITY_LIFETIME_SECONDS", 0.0)
        assert source.read().vllm_version == "0.32.0"


def test_an_answer_that_was_late_is_asked_for_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that was slow for a moment is not without a version for a minute."""
    answers = serve()
    slow = threading.Event()

    def respond(peer: Peer, path: str) -> None:
        if path == "/version" and not slow.is_set():
            slow.wait(2)
        answers(peer, path)

    with (
        hostile_server(each_request(respond)) as server,
        source_of(server.url, deadline_seconds=0.4) as source,
    ):
        assert source.read().vllm_version is None
        slow.set()
        assert source.read().vllm_version is None
        monkeypatch.setattr(vllm, "_RETRY_SECONDS", 0.0)
        assert source.read().vllm_version == "0.32.0"


# --- secrets ----------------------------------------------------------------------------------


def authorizations(server: HostileServer) -> dict[str, str]:
    found: dict[str, str] = {}
    for request in server.requests:
        path = request.split(" ")[1]
        for line in request.split("\r\n"):
            if line.lower().startswith("authorization: "):
                found[path] = line.split(": ", 1)[1]
    return found


def test_the_api_key_is_sent_to_v1_models_only() -> None:
    """vLLM protects /v1 with it and nothing else that is read here."""
    with (
        hostile_server(each_request(serve())) as server,
        source_of(server.url, api_key="sk-1\n") as source,
    ):
        source.read()
        assert authorizations(server) == {"/v1/models": "Bearer sk-1"}


def test_credentials_in_the_url_are_sent_as_basic_authentication() -> None:
    """Percent-encoded ones are decoded first."""
    expected = "Basic " + base64.b64encode("me:p@ss é".encode()).decode()
    with hostile_server(each_request(serve())) as server:
        url = f"http://me:p%40ss%20%C3%A9@127.0.0.1:{server.port}"
        with source_of(url) as source:
            source.read()
        found = authorizations(server)

    assert found == dict.fromkeys(("/metrics", "/health", "/version", "/v1/models"), expected)


def test_an_api_key_goes_before_the_urls_credentials() -> None:
    """A proxy with basic authentication in front of a server with --api-key: each gets its own."""
    with hostile_server(each_request(serve())) as server:
        url = f"http://me:pw@127.0.0.1:{server.port}"
        with source_of(url, api_key="sk-1") as source:
            source.read()
        found = authorizations(server)

    assert found["/v1/models"] == "Bearer sk-1"
    assert found["/metrics"] == "Basic " + base64.b64encode(b"me:pw").decode()


def test_no_secret_is_in_any_text() -> None:
    """Not in the target's representation or label, nor in an error or what caused it."""
    with hostile_server(each_request(lambda p, _: p.answer(b"", status="401 No"))) as server:
        url = f"http://me:hunter2@127.0.0.1:{server.port}"
        with source_of(url, api_key="sk-hunter2") as source:
            error: BaseException | None = failure(source)
            texts = [repr(EngineTarget(url, "sk-hunter2")), source.target]
    while error is not None:
        texts.append(str(error))
        error = error.__cause__

    assert not any("hunter2" in text for text in texts)


def test_an_api_key_that_cannot_be_sent_is_refused_unshown() -> None:
    """A header with a line break would be refused later, with the key in the error."""
    with pytest.raises(ConfigError) as refused:
        VllmSource(EngineTarget("http://h", "sk-\nhunter2"), deadline_seconds=1)

    assert "hunter2" not in str(refused.value)
