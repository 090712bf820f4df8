"""List the vLLM servers among a cluster's pods, by label, as the API server knows them."""

import os
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType
from typing import Final
from urllib.parse import urlencode

from kvheadroom.errors import ConfigError, SourceError
from kvheadroom.node.engine_url import DEFAULT_PORT, EngineUrl, parse_engine_url
from kvheadroom.node.http import EngineHttp
from kvheadroom.node.target_lists import AskedList, ListedServer, parse_json
from kvheadroom.units import MIB

# Where a pod finds what its service account may use.
_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_MOST_BYTES: Final = 32 * MIB
# What others say of a pod for Prometheus' sake.
_PORT: Final = "prometheus.io/port"
_SCHEME: Final = "prometheus.io/scheme"
_PORT_NAMES: Final = ("http", "vllm", "api", "metrics")
_VLLM_PORT: Final = 8000


class KubernetesPods(AskedList):
    """The running pods that a label selector chooses, each as a server.

    Args:
        selector: Kubernetes' label selector, ``app=vllm``.
        namespace: Only pods in it; ``None`` takes every namespace, for which a cluster role is
            needed.
        node: Only pods on the node of that name; ``None`` takes every node's.
        deadline_seconds: How long one question may take.
        refresh_seconds: How often it is asked.
        account: Folder with ``token`` and ``ca.crt``.
        environment: Where ``KUBERNETES_SERVICE_HOST`` and ``…_PORT`` are looked up.

    Raises:
        ConfigError: We are in no cluster, or the account's certificates cannot be read.
    """

    def __init__(
        self,
        selector: str,
        *,
        namespace: str | None = None,
        node: str | None = None,
        deadline_seconds: float,
        refresh_seconds: float = 30.0,
        account: Path = _ACCOUNT,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        server = _api_server(environment)
        self._account: Final = account
        ca_file = str(account / "ca.crt")
        try:
            self._http: Final = EngineHttp(server, ca_file=ca_file)
        except OSError as error:
            raise ConfigError(f"{ca_file}: no certificates can be read from it") from error
        self._folder: Final = f"/api/v1/{f'namespaces/{namespace}/' if namespace else ''}pods"
        fields = ["status.phase=Running", *([f"spec.nodeName={node}"] if node else [])]
        self._question: Final = urlencode(
            {"labelSelector": selector, "fieldSelector": ",".join(fields)}
        )
        super().__init__(
            f"{server.netloc}{self._folder}",
            self._list,
            deadline_seconds=deadline_seconds,
            refresh_seconds=refresh_seconds,
        )

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def _list(self, deadline: float) -> tuple[ListedServer, ...]:
        items = self._get(f"{self._folder}?{self._question}", deadline).get("items")
        if not isinstance(items, list):
            raise ConfigError(f"{self.address}: the answer lists no pods")
        servers = (server_of_pod(item) for item in items)
        return tuple({server.address: server for server in servers if server}.values())

    def _get(self, path: str, deadline: float) -> Mapping[str, object]:
        try:
            # Kubernetes renews the token, so it is read each time.
            token = (self._account / "token").read_text().strip()
        except (OSError, UnicodeDecodeError):
            raise ConfigError(f"{self._account / 'token'}: cannot be read") from None
        try:
            body = self._http.get(
                path,
                accept="application/json",
                deadline_monotonic_seconds=deadline,
                max_bytes=_MOST_BYTES,
                bearer=token or None,
            )
        except SourceError as error:
            if error.reason == "unauthorized":
                detail = f"{self.address}: {error}; the service account needs to list pods"
                raise SourceError(error.reason, detail) from None
            raise
        answer = parse_json(self.address, body)
        if not isinstance(answer, dict):
            raise ConfigError(f"{self.address}: the answer lists no pods")
        return answer


def server_of_pod(pod: object) -> ListedServer | None:
    """Return the server in *pod*, one item of the API's list; ``None`` where it has none yet.

    Its port is that of ``prometheus.io/port``, of a container's port that is called as a server's
    is, the only port there is, or vLLM's own.
    """
    metadata, spec, status = (_part(pod, name) for name in ("metadata", "spec", "status"))
    host = status.get("podIP")
    if not isinstance(host, str) or metadata.get("deletionTimestamp"):
        return None
    try:
        six = ip_address(host).version == 6  # noqa: PLR2004
    except ValueError:
        return None
    annotations = _part(metadata, "annotations")
    scheme = "https" if annotations.get(_SCHEME) == "https" else "http"
    port = annotations.get(_PORT) or _port_of(list(_container_ports(spec)))
    try:
        url = f"{scheme}://{f'[{host}]' if six else host}:{port}"
        address = parse_engine_url(url).address
    except ConfigError:
        return None
    named = {
        "namespace": metadata.get("namespace"),
        "pod": metadata.get("name"),
        "node": spec.get("nodeName"),
    }
    labels = {name: text for name, text in named.items() if isinstance(text, str)}
    return ListedServer(url, address, MappingProxyType(labels))


def _port_of(ports: Sequence[tuple[str, int]]) -> int:
    by_name = dict(reversed(ports))
    named = next((by_name[name] for name in _PORT_NAMES if name in by_name), None)
    if named is not None:
        return named
    return ports[0][1] if len(ports) == 1 else _VLLM_PORT


def _container_ports(spec: Mapping[str, object]) -> Iterator[tuple[str, int]]:
    for container in _items(spec.get("containers")):
        for port in _items(container.get("ports")):
            number = port.get("containerPort")
            if isinstance(number, int) and port.get("protocol", "TCP") == "TCP":
                yield str(port.get("name") or ""), number


def _items(value: object) -> Iterator[Mapping[str, object]]:
    for item in value if isinstance(value, list) else ():
        if isinstance(item, dict):
            yield item


def _part(value: object, name: str) -> Mapping[str, object]:
    part = value.get(name) if isinstance(value, Mapping) else None
    return part if isinstance(part, dict) else {}


def _api_server(environment: Mapping[str, str]) -> EngineUrl:
    host = environment.get("KUBERNETES_SERVICE_HOST")
    if not host:
        raise ConfigError("pods can only be listed from within a Kubernetes cluster")
    port = environment.get("KUBERNETES_SERVICE_PORT") or str(DEFAULT_PORT["https"])
    return parse_engine_url(f"https://{f'[{host}]' if ':' in host else host}:{port}")
