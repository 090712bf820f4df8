"""A real vLLM on loopback with a pool that is small on purpose, and the load that overruns it."""

import json
import os
import random
import re
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

#: 200 blocks of 128 tokens: forty requests of 300 + 1,500 tokens overrun it within 20 s.
BLOCKS = 200
MAX_MODEL_LEN = 2048
API_KEY = "sk-real-vllm-test"


class RealVllm:
    """One ``vllm serve`` process, ended by its pid."""

    def __init__(self, home: Path, log: Path, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.target = f"127.0.0.1:{port}"
        self.model = home / "model"
        self._log = log
        command = [
            str(home / "venv/bin/vllm"), "serve", str(self.model), "--host", "127.0.0.1",
            "--port", str(port), "--served-model-name", "tiny", "--enforce-eager",
            "--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", "64",
            "--num-gpu-blocks-override", str(BLOCKS),
        ]  # fmt: skip
        offline = {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_API_KEY": API_KEY,
        }
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

    def logged_tokens(self) -> int:
        """The capacity that vLLM printed at start."""
        match = re.search(r"KV cache size: ([\d,]+) tokens", self.log_text())
        assert match is not None
        return int(match[1].replace(",", ""))

    def page(self) -> str:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as response:
            return str(response.read().decode())

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
        self._threads = [
            threading.Thread(
                target=self._complete, args=(server.url, prompt_tokens, output_tokens), daemon=True
            )
            for _ in range(requests)
        ]
        for thread in self._threads:
            thread.start()

    def wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            assert not thread.is_alive(), "the load did not finish in time"

    def _complete(self, url: str, prompt_tokens: int, output_tokens: int) -> None:
        body = {
            "model": "tiny",
            "prompt": [random.randrange(256) for _ in range(prompt_tokens)],
            "max_tokens": output_tokens,
            "ignore_eos": True,
        }
        request = urllib.request.Request(
            f"{url}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {API_KEY}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=300) as response:
                response.read()
        except (OSError, urllib.error.URLError) as error:
            self.failed.append(str(error))
