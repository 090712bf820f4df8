"""The dashboards as files: made from the code, and sound by the rules of dashboard-linter."""

import re
from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest
from dashboards.kvheadroom_dashboards.__main__ import BOARDS as MAKERS
from tests.grafana.boards import (
    BOARDS,
    JSON,
    Board,
    Panel,
    fill_in,
    label_values,
    load,
    panels_of,
)

board = pytest.mark.parametrize("name", BOARDS)
SOURCES = {"$datasource", "${datasource}"}
KINDS = {"stat", "singlestat", "graph", "table", "timeseries", "gauge"}
#: Ids of Grafana's unit list that the boards use.
UNITS = {
    "bytes", "currencyUSD", "locale", "percent", "percentunit", "s", "short", "string", "watt",
}  # fmt: skip
SELECTED = {'job=~"$job"', 'instance=~"$instance"'}

# Rules that say every selector keeps to job and instance are not held to these: other exporters
# run under jobs and on ports of their own, and are found by GPU UUID or by model instead.
FOREIGN = re.compile(r"(DCGM_FI_|vllm:)")


def test_every_file_is_made_by_the_code() -> None:
    """Made again, each is the same to the byte, and no file is left over."""
    made = {f"{name}.json": make() for name, make in MAKERS.items()}

    assert {path.name: path.read_text() for path in JSON.iterdir()} == made


def variables(name: str) -> dict[str, dict[str, Any]]:
    return {variable["name"]: variable for variable in load(name)["templating"]["list"]}


def targets_of(name: str) -> Iterator[tuple[Panel, dict[str, Any]]]:
    for panel in panels_of(load(name)):
        for target in panel["targets"]:
            yield panel, target


@board
def test_template_datasource_rule(name: str) -> None:
    """There is one choice of data source, called so."""
    kinds = [v for v in variables(name).values() if v["type"] == "datasource"]

    assert [(v["name"], v["label"], v["query"]) for v in kinds] == [
        ("datasource", "Data source", "prometheus")
    ]


@board
@pytest.mark.parametrize("label", ["job", "instance"])
def test_template_job_and_instance_rules(name: str, label: str) -> None:
    """Job and instance are chosen from the data source, several at once."""
    variable = variables(name)[label]

    assert variable["datasource"]["uid"] in SOURCES
    assert variable["type"] == "query"
    assert variable["label"] == label.capitalize()
    assert variable["multi"] is True
    assert variable["allValue"] == ".+"


@board
def test_template_label_promql_rule(name: str) -> None:
    """What is asked for the values of a variable is a selector."""
    for variable in variables(name).values():
        if variable["type"] == "query":
            assert variable["query"]["query"] == variable["definition"]
            promql_parser.parse(fill_in(label_values(variable["definition"])[0]))


@board
def test_template_on_time_change_reload_rule(name: str) -> None:
    """Values of variables are read again when the time range changes."""
    assert {v["refresh"] for v in variables(name).values() if v["type"] == "query"} == {2}


@board
def test_panel_datasource_rule(name: str) -> None:
    """Every panel, query and annotation uses the chosen data source."""
    loaded = load(name)
    own = [panel["datasource"]["uid"] for panel in panels_of(loaded)]
    own += [target["datasource"]["uid"] for _, target in targets_of(name)]
    own += [annotation["datasource"]["uid"] for annotation in loaded["annotations"]["list"]]

    assert set(own) <= SOURCES


@board
def test_panel_title_description_rule(name: str) -> None:
    """Every panel says what it shows and how to read it; titles on a board differ."""
    panels = list(panels_of(load(name)))
    titles = [panel["title"] for panel in panels]

    assert len(set(titles)) == len(titles)
    assert all(panel["title"] and len(panel["description"]) > 20 for panel in panels)


@board
def test_panel_units_rule(name: str) -> None:
    """Every panel and every column of values has a unit that Grafana knows."""
    for panel in panels_of(load(name)):
        assert panel["type"] in KINDS
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        given = [
            change["value"]
            for override in panel["fieldConfig"]["overrides"]
            for change in override["properties"]
            if change["id"] == "unit"
        ]
        assert set(given) <= UNITS
        if panel["type"] == "table":
            assert len([unit for unit in given if unit != "string"]) == len(panel["targets"])


@board
def test_panel_no_targets_rule(name: str) -> None:
    """Every panel asks something, and its queries are named apart."""
    for panel in panels_of(load(name)):
        names = [target["refId"] for target in panel["targets"]]
        assert names
        assert len(set(names)) == len(names)


@board
def test_target_logql_rules(name: str) -> None:
    """No query goes to a log store, so both LogQL rules have nothing to check."""
    assert {target["datasource"]["type"] for _, target in targets_of(name)} == {"prometheus"}


@board
def test_target_promql_rule(name: str) -> None:
    """Every query is PromQL of the right types."""
    for _, target in targets_of(name):
        promql_parser.parse(fill_in(target["expr"]))


@board
def test_target_rate_interval_rule(name: str) -> None:
    """A rate is taken over Grafana's rate interval, never over a fixed one."""
    for panel, target in targets_of(name):
        for span in re.findall(r"\b(?:rate|irate|increase)\(.*?\[([^\]]+)\]", target["expr"]):
            assert span == "$__rate_interval", panel["title"]


@board
def test_target_job_and_instance_rules(name: str) -> None:
    """Every selector of ours keeps to the chosen jobs and instances."""
    loaded = load(name)
    expressions = [target["expr"] for _, target in targets_of(name)]
    expressions += [annotation["expr"] for annotation in loaded["annotations"]["list"]]

    for expression in expressions:
        for metric, matchers in re.findall(r"([A-Za-z_][\w:]*)\{([^}]*)\}", expression):
            assert FOREIGN.match(metric) or set(matchers.split(", ")) >= SELECTED, expression
        bare = re.findall(r"\b(kvheadroom_\w+)(?!\w|\{)", expression)
        assert not bare, expression


@board
def test_target_counter_agg_rule(name: str) -> None:
    """A counter is only read through its growth."""
    for panel, target in targets_of(name):
        for before in re.split(r"kvheadroom_\w+_total\{", target["expr"])[:-1]:
            assert re.search(r"(rate|irate|increase)\($", before), panel["title"]


@board
def test_uneditable_dashboard(name: str) -> None:
    """A provisioned board is not changed by hand."""
    assert load(name)["editable"] is False


def places(loaded: Board) -> Iterator[tuple[int, dict[str, int]]]:
    for panel in loaded["panels"]:
        yield panel["id"], panel["gridPos"]
        for inner in panel.get("panels") or []:
            yield inner["id"], inner["gridPos"]


@board
def test_ids_and_places_are_settled(name: str) -> None:
    """Ids differ, no panel leaves the grid of 24 columns, and no two cover each other."""
    found = list(places(load(name)))
    covered = [
        (x, y)
        for _, at in found
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]

    assert len({number for number, _ in found}) == len(found)
    assert max(x for x, _ in covered) < 24
    assert len(set(covered)) == len(covered)


def test_boards_are_told_apart_and_linked() -> None:
    """Addresses are fixed, short and different; each board leads to the others."""
    loaded = [load(name) for name in BOARDS]

    assert len({one["uid"] for one in loaded}) == len(loaded)
    assert all(len(one["uid"]) <= 40 for one in loaded)
    assert all(one["links"][0]["tags"] == one["tags"] == ["kvheadroom"] for one in loaded)
