"""The few kinds of panel that the boards are made of, all with title, help, unit and legend."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeVar

from grafana_foundation_sdk.builders import common as common_builder
from grafana_foundation_sdk.builders import dashboard as dashboard_builder
from grafana_foundation_sdk.builders import prometheus, stat, table, timeseries
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models import table as table_options
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from kvheadroom.faces.catalogue import MetricSpec

SOURCE: Final = common.DataSourceRef(type_val="prometheus", uid="$datasource")
GREEN: Final = "green"
ORANGE: Final = "orange"
RED: Final = "red"

#: Where a panel's color changes: the value from which it holds, and the color; the first is None.
Steps = Sequence[tuple[float | None, str]]
#: What a number shows.
Text = Literal["value", "name", "value_and_name"]
#: Name of a property of Grafana's field configuration to its value.
Properties = Mapping[str, object]

_P = TypeVar("_P", timeseries.Panel, stat.Panel, table.Panel)

CALM: Final[Steps] = ((None, GREEN),)
DASHED: Final[Properties] = {
    "custom.lineStyle": {"fill": "dash", "dash": [8, 6]},
    "custom.fillOpacity": 0,
    "custom.stacking": {"mode": "none", "group": "A"},
    "custom.lineWidth": 2,
}


@dataclass(frozen=True, slots=True)
class Query:
    """One query and how its series are named.

    Attributes:
        expression: PromQL.
        legend: Template of the series' names.
    """

    expression: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of values in a table.

    Attributes:
        title: Its heading.
        expression: PromQL that gives one value for each row.
        unit: Grafana's unit id.
        steps: Colors of the cells; none for plain text.
        mappings: Value to the word that stands for it.
        decimals: Digits after the point.
    """

    title: str
    expression: str
    unit: str
    steps: Steps = ()
    mappings: Mapping[str, str] = field(default_factory=dict)
    decimals: int | None = None


def help_of(*specs: MetricSpec) -> str:
    """Return the catalogue's words on one or more families."""
    if len(specs) == 1:
        return specs[0].help
    return "\n\n".join(f"{spec.name.removeprefix('kvheadroom_')}: {spec.help}" for spec in specs)


def graph(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    stacked: bool = False,
    steps: Steps = (),
    styles: Mapping[str, Properties] | None = None,
    legend_values: bool = False,
    minimum: float | None = 0,
    maximum: float | None = None,
    each: str | None = None,
    step_lines: bool = False,
) -> dashboard.Panel:
    """Draw values over time.

    Args:
        title: Heading.
        description: How to read it.
        unit: Grafana's unit id.
        queries: What is drawn.
        stacked: Whether the areas add up.
        steps: Limits, drawn as dashed lines.
        styles: Regular expression of series names to what is different about them.
        legend_values: Whether the legend is a table beside the graph with the latest values.
        minimum: Lower end of the axis unless values are below it; ``None`` for free.
        maximum: Upper end of the axis unless values are above it.
        each: Draw one point for each of these intervals, as ``1d``.
        step_lines: Whether a value holds until the next one.
    """
    panel = _described(timeseries.Panel(), title, description, unit, queries)
    panel.legend(_legend(beside=legend_values)).tooltip(
        common_builder.VizTooltipOptions()
        .mode(common.TooltipDisplayMode.MULTI)
        .sort(common.SortOrder.DESCENDING)
    )
    panel.show_points(common.VisibilityMode.AUTO).line_width(1)
    panel.fill_opacity(70 if stacked else 8)
    if stacked:
        panel.stacking(common_builder.StackingConfig().mode(common.StackingMode.NORMAL))
    if step_lines:
        panel.line_interpolation(common.LineInterpolation.STEP_AFTER)
    if minimum is not None:
        panel.axis_soft_min(minimum)
    if maximum is not None:
        panel.axis_soft_max(maximum)
    if steps:
        panel.thresholds(_thresholds(steps)).thresholds_style(
            common_builder.GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.DASHED)
        )
    if each:
        panel.interval(each).show_points(common.VisibilityMode.ALWAYS).point_size(6).fill_opacity(0)
    for name, properties in (styles or {}).items():
        panel.override_by_regexp(f"/{name}/", _properties(properties))
    return panel.build()


def number(
    title: str,
    description: str,
    unit: str,
    query: Query,
    *,
    steps: Steps = CALM,
    mappings: Mapping[str, str] | None = None,
    text: Text = "value",
) -> dashboard.Panel:
    """Show the latest value in large type, the name of the series that has it, or both."""
    panel = _described(stat.Panel(), title, description, unit, (query,), instant=True)
    panel.thresholds(_thresholds(steps)).color_mode(common.BigValueColorMode.VALUE)
    panel.color_scheme(_by_threshold())
    panel.graph_mode(common.BigValueGraphMode.NONE)
    panel.text_mode(common.BigValueTextMode(text))
    panel.reduce_options(common_builder.ReduceDataOptions().calcs(["lastNotNull"]))
    if mappings:
        panel.mappings([_mapping(mappings)])
    return panel.build()


def rows_of(
    title: str,
    description: str,
    labels: Mapping[str, str],
    *columns: Column,
    sorted_by: str,
    descending: bool = False,
    links: Mapping[str, tuple[str, str]] | None = None,
) -> dashboard.Panel:
    """Show one row for each set of *labels* and one column for each query.

    Args:
        title: Heading.
        description: How to read it.
        labels: Label to the heading of its column; each query must give exactly these.
        columns: Columns of values.
        sorted_by: Heading of the column to sort by.
        descending: Whether the largest comes first.
        links: Heading of a column to the title and address that its cells lead to.
    """
    letters = [chr(ord("A") + number) for number in range(len(columns))]
    queries = tuple(Query(column.expression) for column in columns)
    panel = _described(table.Panel(), title, description, "short", queries, instant=True)
    for target in panel.build().targets or []:
        target.format_val = PromQueryFormat.TABLE  # type: ignore[attr-defined]
    values = {f"Value #{letter}" if len(columns) > 1 else "Value": column
              for letter, column in zip(letters, columns, strict=True)}  # fmt: skip
    names = dict(labels) | {value: column.title for value, column in values.items()}
    panel.with_transformation(dashboard.DataTransformerConfig(id_val="merge", options={}))
    panel.with_transformation(
        dashboard.DataTransformerConfig(
            id_val="organize",
            options={
                "excludeByName": {"Time": True},
                "indexByName": {name: place for place, name in enumerate(names)},
                "renameByName": names,
            },
        )
    )
    for heading in labels.values():
        # A label that looks like a number is still a name.
        panel.override_by_name(heading, _properties({"unit": "string"}))
    for column in columns:
        panel.override_by_name(column.title, _properties(_cell(column)))
    for heading, (text, url) in (links or {}).items():
        panel.override_by_name(heading, _properties({"links": [{"title": text, "url": url}]}))
    panel.color_scheme(_by_threshold()).thresholds(_thresholds(((None, "text"),)))
    panel.show_header(True).sort_by(
        [common_builder.TableSortByFieldState().display_name(sorted_by).desc(descending)]
    )
    built = panel.build()
    # Grafana 13 has no footer any more; what the SDK writes for "none" would be an unknown key.
    if isinstance(built.options, table_options.Options):
        built.options.footer = None
    return built


def row(title: str, *, collapsed: bool = False, repeat: str | None = None) -> dashboard.RowPanel:
    """Return a heading over the panels that follow, or over those that it hides."""
    heading = dashboard_builder.Row(title).collapsed(collapsed)
    if repeat:
        heading.repeat(repeat)
    return heading.build()


def _described(
    panel: _P,
    title: str,
    description: str,
    unit: str,
    queries: Sequence[Query],
    *,
    instant: bool = False,
) -> _P:
    panel.title(title).description(description).unit(unit).datasource(SOURCE)
    for place, query in enumerate(queries):
        target = prometheus.Dataquery().expr(query.expression).ref_id(chr(ord("A") + place))
        target.datasource(SOURCE)
        if query.legend:
            target.legend_format(query.legend)
        panel.with_target(target.instant() if instant else target.range())
    return panel


def _legend(*, beside: bool) -> common_builder.VizLegendOptions:
    legend = common_builder.VizLegendOptions().show_legend(True)
    if not beside:
        return legend.display_mode(common.LegendDisplayMode.LIST).placement(
            common.LegendPlacement.BOTTOM
        )
    legend.display_mode(common.LegendDisplayMode.TABLE).placement(common.LegendPlacement.RIGHT)
    return legend.calcs(["lastNotNull"])


def _thresholds(steps: Steps) -> dashboard_builder.ThresholdsConfig:
    return (
        dashboard_builder.ThresholdsConfig()
        .mode(dashboard.ThresholdsMode.ABSOLUTE)
        .steps([dashboard.Threshold(value=value, color=color) for value, color in steps])
    )


def _by_threshold() -> dashboard_builder.FieldColor:
    return dashboard_builder.FieldColor().mode(dashboard.FieldColorModeId.THRESHOLDS)


def _mapping(words: Mapping[str, str]) -> dashboard.ValueMap:
    return dashboard.ValueMap(
        options={
            value: dashboard.ValueMappingResult(text=text, index=place)
            for place, (value, text) in enumerate(words.items())
        }
    )


def _cell(column: Column) -> Properties:
    cell: dict[str, object] = {"unit": column.unit}
    if column.decimals is not None:
        cell["decimals"] = column.decimals
    if column.steps:
        cell["custom.cellOptions"] = {"type": "color-text"}
        cell["thresholds"] = {
            "mode": "absolute",
            "steps": [{"value": value, "color": color} for value, color in column.steps],
        }
    if column.mappings:
        options = {
            value: {"text": text, "index": place}
            for place, (value, text) in enumerate(column.mappings.items())
        }
        cell["mappings"] = [{"type": "value", "options": options}]
    return cell


def _properties(properties: Properties) -> list[dashboard.DynamicConfigValue]:
    return [dashboard.DynamicConfigValue(id_val=name, value=value)
            for name, value in properties.items()]  # fmt: skip
