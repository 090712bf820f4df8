import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from tests.e2e.exporter import Exporter


@pytest.fixture(scope="module")
def demo() -> Iterator[Exporter]:
    """A simulated rack, polled once a second."""
    exporter = Exporter("demo", "--profile", "rack", "--poll.interval", "1s")
    try:
        deadline = time.monotonic() + 15
        while len(exporter.samples("kv_capacity_tokens")) < 8:
            assert time.monotonic() < deadline, "".join(exporter.log)
            time.sleep(0.2)
        yield exporter
    finally:
        exporter.stop()


def answers(exporter: Exporter) -> Mapping[str, Mapping[str, Any]]:
    status, body = exporter.get("/api/v1/fit?context_tokens=8K&requests=4")
    assert status == 200
    return {one["engine"]: one for one in json.loads(body)["engines"]}


def headroom(exporter: Exporter) -> Mapping[str, float]:
    found = exporter.samples("headroom_requests")
    return {labels["engine"]: value for labels, value in found if labels["context"] == "8192"}


def test_it_says_what_the_metrics_say(demo: Exporter) -> None:
    """Of an engine without a queue, as many fit as its headroom series counts."""
    deadline = time.monotonic() + 15
    compared: set[str] = set()
    while len(compared) < 4:
        assert time.monotonic() < deadline, compared
        before, found, after = headroom(demo), answers(demo), headroom(demo)
        # A poll in between would make it two different moments.
        if before != after:
            continue
        waiting = {one["engine"]: value for one, value in demo.samples("engine_requests_waiting")}
        for engine, requests in after.items():
            if not waiting.get(engine) and found[engine].get("limit") in {"kv", "max_num_seqs"}:
                assert found[engine]["possible"] == requests, engine
                compared.add(engine)


def test_the_command_asks_the_daemon(demo: Exporter) -> None:
    """One request of one token fits on at least one of the rack's engines, and is said to."""
    url = f"http://127.0.0.1:{demo.port}"
    command = ["fit", "--url", url, "--context", "1", "--engine", "qwen3-30b-a3b"]

    ended = subprocess.run(
        [sys.executable, "-m", "kvheadroom", *command],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
        env=os.environ,
    )

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[0].split(":")[0] in {"FITS", "DOES NOT FIT"}
    assert "--kv-cache-dtype fp8" in ended.stdout


def test_an_error_is_one_line_and_status_1(demo: Exporter) -> None:
    """A script that asks about an engine with another name must not go on."""
    command = ["fit", "--url", f"http://127.0.0.1:{demo.port}", "--context", "8K"]

    ended = subprocess.run(
        [sys.executable, "-m", "kvheadroom", *command, "--engine", "nobody"],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
        env=os.environ,
    )

    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.count("\n") == 1
    assert "qwen3-30b-a3b" in ended.stderr
