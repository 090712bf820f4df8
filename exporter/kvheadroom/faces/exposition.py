"""Render a snapshot with prometheus_client, family by family; what did not change is kept."""

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from kvheadroom.faces.catalogue import ALL_METRICS, MetricSpec
from kvheadroom.faces.series import snapshot_series
from kvheadroom.live.snapshot import Snapshot

_EOF: Final = b"# EOF\n"

# One series of a family: its label values and its value.
_Row = tuple[tuple[str, ...], float]
_Generate = Callable[[Collector], bytes]


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


class _Format:
    """One exposition format, with the last rendering of every family.

    Most families are the same from poll to poll (identities, capacities, failure counts), and
    rendering is what a cycle spends most of its time on.
    """

    def __init__(self, generate: _Generate) -> None:
        self._generate = generate
        self._last: dict[str, tuple[list[_Row], bytes]] = {}

    def render(self, snapshot: Snapshot) -> bytes:
        rows: dict[str, list[_Row]] = {spec.name: [] for spec in ALL_METRICS}
        for spec, label_values, value in snapshot_series(snapshot):
            rows[spec.name].append((label_values, float(value)))
        pieces = [self._family(spec, rows[spec.name]) for spec in ALL_METRICS if rows[spec.name]]
        return b"".join(pieces) + self._generate(_Families(_PROCESS.collect()))

    def _family(self, spec: MetricSpec, rows: list[_Row]) -> bytes:
        last = self._last.get(spec.name)
        if last is not None and last[0] == rows:
            return last[1]
        rendered = self._generate(_Families([_metric(spec, rows)])).removesuffix(_EOF)
        self._last[spec.name] = (rows, rendered)
        return rendered


class Exposition:
    """Renders snapshots in both formats."""

    def __init__(self) -> None:
        self._text = _Format(generate_latest)
        # The library ships this one function without types.
        self._openmetrics = _Format(lambda families: bytes(generate_openmetrics(families)))  # type: ignore[no-untyped-call]

    def text(self, snapshot: Snapshot) -> bytes:
        """Return *snapshot* in the Prometheus text format 0.0.4."""
        return self._text.render(snapshot)

    def openmetrics(self, snapshot: Snapshot) -> bytes:
        """Return *snapshot* in OpenMetrics 1.0.0."""
        return self._openmetrics.render(snapshot)


_PROCESS: Final = ProcessCollector(registry=None)


def _metric(spec: MetricSpec, rows: Iterable[_Row]) -> Metric:
    # The client library adds these endings by kind when it writes HELP and TYPE.
    name = spec.name.removesuffix("_total").removesuffix("_info")
    metric = Metric(name, spec.help, spec.kind)
    metric.samples = [
        Sample(spec.name, dict(zip(spec.labels, label_values, strict=True)), value)
        for label_values, value in rows
    ]
    return metric
