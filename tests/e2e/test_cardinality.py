import time
from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.e2e.exporter import Exporter

# A server without data-parallel engines is counted with its engine.
ENGINE_SERIES = 60
GPU_SERIES = 40
PLACE_SERIES = 20


@pytest.mark.parametrize(("profile", "engine_count"), [("card", 3), ("rack", 8)])
def test_series_stay_within_what_is_stated(profile: str, engine_count: int) -> None:
    """60 an engine, 40 a GPU, and 20 for each place where an engine meets a GPU."""
    with Exporter("demo", "--profile", profile, "--speed", "20", "--poll.interval", "2s") as demo:
        deadline = time.monotonic() + 45
        while not is_whole(demo, engine_count):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        engines, gpus, places, servers = count(demo)

    assert max(engines.values()) + max(servers.values()) <= ENGINE_SERIES
    assert max(gpus.values()) <= GPU_SERIES
    assert max(places.values()) <= PLACE_SERIES


def is_whole(demo: Exporter, engine_count: int) -> bool:
    """Whether every engine is there and one tells the length of its traffic, which comes last."""
    seen = len(demo.samples("engine_info"))
    lengths = [labels["context"] for labels, _value in demo.samples("headroom_requests")]
    return seen == engine_count and "observed_p95" in lengths


def count(demo: Exporter) -> tuple[Counter[str], Counter[str], Counter[str], Counter[str]]:
    engines: Counter[str] = Counter()
    gpus: Counter[str] = Counter()
    places: Counter[str] = Counter()
    servers: Counter[str] = Counter()
    page = demo.get("/metrics")[1].decode()
    names = {labels["engine"] for labels, _value in demo.samples("engine_info")}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = sample.labels
            owner = labels.get("engine") or labels.get("owner") or labels.get("server")
            gpu = labels.get("gpu") or (labels["target"] if labels.get("source") == "nvml" else "")
            if gpu and owner in names:
                places[f"{owner} on {gpu}"] += 1
            elif gpu:
                gpus[gpu] += 1
            elif owner:
                engines[owner] += 1
            elif "target" in labels and labels.get("source", "vllm") == "vllm":
                servers[labels["target"]] += 1
    return engines, gpus, places, servers
