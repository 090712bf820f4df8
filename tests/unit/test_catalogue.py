import re
from pathlib import Path

import pytest

from kvheadroom.faces.catalogue import ALL_METRICS, MetricSpec
from kvheadroom.faces.metrics_doc import markdown, surface

GOLDEN = Path(__file__).parent.parent / "golden" / "metric_surface.txt"

# Target labels that Prometheus or an operator's relabeling owns.
CLASHING = {"instance", "job", "cluster", "region", "zone", "service", "env", "environment", "dc"}

every_metric = pytest.mark.parametrize("spec", ALL_METRICS, ids=lambda spec: spec.name)


@every_metric
def test_the_name_follows_prometheus_rules(spec: MetricSpec) -> None:
    """Snake case, no colon, our prefix, base units; _total on counters and only there."""
    assert re.fullmatch(r"kvheadroom_[a-z][a-z0-9_]*", spec.name)
    assert not re.search(r"_(percent|perc|pct|[kmgt]i?b|ms|us|minutes|hours|mhz)$", spec.name)
    assert spec.name.endswith("_total") == (spec.kind == "counter")
    assert spec.name.endswith("_info") == (spec.kind == "info")


@every_metric
def test_the_help_is_a_sentence(spec: MetricSpec) -> None:
    """It says where the value comes from, in words that end with a full stop."""
    assert spec.help[0].isupper() or spec.help[0].isdigit()
    assert spec.help.endswith(".")


@every_metric
def test_no_label_clashes_with_a_target_label(spec: MetricSpec) -> None:
    """A clash comes back as exported_instance and breaks every join."""
    assert not set(spec.labels) & CLASHING


def test_the_surface_is_frozen() -> None:
    """A rename breaks strangers' queries; `make golden` rewrites the file, the diff is read."""
    assert surface() == GOLDEN.read_text()


def test_the_document_lists_every_metric() -> None:
    """The table is made from the catalogue, so nothing can be missing from it."""
    assert all(f"`{spec.name}`" in markdown() for spec in ALL_METRICS)
