import re
from pathlib import Path

import pytest
import yaml
from tests.parts.prometheus_builds import BUILDS, Find
from tests.rules.shipped import (
    ALERTS,
    ALERTS_FILE,
    COMPARISON,
    METRIC,
    RECORDED,
    RECORDINGS,
    ROOT,
    RULES_FILE,
    RUNBOOK,
    TESTS,
    checks_of,
    promtool,
)

from kvheadroom.defaults import PORT
from kvheadroom.faces.catalogue import ALL_METRICS

CATALOGUE = {metric.name for metric in ALL_METRICS}


@pytest.mark.parts
@pytest.mark.parametrize("build", BUILDS)
def test_prometheus_accepts_the_rules_and_the_example(build: Find) -> None:
    """From 2.42 to 3: promtool reads both rule files and a configuration that names them."""
    binary = build("promtool")

    rules = promtool(binary, "check", "rules", RULES_FILE, ALERTS_FILE)
    example = promtool(binary, "check", "config", ALERTS_FILE.parent / "prometheus-example.yml")

    assert rules.returncode == 0, rules.stdout + rules.stderr
    assert example.returncode == 0, example.stdout + example.stderr


@pytest.mark.parts
@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.name.partition(".")[0])
@pytest.mark.parametrize("build", BUILDS)
def test_rules_do_as_their_tests_say(build: Find, file: Path) -> None:
    """Firing, quiet, blips, restarts, gaps and absence, judged by Prometheus' own engine."""
    tested = promtool(build("promtool"), "test", "rules", file)

    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.parametrize("name", [*ALERTS, *RECORDINGS])
def test_every_rule_has_a_promtool_test(name: str) -> None:
    """An alert's has a moment at which it fires and one at which it is quiet."""
    if name in RECORDINGS and any(name in str(r["expr"]) for r in RECORDINGS.values()):
        return  # seen through the ratio that is made of it

    expected = {
        bool(check["exp_samples"])
        for document in checks_of(name, RULES_FILE)
        for test in document["tests"]
        for check in test["promql_expr_test"]
    }

    assert expected == ({True} if name in RECORDINGS else {True, False})


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_how_bad_how_long_and_what_to_do(name: str) -> None:
    """The parts that a person who is woken needs, in the form the Prometheus project advises."""
    alert = ALERTS[name]
    texts = alert["annotations"]

    assert re.fullmatch(r"KvHeadroom([A-Z][a-z]+)+", name)
    assert alert["labels"]["severity"] in {"critical", "warning", "info"}
    assert re.fullmatch(r"\d+[smh]", alert["for"])
    assert re.fullmatch(r"\d+[mh]", alert["keep_firing_for"])
    assert re.fullmatch(r"[A-Za-z].*[^.]\.", texts["summary"])
    assert "{{" not in texts["summary"], "the summary is the same for a whole group"
    assert "{{" in texts["description"] or name == "KvHeadroomExporterAbsent"
    assert set(texts) == {"summary", "description", "runbook_url"}


def test_every_alert_has_its_heading_in_the_runbook_and_every_heading_an_alert() -> None:
    """A link from a page at night leads somewhere."""
    headings = re.findall(r"^## (KvHeadroom\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    linked = {name: alert["annotations"]["runbook_url"] for name, alert in ALERTS.items()}
    path = RUNBOOK.relative_to(ROOT)

    assert sorted(headings) == sorted(ALERTS)
    assert linked == {name: f"{path}#{name.lower()}" for name in ALERTS}


def test_the_header_lists_exactly_the_thresholds_in_force() -> None:
    """What an operator reads at the top of the file is what the expressions compare with."""
    header = ALERTS_FILE.read_text().partition("groups:")[0]
    listed: dict[str, list[float]] = {}
    name = ""
    for line in header.splitlines():
        if match := re.match(r"#   (KvHeadroom\w+)? +(-?\d+(?:\.\d+)?) +\S", line):
            name = match[1] or name
            listed.setdefault(name, []).append(float(match[2]))
    used = {
        name: [float(m["number"]) for m in COMPARISON.finditer(alert["expr"]) if m["sign"] != "=="]
        for name, alert in ALERTS.items()
    }

    assert listed == {name: numbers for name, numbers in used.items() if numbers}


def test_rules_name_only_metrics_of_the_catalogue() -> None:
    """A renamed metric is found here, in expressions and in the queries of texts alike."""
    for file in (RULES_FILE, ALERTS_FILE, RUNBOOK):
        assert set(METRIC.findall(file.read_text())) <= CATALOGUE
        assert set(RECORDED.findall(file.read_text())) <= set(RECORDINGS)


def test_the_example_and_the_texts_name_the_default_port() -> None:
    """One constant holds the port."""
    example = (ALERTS_FILE.parent / "prometheus-example.yml").read_text()
    said = re.findall(r"port (\d{4,5})", ALERTS_FILE.read_text() + RUNBOOK.read_text())

    assert set(re.findall(r"gpu-node-\d:(\d+)", example)) == {str(PORT)}
    assert set(said) == {str(PORT)}


@pytest.mark.parts
@pytest.mark.parametrize("build", BUILDS)
def test_the_runbooks_queries_parse(build: Find, tmp_path: Path) -> None:
    """What somebody pastes at night is PromQL."""
    blocks = re.findall(r"```promql\n(.*?)```", RUNBOOK.read_text(), re.DOTALL)
    queries = [line for block in blocks for line in block.splitlines()]
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "runbook", "rules": rules}]}))

    checked = promtool(build("promtool"), "check", "rules", file)

    assert len(blocks) == len(ALERTS)
    assert checked.returncode == 0, checked.stdout + checked.stderr
