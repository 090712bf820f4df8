"""The compose stack, checked by docker-compose itself."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.files import DEPLOY, REPOSITORY, debian_program, document, documents
from tests.parts.needs import require

pytestmark = pytest.mark.parts

COMPOSE = DEPLOY / "compose" / "compose.yaml"
PROFILES = ["demo", "real"]


def resolve(file: Path, profile: str) -> subprocess.CompletedProcess[str]:
    program = debian_program("docker-compose", "docker-compose")
    command = [program, "-f", str(file), "--profile", profile, "config", "--format", "json"]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


@pytest.fixture(scope="module", params=PROFILES)
def services(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The services of one profile, as docker-compose understands them."""
    resolved = resolve(COMPOSE, request.param)
    assert (resolved.returncode, resolved.stderr) == (0, "")
    return dict(json.loads(resolved.stdout)["services"])


def test_a_mistake_is_found(tmp_path: Path) -> None:
    """The check is awake: a misspelled key is refused."""
    file = tmp_path / "compose.yaml"
    file.write_text(COMPOSE.read_text().replace("restart:", "restrat:"))

    assert "restrat" in resolve(file, "demo").stderr


def test_every_mounted_file_is_in_the_repository(services: dict[str, Any]) -> None:
    """Configuration is mounted, read-only, from folders and files that exist."""
    binds = [
        mount
        for service in services.values()
        for mount in service.get("volumes", ())
        if mount["type"] == "bind"
    ]

    assert len(binds) >= 5
    for mount in binds:
        assert Path(mount["source"]).exists(), mount["source"]
        assert Path(mount["source"]).is_relative_to(REPOSITORY)
        assert mount["read_only"]


def test_every_name_that_is_asked_is_a_service_of_the_profile(services: dict[str, Any]) -> None:
    """Prometheus' targets, its Alertmanager and Grafana's data source can be resolved."""
    names = {name for name, service in services.items() if "network_mode" not in service}
    for service in services.values():
        for network in (service.get("networks") or {}).values():
            names |= set((network or {}).get("aliases", ()))
        names |= {host.partition("=")[0] for host in service.get("extra_hosts", ())}
    asked = re.findall(r'targets: \["([\w-]+):', (COMPOSE.parent / "prometheus.yml").read_text())

    assert {*asked, "prometheus"} <= names


def test_images_are_pinned_and_ports_stay_on_this_machine(services: dict[str, Any]) -> None:
    """No `latest`, no port beyond loopback, no power that is not asked for by name."""
    for name, service in services.items():
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", service["image"]), name
        assert service["cap_drop"] == ["ALL"], name
        assert service["read_only"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert {port["host_ip"] for port in service.get("ports", ())} <= {"127.0.0.1"}, name


def test_nobody_can_sign_in_with_a_password_that_everybody_knows(services: dict[str, Any]) -> None:
    """Grafana has no administrator, and no file holds a password."""
    settings = services["grafana"]["environment"]

    assert settings["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert settings["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert not [key for key in settings if "PASSWORD" in key or "TOKEN" in key]


def test_prometheus_accepts_its_configuration() -> None:
    """promtool reads it; the rules it names are those of deploy/prometheus, and all of them."""
    file = COMPOSE.parent / "prometheus.yml"
    checked = subprocess.run(
        [require("promtool"), "check", "config", "--syntax-only", file],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    named = document("compose/prometheus.yml")["rule_files"]
    rules = [
        path.name
        for path in (DEPLOY / "prometheus").glob("*.yml")
        if "groups" in documents(path.read_text())[0]
    ]

    assert checked.returncode == 0, checked.stderr
    assert sorted(named) == sorted(f"/etc/prometheus/kvheadroom/{name}" for name in rules)
