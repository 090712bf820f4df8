import json
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families
from tests.unit.virtual_clock import VirtualClock

from kvheadroom.demo.engine import Engine
from kvheadroom.demo.node import DemoNode, build_node, cache_config
from kvheadroom.demo.page import PageFacts
from kvheadroom.demo.profiles import PROFILES
from kvheadroom.demo.server import SimulatedServer
from kvheadroom.demo.traffic import arrivals

EVIDENCE = Path(__file__).parent.parent / "evidence" / "demo"
CARD = PROFILES["card"]
TIMEOUT_SECONDS = 5.0


@pytest.fixture
def node() -> Iterator[DemoNode]:
    node = build_node("card", seed=7, speed=1.0)
    node.start()
    yield node
    node.close()


def sample(page: str, name: str) -> list[tuple[dict[str, str], float]]:
    return [
        (dict(s.labels), s.value)
        for family in text_string_to_metric_families(page)
        for s in family.samples
        if s.name == name
    ]


def test_servers_answer_over_http_with_one_kept_connection(node: DemoNode) -> None:
    """Page, version, models and health come from a real HTTP/1.1 server on loopback."""
    url = node.engine_urls[0]
    with requests.Session() as session:
        page = session.get(f"{url}/metrics", timeout=TIMEOUT_SECONDS)
        version = session.get(f"{url}/version", timeout=TIMEOUT_SECONDS)
        health = session.get(f"{url}/health", timeout=TIMEOUT_SECONDS)

    assert page.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert sample(page.text, "vllm:num_requests_running")
    assert version.json() == {"version": "0.32.0"}
    assert (health.status_code, health.content) == (200, b"")


def test_models_has_the_fields_of_a_real_answer(node: DemoNode) -> None:
    """Every field but the permissions, with the limit the server was started with."""
    real = json.loads((EVIDENCE / "real-0.32.0-endpoints.json").read_text())
    fields = real["GET /v1/models"]["body"]["data"][0].keys() - {"permission"}

    answer = requests.get(f"{node.engine_urls[0]}/v1/models", timeout=TIMEOUT_SECONDS).json()

    assert answer["data"][0].keys() == fields
    assert answer["data"][0]["max_model_len"] == 8192
    assert answer["data"][0]["root"] == "Qwen/Qwen3-8B-AWQ"


def test_an_unknown_path_is_not_found(node: DemoNode) -> None:
    """404 with vLLM's body."""
    answer = requests.get(f"{node.engine_urls[0]}/server_info", timeout=TIMEOUT_SECONDS)

    assert answer.status_code == 404
    assert answer.json() == {"detail": "Not Found"}


def test_engines_move_only_when_somebody_looks() -> None:
    """A page shows the virtual time at which it was asked for."""
    clock = VirtualClock()
    facts = PageFacts("m", cache_config(CARD.servers[0], CARD.cards[0]), 1.0, False)
    plan = CARD.servers[0]
    engine = Engine(plan.limits(CARD.cards[0]), plan.cost, arrivals(plan.traffic, Random(1)))
    server = SimulatedServer(facts, [engine], model="org/m", clock=clock)
    clock.now_seconds = 120.0
    assert engine.stats.steps == 0

    page = server.page()
    server.close()

    assert sample(page, "vllm:generation_tokens_total")[0][1] > 0


def test_closing_does_not_wait_for_open_connections() -> None:
    """A client that keeps its connection does not hold the node back."""
    node = build_node("card", seed=1, speed=1.0)
    node.start()
    with requests.Session() as session:
        session.get(f"{node.engine_urls[0]}/health", timeout=TIMEOUT_SECONDS)
        began = time.monotonic()
        node.close()

        assert time.monotonic() - began < 2.0
        with pytest.raises(requests.ConnectionError):
            session.get(f"{node.engine_urls[0]}/health", timeout=TIMEOUT_SECONDS)
