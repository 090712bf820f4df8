"""Every query of every board parses, names only what exists, and has an answer."""

import math
import re
import subprocess
from pathlib import Path

import promql_parser
import pytest
from dashboards.kvheadroom_dashboards.foreign import FOREIGN_METRICS
from tests.grafana.boards import (
    Target,
    all_expressions,
    annotations,
    fill_in,
    targets,
    variable_queries,
)
from tests.grafana.conftest import Stored
from tests.grafana.served import PROMTOOLS

from kvheadroom.faces.catalogue import ALL_METRICS

CATALOGUE = {spec.name: spec for spec in ALL_METRICS}
#: Series that an undisturbed recording cannot have, with the reason.
NOT_RECORDED = {
    ("engine", "Capacity: computed against reported, and against the last boot", "B"): (
        "no engine of the demo starts a second time"
    ),
    ("node", "GPU $gpu: what the memory is for", "D"): (
        "a pool is one part of the ledger only while its usage is unknown"
    ),
}


def selectors(expression: str) -> list[promql_parser.VectorSelector]:
    found: list[promql_parser.VectorSelector] = []

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.MatrixSelector):
            found.append(node.vector_selector)
        elif isinstance(node, promql_parser.VectorSelector):
            found.append(node)

    promql_parser.walk(promql_parser.parse(expression), visit)
    return found


@pytest.mark.parametrize("target", all_expressions() + variable_queries(), ids=lambda t: t.id)
def test_a_query_names_only_metrics_that_exist(target: Target) -> None:
    """In our catalogue, or declared as another exporter's; and only labels the family has."""
    for selector in selectors(fill_in(target.expression)):
        if selector.name in FOREIGN_METRICS:
            continue
        assert selector.name in CATALOGUE
        known = {*CATALOGUE[selector.name].labels, "job", "instance"}
        assert {matcher.name for matcher in selector.matchers.matchers} <= known


@pytest.mark.parts
@pytest.mark.parametrize("version", PROMTOOLS)
def test_every_query_is_accepted_by_promtool(version: str, tmp_path: Path) -> None:
    """As recording rules, by the oldest Prometheus that is supported and a newer one."""
    rules = tmp_path / "rules.yml"
    lines = ["groups:", "  - name: boards", "    rules:"]
    for number, target in enumerate(all_expressions() + variable_queries()):
        quoted = fill_in(target.expression).replace("'", "''")
        lines += [f"      - record: board:query:{number}", f"        expr: '{quoted}'"]
    rules.write_text("\n".join(lines) + "\n")

    checked = subprocess.run(
        [PROMTOOLS[version](), "check", "rules", rules],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parts
def test_every_query_has_data(stored: Stored) -> None:
    """On a real Prometheus that holds a recording of both demo nodes, one finite value at least."""
    empty = [
        target.id
        for target in targets()
        if (target.board, target.panel, target.ref) not in NOT_RECORDED
        and not has_a_value(stored, target)
    ]

    assert not empty


@pytest.mark.parts
def test_annotations_are_answered(stored: Stored) -> None:
    """They may be empty, since nothing restarts and no rules are loaded, but never an error."""
    for target in annotations():
        stored.series(target.board, fill_in(target.expression))


def has_a_value(stored: Stored, target: Target) -> bool:
    found = stored.series(target.board, fill_in(target.expression))
    return any(math.isfinite(float(value)) for series in found for _, value in series["values"])


def test_a_query_that_names_nothing_is_caught() -> None:
    """The test above can fail: a misspelled metric is not in the catalogue."""
    misspelled = re.sub("kv_used_ratio", "kv_use_ratio", "max(kvheadroom_kv_used_ratio) / 2")

    assert selectors(misspelled)[0].name not in CATALOGUE
