"""Panels on other exporters' metrics, joined to ours; rows that hold them start closed."""

from typing import Final

from dashboards.kvheadroom_dashboards import queries as q
from dashboards.kvheadroom_dashboards.panels import Query, graph
from grafana_foundation_sdk.models import dashboard

from kvheadroom.faces import catalogue as c
from kvheadroom.faces.catalogue import MetricSpec

FOREIGN_METRICS: Final[frozenset[str]] = frozenset({
    "ALERTS",
    "DCGM_FI_DEV_FB_USED",
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_MEM_COPY_UTIL",
    "vllm:e2e_request_latency_seconds_bucket",
    "vllm:inter_token_latency_seconds_bucket",
    "vllm:time_to_first_token_seconds_bucket",
})  # fmt: skip
"""Metrics of others that the boards name: Prometheus' own alerts, dcgm-exporter's, vLLM's."""

_ABSENT: Final = " Empty where {} is not scraped by the same Prometheus."


def beside_dcgm() -> list[dashboard.Panel]:
    """Return panels that give dcgm-exporter's figures the names of the engines on the card."""
    mebibytes = _joined(c.GPU_INFO, "DCGM_FI_DEV_FB_USED")
    return [
        graph(
            "Kernels running, by engine",
            "DCGM_FI_DEV_GPU_UTIL of the cards that an engine runs on."
            + _ABSENT.format("dcgm-exporter"),
            "percent",
            Query(_per_engine("DCGM_FI_DEV_GPU_UTIL"), "{{engine}} on GPU {{gpu}}"),
            maximum=100,
        ),
        graph(
            "Memory bandwidth in use, by engine",
            "DCGM_FI_DEV_MEM_COPY_UTIL of the cards that an engine runs on. Decoding is bound by "
            "it long before kernels fill the time." + _ABSENT.format("dcgm-exporter"),
            "percent",
            Query(_per_engine("DCGM_FI_DEV_MEM_COPY_UTIL"), "{{engine}} on GPU {{gpu}}"),
            maximum=100,
        ),
        graph(
            "Memory in use, as both exporters read it",
            "DCGM_FI_DEV_FB_USED beside ours: the two must agree."
            + _ABSENT.format("dcgm-exporter"),
            "bytes",
            Query(f"{q.max_by('gpu', mebibytes)} * 1048576", "GPU {{gpu}} (dcgm-exporter)"),
            Query(q.select(c.GPU_MEMORY_USED_BYTES, q.GPU), "GPU {{gpu}} (kvheadroom)"),
        ),
    ]


def _per_engine(metric: str) -> str:
    return _joined(c.ENGINE_GPU_INFO, metric)


def _joined(ours: MetricSpec, metric: str) -> str:
    """Return dcgm-exporter's figure for each series of *ours* on the chosen nodes' GPUs."""
    # Its label is UUID, and it may say a figure once for each pod that shares the card.
    theirs = f'max by (uuid) (label_replace({metric}, "uuid", "$1", "UUID", "(.+)"))'
    return f"{q.select(ours, q.GPU)} * on (uuid) group_left () {theirs}"


def beside_vllm() -> list[dashboard.Panel]:
    """Return panels on vLLM's latency histograms, for the model of the chosen engine."""
    return [
        _latency("Time to the first token", "vllm:time_to_first_token_seconds_bucket"),
        _latency("Time between tokens", "vllm:inter_token_latency_seconds_bucket"),
        _latency("Time of a whole request", "vllm:e2e_request_latency_seconds_bucket"),
    ]


def _latency(title: str, metric: str) -> dashboard.Panel:
    rates = f'sum by (le) (rate({metric}{{model_name=~"$model"}}[$__rate_interval]))'
    return graph(
        title,
        f"{metric.removesuffix('_bucket')} over every engine that serves the model."
        + _ABSENT.format("vLLM"),
        "s",
        *(Query(f"histogram_quantile({ratio}, {rates})", f"p{ratio * 100:.0f}")
          for ratio in (0.5, 0.95, 0.99)),
    )  # fmt: skip
