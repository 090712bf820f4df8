"""The rules under deploy/, read as Prometheus reads them, and promtool to judge them."""

import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[2]
ALERTS_FILE: Final = ROOT / "deploy" / "prometheus" / "kvheadroom.alerts.yml"
RULES_FILE: Final = ROOT / "deploy" / "prometheus" / "kvheadroom.rules.yml"
ALERTMANAGER_FILE: Final = ROOT / "deploy" / "alertmanager" / "alertmanager.yml"
RUNBOOK: Final = ROOT / "deploy" / "runbook.md"
TESTS: Final = sorted(Path(__file__).parent.glob("*.test.yml"))

Rule = dict[str, Any]

METRIC: Final = re.compile(r"(?<![\w:])kvheadroom_[a-z0-9_]+(?![\w:])")
RECORDED: Final = re.compile(r"\b[a-z]+:kvheadroom_[a-z0-9_]+:[a-z0-9]+\b")
COMPARISON: Final = re.compile(r"(?P<sign>>=|<=|==|>|<) (?P<number>-?\d+(?:\.\d+)?)")


def rules_of(file: Path) -> Iterator[Rule]:
    for group in yaml.safe_load(file.read_text())["groups"]:
        yield from group["rules"]


ALERTS: Final[Mapping[str, Rule]] = {rule["alert"]: rule for rule in rules_of(ALERTS_FILE)}
RECORDINGS: Final[Mapping[str, Rule]] = {rule["record"]: rule for rule in rules_of(RULES_FILE)}


def promtool(binary: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [binary, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def write_rule(folder: Path, rule: Rule) -> Path:
    """Write a rules file of one rule and return it."""
    file = folder / "rule.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "one", "rules": [rule]}]}))
    return file


def checks_of(name: str, rules: Path) -> list[dict[str, Any]]:
    """Return the shipped promtool test files cut down to one rule, against other *rules*."""
    documents = []
    for file in TESTS:
        document: dict[str, Any] = yaml.safe_load(file.read_text())
        tests = [_about(test, name) for test in document["tests"]]
        tests = [test for test in tests if test["promql_expr_test"]]
        if tests:
            documents.append({**document, "rule_files": [str(rules)], "tests": tests})
    return documents


def _about(test: dict[str, Any], name: str) -> dict[str, Any]:
    checks = [check for check in test["promql_expr_test"] if _names(check["expr"], name)]
    return {**test, "promql_expr_test": checks}


def _names(expression: str, name: str) -> bool:
    return f'"{name}"' in expression or re.search(rf"{name}(?![\w:])", expression) is not None
