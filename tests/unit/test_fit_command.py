import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import bcrypt
import pytest
from click.testing import CliRunner, Result
from tests.unit.engine_views import engine
from tests.unit.web_harness import LOOPBACK, Authority, port_of, serving

from kvheadroom.cli import main
from kvheadroom.errors import ConfigError, KvHeadroomError, SourceError
from kvheadroom.faces.fit import FIT_PATH, answer_fit
from kvheadroom.faces.web import Answer, Handler
from kvheadroom.faces.web_options import WebOptions
from kvheadroom.live.snapshot import Snapshot

# Half of 9,101 blocks free, of which a request of 8,192 tokens takes 512: 8 of them.
NODE = Snapshot(engines=(engine(used_ratio=0.5, running=9),))


def node_answer(query: Mapping[str, str]) -> Answer:
    return answer_fit(query, NODE)


@contextmanager
def exporter(handler: Handler = node_answer, options: WebOptions = LOOPBACK) -> Iterator[str]:
    """The address of a kvheadroom that knows one engine."""
    with serving(options, api={FIT_PATH: handler}) as server:
        yield f"127.0.0.1:{port_of(server)}"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["fit", *arguments], standalone_mode=False)


def test_the_verdict_comes_first() -> None:
    """A person reads the first line, a script the exit status."""
    with exporter() as address:
        fits = run("--url", f"http://{address}", "--context", "8K", "--requests", "8")
        does_not = run("--url", f"http://{address}", "--context", "8K", "--requests", "9")

    assert fits.output.startswith("FITS: 8 more of 8,192 tokens on 127.0.0.1:8000/0 now; 8 would\n")
    assert does_not.output.startswith("DOES NOT FIT: 9 more")
    assert (fits.return_value, does_not.return_value) == (0, 0)


def test_what_a_restart_would_give_is_said_below() -> None:
    """145,632 tokens become 291,264 with an fp8 cache."""
    with exporter() as address:
        said = run("--url", f"http://{address}", "--context", "8K").output

    line = next(line for line in said.splitlines() if "--kv-cache-dtype fp8" in line)
    assert "291,264 tokens instead of 145,632" in line
    assert "+100%" in line


@pytest.mark.parametrize(("requests", "status"), [("8", 0), ("9", 1)])
def test_check_tells_by_the_exit_status(requests: str, status: int) -> None:
    """For scripts that send the requests only if they fit."""
    with exporter() as address:
        ended = run(
            "--url", f"http://{address}", "--context", "8K", "--requests", requests, "--check"
        )  # fmt: skip

    assert ended.return_value == status


def test_check_does_not_take_unknown_for_yes() -> None:
    """An engine whose usage is not known may be full, and a node without engines takes nothing."""
    unknown = Snapshot(engines=(replace(NODE.engines[0], headroom=None),))
    with exporter(lambda query: answer_fit(query, unknown)) as address:
        ended = run("--url", f"http://{address}", "--context", "8K", "--check")
    with exporter(lambda query: answer_fit(query, Snapshot())) as address:
        empty = run("--url", f"http://{address}", "--context", "8K", "--check")

    assert (ended.return_value, empty.return_value) == (1, 1)
    assert ended.output.startswith("UNKNOWN")


def test_json_is_the_answer_of_the_api() -> None:
    """One object, as the API gives it."""
    with exporter() as address:
        said = run("--url", f"http://{address}", "--context", "8K", "--json").output

    asked = node_answer({"context_tokens": "8192"})
    assert json.loads(said) == json.loads(asked.body)


def test_an_engine_that_is_not_there_is_an_error_of_one_line() -> None:
    """The line says which there are."""
    with exporter() as address:
        error = run("--url", f"http://{address}", "--context", "8K", "--engine", "chat").exception

    assert isinstance(error, KvHeadroomError)
    assert "127.0.0.1:8000/0" in str(error)
    assert "\n" not in str(error)


def test_nobody_there_is_an_error_of_one_line() -> None:
    """A port that nobody listens on refuses the connection."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    error = run("--url", f"http://127.0.0.1:{port}", "--context", "8K").exception

    assert isinstance(error, KvHeadroomError)
    assert f"127.0.0.1:{port}" in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize("body", [b"<!doctype html>", b"[]", b'{"context_tokens": "x"}', b"\xff"])
def test_something_else_there_is_an_error_of_one_line(body: bytes) -> None:
    """Another program may listen on that port."""
    with exporter(lambda _: Answer(200, "application/json", body)) as address:
        error = run("--url", f"http://{address}", "--context", "8K").exception

    assert isinstance(error, KvHeadroomError)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    "url", ["127.0.0.1:10420", "ftp://127.0.0.1", "http://", "http://a:b", "http://[::1", ""]
)
def test_what_is_no_url_is_refused(url: str) -> None:
    """A port alone, or another protocol, cannot be asked."""
    assert isinstance(run("--url", url, "--context", "8K").exception, ConfigError)


def test_a_context_that_is_no_number_of_tokens_is_refused() -> None:
    """Nobody needs to be asked for that."""
    error = run("--url", "http://127.0.0.1:1", "--context", "8Q").exception

    assert isinstance(error, ConfigError)


def test_a_user_with_the_right_password_is_let_in() -> None:
    """Credentials in the URL are sent as basic auth, and repeated nowhere."""
    hashed = bcrypt.hashpw(b"correct-horse", bcrypt.gensalt(4)).decode()
    options = replace(LOOPBACK, basic_auth_users={"eve": hashed})

    with exporter(options=options) as address:
        let_in = run("--url", f"http://eve:correct-horse@{address}", "--context", "8K")
        refused = run("--url", f"http://eve:battery@{address}", "--context", "8K").exception

    assert let_in.output.startswith("FITS")
    assert isinstance(refused, KvHeadroomError)
    assert "401" in str(refused)
    assert "battery" not in str(refused)


def test_a_certificate_is_checked_against_the_authority_that_is_named(tmp_path: Path) -> None:
    """The test's own authority is none that the system knows."""
    authority = Authority(tmp_path)

    with exporter(options=replace(LOOPBACK, tls=authority.options())) as address:
        asked = ("--url", f"https://{address}", "--context", "8K")
        trusted = run(*asked, "--ca-file", str(authority.ca_file))
        unnamed = run(*asked).exception

    assert trusted.output.startswith("FITS")
    assert isinstance(unnamed, SourceError)
    assert unnamed.reason == "tls"


def test_a_file_without_certificates_is_refused(tmp_path: Path) -> None:
    """The key of a server is none, and neither is a file that is not there."""
    authority = Authority(tmp_path)
    asked = ("--url", "https://127.0.0.1:1", "--context", "8K")

    for file in (authority.key_file, tmp_path / "missing"):
        assert isinstance(run(*asked, "--ca-file", str(file)).exception, ConfigError)
