from math import inf

import pytest
from tests.unit.evidence import page

from kvheadroom.errors import SourceError
from kvheadroom.node.page_reader import PageReader
from kvheadroom.node.vllm_names import MEANING_OF
from kvheadroom.node.vllm_page import read_server_page
from kvheadroom.readings import EngineReading, ServerReading


def read(body: bytes | str, *, served_name: str | None = None) -> ServerReading:
    raw = body.encode() if isinstance(body, str) else body
    return read_server_page(raw, PageReader(MEANING_OF), served_name=served_name)


def only_engine(body: bytes | str) -> EngineReading:
    (engine,) = read(body).engines
    return engine


def refusal(body: bytes | str) -> SourceError:
    with pytest.raises(SourceError) as failed:
        read(body)
    return failed.value


# --- pages of shapes that other tools misread -------------------------------------------------


@pytest.mark.parametrize(
    ("name", "used_ratios"),
    [
        ("modern-97pct", [0.97]),
        ("before-0.9-95pct", [0.95]),
        ("hybrid-with-size-tokens", [0.55]),
        ("per-pid-duplicates", [0.97]),
        ("dp2-15-and-97pct", [0.15, 0.97]),
        ("ray-underscore-names", [0.97]),
        ("healthy-20pct", [0.20]),
    ],
)
def test_used_ratio_per_engine(name: str, used_ratios: list[float]) -> None:
    """The figures each page was made with (tests/evidence/README.md)."""
    engines = read(page(f"pages/made-{name}")).engines

    assert [engine.kv_used_ratio for engine in engines] == used_ratios
    assert [engine.rank for engine in engines] == ["0", "1"][: len(engines)]


def test_a_hybrid_keeps_the_engines_own_token_count() -> None:
    """331,003 tokens, not 18,900 blocks of 16, which would be 302,400."""
    config = only_engine(page("pages/made-hybrid-with-size-tokens")).cache_config

    assert config is not None
    assert config["kv_cache_size_tokens"] == "331003"


def test_an_html_body_is_no_page() -> None:
    """A proxy's error page with status 200 means the engine is down."""
    assert refusal(page("pages/made-html-502-body")).reason == "not_metrics"


# --- recorded servers -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "running", "waiting", "used_blocks", "preemptions"),
    [
        ("real-servers/0.10.2/busy", 15, 14, 58, 14),
        ("real-servers/0.11.0/after", 15, 14, 58, 14),
        ("real-servers/0.18.1/busy", 10, 9, 38, 10),
        ("real-servers/0.28.0/busy", 10, 9, 38, 10),
        ("real-servers/0.32.0-module/busy", 12, 12, 38, 14),
        ("real-servers/0.32.0-api2/busy", 12, 12, 38, 14),
        ("real-servers/0.32.0-gemma3/busy", 6, 57, 114, 2),
        ("real-servers/0.32.0-embed-bert/busy", 0, 444, 0, 0),
        ("pages/real-0.32.0-preempting-counter-lags", 19, 21, 190, 43),
    ],
)
def test_a_busy_server(
    name: str, running: int, waiting: int, used_blocks: int, preemptions: int
) -> None:
    """Figures read off the recorded page; a used ratio is whole blocks of all but one."""
    engine = only_engine(page(name))

    assert (engine.requests_running, engine.requests_waiting) == (running, waiting)
    assert engine.preemptions_total == preemptions
    assert engine.model_name == "tiny"
    assert engine.cache_config is not None
    assert engine.kv_used_ratio is not None
    usable_blocks = int(engine.cache_config["num_gpu_blocks"]) - 1
    assert engine.kv_used_ratio * max(usable_blocks, 0) == pytest.approx(used_blocks)


def test_waiting_by_reason_adds_up() -> None:
    """vLLM 0.20 and later: the reasons sum to what waits."""
    engine = only_engine(page("real-servers/0.28.0/busy"))

    assert engine.waiting_by_reason == {"capacity": 9, "deferred": 0}


def test_versions_that_give_no_reason_leave_it_open() -> None:
    """vLLM 0.18 has no such family, which is not the same as none waiting."""
    assert only_engine(page("real-servers/0.18.1/busy")).waiting_by_reason == {}


def test_finished_requests_by_reason() -> None:
    """27 of the recorded load ran to their length."""
    finished = only_engine(page("real-servers/0.28.0/after")).finished_total

    assert finished == {"stop": 0, "length": 27, "abort": 0, "error": 0, "repetition": 0}


def test_adapters_do_not_hide_the_base_model() -> None:
    """lora_requests_info has a time as its value and stale label sets; 8 wait for an adapter."""
    engine = only_engine(page("real-servers/0.32.0-lora/busy"))

    assert engine.model_name == "tiny"
    assert (engine.requests_running, engine.requests_waiting) == (1, 8)


def test_length_histograms() -> None:
    """40 requests of 300 prompt tokens and 1,500 generated ones, none shorter, none longer."""
    engine = only_engine(page("pages/real-0.32.0-idle"))

    assert engine.prompt_tokens is not None
    assert engine.generation_tokens is not None
    assert (engine.prompt_tokens.count, engine.prompt_tokens.total) == (40, 40 * 300)
    assert (engine.generation_tokens.count, engine.generation_tokens.total) == (40, 40 * 1500)
    bounds = engine.prompt_tokens.upper_bounds
    counts = dict(zip(bounds, engine.prompt_tokens.cumulative_counts, strict=True))
    assert list(bounds) == [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, inf]
    assert (counts[200], counts[500], counts[inf]) == (0, 40, 40)


def test_the_start_of_the_server() -> None:
    """process_start_time_seconds, as the page has it."""
    assert read(page("real-servers/0.28.0/busy")).started_unix_seconds == 1796031745.15


def test_several_api_servers_tell_no_start() -> None:
    """In multiprocess mode the page has no process_* families."""
    assert read(page("real-servers/0.32.0-api2/busy")).started_unix_seconds is None


# --- silence ----------------------------------------------------------------------------------


def test_before_the_first_traffic_engines_are_known_and_gauges_are_not() -> None:
    """Several API servers publish gauges only with the first request: unknown, not zero."""
    server = read(page("pages/real-0.32.0-dp2-before-traffic"))

    assert server.silent == "before_first_traffic"
    assert [engine.rank for engine in server.engines] == ["0", "1"]
    for engine in server.engines:
        assert engine.kv_used_ratio is None
        assert engine.requests_running is None
        assert engine.cache_config is not None
        assert engine.cache_config["kv_cache_size_tokens"] == "25600"


def test_one_rank_may_have_traffic_before_the_other() -> None:
    """The page speaks, the rank without traffic does not."""
    server = read(page("real-servers/0.28.0/dp2.busy0"))

    assert server.silent is None
    assert [engine.requests_running for engine in server.engines] == [None, 1]


def test_gauges_that_are_no_numbers_are_not_silence() -> None:
    """The page has them; that they are worthless is another matter than waiting for traffic."""
    server = read("vllm:num_requests_running NaN\nvllm:kv_cache_usage_perc NaN\n")

    assert server.silent is None
    assert server.engines[0].requests_running is None


def test_disabled_statistics_are_told_from_another_program() -> None:
    """--disable-log-stats leaves the page with python_, process_ and http_ families only."""
    server = read(page("pages/real-0.32.0-disable-log-stats"))

    assert server.silent == "log_stats_disabled"
    assert server.engines == ()


@pytest.mark.parametrize("family", ["node_cpu_seconds_total", "kvheadroom_build_info"])
def test_another_programs_page_is_named(family: str) -> None:
    """A wrong port is the likeliest fault, and the family says whose port it is."""
    error = refusal(f"# TYPE {family} gauge\n{family} 1\nprocess_start_time_seconds 5\n")

    assert error.reason == "not_metrics"
    assert family in str(error)


@pytest.mark.parametrize(
    "body",
    ["", " \n\n", '{"detail": "Not Found"}', "[]\n", "\n<!DOCTYPE html>", "Bad Gateway", "ok\n"],
)
def test_what_is_no_exposition(body: str) -> None:
    """Empty, JSON, HTML and plain text, whatever the status said."""
    assert refusal(body).reason == "not_metrics"


@pytest.mark.parametrize("name", ["pages/made-modern-97pct", "pages/real-0.32.0-dp2-busy"])
def test_a_page_cut_off_anywhere_is_never_half_believed(name: str) -> None:
    """Cut within a line it is truncated, in every part of the page."""
    body = page(name)

    for length in range(100, len(body), 997):
        if body[length - 1 : length] != b"\n":
            assert refusal(body[:length]).reason in ("truncated", "not_metrics")
    assert refusal(body[:-1]).reason == "truncated"


# --- engines and labels -----------------------------------------------------------------------


def test_ranks_are_sorted_as_numbers() -> None:
    """Rank 10 comes after rank 9; what is no number comes last."""
    ranks = [10, 9, "b", 0]
    body = "".join(f'vllm:num_requests_running{{engine="{rank}"}} 1\n' for rank in ranks)

    assert [engine.rank for engine in read(body).engines] == ["0", "9", "10", "b"]


def test_one_config_without_a_rank_is_that_of_all() -> None:
    """Before 0.9 cache_config_info had no engine label."""
    body = (
        'vllm:num_requests_running{engine="0"} 1\nvllm:num_requests_running{engine="1"} 1\n'
        'vllm:cache_config_info{block_size="16",sliding_window="None"} 1.0\n'
    )

    for engine in read(body).engines:
        assert engine.cache_config == {"block_size": "16", "sliding_window": "None"}


def test_a_lone_config_makes_an_engine() -> None:
    """An engine is known before its gauges are."""
    server = read('vllm:cache_config_info{block_size="16"} 1.0\n')

    assert [engine.rank for engine in server.engines] == ["0"]
    assert server.silent == "before_first_traffic"


def test_the_newer_of_two_names_wins() -> None:
    """vLLM 0.9.2 to 0.10.2 publish both; a stale old one must not shine through."""
    both = "vllm:gpu_cache_usage_perc 0.2\nvllm:kv_cache_usage_perc 0.9\n"

    assert only_engine(both).kv_used_ratio == 0.9


def test_counters_of_several_pids_are_summed() -> None:
    """Each API server counts its own requests; a repeated line counts once."""
    body = (
        'vllm:prompt_tokens_total{pid="1"} 10\nvllm:prompt_tokens_total{pid="2"} 5\n'
        'vllm:prompt_tokens_total{pid="2"} 5\n'
    )

    assert only_engine(body).prompt_tokens_total == 15


def test_the_served_model_is_told_from_a_leftover() -> None:
    """A multiprocess directory that was not wiped shows the last server's model as well."""
    body = (
        'vllm:kv_cache_usage_perc{engine="0",model_name="old"} 0.9\n'
        'vllm:num_requests_running{engine="0",model_name="old"} 2\n'
        'vllm:kv_cache_usage_perc{engine="0",model_name="new"} 0.1\n'
        'vllm:num_requests_running{engine="0",model_name="new"} 1\n'
    )

    (told,) = read(body, served_name="new").engines
    (guessed,) = read(body).engines

    assert (told.model_name, told.kv_used_ratio) == ("new", 0.1)
    assert (guessed.model_name, guessed.kv_used_ratio) == ("old", 0.9)


def test_replicas_of_ray_are_engines_of_their_own() -> None:
    """Two replicas on one page both call themselves engine 0."""
    body = (
        'ray_vllm_kv_cache_usage_perc{engine="0",ReplicaId="b1"} 0.2\n'
        'ray_vllm_kv_cache_usage_perc{engine="0",ReplicaId="a7"} 0.8\n'
    )

    assert [(e.rank, e.kv_used_ratio) for e in read(body).engines] == [
        ("a7:0", 0.8),
        ("b1:0", 0.2),
    ]


def test_a_single_replica_keeps_its_plain_rank() -> None:
    """The replica's random name in the id would break every series at a redeployment."""
    body = 'ray_vllm:num_requests_running{engine="0",ReplicaId="a7"} 3\n'

    assert only_engine(body).rank == "0"


@pytest.mark.parametrize("state", ["awake", "weights_offloaded", "discard_all"])
def test_the_sleep_state_is_the_one_that_is_1(state: str) -> None:
    """vLLM publishes one gauge per state."""
    states = ("awake", "weights_offloaded", "discard_all")
    body = "".join(
        f'vllm:engine_sleep_state{{engine="0",sleep_state="{each}"}} {float(each == state)}\n'
        for each in states
    )

    assert only_engine(body).sleep_state == state


def test_absurdly_many_engines_are_refused() -> None:
    """Each engine becomes label values of ours."""
    body = "".join(f'vllm:num_requests_running{{engine="{rank}"}} 1\n' for rank in range(1000))

    assert refusal(body).reason == "too_large"


# --- values that are none ---------------------------------------------------------------------


@pytest.mark.parametrize("value", ["97", "1.2", "-0.1", "NaN", "+Inf"])
def test_a_usage_that_is_no_ratio_is_unknown(value: str) -> None:
    """Never clamped: 97 may be a percentage, and then 1 would be as wrong as 97."""
    body = f"vllm:kv_cache_usage_perc {value}\nvllm:num_requests_running 1\n"

    assert only_engine(body).kv_used_ratio is None


def test_stale_zeros_do_not_hide_a_usage_that_is_no_ratio() -> None:
    """The maximum over the pids decides, and is then found to be none."""
    body = 'vllm:kv_cache_usage_perc{pid="1"} 0\nvllm:kv_cache_usage_perc{pid="2"} 97\n'

    assert only_engine(body).kv_used_ratio is None


@pytest.mark.parametrize("value", ["NaN", "-1", "+Inf"])
def test_a_count_that_is_none_is_unknown(value: str) -> None:
    """Neither 0 nor what the page says."""
    engine = only_engine(f"vllm:num_requests_running {value}\nvllm:num_preemptions_total {value}\n")

    assert engine.requests_running is None
    assert engine.preemptions_total is None


def histogram_page(buckets: dict[str, float], *, ends: bool = True) -> str:
    name = "vllm:request_prompt_tokens"
    lines = [f'{name}_bucket{{le="{bound}"}} {count}' for bound, count in buckets.items()]
    if ends:
        lines += [f"{name}_sum 30", f"{name}_count 3"]
    return "\n".join([*lines, "vllm:num_requests_running 0", ""])


def test_bounds_are_sorted_whatever_the_pages_order() -> None:
    """Some exporters sort label values as text: 10 before 5."""
    histogram = only_engine(histogram_page({"10": 2, "+Inf": 3, "5": 1})).prompt_tokens

    assert histogram is not None
    assert list(histogram.upper_bounds) == [5, 10, inf]
    assert list(histogram.cumulative_counts) == [1, 2, 3]


def test_a_missing_infinite_bucket_is_the_count() -> None:
    """By definition of the format both are the same number."""
    histogram = only_engine(histogram_page({"5": 1})).prompt_tokens

    assert histogram is not None
    assert list(histogram.upper_bounds) == [5, inf]
    assert list(histogram.cumulative_counts) == [1, 3]


@pytest.mark.parametrize(
    "body",
    [
        histogram_page({"5": 2, "10": 1}),
        histogram_page({"five": 1}),
        histogram_page({"NaN": 1}),
        histogram_page({"5": float("nan")}),
        histogram_page({"5": 4}),
        histogram_page({"5": 1, "+Inf": 2}, ends=False),
        histogram_page({}, ends=False),
    ],
)
def test_a_histogram_that_contradicts_itself_is_unknown(body: str) -> None:
    """Falling counts, bounds that are no numbers, more below a bound than in all, no sum."""
    assert only_engine(body).prompt_tokens is None
