import time

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from kvheadroom.demo.node import build_node
from kvheadroom.demo.profiles import PROFILES
from kvheadroom.errors import ConfigError

TIMEOUT_SECONDS = 5.0


def sample(page: str, name: str) -> list[tuple[dict[str, str], float]]:
    return [
        (dict(s.labels), s.value)
        for family in text_string_to_metric_families(page)
        for s in family.samples
        if s.name == name
    ]


def test_memory_adds_up_on_every_card_of_every_profile() -> None:
    """Total is reserved plus used plus free, and used is what the processes hold."""
    for profile in PROFILES:
        node = build_node(profile, seed=1, speed=1.0)
        gpus = node.gpus.read().gpus
        node.close()
        assert len(gpus) == len(PROFILES[profile].cards)
        for gpu in gpus:
            assert gpu.reserved_bytes is not None
            assert gpu.used_bytes is not None
            assert gpu.free_bytes is not None
            assert gpu.total_bytes == gpu.reserved_bytes + gpu.used_bytes + gpu.free_bytes
            assert gpu.used_bytes == sum(p.used_bytes or 0 for p in gpu.processes or ())
            assert gpu.free_bytes >= 0


def test_every_process_of_an_engine_is_on_its_cards() -> None:
    """The described pids are those the GPUs list; the rack's last card has one tenant more."""
    node = build_node("rack", seed=1, speed=1.0)
    node.close()
    gpus = node.gpus.read().gpus
    described = {
        (gpu, pid)
        for server in node.servers
        for gpus_of_rank, pids in zip(server.gpus_by_rank, server.pids_by_rank, strict=True)
        for gpu, pid in zip(gpus_of_rank, pids, strict=True)
    }
    listed = {(gpu.gpu, process.pid) for gpu in gpus for process in gpu.processes or ()}

    assert described < listed
    assert [gpu for gpu, _pid in listed - described] == ["7"]


def test_the_rack_has_eight_gpus_and_eight_engines_one_server_with_two_ranks() -> None:
    """The two-rank server repeats the sum of its pools for each rank, as vLLM does."""
    node = build_node("rack", seed=1, speed=1.0)
    node.start()
    pages = {
        server.name: requests.get(f"{server.url}/metrics", timeout=TIMEOUT_SECONDS).text
        for server in node.servers
    }
    node.close()
    infos = {name: sample(page, "vllm:cache_config_info") for name, page in pages.items()}

    assert len(node.gpus.read().gpus) == 8
    assert sum(len(info) for info in infos.values()) == 8
    plan = next(server for server in PROFILES["rack"].servers if len(server.ranks) == 2)
    of_ranks = [labels["num_gpu_blocks"] for labels, _one in infos[plan.name]]
    assert of_ranks == [str(2 * plan.blocks(PROFILES["rack"].cards[3]))] * 2


def test_speed_makes_virtual_time_run_faster() -> None:
    """At 2000 times the speed of life a moment is enough for traffic."""
    node = build_node("card", seed=1, speed=2000.0)
    node.start()
    time.sleep(0.02)
    page = requests.get(f"{node.engine_urls[0]}/metrics", timeout=TIMEOUT_SECONDS).text
    node.close()

    assert sample(page, "vllm:prompt_tokens_total")[0][1] > 0


def test_an_unknown_profile_names_those_there_are() -> None:
    """One line, with the choices."""
    with pytest.raises(ConfigError, match="no demo profile 'phone': choose card or rack"):
        build_node("phone", seed=1, speed=1.0)


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan"), float("inf")])
def test_a_speed_that_is_none_is_refused(speed: float) -> None:
    """Time has to pass, and not all of it at once."""
    with pytest.raises(ConfigError, match="above zero"):
        build_node("card", seed=1, speed=speed)
