"""The node board: who holds each GPU's memory, and what is claimed on it."""

from dashboards.kvheadroom_dashboards import queries as q
from dashboards.kvheadroom_dashboards.board import Section, board, chosen, instances
from dashboards.kvheadroom_dashboards.foreign import beside_dcgm
from dashboards.kvheadroom_dashboards.panels import (
    DASHED,
    GREEN,
    ORANGE,
    RED,
    Column,
    Query,
    graph,
    help_of,
    rows_of,
)
from grafana_foundation_sdk.models import dashboard

from kvheadroom.faces import catalogue as c

#: Parts of the ledger from the floor up, and their colors; the last fills the card.
_PARTS = (
    ("weights", "#5794F2"),
    ("kv_used", "#FADE2A"),
    ("kv_free", "#96D98D"),
    ("kv", "#96D98D"),
    ("activation", "#8AB8FF"),
    ("cuda_graph", "#C0D8FF"),
    ("non_torch", "#B877D9"),
    ("context", "#CA95E5"),
    ("process", "#FF9830"),
    ("unexplained", "#F2495C"),
    ("reserved", "#808080"),
    ("free", "#37872D"),
)


def node() -> str:
    """Return the board as JSON."""
    cards = f"label_values({q.select(c.GPU_INFO)}, gpu)"
    gpus = chosen("gpu", "GPU", cards).multi(True).include_all(True).all_value(".*")
    return board(
        "kvheadroom-node",
        "Node",
        "Who holds the memory of each GPU and for what, what is claimed on it, and its links.",
        [instances(include_all=False), gpus],
        [
            Section("Cards", [(_cards(), 24, 9)]),
            Section("GPU $gpu", [(_ledger(), 13, 9), (_tenants(), 11, 9)], repeat="gpu"),
            Section("Claims and tenants", [(panel, 8, 8) for panel in _claims()]),
            Section("Load and links", [(panel, 8, 7) for panel in _load()]),
            Section(
                "Beside dcgm-exporter (joined by UUID)",
                [(panel, 8, 8) for panel in beside_dcgm()],
                collapsed=True,
            ),
        ],
    )


def _cards() -> dashboard.Panel:
    labels = "instance, gpu, name"

    def per_gpu(expression: str) -> str:
        return q.max_by(labels, q.with_gpu_name(expression))

    claimed = f"{q.select(c.GPU_MEMORY_CLAIMED_BYTES)} / {q.select(c.GPU_MEMORY_TOTAL_BYTES)}"
    return rows_of(
        "Cards, the fullest first",
        help_of(
            c.GPU_MEMORY_FREE_BYTES, c.GPU_MEMORY_CLAIMED_BYTES, c.GPU_MEMORY_UNEXPLAINED_BYTES
        ),
        {"instance": "Node", "gpu": "GPU", "name": "Card"},
        Column("Total", per_gpu(q.select(c.GPU_MEMORY_TOTAL_BYTES)), "bytes", decimals=1),
        Column("In use", per_gpu(q.select(c.GPU_MEMORY_USED_BYTES)), "bytes", decimals=1),
        Column("Free", per_gpu(q.select(c.GPU_MEMORY_FREE_BYTES)), "bytes", decimals=2),
        Column(
            "Claimed",
            per_gpu(claimed),
            "percentunit",
            steps=((None, GREEN), (0.98, ORANGE), (1, RED)),
            decimals=1,
        ),
        Column(
            "Unexplained", per_gpu(q.select(c.GPU_MEMORY_UNEXPLAINED_BYTES)), "bytes", decimals=2
        ),
        Column(
            "Intruders",
            per_gpu(q.select(c.GPU_INTRUDER_MEMORY_BYTES)),
            "bytes",
            steps=((None, GREEN), (1, ORANGE)),
            decimals=1,
        ),
        Column("Processes", per_gpu(q.select(c.GPU_PROCESSES)), "short"),
        Column("Busy", per_gpu(q.select(c.GPU_UTILIZATION_RATIO)), "percentunit", decimals=0),
        sorted_by="Free",
    )


def _colored(color: str) -> dict[str, object]:
    return {"color": {"mode": "fixed", "fixedColor": color}}


_CARD = {**DASHED, **_colored("text")}


def _ledger() -> dashboard.Panel:
    def part(name: str) -> str:
        matcher = f'component="{name}"'
        return f"sum({q.select(c.GPU_LEDGER_BYTES, q.GPU, matcher)})"

    return graph(
        "GPU $gpu: what the memory is for",
        help_of(c.GPU_LEDGER_BYTES),
        c.GPU_LEDGER_BYTES.grafana_unit,
        *(Query(part(name), name.replace("_", " ")) for name, _ in _PARTS),
        Query(f"sum({q.select(c.GPU_MEMORY_TOTAL_BYTES, q.GPU)})", "the card"),
        stacked=True,
        styles={
            **{f"^{name.replace('_', ' ')}$": _colored(color) for name, color in _PARTS},
            "^the card$": _CARD,
        },
        legend_values=True,
    )


def _tenants() -> dashboard.Panel:
    owned = q.sum_by("owner", q.select(c.GPU_LEDGER_BYTES, q.GPU, 'owner!=""'))
    rest = q.sum_by("component", q.select(c.GPU_LEDGER_BYTES, q.GPU, 'owner=""'))
    colors = dict(_PARTS)
    return graph(
        "GPU $gpu: who holds it",
        "The same memory by owner: engines, other programs by name, and in brackets what belongs "
        "to nobody. " + help_of(c.GPU_LEDGER_BYTES),
        c.GPU_LEDGER_BYTES.grafana_unit,
        Query(owned, "{{owner}}"),
        Query(rest, "({{component}})"),
        Query(f"sum({q.select(c.GPU_MEMORY_TOTAL_BYTES, q.GPU)})", "the card"),
        stacked=True,
        styles={
            **{
                rf"^\({name}\)$": _colored(colors[name])
                for name in ("free", "reserved", "unexplained")
            },
            "^the card$": _CARD,
        },
        legend_values=True,
    )


def _claims() -> list[dashboard.Panel]:
    return [
        graph(
            "Shares claimed",
            help_of(c.GPU_UTILIZATION_CLAIMED_RATIO),
            c.GPU_UTILIZATION_CLAIMED_RATIO.grafana_unit,
            Query(q.select(c.GPU_UTILIZATION_CLAIMED_RATIO, q.GPU), "{{instance}} GPU {{gpu}}"),
            steps=((None, "transparent"), (1, RED)),
            maximum=1,
        ),
        graph(
            "Memory not explained",
            help_of(c.GPU_MEMORY_UNEXPLAINED_BYTES),
            c.GPU_MEMORY_UNEXPLAINED_BYTES.grafana_unit,
            Query(q.select(c.GPU_MEMORY_UNEXPLAINED_BYTES, q.GPU), "{{instance}} GPU {{gpu}}"),
        ),
        graph(
            "Held by processes",
            help_of(c.GPU_PROCESS_MEMORY_BYTES),
            c.GPU_PROCESS_MEMORY_BYTES.grafana_unit,
            Query(q.select(c.GPU_PROCESS_MEMORY_BYTES, q.GPU), "GPU {{gpu}} {{owner}}"),
        ),
    ]


def _load() -> list[dashboard.Panel]:
    return [
        graph(
            "Busy",
            help_of(c.GPU_UTILIZATION_RATIO),
            c.GPU_UTILIZATION_RATIO.grafana_unit,
            Query(q.select(c.GPU_UTILIZATION_RATIO, q.GPU), "{{instance}} GPU {{gpu}}"),
            maximum=1,
        ),
        graph(
            "Power",
            help_of(c.GPU_POWER_WATTS),
            c.GPU_POWER_WATTS.grafana_unit,
            Query(q.select(c.GPU_POWER_WATTS, q.GPU), "{{instance}} GPU {{gpu}}"),
        ),
        graph(
            "How long a poll takes",
            help_of(c.POLL_DURATION_SECONDS),
            c.POLL_DURATION_SECONDS.grafana_unit,
            Query(q.select(c.POLL_DURATION_SECONDS), "{{source}} {{target}}"),
        ),
    ]
