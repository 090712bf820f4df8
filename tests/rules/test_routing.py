import subprocess
import time
from collections.abc import Iterator

import pytest
from tests.e2e.alerting import Service, Webhook, start_alertmanager
from tests.parts.prometheus_builds import BUILDS, Find, installed
from tests.rules.shipped import ALERTMANAGER_FILE, ALERTS

pytestmark = pytest.mark.parts

_AT_ENGINE = {"job": "kv", "instance": "n1", "engine": "chat"}
_AT_TARGET = {"job": "kv", "instance": "n1", "target": "n1:8000"}
_AT_GPU = {"job": "kv", "instance": "n1", "gpu": "0", "uuid": "GPU-1"}


@pytest.mark.parametrize("build", BUILDS)
def test_alertmanager_accepts_the_configuration(build: Find) -> None:
    """From 0.25 on."""
    checked = subprocess.run(
        [build("amtool"), "check-config", ALERTMANAGER_FILE],
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip

    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize(
    ("name", "receiver"),
    [
        ("KvHeadroomExhausted", "page"),
        ("KvHeadroomEngineStalled", "page"),
        ("KvHeadroomPreemptionSpike", "chat"),
        ("KvHeadroomMemoryLeak", "chat"),
        ("KvHeadroomEngineSilent", "log"),
    ],
)
def test_severity_decides_who_is_told(name: str, receiver: str) -> None:
    """Only what users feel pages."""
    labels = [f"alertname={name}", f"severity={ALERTS[name]['labels']['severity']}"]
    routed = subprocess.run(
        [
            installed("amtool"), "config", "routes", "test",
            f"--config.file={ALERTMANAGER_FILE}", *labels,
        ],
        capture_output=True, text=True, timeout=20, check=True,
    )  # fmt: skip

    assert routed.stdout.strip() == receiver


@pytest.fixture(scope="module")
def alertmanager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("alertmanager")
    with Webhook() as webhook, start_alertmanager(installed, folder, webhook) as running:
        yield running.wait_until_ready()


@pytest.mark.parametrize(
    ("source", "source_labels", "target", "target_labels", "is_silenced"),
    [
        ("ExporterDown", {"job": "kv", "instance": "n1"}, "Exhausted", _AT_ENGINE, True),
        ("ExporterDown", {"job": "kv", "instance": "n1"}, "GpuIntruder", _AT_GPU, True),
        ("ExporterDown", {"job": "kv", "instance": "n2"}, "Exhausted", _AT_ENGINE, False),
        ("Exhausted", _AT_ENGINE, "Pressure", _AT_ENGINE, True),
        ("Exhausted", _AT_ENGINE, "ExhaustionForecast", _AT_ENGINE, True),
        ("Exhausted", _AT_ENGINE, "PreemptionSpike", _AT_ENGINE, True),
        ("Exhausted", _AT_ENGINE, "Pressure", {**_AT_ENGINE, "engine": "embed"}, False),
        ("Pressure", _AT_ENGINE, "Exhausted", _AT_ENGINE, False),
        ("Pressure", _AT_ENGINE, "Low", _AT_ENGINE, True),
        ("ExhaustionForecast", _AT_ENGINE, "Low", _AT_ENGINE, True),
        ("EngineStalled", _AT_ENGINE, "Exhausted", _AT_ENGINE, True),
        ("EngineStalled", {**_AT_ENGINE, **_AT_TARGET}, "LogStatsOff", _AT_TARGET, True),
        ("EngineStalled", {**_AT_ENGINE, **_AT_TARGET}, "EngineSilent", _AT_TARGET, True),
        ("EngineDown", _AT_TARGET, "EngineSilent", _AT_TARGET, True),
        ("EngineDown", _AT_TARGET, "EngineSilent", {**_AT_TARGET, "target": "n1:9"}, False),
        ("StalePolls", {**_AT_TARGET, "source": "vllm"}, "Low", _AT_ENGINE, True),
        ("GpuIntruder", _AT_GPU, "RestartBlocked", {**_AT_GPU, "server": "chat"}, True),
    ],
)
def test_the_greater_trouble_silences_the_lesser(
    alertmanager: Service,
    source: str,
    source_labels: dict[str, str],
    target: str,
    target_labels: dict[str, str],
    is_silenced: bool,
) -> None:
    """A real Alertmanager is handed both, each case as a job of its own."""
    case = f"{source} {source_labels} {target} {target_labels}"
    pair = [
        {"labels": {**labels, "alertname": f"KvHeadroom{name}", "job": case}}
        for name, labels in ((source, source_labels), (target, target_labels))
    ]
    assert {f"KvHeadroom{source}", f"KvHeadroom{target}"} <= set(ALERTS)

    alertmanager.post("/api/v2/alerts", pair)

    assert silenced(alertmanager, f"KvHeadroom{target}", case) is is_silenced


def silenced(alertmanager: Service, name: str, job: str) -> bool:
    """Whether an alert becomes inhibited within a second; it is quicker than a tenth of one."""
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        for one in alertmanager.get("/api/v2/alerts"):
            if one["labels"]["alertname"] == name and one["labels"]["job"] == job:
                if one["status"]["inhibitedBy"]:
                    return True
                deadline = min(deadline, time.monotonic() + 0.3)
        time.sleep(0.05)
    return False
