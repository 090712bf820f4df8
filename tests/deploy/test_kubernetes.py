"""The Kubernetes objects, put together by kubectl and held against Kubernetes' own schemas."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy.files import DEPLOY, debian_program, document, documents, kvheadroom
from tests.parts.needs import give_up, require

pytestmark = pytest.mark.parts

TOP = DEPLOY / "kubernetes"
OLDEST, NEWEST = "1.28", "1.37"
# Objects of Prometheus' operator, which Kubernetes' schemas do not know.
FOREIGN = {"PodMonitor", "PrometheusRule"}


def build(folder: Path) -> list[dict[str, Any]]:
    kubectl = debian_program("kubectl", "kubectl")
    built = subprocess.run(
        [kubectl, "kustomize", str(folder)], capture_output=True, text=True, timeout=30, check=False
    )
    assert (built.returncode, built.stderr) == (0, "")
    return documents(built.stdout)


def validate(folder: Path, objects: list[dict[str, Any]], version: str) -> int:
    """How many of *objects* the schemas of a Kubernetes *version* refuse."""
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    program = shutil.which("kubernetes-validate", path=beside)
    if program is None:
        give_up("kubernetes-validate is not installed")
    files = [folder / f"{number}.yaml" for number in range(len(objects))]
    for file, one in zip(files, objects, strict=True):
        file.write_text(yaml.safe_dump(one))
    options = ["-k", version, "--strict", "--quiet", "--no-warn"]
    command = [program, *options, *map(str, files)]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in checked.stderr, checked.stderr
    return checked.returncode


@pytest.fixture(scope="module")
def objects() -> list[dict[str, Any]]:
    """Everything that `kubectl apply -k deploy/kubernetes` would send."""
    return build(TOP)


@pytest.fixture(scope="module")
def looking(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The same with the component that looks into processes."""
    folder = tmp_path_factory.mktemp("overlay")
    top = os.path.relpath(TOP, folder.resolve())
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [top],
        "components": [f"{top}/processes"],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    return build(folder)


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [one for one in objects if one["kind"] == kind]


def pod_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (daemon_set,) = of_kind(objects, "DaemonSet")
    return dict(daemon_set["spec"]["template"]["spec"])


def container_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (container,) = pod_of(objects)["containers"]
    return dict(container)


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("which", ["objects", "looking"])
def test_kubernetes_knows_every_field(
    which: str, version: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Strict validation against the schemas of the oldest and the newest version."""
    own = [one for one in request.getfixturevalue(which) if one["kind"] not in FOREIGN]

    assert len(own) >= 5
    assert validate(tmp_path, own, version) == 0


def test_a_mistake_is_found(objects: list[dict[str, Any]], tmp_path: Path) -> None:
    """The check is awake: a port that is text is refused."""
    (service,) = of_kind(objects, "Service")
    port = {**service["spec"]["ports"][0], "port": "metrics"}
    wrong = {**service, "spec": {**service["spec"], "ports": [port]}}

    assert validate(tmp_path, [wrong], NEWEST) != 0


def test_it_takes_no_gpu_and_sees_all(objects: list[dict[str, Any]]) -> None:
    """The NVIDIA runtime shows every GPU; requesting one would take it from vLLM."""
    container = container_of(objects)
    environment = {one["name"]: one["value"] for one in container["env"]}

    assert "nvidia.com/gpu" not in str(container["resources"])
    assert pod_of(objects)["runtimeClassName"] == "nvidia"
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert environment["NVIDIA_DRIVER_CAPABILITIES"] == "utility"


def test_it_has_no_power_it_can_do_without(objects: list[dict[str, Any]]) -> None:
    """No root, no capability, no writable root, no host pids or network, no API token."""
    pod, container = pod_of(objects), container_of(objects)
    own = container["securityContext"]

    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65534,
        "runAsGroup": 65534,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert own["readOnlyRootFilesystem"]
    assert not own["allowPrivilegeEscalation"]
    assert not pod["hostPID"]
    assert not pod["hostNetwork"]
    assert not pod["automountServiceAccountToken"]
    assert not of_kind(objects, "ClusterRole") + of_kind(objects, "Role")


@pytest.mark.parametrize("which", ["objects", "looking"])
def test_the_node_is_only_read(which: str, request: pytest.FixtureRequest) -> None:
    """Every folder of the node is mounted read-only."""
    found = request.getfixturevalue(which)
    of_node = {one["name"] for one in pod_of(found)["volumes"] if "hostPath" in one}
    mounts = [one for one in container_of(found)["volumeMounts"] if one["name"] in of_node]

    assert {one["name"] for one in mounts} == of_node
    assert all(one["readOnly"] for one in mounts)


def test_looking_into_processes_adds_two_capabilities(looking: list[dict[str, Any]]) -> None:
    """Root with SYS_PTRACE and DAC_READ_SEARCH, the host's pids, and nothing else."""
    pod, own = pod_of(looking), container_of(looking)["securityContext"]

    assert pod["hostPID"]
    assert pod["securityContext"]["runAsUser"] == 0
    assert own["capabilities"] == {"drop": ["ALL"], "add": ["SYS_PTRACE", "DAC_READ_SEARCH"]}
    assert own["readOnlyRootFilesystem"]
    assert not own["allowPrivilegeEscalation"]


def test_nothing_is_secret(looking: list[dict[str, Any]]) -> None:
    """No Secret is defined or needed, and no variable looks like a key."""
    assert not of_kind(looking, "Secret")
    assert "secretKeyRef" not in str(looking)
    names = {one["name"] for one in container_of(looking)["env"]}
    assert not [name for name in names if "KEY" in name or "TOKEN" in name]


def test_service_and_monitor_find_the_pods(objects: list[dict[str, Any]]) -> None:
    """Their selectors are labels of the pods, and the port they name is the container's."""
    (daemon_set,) = of_kind(objects, "DaemonSet")
    (service,), (monitor,) = of_kind(objects, "Service"), of_kind(objects, "PodMonitor")
    labels = daemon_set["spec"]["template"]["metadata"]["labels"].items()
    (port,) = container_of(objects)["ports"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]

    assert service["spec"]["selector"].items() <= labels
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels
    assert endpoint["port"] == service["spec"]["ports"][0]["targetPort"] == port["name"]


def test_kvheadroom_accepts_the_configuration(tmp_path: Path) -> None:
    """`check-config` reads what the ConfigMap holds, at the path the container is told."""
    (name,) = document("kubernetes/base/configmap.yaml")["data"]
    file = tmp_path / name
    file.write_text(document("kubernetes/base/configmap.yaml")["data"][name])

    checked = kvheadroom("check-config", "--config.file", str(file))

    assert checked.returncode == 0, checked.stderr
    args = document("kubernetes/base/daemonset.yaml")["spec"]["template"]["spec"]["containers"][0][
        "args"
    ]
    assert args == ["serve", f"--config.file=/etc/kvheadroom/{name}"]


def test_promtool_accepts_the_rules_in_the_cluster(
    objects: list[dict[str, Any]], tmp_path: Path
) -> None:
    """What the operator hands to Prometheus is a file of rules."""
    rules = of_kind(objects, "PrometheusRule")

    assert rules
    for number, rule in enumerate(rules):
        file = tmp_path / f"{number}.yml"
        file.write_text(yaml.safe_dump(rule["spec"]))
        checked = subprocess.run(
            [require("promtool"), "check", "rules", file],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr
