"""Pods as the Kubernetes API lists them (reference of ``GET /api/v1/pods``)."""

import functools
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import trustme

from kvheadroom.errors import ConfigError
from kvheadroom.node.kubernetes_pods import KubernetesPods, server_of_pod

TOKEN = "token-planted-5"


HTTP = [{"name": "http", "containerPort": 8000}]


def pod(
    name: str = "llm-0",
    ip: str | None = "10.1.2.3",
    *,
    ports: object = HTTP,
    metadata: Mapping[str, object] | None = None,
) -> dict[str, object]:
    return {
        "metadata": {"name": name, "namespace": "prod", **(metadata or {})},
        "spec": {"nodeName": "gpu-1", "containers": [{"name": "vllm", "ports": ports}]},
        "status": {"phase": "Running", **({"podIP": ip} if ip else {})},
    }


def url(item: object) -> str | None:
    server = server_of_pod(item)
    return server.url if server else None


def test_a_pod_is_a_server_with_its_names() -> None:
    """Address from the status, names for the labels."""
    server = server_of_pod(pod())

    assert server is not None
    assert server.url == "http://10.1.2.3:8000"
    assert server.labels == {"namespace": "prod", "pod": "llm-0", "node": "gpu-1"}


@pytest.mark.parametrize(
    ("ports", "port"),
    [
        ([], 8000),
        ([{"containerPort": 9000}], 9000),
        ([{"name": "grpc", "containerPort": 9000}, {"name": "http", "containerPort": 80}], 80),
        ([{"containerPort": 9000}, {"containerPort": 9001}], 8000),
        ([{"containerPort": 9000, "protocol": "UDP"}], 8000),
        ([{"containerPort": "x"}, None], 8000),
        (None, 8000),
    ],
)
def test_the_port_is_the_servers(ports: object, port: int) -> None:
    """A port with a server's name, the only one, or vLLM's own."""
    assert url(pod(ports=ports)) == f"http://10.1.2.3:{port}"


def test_annotations_come_first() -> None:
    """Who told Prometheus where to ask told us too."""
    annotations = {"prometheus.io/port": "8443", "prometheus.io/scheme": "https"}

    assert url(pod(metadata={"annotations": annotations})) == "https://10.1.2.3:8443"


def test_an_address_of_the_new_kind_is_bracketed() -> None:
    """IPv6 clusters have pods too."""
    assert url(pod(ip="fd00::3")) == "http://[fd00::3]:8000"


@pytest.mark.parametrize(
    "item",
    [
        pod(ip=None),
        pod(ip="somewhere"),
        pod(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
        pod(metadata={"annotations": {"prometheus.io/port": "no"}}),
        {},
        {"status": 1, "metadata": [], "spec": None},
        "x",
        None,
    ],
)
def test_what_cannot_be_asked_is_left_out(item: object) -> None:
    """A pod without an address, on its way out, or of no known shape is no server."""
    assert server_of_pod(item) is None


@contextmanager
def api_server(
    folder: Path, answer: tuple[int, object]
) -> Iterator[tuple[Mapping[str, str], list[tuple[str, str | None]]]]:
    """An API server with a cluster's own authority; our environment, and what was asked."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.crt")
    (folder / "token").write_text(f"{TOKEN}\n")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    asked: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers.get("Authorization")))
            body = json.dumps(answer[1]).encode()
            self.send_response(answer[0])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        serve = functools.partial(server.serve_forever, poll_interval=0.01)
        threading.Thread(target=serve, daemon=True).start()
        environment = {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(server.server_address[1]),
        }
        yield environment, asked
        server.shutdown()


def test_pods_are_asked_for_by_label_with_our_account(tmp_path: Path) -> None:
    """One question with selector, node and token, over the cluster's own TLS."""
    items = {"items": [pod(), pod("llm-1", "10.1.2.4"), pod("new", None)]}
    with api_server(tmp_path, (200, items)) as (environment, asked):
        pods = KubernetesPods(
            "app=vllm,tier in (a,b)",
            namespace="prod",
            node="gpu-1",
            deadline_seconds=5,
            account=tmp_path,
            environment=environment,
        )
        found = [server.address for server in pods.servers()]
        pods.close()

    assert found == ["10.1.2.3:8000", "10.1.2.4:8000"]
    ((path, authorization),) = asked
    parts = urlsplit(path)
    assert parts.path == "/api/v1/namespaces/prod/pods"
    assert parse_qs(parts.query) == {
        "labelSelector": ["app=vllm,tier in (a,b)"],
        "fieldSelector": ["status.phase=Running,spec.nodeName=gpu-1"],
    }
    assert authorization == f"Bearer {TOKEN}"


@pytest.mark.parametrize("answer", [(403, {}), (500, {}), (200, []), (200, {"items": 1})])
def test_a_refusal_is_said_without_the_token(tmp_path: Path, answer: tuple[int, object]) -> None:
    """What is missing is named; no pod is made up."""
    with api_server(tmp_path, answer) as (environment, _):
        pods = KubernetesPods(
            "app=vllm", deadline_seconds=5, account=tmp_path, environment=environment
        )
        assert pods.servers() == ()
        pods.close()

    assert pods.problem is not None
    assert TOKEN not in pods.problem
    assert ("list pods" in pods.problem) == (answer[0] == 403)


def test_outside_a_cluster_it_is_refused(tmp_path: Path) -> None:
    """The configuration is wrong, and says so at once."""
    with pytest.raises(ConfigError, match="cluster"):
        KubernetesPods("app=vllm", deadline_seconds=1, account=tmp_path, environment={})
