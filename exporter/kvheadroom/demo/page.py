"""Renders simulated engines as the page that a vLLM 0.32 server shows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvheadroom.demo.families import HISTOGRAMS, NUMBERS, REJECTION_REASONS
from kvheadroom.demo.histogram import Histogram
from kvheadroom.demo.stats import EngineStats


@dataclass(frozen=True, slots=True)
class PageFacts:
    """What a server's page says that no step changes.

    Attributes:
        model_name: First served name.
        cache_config: Labels of ``cache_config_info`` except ``engine``.
        started_unix_seconds: Start of the API server.
        several_api_servers: It runs more than one, as vLLM does for several ranks: the page then
            has neither ``process_*`` nor ``_created``, and no gauge before the first step.
    """

    model_name: str
    cache_config: Mapping[str, str]
    started_unix_seconds: float
    several_api_servers: bool


def render_page(facts: PageFacts, ranks: Sequence[EngineStats]) -> str:
    """Return the exposition of one server.

    Args:
        facts: The server.
        ranks: Numbers of its engines by data-parallel rank.
    """
    return "\n".join(
        [
            *_process_lines(facts),
            *_number_lines(facts, ranks),
            *_rejection_lines(facts),
            *_histogram_lines(facts, ranks),
            *_cache_config_lines(facts, len(ranks)),
            "",
        ]
    )


def _process_lines(facts: PageFacts) -> list[str]:
    if facts.several_api_servers:
        return []
    name = "process_start_time_seconds"
    return [
        *_head(name, "gauge", "Start of this process."),
        _sample(name, {}, facts.started_unix_seconds),
    ]


def _number_lines(facts: PageFacts, ranks: Sequence[EngineStats]) -> list[str]:
    lines: list[str] = []
    for family in NUMBERS:
        counter = family.kind == "counter"
        name = f"vllm:{family.name}{'_total' if counter else ''}"
        lines += _head(name, family.kind, family.help_text)
        unset = facts.several_api_servers and not (counter or family.set_at_start)
        label_sets = []
        for rank, stats in enumerate(ranks):
            if unset and not stats.steps:
                continue
            for label_value, number in family.read(stats).items():
                label = {family.label: label_value} if family.label else {}
                label_sets.append({**_rank_labels(facts, rank), **label})
                lines.append(_sample(name, label_sets[-1], number))
        if counter:
            lines += _created_lines(f"vllm:{family.name}", family.help_text, label_sets, facts)
    return lines


def _rejection_lines(facts: PageFacts) -> list[str]:
    name, help_text = "vllm:admission_rejections", "Requests turned away at the door."
    label_sets = [{"model_name": facts.model_name, "reason": r} for r in REJECTION_REASONS]
    return [
        *_head(f"{name}_total", "counter", help_text),
        *(_sample(f"{name}_total", labels, 0) for labels in label_sets),
        *_created_lines(name, help_text, label_sets, facts),
    ]


def _histogram_lines(facts: PageFacts, ranks: Sequence[EngineStats]) -> list[str]:
    lines: list[str] = []
    label_sets = [_rank_labels(facts, rank) for rank in range(len(ranks))]
    for family in HISTOGRAMS:
        name = f"vllm:{family.name}"
        lines += _head(name, "histogram", family.help_text)
        for labels, stats in zip(label_sets, ranks, strict=True):
            lines += _series_of(name, labels, family.read(stats.histograms))
        lines += _created_lines(name, family.help_text, label_sets, facts)
    return lines


def _series_of(name: str, labels: Mapping[str, str], histogram: Histogram) -> list[str]:
    # Spelled out rather than joined label by label: most lines of a page are buckets.
    before, after = f'engine="{labels["engine"]}"', f'model_name="{_escape(labels["model_name"])}"'
    bounds = [*map(repr, histogram.upper_bounds), "+Inf"]
    return [
        *(
            f'{name}_bucket{{{before},le="{bound}",{after}}} {count}.0'
            for bound, count in zip(bounds, histogram.cumulative_counts(), strict=True)
        ),
        f"{name}_count{{{before},{after}}} {histogram.count}.0",
        f"{name}_sum{{{before},{after}}} {float(histogram.total)!r}",
    ]


def _cache_config_lines(facts: PageFacts, ranks: int) -> list[str]:
    name = "vllm:cache_config_info"
    label_sets = [{**facts.cache_config, "engine": str(rank)} for rank in range(ranks)]
    return [
        *_head(name, "gauge", "The cache as configured."),
        *(_sample(name, labels, 1) for labels in label_sets),
    ]


def _created_lines(
    name: str, help_text: str, label_sets: Sequence[Mapping[str, str]], facts: PageFacts
) -> list[str]:
    if facts.several_api_servers:
        return []
    created = f"{name}_created"
    return [
        *_head(created, "gauge", help_text),
        *(_sample(created, labels, facts.started_unix_seconds) for labels in label_sets),
    ]


def _rank_labels(facts: PageFacts, rank: int) -> dict[str, str]:
    return {"engine": str(rank), "model_name": facts.model_name}


def _head(name: str, kind: str, help_text: str) -> tuple[str, str]:
    return f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"


def _sample(name: str, labels: Mapping[str, str], number: float) -> str:
    joined = ",".join(f'{label}="{_escape(labels[label])}"' for label in sorted(labels))
    return f"{name}{{{joined}}} {float(number)!r}" if joined else f"{name} {float(number)!r}"


def _escape(label_value: str) -> str:
    return label_value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
