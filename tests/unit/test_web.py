import gzip
import http.client
import json
import logging
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import bcrypt
import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text
from tests.unit.web_harness import (
    HUGE,
    LOOPBACK,
    PAGE,
    TEXT,
    Authority,
    Reply,
    answer_to,
    ask,
    connect,
    port_of,
    serving,
)

from kvheadroom.errors import ConfigError
from kvheadroom.faces.landing import CONTENT_SECURITY_POLICY
from kvheadroom.faces.negotiation import RenderedPage
from kvheadroom.faces.server import WebServer
from kvheadroom.faces.web import Answer, is_local, make_app
from kvheadroom.faces.web_options import (
    TlsOptions,
    WebOptions,
    check_telemetry_path,
    check_web_options,
    format_address,
    reloaded_options,
)

ALICE = {"Authorization": "Basic YWxpY2U6b3BlbiBzZXNhbWU="}  # alice:open sesame
PROTECTED = replace(
    LOOPBACK,
    basic_auth_users={"alice": bcrypt.hashpw(b"open sesame", bcrypt.gensalt(4)).decode()},
)
EVERY_PATH = ["/", "/metrics", "/-/healthy", "/-/ready", "/api/v1/echo", "/nowhere"]


def echo(query: Mapping[str, str]) -> Answer:
    return Answer(200, "application/json", json.dumps(dict(query)).encode())


@pytest.fixture(scope="module")
def plain() -> Iterator[WebServer]:
    with serving(api={"/api/v1/echo": echo}) as server:
        yield server


@pytest.fixture(scope="module")
def protected() -> Iterator[WebServer]:
    with serving(PROTECTED, api={"/api/v1/echo": echo}) as server:
        yield server


# --- metrics --------------------------------------------------------------------------------


def test_the_metrics_are_the_text_format_by_default(plain: WebServer) -> None:
    """A client that asks for nothing in particular can parse what it gets as text 0.0.4."""
    reply = ask(plain)

    (family,) = parse_text(reply.body.decode())
    assert reply.status == 200
    assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert family.samples[0].value == 0.5


def test_prometheus_gets_compressed_openmetrics(plain: WebServer) -> None:
    """The body under Prometheus' own headers is gzip over OpenMetrics."""
    asked = {"Accept": "application/openmetrics-text;version=1.0.0", "Accept-Encoding": "gzip"}
    reply = ask(plain, headers=asked)

    (family,) = parse_openmetrics(  # type: ignore[no-untyped-call]
        gzip.decompress(reply.body).decode()
    )
    assert reply.headers["Content-Encoding"] == "gzip"
    assert family.samples[0].value == 0.5


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_head_has_the_headers_of_get_and_no_body(plain: WebServer, encoding: str) -> None:
    """A HEAD tells what a GET would bring, its length included."""
    got = ask(plain, headers={"Accept-Encoding": encoding})
    head = ask(plain, method="HEAD", headers={"Accept-Encoding": encoding})

    del got.headers["Date"], head.headers["Date"]
    assert head.body == b""
    assert head.headers.items() == got.headers.items()
    assert int(head.headers["Content-Length"]) == len(got.body)


def test_a_page_larger_than_any_buffer_arrives_whole() -> None:
    """A page that takes many writes is the page, byte for byte."""
    page = RenderedPage(lambda: HUGE, lambda: HUGE)
    with serving(latest=lambda: page) as server:
        reply = ask(server)

    assert reply.body == HUGE


def test_each_scrape_sees_the_latest_page() -> None:
    """What a poll published between two scrapes is in the second."""
    pages = [RenderedPage(lambda: b"a 1\n", bytes), RenderedPage(lambda: b"a 2\n", bytes)]
    with serving(latest=lambda: pages.pop(0)) as server:
        assert [ask(server).body, ask(server).body] == [b"a 1\n", b"a 2\n"]


def test_the_telemetry_path_can_be_moved() -> None:
    """The metrics are at the configured path and no longer at the default one."""
    with serving(replace(LOOPBACK, telemetry_path="/kv/metrics")) as server:
        assert ask(server, "/kv/metrics").body == TEXT
        assert ask(server, "/metrics").status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("path", ["/metrics", "/", "/-/healthy"])
def test_other_methods_are_told_which_are_allowed(plain: WebServer, method: str, path: str) -> None:
    """405 with Allow, as RFC 9110 section 15.5.6 asks."""
    reply = ask(plain, path, method=method, body=b"x")

    assert reply.status == 405
    assert {name.strip() for name in reply.headers["Allow"].split(",")} == {"GET", "HEAD"}


@pytest.mark.parametrize(
    "path", ["/nowhere", "/metrics/", "//metrics", "/metrics/x", "/-/", "/%2e%2e/metrics"]
)
def test_an_unknown_path_is_not_found(plain: WebServer, path: str) -> None:
    """404 in a few words; the landing page is at / and nowhere else."""
    reply = ask(plain, path)

    assert reply.status == 404
    assert len(reply.body) < 100
    assert b"<" not in reply.body


# --- health ---------------------------------------------------------------------------------


def test_ready_waits_for_the_first_poll_of_every_source() -> None:
    """Not ready is 503 and says for what; healthy does not depend on it."""
    is_ready = False
    with serving(ready=lambda: is_ready) as server:
        refused = ask(server, "/-/ready")
        assert refused.status == 503
        assert b"every source" in refused.body
        assert ask(server, "/-/healthy").status == 200
        is_ready = True
        assert ask(server, "/-/ready").status == 200


# --- pages for this machine -----------------------------------------------------------------


def test_the_landing_page_is_html_that_runs_nothing() -> None:
    """The page comes with its policy, and no browser guesses another type."""
    with serving(landing=lambda: "<!doctype html><title>ä</title>") as server:
        reply = ask(server, "/")

    assert reply.headers["Content-Type"] == "text/html; charset=utf-8"
    assert reply.headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
    assert reply.headers["X-Content-Type-Options"] == "nosniff"
    assert "ä" in reply.body.decode()


def test_an_api_route_gets_the_query(plain: WebServer) -> None:
    """A handler sees the decoded parameters, and its answer goes out as it is."""
    reply = ask(plain, "/api/v1/echo?engine=a%2Fb&requests=4")

    assert reply.headers["Content-Type"] == "application/json"
    assert json.loads(reply.body) == {"engine": "a/b", "requests": "4"}


@pytest.mark.parametrize("path", ["/", "/api/v1/echo"])
@pytest.mark.parametrize(
    "headers",
    [
        {"X-Forwarded-For": "192.0.2.7"},
        {"Forwarded": "for=192.0.2.7"},
        {"X-Real-IP": "192.0.2.7"},
        {"Host": "rebound.example"},
        {"Host": "localhost.example:10420"},
    ],
)
def test_a_page_is_not_for_who_comes_from_elsewhere(
    plain: WebServer, path: str, headers: dict[str, str]
) -> None:
    """Behind a proxy, or under a foreign name, the answer is 403 and what to configure."""
    reply = ask(plain, path, headers=headers)

    assert reply.status == 403
    assert b"--web.config.file" in reply.body
    assert len(reply.body.splitlines()) == 1


@pytest.mark.parametrize("path", ["/metrics", "/-/healthy", "/-/ready"])
def test_metrics_and_health_are_for_everyone(plain: WebServer, path: str) -> None:
    """A scraper need not be on this machine."""
    assert ask(plain, path, headers={"X-Forwarded-For": "192.0.2.7"}).status == 200


@pytest.mark.parametrize(
    ("address", "host", "expected"),
    [
        ("127.0.0.1", "localhost:10420", True),
        ("127.0.0.1", "LOCALHOST", True),
        ("127.8.8.8", "127.0.0.1:10420", True),
        ("::1", "[::1]:10420", True),
        ("::1", "[::1]", True),
        ("::ffff:127.0.0.1", "127.0.0.1:10420", True),
        ("192.0.2.7", "localhost:10420", False),
        ("::ffff:192.0.2.7", "localhost", False),
        ("2001:db8::1", "localhost", False),
        ("127.0.0.1", "gpu-1:10420", False),
        ("127.0.0.1", "", False),
        ("unix", "localhost", False),
    ],
)
def test_only_this_machine_is_local(address: str, host: str, *, expected: bool) -> None:
    """Both ends of the connection must be this machine: the peer's address and the name asked.

    Addresses for documentation are those of RFC 5737 and RFC 3849.
    """
    scope: dict[str, Any] = {
        "type": "http",
        "client": (address, 40000),
        "headers": [(b"host", host.encode())],
    }

    assert is_local(scope) is expected


# --- passwords and certificates -------------------------------------------------------------


@pytest.mark.parametrize("path", EVERY_PATH)
def test_with_users_no_path_is_open(protected: WebServer, path: str) -> None:
    """Everything asks for a password, as in exporter-toolkit; the challenge names the scheme."""
    reply = ask(protected, path)

    assert reply.status == 401
    assert reply.headers["WWW-Authenticate"].startswith("Basic realm=")


@pytest.mark.parametrize("path", EVERY_PATH[:-1])
def test_with_the_password_every_page_opens(protected: WebServer, path: str) -> None:
    """Who has proven who they are may see the pages too, from wherever they come."""
    elsewhere = {"X-Forwarded-For": "192.0.2.7", "Host": "gpu-1.example"}
    assert ask(protected, path, headers=ALICE | elsewhere).status == 200


def test_a_required_client_certificate_opens_the_pages(tmp_path: Path) -> None:
    """With one, a page is served to other machines; without one there is no connection."""
    authority = Authority(tmp_path)
    options = replace(LOOPBACK, tls=authority.options("RequireAndVerifyClientCert"))
    elsewhere = {"X-Forwarded-For": "192.0.2.7"}
    with serving(options) as server:
        known = authority.client(with_certificate=True)
        assert ask(server, "/", headers=elsewhere, tls=known).status == 200
        with pytest.raises((ssl.SSLError, OSError)):
            ask(server, "/", headers=elsewhere, tls=authority.client())


def test_a_certificate_that_is_only_asked_for_opens_nothing(tmp_path: Path) -> None:
    """Where clients may come without a certificate, the pages stay closed to other machines."""
    authority = Authority(tmp_path)
    options = replace(LOOPBACK, tls=authority.options("VerifyClientCertIfGiven"))
    with serving(options) as server:
        reply = ask(server, "/", headers={"X-Forwarded-For": "192.0.2.7"}, tls=authority.client())

    assert reply.status == 403


# --- faults ---------------------------------------------------------------------------------


def test_a_fault_is_logged_here_and_hidden_there(caplog: pytest.LogCaptureFixture) -> None:
    """A 500 shows the client neither the traceback nor the message; the next request works."""

    def broken() -> str:
        raise RuntimeError("s3cret-in-a-message")

    with caplog.at_level(logging.ERROR), serving(landing=broken) as server:
        reply = ask(server, "/")
        after = ask(server)

    assert reply.status == 500
    assert b"s3cret" not in reply.body
    assert b"Traceback" not in reply.body
    assert "s3cret-in-a-message" in caplog.text
    assert after.status == 200


# --- options --------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/metrics", "/m", "/kv/metrics", "/metrics/", "/-metrics"])
def test_a_plain_telemetry_path_is_taken(path: str) -> None:
    """Any path that hides nothing of ours is the operator's to choose."""
    check_telemetry_path(path)


@pytest.mark.parametrize(
    "path",
    [
        *("", "metrics", "http://a/metrics", "/", "//", "/-", "/-/x", "/api", "/api/v1/fit"),
        *("/a b", "/a?b", "/a#b", "/a//b", "/../a", "/a/./b", "/%2e", "/{name}", "/ä", "/a\n"),
    ],
)
def test_a_telemetry_path_that_cannot_work_is_refused(path: str) -> None:
    """One line says so, before anything listens."""
    with pytest.raises(ConfigError) as refused:
        check_telemetry_path(path)

    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        replace(LOOPBACK, listen=()),
        replace(LOOPBACK, max_connections=0),
        replace(LOOPBACK, max_requests=0),
        replace(LOOPBACK, telemetry_path="/"),
        replace(LOOPBACK, headers={"Set-Cookie": "a=b"}),
        replace(LOOPBACK, headers={"X-Frame-Options": "deny\r\nSet-Cookie: a=b"}),
        replace(LOOPBACK, tls=TlsOptions(Path("c"), Path("k"), client_ca_file=Path("ca"))),
        replace(
            LOOPBACK,
            tls=TlsOptions(Path("c"), Path("k"), client_auth_type="RequireAndVerifyClientCert"),
        ),
        replace(
            LOOPBACK,
            tls=TlsOptions(Path("c"), Path("k"), min_version="TLS13", max_version="TLS12"),
        ),
    ],
)
def test_options_that_contradict_are_refused(wrong: WebOptions) -> None:
    """What cannot be honored is an error at start, not a surprise later."""
    with pytest.raises(ConfigError):
        check_web_options(wrong)


def test_the_operators_headers_are_on_every_response() -> None:
    """They are added to pages, metrics and errors alike, and replace our own of that name."""
    options = replace(
        LOOPBACK,
        headers={"Content-Security-Policy": "default-src 'self'", "X-Frame-Options": "deny"},
    )
    with serving(options) as server:
        replies = [ask(server, path) for path in ("/", "/metrics", "/nowhere")]

    for reply in replies:
        assert reply.headers.get_all("Content-Security-Policy") == ["default-src 'self'"]
        assert reply.headers.get_all("X-Frame-Options") == ["deny"]


# --- what changes without a restart ---------------------------------------------------------


@contextmanager
def kept_connection(server: WebServer) -> Iterator[Callable[[Mapping[str, str]], Reply]]:
    """Requests of the metrics that all go over one connection."""
    with connect(server) as client:

        def ask_again(headers: Mapping[str, str]) -> Reply:
            lines = "".join(f"{name}: {text}\r\n" for name, text in headers.items())
            request = f"GET /metrics HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n"
            return answer_to(client, request.encode())

        yield ask_again


def replace_options(server: WebServer, options: WebOptions) -> None:
    app = make_app(latest=lambda: PAGE, landing=str, ready=lambda: True, options=options)
    server.replace_app(app, options.headers)


def test_an_old_password_ends_at_once() -> None:
    """Also on a connection that it opened, which goes on with the new one."""
    renewed = replace(
        PROTECTED, basic_auth_users={"alice": bcrypt.hashpw(b"new", bcrypt.gensalt(4)).decode()}
    )
    new = {"Authorization": "Basic YWxpY2U6bmV3"}  # alice:new
    with serving(PROTECTED) as server, kept_connection(server) as ask_again:
        before = [ask_again(ALICE).status, ask_again(new).status]
        replace_options(server, renewed)
        after = [ask_again(ALICE).status, ask_again(new).status]

    assert before == [200, 401]
    assert after == [401, 200]


def test_the_first_user_closes_open_connections_to_strangers() -> None:
    """Who asked for no password asks for one from the next request on."""
    with serving() as server, kept_connection(server) as ask_again:
        assert ask_again({}).status == 200
        replace_options(server, PROTECTED)
        assert ask_again({}).status == 401
        assert ask_again(ALICE).status == 200


def test_new_headers_are_on_the_next_response() -> None:
    """They come with the new application, on a connection that is open already."""
    renewed = replace(LOOPBACK, headers={"X-Frame-Options": "deny"})
    with serving() as server, kept_connection(server) as ask_again:
        assert "X-Frame-Options" not in ask_again({}).headers
        replace_options(server, renewed)
        assert ask_again({}).headers.get_all("X-Frame-Options") == ["deny"]


def test_a_wanted_tls_rule_opens_no_page_before_it_is_in_force() -> None:
    """Users and headers change while running; a listener that runs without TLS stays that way."""
    tls = TlsOptions(Path("c"), Path("k"), Path("ca"), "RequireAndVerifyClientCert")
    wanted = replace(PROTECTED, tls=tls, headers={"X-Frame-Options": "deny"}, listen=(("", 1),))

    options = reloaded_options(LOOPBACK, replace(wanted, basic_auth_users={}))

    assert not options.clients_are_known
    assert options == replace(LOOPBACK, headers=wanted.headers)
    assert reloaded_options(LOOPBACK, wanted).basic_auth_users == PROTECTED.basic_auth_users


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        (("127.0.0.1", 10420), "127.0.0.1:10420"),
        (("gpu-1.example", 80), "gpu-1.example:80"),
        (("::1", 10420), "[::1]:10420"),
        (("", 10420), "*:10420"),
    ],
)
def test_an_address_is_shown_as_it_is_typed(address: tuple[str, int], shown: str) -> None:
    """An IPv6 address in brackets, as in a URL (RFC 3986, section 3.2.2)."""
    assert format_address(*address) == shown


def test_responses_on_a_kept_connection_do_not_wait(plain: WebServer) -> None:
    """The kernel holds no part of a response back; it would do so for 40 ms each."""
    connection = http.client.HTTPConnection("127.0.0.1", port_of(plain), timeout=5)
    start = time.monotonic()
    for _ in range(20):
        connection.request("GET", "/metrics")
        connection.getresponse().read()
    seconds = time.monotonic() - start
    connection.close()

    assert seconds < 0.4
