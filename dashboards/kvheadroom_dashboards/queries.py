"""PromQL over catalogue metrics, with the selectors that every query of every board carries."""

from typing import Final

from kvheadroom.faces import catalogue as c
from kvheadroom.faces.catalogue import MetricSpec

SELECTOR: Final = 'job=~"$job", instance=~"$instance"'
ENGINE: Final = 'engine=~"$engine"'
GPU: Final = 'gpu=~"$gpu"'
MODEL: Final = 'model=~"$model"'
OBSERVED: Final = 'context="observed"'

_ENGINE_KEY: Final = "job, instance, engine"
_GPU_KEY: Final = "job, instance, gpu, uuid"


def select(spec: MetricSpec, *matchers: str) -> str:
    """Return the series of *spec* in the chosen jobs and instances, narrowed by *matchers*."""
    return f"{spec.name}{{{', '.join((SELECTOR, *matchers))}}}"


def increase(spec: MetricSpec, *matchers: str) -> str:
    """Return how much a counter grew in each step of the graph."""
    return f"increase({select(spec, *matchers)}[$__rate_interval])"


def with_model(expression: str) -> str:
    """Give series of engines the model they serve, and keep those of the chosen models."""
    # One of each: an info series whose version changes overlaps itself for a moment.
    info = max_by(f"{_ENGINE_KEY}, model", select(c.ENGINE_INFO, MODEL))
    return f"({expression}) * on ({_ENGINE_KEY}) group_left (model) {info}"


def with_gpu_name(expression: str) -> str:
    """Give series of GPUs the name of the card."""
    info = max_by(f"{_GPU_KEY}, name", select(c.GPU_INFO, GPU))
    return f"({expression}) * on ({_GPU_KEY}) group_left (name) {info}"


def sum_by(labels: str, expression: str) -> str:
    """Return *expression* added up over everything but *labels*."""
    return f"sum by ({labels}) ({expression})"


def max_by(labels: str, expression: str) -> str:
    """Return the largest of *expression* over everything but *labels*."""
    return f"max by ({labels}) ({expression})"


def missing(spec: MetricSpec, labels: str) -> str:
    """Return how many of a 0-or-1 family are 0: absent, not 0, while nothing is collected."""
    have = select(spec)
    return f"count by ({labels}) ({have}) - sum by ({labels}) ({have})"
