"""The fleet board: which node, model or engine is short of KV cache."""

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
    number,
    rows_of,
)
from grafana_foundation_sdk.models import dashboard

from kvheadroom.faces import catalogue as c

_BINDS_KV = 'limit="kv"'
_ROW = "instance, engine, model"
_KEEP = "${datasource:queryparam}&${job:queryparam}"
_TO_ENGINE = (
    "Open the engine",
    f"/d/kvheadroom-engine?{_KEEP}&var-instance=${{__data.fields.Node}}&var-engine=${{__value.raw}}",
)
_TO_NODE = ("Open the node", f"/d/kvheadroom-node?{_KEEP}&var-instance=${{__value.raw}}")


def fleet() -> str:
    """Return the board as JSON."""
    return board(
        "kvheadroom-fleet",
        "Fleet",
        "Which node, model or engine is short of KV cache, and which sources do not answer.",
        [instances(include_all=True), models()],
        [
            Section("Now", [(panel, 4, 4) for panel in _numbers()]),
            Section("Who is short", [(_engines(), 24, 13)]),
            Section("Over time", [(panel, 12, 8) for panel in _trends()]),
            Section("Sources", [(_sources(), 14, 8), (_down_over_time(), 10, 8)]),
        ],
    )


def _numbers() -> list[dashboard.Panel]:
    used, capacity = q.select(c.KV_USED_BYTES), q.select(c.KV_CAPACITY_BYTES)
    return [
        number(
            "Nodes reporting",
            "Exporters whose page is being scraped. None at all reads as no data, not as 0.",
            "short",
            Query(f"count({q.select(c.BUILD_INFO)})"),
        ),
        number(
            "Sources down",
            help_of(c.SOURCE_UP),
            "short",
            Query(f"count({q.select(c.SOURCE_UP)}) - sum({q.select(c.SOURCE_UP)})"),
            steps=((None, GREEN), (1, RED)),
        ),
        number(
            "Engines short of KV",
            "Engines whose waiting requests wait for KV blocks. " + help_of(c.HEADROOM_LIMIT),
            "short",
            Query(f"sum({q.select(c.HEADROOM_LIMIT, _BINDS_KV)})"),
            steps=((None, GREEN), (1, ORANGE)),
        ),
        number(
            "Preempted and waiting",
            help_of(c.ENGINE_REQUESTS_PREEMPTED),
            "short",
            Query(f"sum({q.select(c.ENGINE_REQUESTS_PREEMPTED)})"),
            steps=((None, GREEN), (1, RED)),
        ),
        number(
            "KV cache in use",
            "Bytes that live requests hold over bytes of all KV pools.",
            "percentunit",
            Query(f"sum({used}) / sum({capacity})"),
            steps=((None, GREEN), (0.85, ORANGE), (0.95, RED)),
        ),
        number(
            "KV cache free",
            help_of(c.HEADROOM_BYTES),
            c.HEADROOM_BYTES.grafana_unit,
            Query(f"sum({q.select(c.HEADROOM_BYTES)})"),
        ),
    ]


def _engines() -> dashboard.Panel:
    observed = q.select(c.HEADROOM_REQUESTS, q.OBSERVED)

    def per_engine(expression: str) -> str:
        return q.max_by(_ROW, q.with_model(expression))

    waiting = q.sum_by("job, instance, engine", q.select(c.ENGINE_REQUESTS_WAITING))
    return rows_of(
        "Engines, the shortest first",
        "Requests that fit: " + help_of(c.HEADROOM_REQUESTS) + " An empty cell is a figure that "
        "the engine does not give; an engine without a KV cache has no headroom.",
        {"instance": "Node", "engine": "Engine", "model": "Model"},
        Column(
            "Requests that fit",
            per_engine(observed),
            "short",
            steps=((None, RED), (1, ORANGE), (4, GREEN)),
        ),
        Column(
            "of tokens",
            per_engine(q.select(c.HEADROOM_CONTEXT_TOKENS, q.OBSERVED)),
            "locale",
            decimals=0,
        ),
        Column(
            "KV in use",
            per_engine(q.select(c.KV_USED_RATIO)),
            "percentunit",
            steps=((None, GREEN), (0.85, ORANGE), (0.95, RED)),
            decimals=1,
        ),
        Column("KV free", per_engine(q.select(c.HEADROOM_BYTES)), "bytes", decimals=1),
        Column("Running", per_engine(q.select(c.ENGINE_REQUESTS_RUNNING)), "short"),
        Column("Waiting", per_engine(waiting), "short", steps=((None, GREEN), (1, ORANGE))),
        Column(
            "Preempted",
            per_engine(q.select(c.ENGINE_REQUESTS_PREEMPTED)),
            "short",
            steps=((None, GREEN), (1, RED)),
        ),
        Column("Full in", per_engine(q.select(c.HEADROOM_EXHAUSTION_SECONDS)), "s", decimals=0),
        Column(
            "Stalled",
            per_engine(q.select(c.ENGINE_STALLED)),
            "short",
            steps=((None, GREEN), (1, RED)),
            mappings={"0": "no", "1": "yes"},
        ),
        sorted_by="Requests that fit",
        links={"Node": _TO_NODE, "Engine": _TO_ENGINE},
    )


def _trends() -> list[dashboard.Panel]:
    def per_model(expression: str) -> str:
        return q.sum_by("model", q.with_model(expression))

    used, capacity = per_model(q.select(c.KV_USED_BYTES)), per_model(q.select(c.KV_CAPACITY_BYTES))
    observed = q.select(c.HEADROOM_REQUESTS, q.OBSERVED)
    waiting = q.sum_by("job, instance, engine", q.select(c.ENGINE_REQUESTS_WAITING))
    return [
        graph(
            "More requests of the traffic's own length that fit, per model",
            help_of(c.HEADROOM_REQUESTS),
            "short",
            Query(per_model(observed), "{{model}}"),
            legend_values=True,
        ),
        graph(
            "KV cache in use, per model",
            "Bytes in use over bytes of the pools, added up over the model's engines before they "
            "are divided.",
            "percentunit",
            Query(f"{used} / {capacity}", "{{model}}"),
            steps=((None, "transparent"), (0.95, RED)),
            maximum=1,
            legend_values=True,
        ),
        graph(
            "Requests waiting, per model",
            help_of(c.ENGINE_REQUESTS_WAITING),
            "short",
            Query(per_model(waiting), "{{model}}"),
            legend_values=True,
        ),
        graph(
            "Preemptions inferred, per model",
            help_of(c.ENGINE_PREEMPTIONS_INFERRED_TOTAL),
            "short",
            Query(per_model(q.increase(c.ENGINE_PREEMPTIONS_INFERRED_TOTAL)), "{{model}}"),
            legend_values=True,
        ),
    ]


def _sources() -> dashboard.Panel:
    labels = "instance, source, target"
    age = f"time() - {q.select(c.POLL_LAST_SUCCESS_TIMESTAMP_SECONDS)}"
    failures = q.sum_by(labels, q.increase(c.POLL_FAILURES_TOTAL))
    return rows_of(
        "Sources, those that do not answer first",
        "Every GPU and vLLM server of every node. " + help_of(c.SOURCE_UP),
        {"instance": "Node", "source": "Source", "target": "Target"},
        Column(
            "Answers",
            q.max_by(labels, q.select(c.SOURCE_UP)),
            "short",
            steps=((None, RED), (1, GREEN)),
            mappings={"0": "no", "1": "yes"},
        ),
        Column("Last read", q.max_by(labels, age), "s", decimals=0),
        Column("Poll took", q.max_by(labels, q.select(c.POLL_DURATION_SECONDS)), "s", decimals=1),
        Column("Failed lately", failures, "short", decimals=0),
        sorted_by="Answers",
        links={"Node": _TO_NODE},
    )


def _down_over_time() -> dashboard.Panel:
    return graph(
        "Sources that do not answer or tell nothing, per node",
        help_of(c.SOURCE_UP, c.SOURCE_SILENT),
        "short",
        Query(q.missing(c.SOURCE_UP, "instance"), "{{instance}}: no answer"),
        Query(q.sum_by("instance", q.select(c.SOURCE_SILENT)), "{{instance}}: tells nothing"),
        step_lines=True,
    )
