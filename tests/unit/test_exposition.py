import math

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

from kvheadroom.faces.exposition import Exposition
from kvheadroom.live.capacity import Capacity
from kvheadroom.live.card_view import view_cards
from kvheadroom.live.engine_facts import EngineFacts
from kvheadroom.live.engine_view import EnginePast, ViewOptions, view_engine
from kvheadroom.live.snapshot import ServerView, Snapshot
from kvheadroom.poll.health import failed, succeeded, unpolled
from kvheadroom.readings import EngineReading, GpuProcess, GpuReading, ServerReading

Labels = dict[str, str]


def render_text(snapshot: Snapshot) -> bytes:
    return Exposition().text(snapshot)


def value_in(page: bytes, name: str, labels: Labels) -> float | None:
    """Return the one sample with these labels; ``None`` proves absence."""
    found = [
        sample.value
        for family in parse_text(page.decode())
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    assert len(found) <= 1, f"{name}{labels} is there {len(found)} times"
    return found[0] if found else None


def engine_snapshot(reading: EngineReading, server: ServerReading | None = None) -> Snapshot:
    server = server or ServerReading(engines=(reading,), vllm_version="0.32.0", max_model_len=2048)
    view, _ = view_engine(
        reading,
        server,
        target="127.0.0.1:8000",
        facts=EngineFacts(),
        past=EnginePast(),
        options=ViewOptions(context_tokens=(1024,)),
        at_seconds=0.0,
    )
    return Snapshot(
        sources=(succeeded(unpolled("vllm", "127.0.0.1:8000"), 0.01),),
        servers=(ServerView("127.0.0.1:8000", server.silent, server.endpoints, "0.32.0"),),
        engines=(view,),
    )


# As a real vLLM 0.32.0 shows it under preemption: 200 blocks of 128 tokens.
PREEMPTING = EngineReading(
    rank="0",
    model_name="tiny",
    requests_running=19.0,
    requests_waiting=21.0,
    waiting_by_reason={"capacity": 21.0, "deferred": 0.0},
    kv_used_ratio=0.9547738693467337,
    preemptions_total=43.0,
    cache_config={
        "num_gpu_blocks": "200",
        "block_size": "128",
        "kv_cache_size_tokens": "25600",
        "kv_cache_max_concurrency": "12.5",
        "cache_dtype": "auto",
    },
)
ENGINE: Labels = {"engine": "127.0.0.1:8000/0"}


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("kvheadroom_engine_requests_running", {}, 19),
        ("kvheadroom_engine_requests_waiting", {"reason": "capacity"}, 21),
        ("kvheadroom_engine_requests_waiting", {"reason": "deferred"}, 0),
        ("kvheadroom_engine_preemptions_total", {}, 43),
        ("kvheadroom_kv_capacity_blocks", {}, 200),
        ("kvheadroom_kv_capacity_tokens", {"source": "engine"}, 25_600),
        ("kvheadroom_kv_used_ratio", {}, 0.9547738693467337),
        ("kvheadroom_headroom_blocks", {}, 9),
        ("kvheadroom_headroom_tokens", {}, 1_152),
        ("kvheadroom_headroom_requests", {"context": "1024"}, 1),
        ("kvheadroom_headroom_requests", {"context": "max"}, 0),
        ("kvheadroom_headroom_context_tokens", {"context": "max"}, 2048),
    ],
)
def test_an_engine_under_pressure(name: str, labels: Labels, value: float) -> None:
    """Every figure follows from the page of a real server: 9 blocks of 128 tokens are free."""
    assert value_in(render_text(engine_snapshot(PREEMPTING)), name, ENGINE | labels) == value


@pytest.mark.parametrize(
    "name",
    [
        "kvheadroom_kv_capacity_bytes",
        "kvheadroom_kv_bytes_per_block",
        "kvheadroom_headroom_bytes",
        "kvheadroom_kv_used_bytes",
    ],
)
def test_bytes_are_absent_without_the_model(name: str) -> None:
    """Nothing on the page says what a block costs."""
    assert value_in(render_text(engine_snapshot(PREEMPTING)), name, ENGINE) is None


def test_an_engine_before_first_traffic_has_capacity_and_no_usage() -> None:
    """With several API servers the gauges appear with the first request: unknown, not idle."""
    fresh = EngineReading(rank="0", cache_config=PREEMPTING.cache_config)
    page = render_text(engine_snapshot(fresh))

    assert value_in(page, "kvheadroom_kv_capacity_blocks", ENGINE) == 200
    for absent in ("kv_used_ratio", "headroom_blocks", "engine_requests_running"):
        assert value_in(page, f"kvheadroom_{absent}", ENGINE) is None


def test_an_encoder_has_no_kv_series() -> None:
    """A BERT under vLLM reports one symbolic block; its usage of 0 is not headroom."""
    encoder = EngineReading(
        rank="0",
        kv_used_ratio=0.0,
        cache_config={"num_gpu_blocks": "1", "kv_cache_size_tokens": "None", "block_size": "128"},
    )

    page = render_text(engine_snapshot(encoder))

    assert b"kvheadroom_kv_" not in page
    assert b"kvheadroom_headroom_" not in page
    assert value_in(page, "kvheadroom_engine_info", ENGINE | {"kv_layout": "none"}) == 1


def test_waiting_on_an_old_version_has_an_unknown_reason() -> None:
    """Before 0.20 vLLM does not say why a request waits."""
    old = EngineReading(rank="0", requests_waiting=9.0)

    page = render_text(engine_snapshot(old))

    waiting = "kvheadroom_engine_requests_waiting"
    assert value_in(page, waiting, ENGINE | {"reason": "unknown"}) == 9


def test_a_failed_source_says_down_and_why() -> None:
    """source_up is 0, the reason is counted, the other known reasons stand at 0."""
    health = failed(unpolled("nvml", "driver"), "driver_missing", "no library", 0.01)
    at = {"source": "nvml", "target": "driver"}

    page = render_text(Snapshot(sources=(health,)))

    failures = "kvheadroom_poll_failures_total"
    assert value_in(page, "kvheadroom_source_up", at) == 0
    assert value_in(page, failures, at | {"reason": "driver_missing"}) == 1
    assert value_in(page, failures, at | {"reason": "timeout"}) == 0
    assert value_in(page, "kvheadroom_poll_last_success_timestamp_seconds", at) is None


def test_silence_is_said_with_its_reason() -> None:
    """--disable-log-stats: the server is up and tells nothing."""
    server = ServerReading(engines=(), silent="log_stats_disabled")
    snapshot = Snapshot(servers=(ServerView("h:1", server.silent, {}, None),))

    page = render_text(snapshot)

    silent = "kvheadroom_source_silent"
    assert value_in(page, silent, {"reason": "log_stats_disabled"}) == 1
    assert value_in(page, silent, {"reason": "before_first_traffic"}) == 0


GIB = 1024**3
CARD = GpuReading(
    gpu="0",
    uuid="GPU-1",
    name="NVIDIA H200",
    total_bytes=140 * GIB,
    reserved_bytes=GIB,
    used_bytes=100 * GIB,
    free_bytes=39 * GIB,
    processes=(GpuProcess(7, 90 * GIB), GpuProcess(8, 9 * GIB)),
    unavailable={"power_watts": "not_supported"},
)


def test_a_gpus_memory_adds_up() -> None:
    """total = reserved + used + free, as NVML's second version defines it."""
    page = render_text(Snapshot(cards=view_cards((CARD,), (), {}, {}), driver_version="590.48.01"))
    memory = [
        value_in(page, f"kvheadroom_gpu_memory_{part}_bytes", {"gpu": "0", "uuid": "GPU-1"})
        for part in ("reserved", "used", "free", "total")
    ]

    assert None not in memory
    assert sum(part for part in memory[:3] if part is not None) == memory[3]


def test_a_reading_the_gpu_does_not_give_is_named_and_absent() -> None:
    """Unknown is absent; the reason stands beside it."""
    page = render_text(Snapshot(cards=view_cards((CARD,), (), {}, {})))

    unavailable = {"reading": "power_watts", "reason": "not_supported"}
    assert value_in(page, "kvheadroom_gpu_power_watts", {}) is None
    assert value_in(page, "kvheadroom_gpu_reading_unavailable", unavailable) == 1


def test_process_memory_is_absent_while_one_process_does_not_tell() -> None:
    """A sum with a hole in it would read as the whole."""
    hole = GpuReading(gpu="0", uuid="U", processes=(GpuProcess(7, GIB), GpuProcess(8, None)))

    page = render_text(Snapshot(cards=view_cards((hole,), (), {}, {})))

    assert value_in(page, "kvheadroom_gpu_process_memory_bytes", {}) is None
    assert value_in(page, "kvheadroom_gpu_processes", {}) == 2


def test_both_formats_hold_the_same_samples() -> None:
    """OpenMetrics and text are two spellings of one snapshot."""
    snapshot = engine_snapshot(PREEMPTING)

    def samples(families: object) -> set[tuple[str, frozenset[tuple[str, str]], float]]:
        return {
            (sample.name, frozenset(sample.labels.items()), sample.value)
            for family in families  # type: ignore[attr-defined]
            for sample in family.samples
            if sample.name.startswith("kvheadroom_")
        }

    openmetrics = Exposition().openmetrics(snapshot).decode()

    assert openmetrics.endswith("# EOF\n")
    as_openmetrics = samples(parse_openmetrics(openmetrics))  # type: ignore[no-untyped-call]
    assert as_openmetrics == samples(parse_text(render_text(snapshot).decode()))


@pytest.mark.parametrize("text", ['a"b', "a\\b", "a\nb", "ü", "{}", ""])
def test_hostile_label_values_survive(text: str) -> None:
    """A model may be called anything; the page stays readable."""
    snapshot = engine_snapshot(EngineReading(rank="0", model_name=text))

    assert value_in(render_text(snapshot), "kvheadroom_engine_info", {"model": text}) == 1


def test_no_value_is_not_a_number() -> None:
    """NaN stands for nothing a reader could use."""
    page = render_text(engine_snapshot(PREEMPTING)).decode()
    values = [sample.value for family in parse_text(page) for sample in family.samples]

    assert values
    assert not any(math.isnan(value) for value in values)


def test_nothing_is_shown_of_an_unknown_pool() -> None:
    """A capacity without tokens still shows its blocks."""
    view = Capacity(layout="unknown", blocks=40)

    assert view.tokens is None
    assert view.bytes is None


def test_a_kept_family_never_goes_stale() -> None:
    """What changed, appeared or went since the last rendering is rendered anew."""
    exposition = Exposition()
    busy, idle = (
        engine_snapshot(EngineReading(rank="0", requests_running=running)) for running in (7.0, 0.0)
    )

    pages = [exposition.text(snapshot) for snapshot in (busy, busy, idle, Snapshot(), busy)]

    running = "kvheadroom_engine_requests_running"
    assert [value_in(page, running, ENGINE) for page in pages] == [7, 7, 0, None, 7]
