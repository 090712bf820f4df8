import json
import time
from random import Random

import pytest

from kvheadroom.demo.engine import Engine
from kvheadroom.demo.node import cache_config
from kvheadroom.demo.page import PageFacts, render_page
from kvheadroom.demo.plans import ServerPlan
from kvheadroom.demo.profiles import PROFILES
from kvheadroom.demo.traffic import arrivals
from kvheadroom.units import GIB

CARD = PROFILES["card"]


def simulate(plan: ServerPlan, seed: int = 1) -> Engine:
    return Engine(plan.limits(CARD.cards[0]), plan.cost, arrivals(plan.traffic, Random(seed)))


@pytest.mark.parametrize(
    ("index", "blocks", "tokens", "concurrency"),
    [(0, 655, 10_480, 1.28), (1, 181, 2896, 2.8)],
)
def test_the_card_has_the_pools_of_the_worked_case(
    index: int, blocks: int, tokens: int, concurrency: float
) -> None:
    """0.72 GiB at 72 KiB a token and 0.31 GiB at 112 KiB a token, in whole blocks of 16."""
    labels = cache_config(CARD.servers[index], CARD.cards[0])

    assert labels["num_gpu_blocks"] == str(blocks)
    assert labels["kv_cache_size_tokens"] == str(tokens)
    assert float(labels["kv_cache_max_concurrency"]) == pytest.approx(concurrency, abs=0.05)


@pytest.mark.parametrize(("index", "gib"), [(0, 7.48), (1, 2.20), (2, 1.84)])
def test_a_process_holds_context_weights_runtime_and_pool(index: int, gib: float) -> None:
    """A third of 0.84 GiB of contexts each; the reranker leaves its 0.12 GiB to the margin."""
    held_bytes = CARD.servers[index].process_bytes(CARD.cards[0])

    assert held_bytes / GIB == pytest.approx(gib, abs=0.005)


def test_the_command_line_says_what_was_simulated() -> None:
    """Flags are those of the worked case."""
    command = CARD.servers[0].command

    assert command[:3] == ("vllm", "serve", "Qwen/Qwen3-8B-AWQ")
    flags = dict(zip(command[3::2], command[4::2], strict=True))
    assert flags["--gpu-memory-utilization"] == "0.6"
    assert flags["--max-model-len"] == "8192"
    assert flags["--kv-cache-dtype"] == "fp8"


def test_block_bytes_follow_from_the_shipped_model_configs() -> None:
    """Layers x KV heads on the GPU x head_dim x (K + V) x bytes x 16 tokens, for each decoder."""
    for profile in PROFILES.values():
        for server in profile.servers:
            config = json.loads(server.config_path.read_text())
            if not server.block_bytes:
                assert "num_key_value_heads" not in config
                continue
            head_dim = config.get("head_dim") or (
                config["hidden_size"] // config["num_attention_heads"]
            )
            heads = max(1, config["num_key_value_heads"] // len(server.ranks[0]))
            element_bytes = 1 if server.cache_dtype == "fp8" else 2
            token_bytes = 2 * config["num_hidden_layers"] * heads * head_dim * element_bytes
            assert server.block_bytes == 16 * token_bytes, server.name


def test_no_request_of_a_profile_is_longer_than_its_model_allows() -> None:
    """Otherwise vLLM would refuse it and the traffic would not be what it says."""
    for profile in PROFILES.values():
        for server in profile.servers:
            longest = server.traffic.prompt.most_tokens
            longest += server.traffic.output.most_tokens if server.traffic.output else 0
            assert longest <= server.max_model_len, server.name


@pytest.mark.parametrize("seed", range(6))
def test_the_card_shows_calm_then_pressure_then_relief(seed: int) -> None:
    """Within three minutes the LLM climbs from idle to queueing and preemption, and recovers."""
    llm = simulate(CARD.servers[0], seed)
    waiting, used = [], []
    for second in range(0, 185, 5):
        llm.advance(float(second))
        waiting.append(llm.stats.requests_waiting)
        used.append(llm.stats.kv_used_ratio)

    assert not any(waiting[:6])
    assert max(used[:25]) > 0.85
    assert max(waiting[10:30]) > 0
    assert llm.stats.preemptions > 0
    assert waiting[-1] < max(waiting)


def test_a_poll_of_the_card_costs_little() -> None:
    """Advancing and rendering three engines every five seconds is below 10 ms of CPU each time.

    Twice that is asserted, so that a slow machine does not fail.
    """
    polls = 24
    engines = [simulate(server) for server in CARD.servers]
    facts = PageFacts("m", cache_config(CARD.servers[0], CARD.cards[0]), 1.0, False)
    began = time.process_time()
    for poll in range(1, polls + 1):
        for engine in engines:
            engine.advance(poll * 5.0)
            render_page(facts, [engine.stats])
    spent_seconds = time.process_time() - began

    assert spent_seconds / polls < 0.02


def test_same_seed_and_times_give_the_same_pages() -> None:
    """Nothing but seed and virtual time decides what a page says."""

    def pages() -> list[str]:
        engine = simulate(CARD.servers[0], seed=3)
        facts = PageFacts("m", cache_config(CARD.servers[0], CARD.cards[0]), 1.0, False)
        shown = []
        for second in (10.0, 60.0, 95.5):
            engine.advance(second)
            shown.append(render_page(facts, [engine.stats]))
        return shown

    assert pages() == pages()


def test_the_surge_preempts_within_half_a_minute_and_is_over_in_one() -> None:
    """Nothing comes after its 14th second, so what is left to do ends."""
    plan = PROFILES["surge"]
    server = plan.servers[0]
    requests = list(arrivals(server.traffic, Random("2 chat 0")))
    engine = Engine(server.limits(plan.cards[0]), server.cost, iter(requests))
    engine.advance(30.0)
    preemptions = engine.preemptions
    engine.advance(60.0)

    assert requests[-1].at_seconds < 14
    assert preemptions >= 3
    assert engine.stats.requests_running == engine.stats.requests_waiting == 0
