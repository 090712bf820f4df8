"""The image, built from its Dockerfile and run as its users would."""

import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.deploy.files import DEPLOY, REPOSITORY, document
from tests.deploy.image import Builder
from tests.e2e.exporter import Exporter
from tests.parts.fake_nvml import FakeNvml, compile_library, gpu
from tests.unit.evidence import page

from kvheadroom import __version__

built_here = pytest.mark.image


# A process that looks and answers as `vllm serve` does.
SERVER = """
import http.server, pathlib, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'{"version": "0.32.0"}' if self.path == "/version" else PAGE
        self.send_response(200 if self.path in ("/version", "/metrics") else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
PAGE = pathlib.Path("page").read_bytes()
port = int(sys.argv[sys.argv.index("--port") + 1])
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
print("serving", flush=True)
server.serve_forever()
"""


@contextmanager
def serving(folder: Path, page: bytes) -> Iterator[str]:
    """Run such a process in *folder*; gives its ``host:port``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    script = folder / "bin" / "vllm"
    script.parent.mkdir()
    script.write_text(SERVER)
    (folder / "page").write_bytes(page)
    words = [
        sys.executable,
        str(script),
        "serve",
        "org/model",
        "--host",
        "127.0.0.1",
        "--port",
        port,
    ]
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"serving\n"
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()


@contextmanager
def running(run: Sequence[str], *arguments: str) -> Iterator[Exporter]:
    """Run kvheadroom in a container; told to end, buildah ends it too, killed it would not."""
    with Exporter(*arguments, command=[*run, "kvheadroom"]) as exporter:
        try:
            yield exporter
        finally:
            exporter.stop()


@pytest.fixture(scope="session")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    """Who has built the image."""
    builder = Builder(tmp_path_factory.mktemp("builder"))
    try:
        builder.build()
        yield builder
    finally:
        builder.close()


@pytest.fixture(scope="session")
def container(builder: Builder) -> Iterator[str]:
    """A container of the image, for everything that leaves no trace in it."""
    name = builder.new_container()
    yield name
    builder("rm", name)


def test_the_build_is_shown_what_it_copies_and_nothing_else() -> None:
    """.dockerignore lets in exactly what the Dockerfile copies from the repository."""
    dockerfile = (DEPLOY / "docker" / "Dockerfile").read_text()
    copied = [
        name
        for line in re.findall(r"^COPY (?!--from)(.+)$", dockerfile, re.MULTILINE)
        for name in line.split()[:-1]
    ]
    lines = (REPOSITORY / ".dockerignore").read_text().splitlines()

    assert "*" in lines
    assert sorted(copied) == sorted(line[1:] for line in lines if line.startswith("!"))


@built_here
def test_the_image_says_what_it_is_and_how_it_is_run(builder: Builder) -> None:
    """Numeric user, port, entry point, health check and the labels of the OCI."""
    config = builder.image_config()
    labels = {
        name.removeprefix("org.opencontainers.image."): text
        for name, text in config["Labels"].items()
    }

    assert config["User"] == "65534:65534"
    assert config["Entrypoint"] == ["kvheadroom"]
    assert config["Cmd"] == ["serve"]
    assert config["Healthcheck"]["Test"] == ["CMD", "kvheadroom", "check-health"]
    assert labels["title"] == "kvheadroom"
    assert labels["licenses"] == "Apache-2.0"
    assert (labels["version"], labels["revision"]) == (__version__, "0123abc")


@built_here
def test_nothing_is_left_to_build_with(builder: Builder, container: str) -> None:
    """No pip, no compiler, no source; the program runs, and as nobody."""
    asked = (
        "for p in pip pip3 uv gcc cc make git; do command -v $p; done; ls /src /tools 2>&-; id -u"
    )

    assert builder.in_container(container, "sh", "-c", asked) == "65534"
    version = builder.in_container(container, "kvheadroom", "--version")
    assert version == f"kvheadroom {__version__}"
    frozen = builder.in_container(
        container,
        "/opt/kvheadroom/bin/python",
        "-c",
        "from importlib.metadata import distributions as d;"
        "print(*(f'{one.name}=={one.version}' for one in d()))",
    ).split()
    pins = (REPOSITORY / "constraints.txt").read_text().split()
    assert {one for one in frozen if not one.startswith("kvheadroom==")} <= set(pins)


@built_here
def test_it_reads_the_driver_that_is_mounted(
    builder: Builder, container: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """With a driver in a volume it serves the GPU, answers its health check, and ends when told."""
    folder = tmp_path_factory.mktemp("driver")
    folder.chmod(0o755)
    node = FakeNvml(folder, compile_library(tmp_path_factory.mktemp("library")))
    node.write(gpu(0, uuid="GPU-in-a-container"), devices=1)
    run = builder.run_command(
        container,
        f"--volume={folder}:/nv:ro",
        "--env=LD_LIBRARY_PATH=/nv",
        "--env=FAKE_NVML_STATE=/nv/state.txt",
    )

    with running(run, "serve", "--poll.interval", "500ms") as exporter:
        exporter.wait_for("source_up", 1, source="nvml", target="0", seconds=20)

        assert exporter.value("gpu_info", uuid="GPU-in-a-container") == 1
        assert exporter.value("gpu_memory_total_bytes", gpu="0") == 150_754_820_096
        url = f"http://127.0.0.1:{exporter.port}/-/healthy"
        assert builder.in_container(container, "kvheadroom", "check-health", url) == ""
    deadline = time.monotonic() + 5
    while True:
        try:
            exporter.get("/-/healthy")
        except OSError:
            break
        assert time.monotonic() < deadline, "the program outlived its container"
        time.sleep(0.1)


@built_here
def test_the_daemon_set_finds_a_server_of_the_node(
    builder: Builder, container: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """With a pod's arguments, configuration and mounts, as nobody: what root runs is found."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("etc", "state", "logs", "server")}
    for folder in folders.values():
        folder.chmod(0o755)
    folders["state"].chmod(0o777)
    for name, text in document("kubernetes/base/configmap.yaml")["data"].items():
        (folders["etc"] / name).write_text(text)
    daemon_set = document("kubernetes/base/daemonset.yaml")["spec"]["template"]["spec"]
    (box,) = daemon_set["containers"]
    sources = {
        "config": folders["etc"],
        "proc": "/proc",
        "pod-logs": folders["logs"],
        "state": folders["state"],
    }
    volumes = [
        f"--volume={sources[mount['name']]}:{mount['mountPath']}:"
        f"{'ro' if mount.get('readOnly') else 'rw'}"
        for mount in box["volumeMounts"]
    ]
    run = builder.run_command(container, *volumes)

    with (
        serving(folders["server"], page("pages/real-0.32.0-preempting-counter-lags")) as target,
        running(run, *box["args"]) as exporter,
    ):
        exporter.wait_for("source_up", 1, source="vllm", target=target, seconds=30)

        assert exporter.value("headroom_blocks", engine=f"{target}/0") == 9


@built_here
def test_its_demo_runs(builder: Builder, container: str) -> None:
    """Who has no GPU sees a simulated node."""
    run = builder.run_command(container)

    with running(run, "demo") as exporter:
        exporter.wait_for("source_up", 1, source="nvml", target="0", seconds=20)

        assert exporter.samples("headroom_requests")
