"""A key planted wherever people put one comes out nowhere."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.made_node import MadeNode
from tests.e2e.page_server import PageServer, answer
from tests.parts.fake_nvml import gpu

from kvheadroom.cli import run

pytestmark = pytest.mark.parts

SECRET = "sk-planted-5e6f7a"
TOLD = ("--max-model-len", "2048")
PATHS = ("/metrics", "/", "/api/v1/snapshot", "/api/v1/fit?context_tokens=8K", "/-/ready", "/none")
ACCEPTED = ("text/plain;version=0.0.4", "application/openmetrics-text;version=1.0.0")


COMMANDS = (("top", "--once"), ("fit", "--context", "1K"), ("fit", "--context", "1K", "--json"))


def printed(*words: str, url: str) -> bytes:
    """What a command prints that asks the kvheadroom at *url*."""
    command = [sys.executable, "-m", "kvheadroom", *words, "--url", url]
    done = subprocess.run(command, capture_output=True, timeout=20, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def plant(node: MadeNode, folder: Path) -> list[PageServer]:
    """Servers that were told the key in every way that vLLM knows."""
    file = folder / "vllm.yaml"
    file.write_text(f"api-key: {SECRET}\nhf-token: {SECRET}\nmax-model-len: 2048\n")
    variables = {"VLLM_API_KEY": SECRET, "HF_TOKEN": SECRET}
    told = (
        ("--api-key", SECRET),
        (f"--api-key={SECRET}", "--hf-token", SECRET),
        ("--config", str(file)),
        ("--seed", "1", "--otlp-traces-endpoint", f"https://me:{SECRET}@host/x?key={SECRET}"),
        (f"--new-option={SECRET}", SECRET, "--max-num-seqs", SECRET),
    )
    doors = [
        node.server(100 * number, "0.28.0", *TOLD, *flags, environment=variables)
        for number, flags in enumerate(told, 1)
    ]
    # A server that is asked without its key says so, and may repeat what it was sent.
    doors[0].routes["/v1/models"] = answer(f"bad key {SECRET}".encode(), status=401)
    node.driver.write(gpu(0, compute="101:1000000000 201:1000000000"), devices=1)
    return doors


def configuration(folder: Path, door: str, listed: str, lists: str) -> list[str]:
    """What ``serve`` is told, the key in every way that it knows."""
    (folder / "key").write_text(SECRET)
    (folder / "list.yaml").write_text(f"- targets: ['http://me:{SECRET}@{listed}']\n")
    (folder / "broken.yaml").write_text(f"- targets: [!{SECRET} 'http://me:{SECRET}@h:1'\n")
    (folder / "web.yaml").write_text(
        f"http_server_config: {{headers: {{X-Frame-Options: {SECRET}}}}}\n"
    )
    (folder / "config.yaml").write_text("contexts: [8K]\n")
    return [
        *("--engine", f"http://me:{SECRET}@{door}", f"--engine=http://me:{SECRET}@127.0.0.1:11"),
        *("--config.file", str(folder / "config.yaml")),
        *("--web.config.file", str(folder / "web.yaml")),
        *("--api-key-file", str(folder / "key")),
        *("--targets.file", str(folder / "list.yaml")),
        *("--targets.file", str(folder / "broken.yaml")),
        *("--targets.url", f"http://me:{SECRET}@{lists}/targets"),
        *("--targets.url", f"http://me:{SECRET}@127.0.0.1:12/targets"),
        *("--startup-log", f"http://me:{SECRET}@{door}={folder / 'none.log'}"),
        *("--state.file", str(folder / "state.json"), "--log.level", "debug"),
    ]


def test_a_planted_key_comes_out_nowhere(
    made_node: MadeNode,
    tmp_path: Path,
    servers: Callable[[], PageServer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Metrics, page, JSON, log at debug level, process list, state file and a crash's report."""
    doors = plant(made_node, tmp_path)
    engine, listed, lists = servers(), servers(), servers()
    engine.page(b"<html>login</html>")
    lists.routes["/targets"] = answer(f'[{{"targets": ["me:{SECRET}@h:1:2"]}}]'.encode())
    flags = configuration(tmp_path, engine.target, listed.target, lists.target)
    for name, value in {
        "KVHEADROOM_API_KEY": SECRET,
        "PYTHONFAULTHANDLER": "1",
    }.items():
        monkeypatch.setenv(name, value)

    with made_node.watch(*flags) as exporter:
        for door in doors:
            exporter.wait_for("source_up", 1, target=door.target, seconds=15)
        for target in (engine.target, listed.target, "127.0.0.1:11"):
            exporter.wait_for("source_up", 0, target=target)
        assert exporter.get("/api/v1/snapshot")[0] == 200
        shown = [
            exporter.get(path, Accept=accepted, Authorization=f"Bearer {SECRET}", Cookie=SECRET)[1]
            for path in PATHS
            for accepted in ACCEPTED
        ]
        listed_words = subprocess.run(
            ["ps", "-o", "args=", "-p", str(exporter.process.pid)],
            capture_output=True, check=True, timeout=10,
        ).stdout  # fmt: skip
        shown += [printed(*words, url=f"http://127.0.0.1:{exporter.port}") for words in COMMANDS]
        (tmp_path / "config.yaml").write_text(f"contexts: [!{SECRET} 8K]\n")
        exporter.process.send_signal(signal.SIGHUP)
        exporter.wait_for("config_last_reload_successful", 0)
        os.kill(exporter.process.pid, signal.SIGABRT)
        exporter.process.wait(10)
        exporter.stop()

    log = "".join(exporter.log)
    assert engine.seen_headers["/metrics"]["Authorization"].startswith("Basic ")
    assert doors[1].seen_headers["/v1/models"]["Authorization"] == f"Bearer {SECRET}"
    assert "Fatal Python error: Aborted" in log
    assert "target file not used" in log
    for text in (*shown, listed_words, (tmp_path / "state.json").read_bytes(), log.encode()):
        assert SECRET.encode() not in text, text[max(0, text.find(SECRET.encode()) - 300) :][:600]


URL = f"http://me:{SECRET}@h:8000"


@pytest.mark.parametrize(
    "words",
    [
        ("serve", URL),
        ("check-config", "--engine", f"http://me:{SECRET}@"),
        ("check-config", "--engine", f"http://me:{SECRET}@h:0"),
        ("check-config", "--engine", f"http://me:{SECRET}@h:x"),
        ("check-config", "--engine", f"ftp://me:{SECRET}@h"),
        ("check-config", "--engine", URL, "--engine", URL),
        ("check-config", "--engine", URL, "--model-config", f"{URL}=/nowhere.json"),
        ("check-config", "--startup-log", f"{URL}=/nowhere.log"),
        ("check-config", "--startup-log", URL),
        ("check-config", "--targets.url", f"http://me:{SECRET}@h:x"),
        ("check-config", "--targets.url", f"ftp://me:{SECRET}@h"),
        ("check-health", f"http://me:{SECRET}@127.0.0.1:9"),
        ("check-health", f"http://me:{SECRET}@h:x"),
        ("top", "--once", "--url", f"http://me:{SECRET}@127.0.0.1:9"),
        ("top", "--once", "--url", f"http://me:{SECRET}@h:x"),
        ("fit", "--context", "1K", "--url", f"http://me:{SECRET}@127.0.0.1:9"),
        ("fit", "--context", "1K", "--url", f"http://me:{SECRET}@h:x"),
        ("plan", "--gpu", "24GiB", "--serve", f"vllm serve m --api-key {SECRET} --max-model-len x"),
        ("plan", "--gpu", "24GiB", "--serve", f"VLLM_API_KEY={SECRET} vllm serve '{URL}/m"),
    ],
)
def test_no_error_repeats_a_key(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever is wrong with a command line, what is said of it is free of credentials."""
    monkeypatch.setattr(sys, "argv", ["kvheadroom", *words])
    status = run()
    shown = capsys.readouterr()

    assert status in {1, 2} or not shown.err
    assert SECRET not in shown.out + shown.err
