"""Puts panels on a board: places, ids, variables, links and annotations."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dashboards.kvheadroom_dashboards import panels, queries
from grafana_foundation_sdk.builders import dashboard as dashboard_builder
from grafana_foundation_sdk.builders import prometheus
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard

from kvheadroom.faces import catalogue as c

TAG: Final = "kvheadroom"
COLUMNS: Final = 24

#: A panel with its width in 24ths of the board and its height in rows of 30 pixels.
Placed = tuple[dashboard.Panel, int, int]


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what is under it.

    Attributes:
        title: The heading.
        panels: Left to right, then down.
        collapsed: Whether a reader must open it first.
        repeat: Variable for each of whose values the section is shown.
    """

    title: str
    panels: Sequence[Placed]
    collapsed: bool = False
    repeat: str | None = None


def board(
    uid: str,
    title: str,
    description: str,
    variables: Sequence[dashboard_builder.QueryVariable | dashboard_builder.TextBoxVariable],
    sections: Sequence[Section],
    *,
    since: str = "now-1h",
    refresh: str = "30s",
) -> str:
    """Return a dashboard as the JSON that Grafana provisions from a file.

    Args:
        uid: Fixed id, part of its address.
        title: Name, without the product's.
        description: What it answers.
        variables: Those beside data source and job.
        sections: What is on it.
        since: Start of the time range.
        refresh: How often it is drawn anew; empty for never.
    """
    builder = (
        dashboard_builder.Dashboard(f"KV headroom / {title}")
        .uid(uid)
        .description(description)
        .tags([TAG])
        .readonly()
        .time(since, "now")
        .refresh(refresh)
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .links([_siblings()])
        .annotations([_alerts(), _restarts()])
        .variables([_data_source(), _jobs(), *variables])
    )
    built = builder.build()
    built.panels = _place(sections)
    return JSONEncoder(sort_keys=True, indent=2).encode(built) + "\n"


def instances(*, include_all: bool) -> dashboard_builder.QueryVariable:
    """Return the choice of exporters; a board about one node begins with one."""
    return (
        chosen(
            "instance", "Instance", f'label_values({c.BUILD_INFO.name}{{job=~"$job"}}, instance)'
        )
        .multi(True)
        .include_all(include_all)
        .all_value(".+")
    )


def models() -> dashboard_builder.QueryVariable:
    """Return the choice of models."""
    query = f"label_values({queries.select(c.ENGINE_INFO)}, model)"
    return chosen("model", "Model", query).multi(True).include_all(True).all_value(".*")


def chosen(name: str, label: str, query: str) -> dashboard_builder.QueryVariable:
    """Return a choice whose values are label values, read anew when the time range changes."""
    return (
        dashboard_builder.QueryVariable(name)
        .label(label)
        .datasource(panels.SOURCE)
        .query({"query": query, "refId": name})
        .definition(query)
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
    )


def _data_source() -> dashboard_builder.DatasourceVariable:
    return (
        dashboard_builder.DatasourceVariable("datasource").label("Data source").type("prometheus")
    )


def _jobs() -> dashboard_builder.QueryVariable:
    query = f"label_values({c.BUILD_INFO.name}, job)"
    return chosen("job", "Job", query).multi(True).include_all(True).all_value(".+")


def _siblings() -> dashboard_builder.DashboardLink:
    return (
        dashboard_builder.DashboardLink("KV headroom")
        .type(dashboard.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .as_dropdown(True)
        .include_vars(True)
        .keep_time(True)
        .icon("external link")
    )


def _annotation(
    name: str, expression: str, color: str, title: str, text: str
) -> dashboard_builder.AnnotationQuery:
    return (
        dashboard_builder.AnnotationQuery()
        .name(name)
        .datasource(panels.SOURCE)
        .enable(True)
        .icon_color(color)
        .expr(expression)
        .target(prometheus.Dataquery().expr(expression).ref_id("Anno").datasource(panels.SOURCE))
        .title_format(title)
        .text_format(text)
    )


def _alerts() -> dashboard_builder.AnnotationQuery:
    expression = f'ALERTS{{{queries.SELECTOR}, alertname=~"KvHeadroom.+", alertstate="firing"}}'
    return _annotation("Alerts", expression, "red", "{{alertname}}", "{{instance}} {{engine}}")


def _restarts() -> dashboard_builder.AnnotationQuery:
    expression = f"{queries.increase(c.ENGINE_RESTARTS_TOTAL)} > 0"
    return _annotation(
        "Restarts", expression, "blue", "Engine restarted", "{{instance}} {{engine}}"
    )


def _place(sections: Sequence[Section]) -> list[dashboard.Panel | dashboard.RowPanel]:
    """Give every panel its place and id, in reading order."""
    placed: list[dashboard.Panel | dashboard.RowPanel] = []
    below, number = 0, 0
    for section in sections:
        heading = panels.row(section.title, collapsed=section.collapsed, repeat=section.repeat)
        number += 1
        heading.id_val = number
        heading.grid_pos = dashboard.GridPos(h=1, w=COLUMNS, x=0, y=below)
        below += 1
        left, tallest = 0, 0
        for panel, width, height in section.panels:
            if left + width > COLUMNS:
                below, left, tallest = below + tallest, 0, 0
            number += 1
            panel.id_val = number
            panel.grid_pos = dashboard.GridPos(h=height, w=width, x=left, y=below)
            left, tallest = left + width, max(tallest, height)
        placed.append(heading)
        if section.collapsed:
            heading.panels = [panel for panel, _, _ in section.panels]
        else:
            below += tallest
            placed.extend(panel for panel, _, _ in section.panels)
    return placed
