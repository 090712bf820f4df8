"""The planning board: headroom day by day, peaks, growth, and what a request costs."""

from dashboards.kvheadroom_dashboards import queries as q
from dashboards.kvheadroom_dashboards.board import Section, board, instances, models
from dashboards.kvheadroom_dashboards.panels import (
    GREEN,
    ORANGE,
    RED,
    Column,
    Query,
    graph,
    help_of,
    rows_of,
)
from grafana_foundation_sdk.builders.dashboard import TextBoxVariable
from grafana_foundation_sdk.models import dashboard

from kvheadroom.faces import catalogue as c

_STEP = "5m"
_ENGINE_KEY = "job, instance, engine"


def planning() -> str:
    """Return the board as JSON."""
    price = TextBoxVariable("gpu_hour").label("Price of a GPU hour").default_value("2.50")
    return board(
        "kvheadroom-planning",
        "Planning",
        "What each model had left on each day, its peaks, what a week's growth does, and what a "
        "request of each length costs.",
        [instances(include_all=True), models(), price],
        [
            Section("Day by day", [(panel, 12, 8) for panel in _days()]),
            Section("A week's growth", [(_growth(), 24, 11)]),
            Section("What a request costs", [(_costs(), 24, 14)]),
        ],
        since="now-14d",
        refresh="",
    )


def _per_model(expression: str) -> str:
    return q.sum_by("model", q.with_model(expression))


def _over(function: str, expression: str, span: str, offset: str = "") -> str:
    return f"{function}(({expression})[{span}:{_STEP}]{f' offset {offset}' if offset else ''})"


_USED = _per_model(q.select(c.KV_USED_BYTES))
_CAPACITY = _per_model(q.select(c.KV_CAPACITY_BYTES))
_OBSERVED = _per_model(q.select(c.HEADROOM_REQUESTS, q.OBSERVED))


def _days() -> list[dashboard.Panel]:
    waiting = q.sum_by(_ENGINE_KEY, q.select(c.ENGINE_REQUESTS_WAITING))
    demand = _per_model(f"{q.select(c.ENGINE_REQUESTS_RUNNING)} + {waiting}")
    return [
        graph(
            "Requests that still fitted at each day's tightest moment",
            "Smallest sum over the model's engines, of the length their traffic had. "
            + help_of(c.HEADROOM_REQUESTS),
            "short",
            Query(_over("min_over_time", _OBSERVED, "1d"), "{{model}}"),
            each="1d",
            legend_values=True,
        ),
        graph(
            "Requests that fitted on each day's average",
            help_of(c.HEADROOM_REQUESTS),
            "short",
            Query(_over("avg_over_time", _OBSERVED, "1d"), "{{model}}"),
            each="1d",
            legend_values=True,
        ),
        graph(
            "Each day's peak of KV cache in use",
            "Bytes in use over bytes of the pools, added up over the model's engines before they "
            "are divided.",
            "percentunit",
            Query(_over("max_over_time", f"{_USED} / {_CAPACITY}", "1d"), "{{model}}"),
            steps=((None, "transparent"), (0.95, RED)),
            maximum=1,
            each="1d",
            legend_values=True,
        ),
        graph(
            "Each day's peak of requests, running and waiting",
            help_of(c.ENGINE_REQUESTS_RUNNING, c.ENGINE_REQUESTS_WAITING),
            "short",
            Query(_over("max_over_time", demand, "1d"), "{{model}}"),
            each="1d",
            legend_values=True,
        ),
    ]


def _growth() -> dashboard.Panel:
    used = f"{_USED} / {_CAPACITY}"
    average = _over("avg_over_time", used, "7d")
    before = _over("avg_over_time", used, "7d", "7d")
    peak = _over("max_over_time", used, "7d")
    return rows_of(
        "If next week grows as this week did",
        "Average and peak share of the model's KV cache in use over the last seven days, against "
        "the seven before. Next week's peak is this week's times the same growth; above 100 % "
        "requests wait or are preempted. Empty until two weeks have been recorded.",
        {"model": "Model"},
        Column("Average this week", average, "percentunit", decimals=1),
        Column("Average last week", before, "percentunit", decimals=1),
        Column("Growth", f"{average} / {before} - 1", "percentunit", decimals=1),
        Column("Peak this week", peak, "percentunit", decimals=1),
        Column(
            "Peak next week",
            f"{peak} * {average} / {before}",
            "percentunit",
            steps=((None, GREEN), (0.9, ORANGE), (1, RED)),
            decimals=1,
        ),
        Column("Fitted at the tightest", _over("min_over_time", _OBSERVED, "7d"), "short"),
        sorted_by="Peak next week",
        descending=True,
    )


def _costs() -> dashboard.Panel:
    """A request of a length holds its share of the engine's pool, and so of the engine's GPUs."""
    pool = q.max_by(_ENGINE_KEY, q.select(c.KV_CAPACITY_TOKENS))
    tokens = q.select(c.HEADROOM_CONTEXT_TOKENS)
    share = f"{tokens} / on ({_ENGINE_KEY}) group_left () {pool}"
    gpus = f"count by ({_ENGINE_KEY}) ({q.select(c.ENGINE_GPU_INFO)})"
    capacity = q.select(c.KV_CAPACITY_BYTES)

    def per_length(function: str, expression: str) -> str:
        return f"{function} by (model, context) ({q.with_model(expression)})"

    held = f"{share} * on ({_ENGINE_KEY}) group_left () {capacity}"
    cost = f"{share} * on ({_ENGINE_KEY}) group_left () {gpus} * $gpu_hour"
    return rows_of(
        "By model and length of request",
        "Share of the engine's KV cache that one request of this length holds, in tokens; its "
        "bytes; how many such requests an engine holds at once; and what the GPUs cost for the "
        "hour that one of them is resident, at the price above. A window or a recurrent state "
        "makes a long request cheaper than this. " + help_of(c.HEADROOM_CONTEXT_TOKENS),
        {"model": "Model", "context": "Length"},
        Column("Tokens", per_length("max", tokens), "locale", decimals=0),
        Column("Share of the KV cache", per_length("max", share), "percentunit", decimals=2),
        Column("Memory", per_length("max", held), "bytes", decimals=2),
        Column("At once, on an engine", per_length("min", f"floor(1 / ({share}))"), "short"),
        Column("Cost of an hour", per_length("max", cost), "currencyUSD", decimals=3),
        sorted_by="Cost of an hour",
        descending=True,
    )
