"""The real command as a process, asked and read as Prometheus would."""

import http.client
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import Empty, Queue
from typing import Self

from prometheus_client.parser import text_string_to_metric_families


class Exporter:
    """One ``kvheadroom`` process on a free loopback port, ended by its pid."""

    def __init__(
        self,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        command: Sequence[str | Path] = (sys.executable, "-m", "kvheadroom"),
    ) -> None:
        self.process = subprocess.Popen(
            [*command, *arguments, "--web.listen-address", "127.0.0.1:0"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
            text=True,
        )
        self.log: list[str] = []
        self._lines: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        self.port = self._wait_for_port()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            self._lines.put(line)

    def _wait_for_port(self) -> int:
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            try:
                line = self._lines.get(timeout=0.2)
            except Empty:
                assert self.process.poll() is None, "".join(self.log)
                continue
            if match := re.search(r"listening.*https?://127\.0\.0\.1:(\d+)", line):
                return int(match[1])
        raise AssertionError(f"never listened: {''.join(self.log)}")

    def get(self, path: str, **headers: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def samples(self, name: str) -> list[tuple[dict[str, str], float]]:
        status, page = self.get("/metrics")
        assert status == 200
        return [
            (sample.labels, sample.value)
            for family in text_string_to_metric_families(page.decode())
            for sample in family.samples
            if sample.name == f"kvheadroom_{name}"
        ]

    def value(self, name: str, **labels: str) -> float | None:
        found = [v for have, v in self.samples(name) if labels.items() <= have.items()]
        assert len(found) <= 1, (name, labels, found)
        return found[0] if found else None

    def wait_for(
        self, name: str, value: float | None, *, seconds: float = 8, **labels: str
    ) -> None:
        """Wait until one sample has this value (``None``: is absent)."""
        deadline = time.monotonic() + seconds
        while (found := self.value(name, **labels)) != value:
            assert time.monotonic() < deadline, f"{name}{labels} is {found}, not {value}"
            time.sleep(0.03)

    def stop(self) -> float:
        """End the process and return the seconds that took."""
        started = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(10)
        took = time.monotonic() - started
        self._reader.join(2)
        if self.process.stderr is not None:
            self.process.stderr.close()
        return took

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.stop()
