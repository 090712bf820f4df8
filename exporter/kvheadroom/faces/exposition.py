"""Render a snapshot with prometheus_client: once per poll, into ready bytes."""

from collections.abc import Iterable

from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from kvheadroom.faces.catalogue import ALL_METRICS, MetricSpec
from kvheadroom.faces.series import snapshot_series
from kvheadroom.live.snapshot import Snapshot


class _Families(Collector):
    """Families made for one rendering.

    New objects every time: a GPU or engine that has gone leaves no series behind, and no value of
    the client library is ever created, so an inherited PROMETHEUS_MULTIPROC_DIR stays untouched.
    """

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = tuple(families)

    def collect(self) -> Iterable[Metric]:
        """Return the families as they were made."""
        return self._families


_PROCESS = ProcessCollector(registry=None)


def render_text(snapshot: Snapshot) -> bytes:
    """Return *snapshot* in the Prometheus text format 0.0.4."""
    return generate_latest(_families(snapshot))


def render_openmetrics(snapshot: Snapshot) -> bytes:
    """Return *snapshot* in OpenMetrics 1.0.0."""
    # The library ships this one function without types.
    page: bytes = generate_openmetrics(_families(snapshot))  # type: ignore[no-untyped-call]
    return page


def _families(snapshot: Snapshot) -> Collector:
    made = {spec.name: _family(spec) for spec in ALL_METRICS}
    for spec, label_values, value in snapshot_series(snapshot):
        labels = dict(zip(spec.labels, label_values, strict=True))
        made[spec.name].samples.append(Sample(spec.name, labels, float(value)))
    used = (family for family in made.values() if family.samples)
    return _Families((*used, *_PROCESS.collect()))


def _family(spec: MetricSpec) -> Metric:
    # The client library adds these endings by kind when it writes HELP and TYPE.
    name = spec.name.removesuffix("_total").removesuffix("_info")
    return Metric(name, spec.help, spec.kind)
