"""Lists of targets as Prometheus' file_sd and http_sd documentation gives them."""

import functools
import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kvheadroom.errors import ConfigError
from kvheadroom.node.target_lists import TargetFiles, TargetUrl, parse_target_groups
from kvheadroom.strict_yaml import load_value

SECRET = "pw-planted-77"
GROUPS = [
    {"targets": ["a:8000", "b:8001"], "labels": {"team": "chat", "__meta_x": "y"}},
    {"targets": ["https://c:8443/base"]},
]


def addresses(files: TargetFiles | TargetUrl) -> list[str]:
    return sorted(server.address for server in files.servers())


def test_groups_are_servers_with_labels() -> None:
    """Every target is a server; labels between underscores are Prometheus' own."""
    servers = {server.address: dict(server.labels) for server in parse_target_groups(GROUPS)}

    assert servers == {"a:8000": {"team": "chat"}, "b:8001": {"team": "chat"}, "c:8443/base": {}}


def test_scheme_and_path_labels_direct_the_questions() -> None:
    """__scheme__ and __metrics_path__ mean what they mean to Prometheus."""
    labels = {"__scheme__": "https", "__metrics_path__": "/llm/metrics"}

    (server,) = parse_target_groups([{"targets": ["a:1"], "labels": labels}])

    assert server.url == "https://a:1/llm"


def test_a_server_listed_twice_is_one() -> None:
    """The first mention counts."""
    groups = [{"targets": ["a:1"], "labels": {"n": "1"}}, {"targets": ["a:1", "a:1"]}]

    (server,) = parse_target_groups(groups)

    assert server.labels == {"n": "1"}


@pytest.mark.parametrize(
    "data",
    [
        {"targets": ["a:1"]},
        "a:1",
        [["a:1"]],
        [{"targets": "a:1"}],
        [{"targets": [1]}],
        [{"labels": {}}],
        [{"targets": ["a:1"], "label": {}}],
        [{"targets": ["a:1"], "labels": {"x-y": "z"}}],
        [{"targets": ["a:1"], "labels": {"x": 1}}],
        [{"targets": [f"ftp://u:{SECRET}@a:1"]}],
        [{"targets": [f"http://u:{SECRET}@a:99999"]}],
        [{"targets": [f"a:1/?key={SECRET}"]}],
    ],
)
def test_what_is_no_list_is_refused_without_repeating_it(data: object) -> None:
    """The error is one line, and may be shown whatever the list holds."""
    with pytest.raises(ConfigError) as caught:
        parse_target_groups(data)

    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_credentials_are_not_shown() -> None:
    """User and password go to the server and nowhere else."""
    (server,) = parse_target_groups([{"targets": [f"http://u:{SECRET}@a:1"]}])

    assert SECRET in server.url
    assert SECRET not in repr(server)


def test_json_and_yaml_files_are_read(tmp_path: Path) -> None:
    """Both of Prometheus' formats, by pattern."""
    (tmp_path / "a.json").write_text(json.dumps(GROUPS))
    (tmp_path / "b.yml").write_text("- targets:\n  - d:8000\n")
    (tmp_path / "c.txt").write_text("no list")
    files = TargetFiles([f"{tmp_path}/*.json", f"{tmp_path}/*.yml"], load=load_value)

    assert addresses(files) == ["a:8000", "b:8001", "c:8443/base", "d:8000"]
    assert files.problems == {}


def rewrite(file: Path, text: str) -> None:
    file.write_text(text)
    later = file.stat().st_mtime_ns + 1_000_000
    os.utime(file, ns=(later, later))


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    """Written anew, replaced, or gone, it is followed at the next look."""
    file = tmp_path / "a.json"
    file.write_text('[{"targets": ["a:1"]}]')
    files = TargetFiles([f"{tmp_path}/*.json"], load=load_value)
    assert addresses(files) == ["a:1"]

    rewrite(file, '[{"targets": ["a:2"]}]')
    assert addresses(files) == ["a:2"]

    (tmp_path / "new").write_text('[{"targets": ["a:3"]}]')
    (tmp_path / "new").rename(file)
    assert addresses(files) == ["a:3"]

    file.unlink()
    assert addresses(files) == []


@pytest.mark.parametrize("bad", ["{", f'[{{"targets": ["{SECRET}', "[1]", '{"targets": []}'])
def test_a_bad_file_keeps_what_it_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, bad: str
) -> None:
    """One error in the log however often it is looked at, and the list before stays."""
    caplog.set_level(logging.DEBUG)
    good, file = tmp_path / "good.json", tmp_path / "a.json"
    good.write_text('[{"targets": ["b:1"]}]')
    file.write_text('[{"targets": ["a:1"]}]')
    files = TargetFiles([str(good), str(file)], load=load_value)
    files.servers()

    rewrite(file, bad)
    for _ in range(3):
        assert addresses(files) == ["a:1", "b:1"]

    assert list(files.problems) == [str(file)]
    assert len(caplog.records) == 1
    assert SECRET not in f"{files.problems}{[vars(record) for record in caplog.records]}"
    rewrite(file, '[{"targets": ["a:2"]}]  ')
    assert addresses(files) == ["a:2", "b:1"]
    assert files.problems == {}


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    """A plain path that is not there is a problem; a pattern that matches nothing is none."""
    files = TargetFiles([f"{tmp_path}/none.json", f"{tmp_path}/*.yml"], load=load_value)

    assert addresses(files) == []
    assert list(files.problems) == [f"{tmp_path}/none.json"]


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    """What would never end, or never begin, is refused."""
    os.mkfifo(tmp_path / "a.json")
    files = TargetFiles([f"{tmp_path}/a.json"], load=load_value)

    assert addresses(files) == []
    assert "regular file" in files.problems[f"{tmp_path}/a.json"]


@contextmanager
def list_server(answers: list[tuple[int, bytes, float]]) -> Iterator[tuple[int, list[str]]]:
    """A server that gives *answers* (status, body, seconds of delay) in turn; port, requests."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.path} {self.headers.get('Authorization')}")
            status, body, delay_seconds = answers[min(len(asked), len(answers)) - 1]
            time.sleep(delay_seconds)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """Clients that gave up are no error."""

    with Server(("127.0.0.1", 0), Handler) as server:
        serve = functools.partial(server.serve_forever, poll_interval=0.01)
        threading.Thread(target=serve, daemon=True).start()
        yield server.server_address[1], asked
        server.shutdown()


def listed(*targets: str) -> bytes:
    return json.dumps([{"targets": list(targets)}]).encode()


def test_a_list_over_http_is_asked_for_when_due() -> None:
    """The query is sent as it is, and the answer holds until the next question is due."""
    with list_server([(200, listed("a:1"), 0), (200, listed("a:2"), 0)]) as (port, asked):
        url = f"http://127.0.0.1:{port}/sd?role=llm"
        slow = TargetUrl(url, deadline_seconds=5)
        assert [addresses(slow), addresses(slow)] == [["a:1"], ["a:1"]]
        often = TargetUrl(url, deadline_seconds=5, refresh_seconds=0)
        assert addresses(often) == ["a:2"]
        slow.close()
        often.close()

    assert asked == ["/sd?role=llm None"] * 2


@pytest.mark.parametrize(
    "failure",
    [(500, b"", 0), (200, b"{", 0), (200, b"{}", 0), (401, b"", 0), (200, listed("a:9"), 1.0)],
)
def test_a_failing_list_keeps_what_it_said(
    caplog: pytest.LogCaptureFixture, failure: tuple[int, bytes, float]
) -> None:
    """An error, nonsense or silence leaves the list before in force, and is said once."""
    caplog.set_level(logging.INFO)
    answers = [(200, listed("a:1"), 0.0), failure, failure, (200, listed("a:2"), 0.0)]
    with list_server(answers) as (port, _):
        source = TargetUrl(
            f"http://u:{SECRET}@127.0.0.1:{port}/sd?key={SECRET}",
            deadline_seconds=0.4,
            refresh_seconds=0,
        )
        assert addresses(source) == ["a:1"]
        for _ in range(2):
            assert addresses(source) == ["a:1"]
            assert source.problem is not None
        assert addresses(source) == ["a:2"]
        source.close()

    assert source.problem is None
    assert len(caplog.records) == 1
    assert SECRET not in f"{source.address}{[vars(record) for record in caplog.records]}"


def test_what_is_no_url_is_refused_at_once() -> None:
    """A list's URL is checked before anything is asked, and never repeated."""
    for url in ("ftp://a/b", f"http://u:{SECRET}@a:x/", f"http://a/b c?{SECRET}", SECRET):
        with pytest.raises(ConfigError) as caught:
            TargetUrl(url, deadline_seconds=1)
        assert SECRET not in str(caught.value)
