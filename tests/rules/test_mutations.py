import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from tests.parts.prometheus_builds import installed
from tests.rules.shipped import (
    ALERTS,
    COMPARISON,
    METRIC,
    RECORDED,
    RECORDINGS,
    Rule,
    checks_of,
    promtool,
    write_rule,
)

pytestmark = pytest.mark.parts


def mutants(rule: Rule) -> Iterator[tuple[str, Rule]]:
    """Yield what was spoiled and the rule that comes of it."""
    for field in ("for", "keep_firing_for"):
        if rule.get(field, "0s") != "0s":
            yield f"no {field}", {key: value for key, value in rule.items() if key != field}
    expression = str(rule["expr"])
    for match in COMPARISON.finditer(expression):
        before, after = expression[: match.start()], expression[match.end() :]
        if match["sign"] == "==":
            yield f"no {match[0]}", {**rule, "expr": before + after}
            continue
        for factor in (1.5, 0.4):
            spoiled = f"{match['sign']} {float(match['number']) * factor}"
            yield f"{match[0]} as {spoiled}", {**rule, "expr": before + spoiled + after}
    for name in sorted({*METRIC.findall(expression), *RECORDED.findall(expression)}):
        renamed = re.sub(rf"(?<![\w:]){name}(?![\w:])", f"{name}_renamed", expression)
        yield f"{name} renamed", {**rule, "expr": renamed}


def survives(folder: Path, name: str, rule: Rule) -> bool:
    folder.mkdir()
    rules = write_rule(folder, rule)
    files = []
    for number, document in enumerate(checks_of(name, rules)):
        files.append(folder / f"{number}.test.yml")
        files[-1].write_text(yaml.safe_dump(document))
    return promtool(installed("promtool"), "test", "rules", *files).returncode == 0


def test_the_tests_of_an_alert_pass_on_it_alone(tmp_path: Path) -> None:
    """Else every mutant would die for the wrong reason."""
    with ThreadPoolExecutor(2) as pool:
        alone = {
            name: pool.submit(survives, tmp_path / name, name, rule)
            for name, rule in ALERTS.items()
        }

    assert [name for name, passed in alone.items() if not passed.result()] == []


@pytest.mark.parametrize("name", ALERTS)
def test_a_spoiled_alert_fails_its_test(tmp_path: Path, name: str) -> None:
    """Without its wait, its hold or its comparison, half again or two fifths as strict, renamed."""
    spoiled = list(mutants(ALERTS[name]))
    with ThreadPoolExecutor(2) as pool:
        survivors = pool.map(
            lambda one: one[1][0] if survives(tmp_path / str(one[0]), name, one[1][1]) else None,
            enumerate(spoiled),
        )

    assert len(spoiled) >= 2
    assert [survivor for survivor in survivors if survivor] == []


def test_a_renamed_metric_fails_the_recordings_test(tmp_path: Path) -> None:
    """Each metric in each recording is needed for an expected sample."""
    everything = list(RECORDINGS.values())
    spoiled = [
        (f"{name}: {what}", [mutant if rule is old else old for old in everything])
        for name, rule in RECORDINGS.items()
        for what, mutant in mutants(rule)
    ]
    tests = yaml.safe_load((Path(__file__).parent / "rules.test.yml").read_text())

    def fails(number: int) -> bool:
        folder = tmp_path / str(number)
        folder.mkdir()
        rules, file = folder / "rules.yml", folder / "test.yml"
        rules.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": spoiled[number][1]}]}))
        file.write_text(yaml.safe_dump({**tests, "rule_files": [str(rules)]}))
        return promtool(installed("promtool"), "test", "rules", file).returncode != 0

    with ThreadPoolExecutor(2) as pool:
        failed = list(pool.map(fails, range(len(spoiled))))

    assert [spoiled[number][0] for number, found in enumerate(failed) if not found] == []
