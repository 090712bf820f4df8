"""What several files of deploy/ say, they say alike: the port, the version, the flags."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.deploy.files import DEPLOY, REPOSITORY, document, kvheadroom

from kvheadroom import __version__, defaults


def in_text(pattern: str) -> Callable[[str], list[str]]:
    return lambda text: re.findall(pattern, text)


def in_daemon_set(text: str) -> list[int]:
    pod = yaml.safe_load(text)["spec"]["template"]["spec"]
    return [port["containerPort"] for box in pod["containers"] for port in box["ports"]]


PLACES: dict[str, Callable[[str], list[str] | list[int]]] = {
    "docker/Dockerfile": in_text(r"EXPOSE (\d+)"),
    "compose/compose.yaml": lambda text: yaml.safe_load(text)["services"]["demo"]["ports"][0].split(
        ":"
    )[1:],
    "compose/prometheus.yml": in_text(r"kvheadroom:(\d+)"),
    "kubernetes/base/daemonset.yaml": in_daemon_set,
    "kubernetes/base/service.yaml": lambda text: [
        port["port"] for port in yaml.safe_load(text)["spec"]["ports"]
    ],
    "prometheus/scrape-example.yml": in_text(r"gpu-node-\d:(104\d+)"),
    "systemd/kvheadroom.env": in_text(r"LISTEN_ADDRESS=:(\d+)"),
}
HOME_DASHBOARD = "GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"


@pytest.mark.parametrize("path", PLACES)
def test_the_port_is_the_default_one(path: str) -> None:
    """Wherever deploy/ names kvheadroom's port, it is the one in defaults.py."""
    ports = PLACES[path]((DEPLOY / path).read_text())

    assert {int(port) for port in ports} == {defaults.PORT}


def test_nowhere_is_there_a_port_that_it_once_was() -> None:
    """Every number like the port, in rules and in prose too, is the port."""
    like = re.compile(rf"\b{defaults.PORT // 100}\d\d\b")
    texts = [
        path.read_text() for path in DEPLOY.rglob("*") if path.suffix in {".md", ".yml", ".yaml"}
    ]
    found = [number for text in texts for number in like.findall(text)]

    assert len(found) > len(PLACES) / 2
    assert set(found) == {str(defaults.PORT)}


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        ("docker/Dockerfile", r"ARG VERSION=(\S+)"),
        ("docker/Dockerfile", r"-t kvheadroom:(\S+)"),
        ("compose/compose.yaml", r"image: kvheadroom:(\S+)"),
        ("kubernetes/base/daemonset.yaml", r"image: kvheadroom:(\S+)"),
        ("kubernetes/kustomization.yaml", r"newTag: (\S+)"),
    ],
)
def test_the_image_is_of_this_version(path: str, pattern: str) -> None:
    """Images are tagged and labeled with the version of the package."""
    assert re.findall(pattern, (DEPLOY / path).read_text()) == [__version__]


@pytest.mark.parametrize("path", ["systemd/kvheadroom.env", "systemd/kvheadroom.service"])
def test_every_variable_is_the_twin_of_a_flag(path: str) -> None:
    """`kvheadroom serve --help` names every KVHEADROOM_… variable that is set or suggested."""
    named = set(re.findall(r"KVHEADROOM_\w+", (DEPLOY / path).read_text()))

    assert named
    assert named <= set(re.findall(r"KVHEADROOM_\w+", kvheadroom("serve", "--help").stdout))


def test_grafana_asks_the_prometheus_of_the_stack_for_the_dashboards_that_are_mounted() -> None:
    """Data source, dashboards' folder and compose file fit together."""
    (source,) = document("grafana/provisioning/datasources/prometheus.yml")["datasources"]
    (provider,) = document("grafana/provisioning/dashboards/kvheadroom.yml")["providers"]
    grafana = document("compose/compose.yaml")["services"]["grafana"]
    folder, home = Path(provider["options"]["path"]), Path(grafana["environment"][HOME_DASHBOARD])
    scrape = document("compose/prometheus.yml")["global"]["scrape_interval"]

    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    assert source["jsonData"]["timeInterval"] == scrape
    assert f"../../dashboards/json:{folder}:ro" in grafana["volumes"]
    assert (REPOSITORY / "dashboards" / "json" / home.relative_to(folder)).exists()
    assert not provider["allowUiUpdates"]
