"""The committed dashboards, taken apart for the tests."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

JSON = Path(__file__).parents[2] / "dashboards" / "json"
BOARDS = ("engine", "fleet", "node", "planning")

Board = dict[str, Any]
Panel = dict[str, Any]


class Target(NamedTuple):
    """One query of one panel."""

    board: str
    panel: str
    ref: str
    expression: str

    @property
    def id(self) -> str:
        return f"{self.board}: {self.panel} {self.ref}"


def load(name: str) -> Board:
    return dict(json.loads((JSON / f"{name}.json").read_text()))


def panels_of(board: Board) -> Iterator[Panel]:
    """Every panel but headings, also those under a heading that is closed."""
    for panel in board["panels"]:
        if panel["type"] == "row":
            yield from panel.get("panels") or []
        else:
            yield panel


def targets() -> list[Target]:
    return [
        Target(name, panel["title"], target["refId"], target["expr"])
        for name in BOARDS
        for panel in panels_of(load(name))
        for target in panel["targets"]
    ]


def annotations() -> list[Target]:
    return [
        Target(name, annotation["name"], "annotation", annotation["expr"])
        for name in BOARDS
        for annotation in load(name)["annotations"]["list"]
    ]


def all_expressions() -> list[Target]:
    return targets() + annotations()


def variable_queries() -> list[Target]:
    """The selector inside each ``label_values`` of each variable."""
    return [
        Target(name, variable["name"], "variable", selector)
        for name in BOARDS
        for variable in load(name)["templating"]["list"]
        if variable["type"] == "query"
        for selector in [label_values(variable["definition"])[0]]
    ]


def label_values(query: str) -> tuple[str, str]:
    match = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
    assert match, query
    return match[1], match[2]


def fill_in(expression: str, *, rate: str = "1m", price: str = "2.50", **chosen: str) -> str:
    """Put values in the place of Grafana's variables; what is not chosen is every value."""
    filled = expression.replace("$__rate_interval", rate).replace("$gpu_hour", price)
    for name in ("job", "instance", "engine", "gpu", "model"):
        filled = re.sub(rf"\${name}\b", chosen.get(name, ".+"), filled)
    assert "$" not in re.sub(r'"\$\d[^"]*"', "", filled), filled
    return filled
