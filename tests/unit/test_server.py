import contextlib
import logging
import resource
import signal
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.web_harness import (
    HUGE,
    IMPATIENT,
    LOOPBACK,
    PAGE,
    TEXT,
    Authority,
    answer_to,
    ask,
    connect,
    crowd,
    port_of,
    read_until_closed,
    seconds_until_closed,
    send_until_refused,
    serial_of,
    serving,
    status_of,
)

from kvheadroom.errors import ConfigError
from kvheadroom.faces.negotiation import RenderedPage
from kvheadroom.faces.server import WebServer, _connection_limit
from kvheadroom.faces.web import make_app
from kvheadroom.faces.web_options import TlsOptions, WebOptions

GET = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"
HALF_A_HELLO = b"\x16\x03\x01\x02\x00\x01\x00"  # a TLS record's header and little of its content
# What a hash of cost 12 takes to check; the request is in flight for as long.
A_QUARTER_SECOND = {"alice": "$2y$12$CCCCCCCCCCCCCCCCCCCCC." + "E" * 31}
HUGE_PAGE = RenderedPage(lambda: HUGE, lambda: HUGE)

# A scrape among hostile clients takes 1 ms, 10 ms over TLS, and the first one 0.2 s. On a busy
# machine it may be more; a scrape that is kept waiting is so for the 5 s until it gives up.
PROMPT_SECONDS = 2.0


@pytest.fixture(scope="module")
def plain() -> Iterator[WebServer]:
    with serving() as server:
        yield server


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def server_of(options: WebOptions) -> WebServer:
    app = make_app(latest=lambda: PAGE, landing=str, ready=lambda: True, options=options)
    return WebServer(app, options)


def fields_of(records: list[logging.LogRecord]) -> list[dict[str, object]]:
    """What each record hands to the formatter beside its message."""
    return [vars(record)["fields"] for record in records]


def connect_tls(server: WebServer, authority: Authority) -> ssl.SSLSocket:
    return authority.client().wrap_socket(connect(server), server_hostname="localhost")


def slowest_scrape(server: WebServer, tls: ssl.SSLContext | None = None, count: int = 20) -> float:
    seconds = []
    for _ in range(count):
        start = time.monotonic()
        assert ask(server, tls=tls).status == 200
        seconds.append(time.monotonic() - start)
    return max(seconds)


@contextlib.contextmanager
def readers_that_do_not(server: WebServer, count: int) -> Iterator[list[socket.socket]]:
    """Clients that ask for the page and never read it; the server has begun to answer each."""
    with crowd(server, count) as clients:
        for client in clients:
            client.sendall(GET + b"\r\n")
        for client in clients:
            assert client.recv(1, socket.MSG_PEEK)
        yield clients


# --- listening ------------------------------------------------------------------------------


def test_every_address_is_served() -> None:
    """Several listeners, IPv6 among them, give the same page; port 0 takes a free one."""
    with serving(WebOptions(listen=(("127.0.0.1", 0), ("::1", 0)))) as server:
        bodies = []
        for address in server.addresses:
            with socket.create_connection(address, timeout=5) as client:
                client.sendall(GET + b"Connection: close\r\n\r\n")
                bodies.append(read_until_closed(client).partition(b"\r\n\r\n")[2])

    assert bodies == [TEXT, TEXT]


def test_an_empty_host_is_every_interface() -> None:
    """One listener then answers on IPv4 and IPv6 alike."""
    with serving(WebOptions(listen=(("", 0),))) as server:
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, port_of(server)), timeout=5) as client:
                client.sendall(GET + b"Connection: close\r\n\r\n")
                assert status_of(read_until_closed(client)) == 200


def test_a_port_in_use_is_a_configuration_error() -> None:
    """One line with the address and the system's reason; what was opened before is closed."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}: Address already in use"):
            server_of(WebOptions(listen=(("127.0.0.1", 0), ("127.0.0.1", port))))


@pytest.mark.parametrize(
    "address", [("192.0.2.7", 0), ("no.such.host.invalid", 0), ("127.0.0.1", 70000)]
)
def test_an_address_that_is_not_ours_is_a_configuration_error(address: tuple[str, int]) -> None:
    """Nothing starts on an address of another machine, a name nobody has, or no port at all."""
    with pytest.raises(ConfigError, match=f"cannot listen on {address[0]}:{address[1]}: "):
        server_of(WebOptions(listen=(address,)))


def test_a_low_limit_on_open_files_lowers_the_number_of_connections(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Connections never take the descriptors that reading the node needs; the log says so."""
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (256, 256))

    assert _connection_limit(LOOPBACK) == 128
    assert fields_of(caplog.records) == [{"wanted": 512, "open_files_limit": 256}]


def test_a_refusal_carries_the_operators_headers() -> None:
    """An answer that no route gives has them as any other."""
    with (
        serving(replace(LOOPBACK, headers={"X-Frame-Options": "deny"})) as server,
        connect(server) as client,
    ):
        refused = answer_to(client, GET + b"Content-Length: 1000000000\r\n\r\n")

    assert refused.status == 413
    assert refused.headers.get_all("X-Frame-Options") == ["deny"]
    assert refused.headers.get_all("X-Content-Type-Options") == ["nosniff"]


# --- stopping -------------------------------------------------------------------------------


@pytest.mark.parametrize("encrypted", [False, True])
def test_it_stops_within_a_second_whatever_clients_do(
    encrypted: bool, authority: Authority
) -> None:
    """Silent, half-done and unread connections, with and without TLS, hold nothing up."""
    tls = authority.options() if encrypted else None
    with serving(replace(LOOPBACK, tls=tls), latest=lambda: HUGE_PAGE) as server:
        with contextlib.ExitStack() as clients:
            _silent, half = (clients.enter_context(connect(server)) for _ in range(2))
            half.sendall(HALF_A_HELLO if encrypted else b"GET /met")
            opened = connect_tls(server, authority) if encrypted else connect(server)
            unread = clients.enter_context(opened)
            unread.sendall(GET + b"\r\n")
            assert unread.recv(1)
            start = time.monotonic()
            server.stop(3)
            assert time.monotonic() - start < 1
        assert not server.is_serving
        with pytest.raises(ConnectionRefusedError):
            connect(server)


def test_signals_stay_where_they_were() -> None:
    """Whoever starts the server keeps deciding what SIGTERM and SIGINT do."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with serving():
        during = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    assert during == before


def test_a_server_that_never_started_can_be_stopped() -> None:
    """Its port is free again."""
    server = server_of(LOOPBACK)
    server.stop()

    with pytest.raises(ConnectionRefusedError):
        connect(server)


# --- clients that hold back -----------------------------------------------------------------


def test_a_thousand_silent_clients_do_not_delay_a_scrape() -> None:
    """Twice as many connections as there is room for, all silent: scrapes get in, and fast."""
    with serving() as server, crowd(server, 1000):
        assert slowest_scrape(server) < PROMPT_SECONDS


def test_a_thousand_silent_clients_do_not_delay_a_tls_scrape(authority: Authority) -> None:
    """The same where each of them holds a handshake open."""
    with serving(replace(LOOPBACK, tls=authority.options())) as server, crowd(server, 1000):
        assert slowest_scrape(server, authority.client(), count=10) < PROMPT_SECONDS


def test_a_kept_connection_outlives_the_silent_crowd() -> None:
    """A scraper's own connection is not among those that make room."""
    with serving() as server, connect(server) as scraper:
        assert answer_to(scraper, GET + b"\r\n").status == 200
        with crowd(server, 1000):
            assert ask(server).status == 200
            assert answer_to(scraper, GET + b"\r\n").status == 200


def test_no_more_connections_are_open_than_allowed() -> None:
    """The oldest silent ones have made room; the newest are still there."""
    with serving(replace(LOOPBACK, max_connections=4)) as server, crowd(server, 10) as clients:
        for evicted in clients[:6]:
            assert read_until_closed(evicted) == b""
        assert answer_to(clients[-1], GET + b"\r\n").status == 200


def test_a_silent_client_is_cut_off() -> None:
    """Who says nothing is gone after the time for headers, and not before."""
    with serving(IMPATIENT) as server, connect(server) as client:
        assert 0.3 < seconds_until_closed(client) < 2


def test_a_client_that_sends_headers_byte_by_byte_is_cut_off() -> None:
    """The limit is on the whole head, not on the pause between two bytes."""
    with serving(IMPATIENT) as server, connect(server) as client:
        start = time.monotonic()
        assert send_until_refused(client, (bytes([byte]) for byte in GET * 100), pause=0.02)
        assert time.monotonic() - start < 2


def test_a_further_request_has_its_own_limit() -> None:
    """On a kept connection the time for headers starts with the request's first byte."""
    with serving(IMPATIENT) as server, connect(server) as client:
        assert answer_to(client, GET + b"\r\n").status == 200
        time.sleep(0.7)  # idle for longer than a head may take
        client.sendall(GET)
        start = time.monotonic()
        assert read_until_closed(client) == b""
        assert 0.3 < time.monotonic() - start < 2


def test_a_kept_connection_is_closed_when_idle_for_long() -> None:
    """Idle connections end by themselves."""
    with serving(replace(LOOPBACK, idle_seconds=1)) as server, connect(server) as client:
        assert answer_to(client, GET + b"\r\n").status == 200
        assert 0.5 < seconds_until_closed(client) < 3


@pytest.mark.parametrize(
    "greeting", [b"", b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/1.1\r\n\r\n"]
)
def test_a_handshake_that_does_not_come_is_cut_off(greeting: bytes, authority: Authority) -> None:
    """Silence, half a hello or no TLS at all: the connection ends, and others are served."""
    options = replace(IMPATIENT, tls=authority.options())
    with serving(options) as server, connect(server) as client:
        client.sendall(greeting)
        assert slowest_scrape(server, authority.client(), count=3) < PROMPT_SECONDS
        assert seconds_until_closed(client) < 2


def test_silence_after_the_handshake_is_cut_off(authority: Authority) -> None:
    """TLS or not, headers have to come."""
    options = replace(IMPATIENT, tls=authority.options())
    with serving(options) as server, connect_tls(server, authority) as client:
        assert 0.3 < seconds_until_closed(client) < 2


def test_a_client_that_does_not_read_is_cut_off() -> None:
    """A response has to be taken within its time."""
    with (
        serving(IMPATIENT, latest=lambda: HUGE_PAGE) as server,
        readers_that_do_not(server, 1) as (client,),
    ):
        time.sleep(1)
        assert len(read_until_closed(client)) < len(HUGE)


def test_a_tls_client_that_does_not_read_is_cut_off(authority: Authority) -> None:
    """The same below TLS, where two buffers lie between the response and the client."""
    options = replace(IMPATIENT, tls=authority.options())
    with (
        serving(options, latest=lambda: HUGE_PAGE) as server,
        connect_tls(server, authority) as client,
    ):
        client.sendall(GET + b"\r\n")
        time.sleep(1)
        with contextlib.suppress(ssl.SSLError):
            assert len(read_until_closed(client)) < len(HUGE)


def test_clients_that_do_not_read_leave_room_for_those_that_do() -> None:
    """Unread responses fill the requests in flight, but a further one takes the oldest's place."""
    options = replace(LOOPBACK, max_requests=4)
    pages = [HUGE_PAGE] * 4
    with (
        serving(options, latest=lambda: pages.pop() if pages else PAGE) as server,
        readers_that_do_not(server, 4),
    ):
        assert slowest_scrape(server, count=5) < PROMPT_SECONDS


# --- clients that send too much -------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (GET + b"X: " + b"a" * 20_000 + b"\r\n\r\n", 431),
        (GET + b"X: y\r\n" * 5_000 + b"\r\n", 431),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
        (GET + b"X: " + b"a" * 40_000, 400),
        (GET + b"Content-Length: 1000000000\r\n\r\n", 413),
        (GET + b"Content-Length: -1\r\n\r\n", 400),
        (GET + b"Content-Length: 99999999999999999999999\r\n\r\n", 400),
        (b"\x00\xff nonsense\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com\r\n\r\n", 400),
    ],
)
def test_too_much_or_nonsense_is_refused(plain: WebServer, sent: bytes, status: int) -> None:
    """The client is told in a status, the connection ends, and the next scrape works."""
    with connect(plain) as client:
        client.sendall(sent)
        assert status_of(read_until_closed(client)) == status
        assert ask(plain).status == 200


def test_a_body_without_end_is_cut_off(plain: WebServer) -> None:
    """A chunked body is dropped as it comes, and only so much of it."""
    with connect(plain) as client:
        client.sendall(GET + b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"2710\r\n" + b"a" * 10_000 + b"\r\n"
        assert send_until_refused(client, [chunk] * 1000, pause=0.001)


def test_a_small_body_is_ignored(plain: WebServer) -> None:
    """A GET with a body gets the page; on the same connection the next request is understood."""
    with connect(plain) as client:
        assert answer_to(client, GET + b"Content-Length: 5\r\n\r\nhello").body == TEXT
        assert answer_to(client, GET + b"\r\n").body == TEXT


def test_a_few_requests_at_once_are_answered_in_order(plain: WebServer) -> None:
    """Pipelining works as RFC 9112 section 9.3.2 wants it."""
    with connect(plain) as client:
        health = b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n"
        client.sendall(GET + b"\r\n" + health + b"\r\n" + GET + b"Connection: close\r\n\r\n")
        received = read_until_closed(client)

    assert received.count(b"HTTP/1.1 200 OK") == 3
    assert received.index(TEXT) < received.index(b"healthy") < received.rindex(TEXT)


def test_a_flood_of_requests_at_once_is_cut_off(plain: WebServer) -> None:
    """Of ten thousand requests in one write, one is worked on and eight may wait."""
    with connect(plain) as client:
        with contextlib.suppress(OSError):
            client.sendall((GET + b"\r\n") * 10_000)
        assert read_until_closed(client).count(b"HTTP/1.1 200 OK") <= 9
        assert ask(plain).status == 200


def test_over_the_limit_requests_are_told_to_come_back() -> None:
    """503 with Retry-After while others are worked on; a health probe is answered all the same."""
    options = replace(LOOPBACK, max_requests=1, basic_auth_users=A_QUARTER_SECOND)
    with serving(options) as server, connect(server) as client:
        client.sendall(GET + b"Authorization: Basic YTpi\r\n\r\n")
        time.sleep(0.05)
        refused, probe = ask(server), ask(server, "/-/healthy")

    assert refused.status == 503
    assert refused.headers["Retry-After"] == "1"
    assert probe.status == 401


def test_a_request_being_worked_on_outlives_the_silent_crowd() -> None:
    """Its connection has spoken, so it is not among those that make room."""
    options = replace(LOOPBACK, max_connections=8, basic_auth_users=A_QUARTER_SECOND)
    with serving(options) as server, connect(server) as client:
        client.sendall(GET + b"Authorization: Basic YTpi\r\n")
        with crowd(server, 7):
            client.sendall(b"\r\n")
            time.sleep(0.05)
            with crowd(server, 20):
                assert answer_to(client, b"").status == 401


# --- certificates ---------------------------------------------------------------------------


def shown_serial(server: WebServer) -> int:
    return serial_of(ssl.get_server_certificate(("127.0.0.1", port_of(server)), timeout=5))


def test_a_new_certificate_is_shown_without_a_restart(authority: Authority) -> None:
    """After the files change new connections see the new one; an open one goes on."""
    options = replace(LOOPBACK, tls=authority.options())
    with serving(options) as server, connect_tls(server, authority) as kept:
        before = shown_serial(server)
        issued = authority.issue()

        assert shown_serial(server) == issued != before
        assert answer_to(kept, GET + b"\r\n").status == 200


def test_a_broken_rotation_keeps_the_old_certificate(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """Half-written files are logged once, and scrapes go on; the whole ones are then taken up."""
    with serving(replace(LOOPBACK, tls=authority.options())) as server:
        before = shown_serial(server)
        whole = authority.cert_file.read_bytes()
        authority.cert_file.write_bytes(whole[:100])
        kept = {shown_serial(server) for _ in range(3)}
        warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
        issued = authority.issue()
        after = shown_serial(server)

    assert kept == {before}
    (fields,) = fields_of(warnings)
    assert str(authority.cert_file) in str(fields["detail"])
    assert after == issued


def test_bad_tls_files_stop_the_start(authority: Authority, tmp_path: Path) -> None:
    """A missing, foreign, empty or encrypted file is one line with the file's name."""
    empty, missing = tmp_path / "empty", tmp_path / "missing"
    empty.write_bytes(b"")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    good, foreign = authority.options(), Authority(elsewhere).options()
    for wrong in (
        replace(good, cert_file=missing),
        replace(good, key_file=empty),
        replace(good, key_file=foreign.key_file),
        replace(authority.options("RequireAndVerifyClientCert"), client_ca_file=empty),
        TlsOptions(tmp_path, tmp_path),
    ):
        with pytest.raises(ConfigError, match=str(tmp_path)) as refused:
            server_of(replace(LOOPBACK, tls=wrong))
        assert len(str(refused.value).splitlines()) == 1


def test_an_encrypted_key_is_refused_and_asks_nobody(authority: Authority) -> None:
    """OpenSSL does not wait at a terminal for a password that nobody will type."""
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 (slow to import)

    key = serialization.load_pem_private_key(authority.key_file.read_bytes(), None)
    authority.key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(ConfigError):
        server_of(replace(LOOPBACK, tls=authority.options()))


def test_old_protocols_are_not_spoken(authority: Authority) -> None:
    """The configured minimum holds: who speaks at most TLS 1.2 gets no TLS 1.3 server."""
    tls = replace(authority.options(), min_version="TLS13")
    client = authority.client()
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    with serving(replace(LOOPBACK, tls=tls)) as server:
        with pytest.raises(ssl.SSLError):
            ask(server, tls=client)
        assert ask(server, tls=authority.client()).status == 200


def test_many_scrapers_at_once_all_get_the_page(authority: Authority) -> None:
    """Forty clients over TLS, each with ten requests, and none is refused."""
    statuses: list[int] = []

    def scrape() -> None:
        tls = authority.client()
        statuses.extend(ask(server, tls=tls).status for _ in range(10))

    with serving(replace(LOOPBACK, tls=authority.options())) as server:
        threads = [threading.Thread(target=scrape) for _ in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)

    assert statuses == [200] * 400
