"""The engine board: how many more requests fit, when it is full, and what binds."""

from dashboards.kvheadroom_dashboards import queries as q
from dashboards.kvheadroom_dashboards.board import Section, board, chosen, instances
from dashboards.kvheadroom_dashboards.foreign import beside_vllm
from dashboards.kvheadroom_dashboards.panels import (
    DASHED,
    GREEN,
    ORANGE,
    RED,
    Column,
    Query,
    Text,
    graph,
    help_of,
    number,
    rows_of,
)
from grafana_foundation_sdk.models import dashboard
from grafana_foundation_sdk.models.dashboard import VariableHide

from kvheadroom.faces import catalogue as c
from kvheadroom.faces.catalogue import MetricSpec

_LIMIT_COLORS = {
    "kv": "red",
    "max_num_seqs": "orange",
    "token_budget": "purple",
    "deferred": "blue",
    "none": "green",
}
_OF_TRAFFIC = 'context=~"observed.*|max"'
_CONFIGURED = 'context=~"[0-9]+"'
_ONE_LINE = {"color": {"mode": "fixed", "fixedColor": "text"}, **DASHED}


def engine() -> str:
    """Return the board as JSON."""
    names = f"label_values({q.select(c.ENGINE_INFO)}, engine)"
    served = f"label_values({q.select(c.ENGINE_INFO, q.ENGINE)}, model)"
    return board(
        "kvheadroom-engine",
        "Engine",
        "How many more requests fit on one engine, when it is full, what binds, and what its "
        "traffic looks like.",
        [
            instances(include_all=False),
            chosen("engine", "Engine", names),
            # Only for the queries of vLLM's own metrics, which know no engine.
            chosen("model", "Model", served).hide(VariableHide.HIDE_VARIABLE),
        ],
        [
            Section("Now", [(panel, 3, 4) for panel in _numbers()]),
            Section("Room", [(panel, 12, 8) for panel in _room()]),
            Section("Queue", [(panel, 8, 8) for panel in _queue()]),
            Section(
                "Traffic, drift and budget",
                [(_lengths(), 8, 8), (_drift(), 8, 8), (_budget(), 8, 8)],
            ),
            Section("State", [(_state(), 24, 6)]),
            Section(
                "vLLM's own latency (all engines of the model)",
                [(panel, 8, 8) for panel in beside_vllm()],
                collapsed=True,
            ),
        ],
    )


def _of(spec: MetricSpec, *matchers: str) -> str:
    return q.select(spec, q.ENGINE, *matchers)


def _fits(title: str, matcher: str, *, text: Text = "value") -> dashboard.Panel:
    requests = q.max_by("context", _of(c.HEADROOM_REQUESTS, matcher))
    return number(
        title,
        help_of(c.HEADROOM_REQUESTS),
        "short",
        Query(requests, "of {{context}}"),
        steps=((None, RED), (1, ORANGE), (4, GREEN)),
        text=text,
    )


def _numbers() -> list[dashboard.Panel]:
    full_in = _of(c.HEADROOM_EXHAUSTION_SECONDS)
    return [
        _fits("Fit, as observed", q.OBSERVED),
        _fits("Fit, by length", _CONFIGURED, text="value_and_name"),
        _fits("Fit, of full length", 'context="max"'),
        number(
            "KV in use",
            help_of(c.KV_USED_RATIO),
            c.KV_USED_RATIO.grafana_unit,
            Query(f"max({_of(c.KV_USED_RATIO)})"),
            steps=((None, GREEN), (0.85, ORANGE), (0.95, RED)),
        ),
        number(
            "Full in",
            help_of(c.HEADROOM_EXHAUSTION_SECONDS),
            c.HEADROOM_EXHAUSTION_SECONDS.grafana_unit,
            # A living engine that is not filling must not look like one that is not read.
            Query(f"min({full_in} or {_of(c.KV_USED_RATIO)} * 0 - 1)"),
            steps=((None, GREEN), (0, RED), (300, ORANGE)),
            mappings={"-1": "not filling"},
        ),
        number(
            "Waiting",
            help_of(c.ENGINE_REQUESTS_WAITING),
            "short",
            Query(f"sum({_of(c.ENGINE_REQUESTS_WAITING)})"),
            steps=((None, GREEN), (1, ORANGE)),
        ),
        number(
            "Preempted",
            help_of(c.ENGINE_REQUESTS_PREEMPTED),
            "short",
            Query(f"sum({_of(c.ENGINE_REQUESTS_PREEMPTED)})"),
            steps=((None, GREEN), (1, RED)),
        ),
        number(
            "What binds",
            help_of(c.HEADROOM_LIMIT),
            "short",
            Query(f"{q.max_by('limit', _of(c.HEADROOM_LIMIT))} == 1", "{{limit}}"),
            text="name",
        ),
    ]


def _room() -> list[dashboard.Panel]:
    blocks, free = _of(c.KV_CAPACITY_BLOCKS), _of(c.HEADROOM_BLOCKS)
    limits = {f"^{name}$": {"color": {"mode": "fixed", "fixedColor": color}}
              for name, color in _LIMIT_COLORS.items()}  # fmt: skip
    return [
        graph(
            "More requests that fit, by length",
            help_of(c.HEADROOM_REQUESTS),
            "short",
            Query(q.max_by("context", _of(c.HEADROOM_REQUESTS)), "{{context}} tokens"),
            legend_values=True,
            styles={
                "^max tokens$": {"displayName": "longest allowed"},
                "^observed tokens$": {"displayName": "as observed"},
                "^observed_p95 tokens$": {"displayName": "as observed, p95"},
            },
        ),
        graph(
            "KV blocks in use",
            "Blocks less free ones; vLLM's null block counts as used. "
            + help_of(c.HEADROOM_BLOCKS),
            "short",
            Query(f"max({blocks} - {free})", "in use"),
            Query(f"max({blocks})", "capacity"),
            styles={"^capacity$": _ONE_LINE},
            legend_values=True,
        ),
        graph(
            "KV in use, and time until full",
            help_of(c.KV_USED_RATIO, c.HEADROOM_EXHAUSTION_SECONDS),
            c.KV_USED_RATIO.grafana_unit,
            Query(f"max({_of(c.KV_USED_RATIO)})", "in use"),
            Query(f"min({_of(c.HEADROOM_EXHAUSTION_SECONDS)})", "full in (right)"),
            maximum=1,
            styles={
                "^full in": {
                    "unit": c.HEADROOM_EXHAUSTION_SECONDS.grafana_unit,
                    "custom.axisPlacement": "right",
                    "custom.drawStyle": "points",
                    "custom.pointSize": 4,
                    "color": {"mode": "fixed", "fixedColor": "orange"},
                }
            },
            legend_values=True,
        ),
        graph(
            "What keeps requests waiting",
            help_of(c.HEADROOM_LIMIT),
            "short",
            Query(q.max_by("limit", _of(c.HEADROOM_LIMIT)), "{{limit}}"),
            stacked=True,
            styles=limits,
            maximum=1,
            step_lines=True,
            legend_values=True,
        ),
    ]


def _queue() -> list[dashboard.Panel]:
    return [
        graph(
            "Requests running",
            help_of(c.ENGINE_REQUESTS_RUNNING, c.ENGINE_MAX_NUM_SEQS),
            "short",
            Query(f"max({_of(c.ENGINE_REQUESTS_RUNNING)})", "running"),
            Query(f"max({_of(c.ENGINE_MAX_NUM_SEQS)})", "max_num_seqs"),
            styles={"^max_num_seqs$": _ONE_LINE},
        ),
        graph(
            "Requests waiting, by reason",
            help_of(c.ENGINE_REQUESTS_WAITING),
            "short",
            Query(q.sum_by("reason", _of(c.ENGINE_REQUESTS_WAITING)), "{{reason}}"),
            stacked=True,
        ),
        graph(
            "Preemptions, as inferred and as reported later",
            help_of(c.ENGINE_PREEMPTIONS_INFERRED_TOTAL, c.ENGINE_PREEMPTIONS_TOTAL),
            "short",
            Query(f"sum({q.increase(c.ENGINE_PREEMPTIONS_INFERRED_TOTAL, q.ENGINE)})", "inferred"),
            Query(f"sum({q.increase(c.ENGINE_PREEMPTIONS_TOTAL, q.ENGINE)})", "reported by vLLM"),
            Query(f"sum({_of(c.ENGINE_REQUESTS_PREEMPTED)})", "preempted and waiting"),
            styles={"^preempted and waiting$": {**DASHED, "custom.lineWidth": 1}},
        ),
    ]


def _lengths() -> dashboard.Panel:
    return graph(
        "Length of a request",
        help_of(c.HEADROOM_CONTEXT_TOKENS),
        "short",
        Query(q.max_by("context", _of(c.HEADROOM_CONTEXT_TOKENS, _OF_TRAFFIC)), "{{context}}"),
        styles={"^max$": {**_ONE_LINE, "displayName": "longest allowed"}},
    )


def _drift() -> dashboard.Panel:
    return graph(
        "Capacity: computed against reported, and against the last boot",
        help_of(c.KV_CAPACITY_DRIFT_RATIO, c.KV_CAPACITY_BOOT_CHANGE_RATIO),
        c.KV_CAPACITY_DRIFT_RATIO.grafana_unit,
        Query(f"max({_of(c.KV_CAPACITY_DRIFT_RATIO)})", "computed over reported, less 1"),
        Query(
            q.max_by("previous_version, version", _of(c.KV_CAPACITY_BOOT_CHANGE_RATIO)),
            "since {{previous_version}}",
        ),
        minimum=-0.05,
        maximum=0.05,
    )


def _budget() -> dashboard.Panel:
    return rows_of(
        "What its memory is meant for",
        help_of(c.BUDGET_BYTES),
        {"gpu": "GPU", "component": "Part", "source": "Figure is"},
        Column(
            "Memory", q.max_by("gpu, component, source", _of(c.BUDGET_BYTES)), "bytes", decimals=2
        ),
        sorted_by="Memory",
        descending=True,
    )


def _state() -> dashboard.Panel:
    return graph(
        "Stalled, asleep, restarted",
        help_of(c.ENGINE_STALLED, c.ENGINE_ASLEEP, c.ENGINE_RESTARTS_TOTAL),
        "short",
        Query(f"max({_of(c.ENGINE_STALLED)})", "stalled"),
        Query(f"max({_of(c.ENGINE_ASLEEP)})", "asleep"),
        Query(f"sum({q.increase(c.ENGINE_RESTARTS_TOTAL, q.ENGINE)})", "restarts"),
        step_lines=True,
        maximum=1,
    )
