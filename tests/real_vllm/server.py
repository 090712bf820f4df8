"""A real vLLM on loopback, and the load that overruns a small pool of it."""

import http.client
import json
import os
import random
import re
import shlex
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self

from prometheus_client.parser import text_string_to_metric_families

#: 200 blocks of 128 tokens: forty requests of 300 + 1,500 tokens overrun it within 20 s.
BLOCKS = 200
MAX_MODEL_LEN = 4096
API_KEY = "sk-real-vllm-test"
HEADERS = {"Content-Type": "application/json", "Authorization": f"Bearer {API_KEY}"}


class RealVllm:
    """One ``vllm serve`` process on a free loopback port, ended by its pid."""

    def __init__(
        self,
        home: Path,
        model: Path,
        log: Path,
        *flags: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.target = f"127.0.0.1:{port}"
        self.model = model
        self._log = log
        command = [
            str(home / "venv/bin/vllm"), "serve", str(model), "--host", "127.0.0.1",
            "--port", str(port), "--served-model-name", "tiny", "--enforce-eager", *flags,
        ]  # fmt: skip
        offline = {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_API_KEY": API_KEY,
            **(environment or {}),
        }
        self.command_line = shlex.join(command)
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=out, env={**os.environ, **offline}
            )

    def log_text(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_until_ready(self, seconds: float = 240) -> None:
        deadline = time.monotonic() + seconds
        while True:
            assert self.process.poll() is None, self.log_text()[-3000:]
            assert time.monotonic() < deadline, self.log_text()[-3000:]
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=2):
                    return
            except OSError:
                time.sleep(0.5)

    def logged(self, pattern: str) -> tuple[str, ...]:
        """The groups of *pattern* where the log first has it, thousands separators removed."""
        match = re.search(pattern, self.log_text())
        assert match is not None, f"never logged: {pattern}"
        return tuple(group.replace(",", "") for group in match.groups())

    def page(self) -> str:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as response:
            return str(response.read().decode())

    def cache_config(self) -> dict[str, str]:
        """The labels of ``vllm:cache_config_info``."""
        return next(
            sample.labels
            for family in text_string_to_metric_families(self.page())
            for sample in family.samples
            if sample.name == "vllm:cache_config_info"
        )

    def ask(self, path: str, body: object = None) -> dict[str, Any]:
        """The answer to a GET, or to a POST of *body*."""
        request = urllib.request.Request(
            f"{self.url}{path}",
            None if body is None else json.dumps(body).encode(),
            HEADERS,
        )
        with urllib.request.urlopen(request, timeout=300) as response:
            answer: dict[str, Any] = json.loads(response.read())
            return answer

    def start_load(self, requests: int, prompt_tokens: int, output_tokens: int) -> "Load":
        return Load(self, requests, prompt_tokens, output_tokens)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)


class Load:
    """Completions of random prompts, all at once."""

    def __init__(
        self, server: RealVllm, requests: int, prompt_tokens: int, output_tokens: int
    ) -> None:
        self.failed: list[str] = []
        self._connections = [
            http.client.HTTPConnection(server.target, timeout=300) for _ in range(requests)
        ]
        self._threads = [
            threading.Thread(
                target=self._complete, args=(connection, prompt_tokens, output_tokens), daemon=True
            )
            for connection in self._connections
        ]
        for thread in self._threads:
            thread.start()

    def is_running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            assert not thread.is_alive(), "the load did not finish in time"

    def abandon(self) -> None:
        """Hang up on every request, upon which the server drops it."""
        for connection in self._connections:
            if connection.sock is not None:
                connection.sock.shutdown(socket.SHUT_RDWR)
        self.wait(10)

    def _complete(
        self, connection: http.client.HTTPConnection, prompt_tokens: int, output_tokens: int
    ) -> None:
        """Have a random prompt answered with exactly *output_tokens*."""
        body = {
            "model": "tiny",
            "prompt": [random.randrange(256) for _ in range(prompt_tokens)],
            "max_tokens": output_tokens,
            "ignore_eos": True,
        }
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), HEADERS)
            response = connection.getresponse()
            if response.status != HTTPStatus.OK:
                self.failed.append(f"{response.status}: {response.read()[:200]!r}")
            response.read()
        except (OSError, http.client.HTTPException) as error:
            self.failed.append(str(error))
        finally:
            connection.close()


def reported(page: str, name: str) -> float:
    """The sum of the samples of ``vllm:name`` on a page of vLLM's."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == f"vllm:{name}"
    )


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
