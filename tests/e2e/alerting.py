"""A Prometheus and an Alertmanager as they are shipped under deploy/, and whom they tell."""

import json
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Self

import yaml
from tests.parts.prometheus_builds import Find

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
_EXAMPLE_RECEIVERS: Final = "http://127.0.0.1:9095/"


@dataclass(frozen=True, slots=True)
class Message:
    """One alert of one webhook call.

    Attributes:
        at_seconds: When it came, monotonic clock.
        receiver: Last part of the URL it was sent to.
        status: ``firing`` or ``resolved``.
        labels: The alert's.
        annotations: The alert's.
    """

    at_seconds: float
    receiver: str
    status: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


@dataclass(slots=True)
class Webhook:
    """A receiver on loopback that keeps what it is told."""

    messages: list[Message] = field(default_factory=list)
    url: str = ""
    _server: ThreadingHTTPServer | None = None

    def __enter__(self) -> Self:
        messages = self.messages

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                receiver = self.path.rpartition("/")[2]
                messages.extend(
                    Message(
                        time.monotonic(), receiver, one["status"], one["labels"], one["annotations"]
                    )
                    for one in told["alerts"]
                )
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    def wait_for(self, alert: str, status: str, *, seconds: float) -> Message:
        deadline = time.monotonic() + seconds
        while True:
            for message in self.messages:
                if message.labels["alertname"] == alert and message.status == status:
                    return message
            assert time.monotonic() < deadline, f"{alert} never {status}: {self.messages}"
            time.sleep(0.05)


class Service:
    """A server program on a free loopback port, ended by its pid."""

    def __init__(self, binary: Path, *arguments: str, folder: Path) -> None:
        self.address = free_address()
        self._log = (folder / f"{binary.name}.log").open("w+")
        self.process = subprocess.Popen(
            [binary, *arguments, f"--web.listen-address={self.address}", "--log.level=warn"],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def get(self, path: str, **parameters: str | float) -> Any:  # noqa: ANN401
        query = f"?{urllib.parse.urlencode(parameters, doseq=True)}" if parameters else ""
        with urllib.request.urlopen(f"http://{self.address}{path}{query}", timeout=5) as answer:
            return json.load(answer)

    def post(self, path: str, body: object = None) -> None:
        request = urllib.request.Request(
            f"http://{self.address}{path}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            method="POST",
        )
        urllib.request.urlopen(request, timeout=5).close()

    def wait_until_ready(self) -> Self:
        deadline = time.monotonic() + 20
        while True:
            try:
                urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=5).close()
            except (OSError, urllib.error.HTTPError):
                self._log.flush()
                self._log.seek(0)
                assert self.process.poll() is None, self._log.read()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            else:
                return self

    def wait_for(self, expression: str) -> None:
        """Wait until a Prometheus has a value for an expression."""
        self.wait_until_ready()
        deadline = time.monotonic() + 25
        while not self.get("/api/v1/query", query=expression)["data"]["result"]:
            assert time.monotonic() < deadline, f"{expression} never had a value"
            time.sleep(0.1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(5)
        self._log.close()


def free_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def start_alertmanager(build: Find, folder: Path, webhook: Webhook) -> Service:
    """Start one with the shipped configuration, told to *webhook* and every 5 s instead of 1m."""
    shipped = (DEPLOY / "alertmanager" / "alertmanager.yml").read_text()
    assert _EXAMPLE_RECEIVERS in shipped
    config = folder / "alertmanager.yml"
    text = shipped.replace(_EXAMPLE_RECEIVERS, webhook.url)
    config.write_text(text.replace("group_interval: 1m", "group_interval: 5s"))
    return Service(
        build("prometheus-alertmanager"),
        f"--config.file={config}",
        f"--storage.path={folder / 'alertmanager'}",
        "--cluster.listen-address=",
        folder=folder,
    )


def start_prometheus(
    build: Find, folder: Path, *, targets: Sequence[str], alertmanager: str
) -> Service:
    """Start one with the shipped example, pointed at *targets* and *alertmanager*."""
    shipped = DEPLOY / "prometheus"
    for file in ("kvheadroom.rules.yml", "kvheadroom.alerts.yml"):
        shutil.copy(shipped / file, folder / file)
    config = yaml.safe_load((shipped / "prometheus-example.yml").read_text())
    config["scrape_configs"][0]["static_configs"] = [{"targets": list(targets)}]
    config["alerting"]["alertmanagers"][0]["static_configs"] = [{"targets": [alertmanager]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    return Service(
        build("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        "--web.enable-lifecycle",
        folder=folder,
    )


def shorten_windows(folder: Path, prometheus: Service, *, divisor: int) -> None:
    """Let the alerts in force end sooner: divide every duration of theirs; what fires goes on."""
    file = folder / "kvheadroom.alerts.yml"

    def shorter(match: re.Match[str]) -> str:
        seconds = int(match[2]) * {"s": 1, "m": 60, "h": 3600}[match[3]]
        return f"{match[1]}{max(1, seconds // divisor)}s"

    text = re.sub(r"(\[|offset |for: )(\d+)([smh])", shorter, file.read_text())
    file.write_text(text)
    prometheus.post("/-/reload")
