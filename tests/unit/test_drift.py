import gzip
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.startup_logs import only_boot, server_log

from kvheadroom.engine.capacity import Allocation
from kvheadroom.engine.options import Device, EngineOptions
from kvheadroom.live.boot_figures import RankPlace, boot_of_rank
from kvheadroom.live.drift import (
    CapacityDrift,
    assumed_allocation,
    capacity_drift,
    computed_allocation,
    part_drifts,
)
from kvheadroom.model.config import read_model
from kvheadroom.model.layers import ModelLayers
from kvheadroom.node.boot_reading import boot_reading
from kvheadroom.readings import ProcessBoot
from kvheadroom.units import GIB, MIB

SERVERS = Path(__file__).parents[1] / "evidence" / "real-servers"


def model(server: str) -> ModelLayers:
    return read_model(json.loads((SERVERS / server / "config.json").read_text()))


def labels(server: str) -> dict[str, str]:
    page = gzip.decompress((SERVERS / server / "busy.prom.gz").read_bytes()).decode()
    found = re.search(r"^vllm:cache_config_info\{(.*)\} 1\.0$", page, re.MULTILINE)
    assert found is not None
    return dict(re.findall(r'(\w+)="([^"]*)"', found[1]))


def log(server: str) -> ProcessBoot:
    return boot_of_rank(boot_reading(only_boot(server_log(server))), RankPlace())


# Every recorded server ran on a CPU: steps of 2,048 tokens, requests of up to 2,048.
def options(**changed: object) -> EngineOptions:
    settings = {
        "version": (0, 32, 0),
        "device": Device(),
        "max_model_len": 2_048,
        "max_num_batched_tokens": 2_048,
        "max_num_seqs": 64,
        "enforce_eager": True,
    }
    return EngineOptions(**(settings | changed))  # type: ignore[arg-type]


def computed(server: str, blocks: int, **changed: object) -> Allocation | str:
    return computed_allocation(
        model(server), options(**changed), blocks=blocks, max_model_len=2_048, block_tokens=128
    )


def test_a_real_hybrid_reports_what_is_computed() -> None:
    """Gemma 3 on 0.32: 101 blocks a request x 1.2871287 requests = 130 blocks; 2,636 tokens."""
    drift = capacity_drift(computed("0.32.0-gemma3", 130), labels=labels("0.32.0-gemma3"))

    assert (drift.ratio, drift.reported_by, drift.reason) == (0.0, "engine", None)
    assert drift.computed_tokens == drift.reported_tokens == 2_636


@pytest.mark.parametrize(
    ("server", "version", "blocks"),
    [("0.10.2", (0, 10, 2), 160), ("0.11.0", (0, 11, 0), 160), ("0.18.1", (0, 18, 1), 40)],
)
def test_older_servers_are_checked_by_their_logs(
    server: str, version: tuple[int, int, int], blocks: int
) -> None:
    """Before 0.24 no label has tokens; the log of each real server does."""
    found = computed(server, blocks, version=version)

    drift = capacity_drift(found, labels=labels(server), log=log(server))

    assert (drift.ratio, drift.reported_by) == (0.0, "log")


def test_without_a_report_there_is_no_ratio() -> None:
    """An old version without its log."""
    drift = capacity_drift(computed("0.10.2", 160), labels=labels("0.10.2"))

    assert drift.ratio is None
    assert drift.reason is not None
    assert drift.computed_tokens == 20_480


def test_another_step_size_shows_as_drift() -> None:
    """Windows reserve what is in flight: half the step leaves room for more requests."""
    found = computed("0.32.0-gemma3", 130, max_num_batched_tokens=1_024)

    drift = capacity_drift(found, labels=labels("0.32.0-gemma3"))

    assert drift.ratio is not None
    assert drift.ratio > 0.2


def test_the_logs_step_size_settles_it() -> None:
    """What a server takes by default depends on its hardware; its log tells."""
    found = computed_allocation(
        model("0.32.0-gemma3"),
        options(max_num_batched_tokens=1_024),
        blocks=130,
        max_model_len=2_048,
        block_tokens=128,
        step_tokens=2_048,
    )

    assert capacity_drift(found, labels=labels("0.32.0-gemma3")).ratio == 0.0


def test_another_model_than_the_one_served_shows_as_drift() -> None:
    """A dense model's configuration beside a hybrid's report: 8.1 requests instead of 1.29."""
    found = computed("0.28.0", 130)

    drift = capacity_drift(found, labels=labels("0.32.0-gemma3"))

    assert drift.ratio == pytest.approx(130 / 16 / 1.2871287128712872 - 1, rel=1e-3)


def assumed(server: str, layers: ModelLayers, blocks: int) -> CapacityDrift:
    found = assumed_allocation(
        layers,
        labels(server),
        version=(0, 32, 0),
        blocks=blocks,
        block_tokens=128,
        max_model_len=2_048,
    )
    return capacity_drift(found, labels=labels(server))


def test_without_the_command_what_comes_closest_is_compared() -> None:
    """The step size is not known then: one of vLLM's own defaults gives the real hybrid's 101."""
    assert assumed("0.32.0-gemma3", model("0.32.0-gemma3"), 130).ratio == 0.0
    other = assumed("0.32.0-gemma3", model("0.28.0"), 130).ratio
    assert other is not None
    assert other > 1


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (computed_allocation(None, options(), blocks=1, max_model_len=None), "configuration"),
        (computed_allocation(model("0.28.0"), None, blocks=1, max_model_len=None), "command"),
        (computed("0.28.0", 0), "no blocks"),
        (computed("0.28.0", 2), "would not have started"),
    ],
)
def test_why_nothing_is_computed_is_said(found: Allocation | str, word: str) -> None:
    """One line, as the reason."""
    drift = capacity_drift(found, labels=labels("0.28.0"))

    assert drift.ratio is None
    assert drift.reason is not None
    assert word in drift.reason


def test_a_logged_request_count_is_as_precise_as_it_is_printed() -> None:
    """1.2871287 is printed as 1.29: no drift, and 1.30 is one."""
    found = computed("0.32.0-gemma3", 130)

    for printed, ratio in ((1.29, 0.0), (1.30, pytest.approx(1.2871287 / 1.30 - 1))):
        drift = capacity_drift(found, labels={}, log=ProcessBoot(max_concurrency=printed))
        assert drift.ratio == ratio


def test_parts_are_compared_as_far_as_they_are_printed() -> None:
    """15.256 GiB computed and 15.27 printed are 14 MiB apart, and printing explains 5."""
    weights, kv = part_drifts(
        weights_bytes=round(15.256 * GIB),
        kv_bytes=2_250 * MIB,
        block_bytes=2 * MIB,
        log=ProcessBoot(weights_bytes=round(15.27 * GIB), kv_bytes=round(2.2 * GIB)),
    )

    assert (weights.component, weights.is_beyond_print) == ("weights", True)
    assert weights.ratio == pytest.approx(15.256 / 15.27 - 1)
    assert (kv.component, kv.is_beyond_print) == ("kv", False)


def test_a_pool_of_half_the_bytes_is_beyond_print() -> None:
    """An 8-bit cache that no label shows."""
    [kv] = part_drifts(
        weights_bytes=None,
        kv_bytes=2_250 * MIB,
        block_bytes=2 * MIB,
        log=ProcessBoot(kv_bytes=round(1.1 * GIB)),
    )

    assert kv.is_beyond_print
    assert kv.ratio == pytest.approx(2250 / 1024 / 1.1 - 1)


def test_what_only_one_side_has_is_not_compared() -> None:
    """No log, no parts."""
    assert part_drifts(weights_bytes=GIB, kv_bytes=GIB, block_bytes=1, log=None) == ()
    assert replace(capacity_drift("why", labels={}), reason=None) == CapacityDrift()
