"""The simulated page against real ones of vLLM 0.32.0 (tests/evidence/demo)."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvheadroom.demo.families import CACHE_CONFIG_DEFAULTS
from kvheadroom.demo.node import cache_config
from kvheadroom.demo.page import PageFacts, render_page
from kvheadroom.demo.profiles import PROFILES
from kvheadroom.demo.stats import EngineStats, new_stats

EVIDENCE = Path(__file__).parent.parent / "evidence" / "demo"
CARD = PROFILES["card"]

Series = dict[str, set[tuple[str, tuple[str, ...], str]]]


def facts(*, several_api_servers: bool = False, model_name: str = "tiny") -> PageFacts:
    return PageFacts(
        model_name=model_name,
        cache_config=cache_config(CARD.servers[0], CARD.cards[0]),
        started_unix_seconds=1_796_031_371.33,
        several_api_servers=several_api_servers,
    )


def series_of(page: str) -> Series:
    """Return family and type to sample name, label names and bucket bound."""
    series: Series = {}
    for family in text_string_to_metric_families(page):
        if family.name.startswith("vllm:") or family.name == "process_start_time_seconds":
            series[f"{family.name} {family.type}"] = {
                (sample.name, tuple(sample.labels), sample.labels.get("le", ""))
                for sample in family.samples
            }
    return series


def value(page: str, name: str, **labels: str) -> float | None:
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return sample.value
    return None


def worked_stats() -> EngineStats:
    stats = new_stats(2048)
    stats.steps = 1
    return stats


def test_families_labels_and_buckets_are_those_of_a_real_page() -> None:
    """Every vLLM family, its type, its label names in order and its bucket bounds."""
    real = series_of((EVIDENCE / "real-0.32.0-after.prom").read_text())

    assert series_of(render_page(facts(), [worked_stats()])) == real


def test_two_ranks_make_the_page_of_several_api_servers() -> None:
    """Neither process_* nor _created, as on a real page with two ranks."""
    real = series_of((EVIDENCE / "real-0.32.0-dp2-busy.prom").read_text())
    page = render_page(facts(several_api_servers=True), [worked_stats(), worked_stats()])

    assert series_of(page) == real
    assert value(page, "vllm:kv_cache_usage_perc", engine="1") == 0


def test_several_api_servers_show_no_gauge_before_the_first_step() -> None:
    """The families are announced without a sample, as on a real page with two ranks."""
    real = series_of((EVIDENCE / "real-0.32.0-dp2-before-traffic.prom").read_text())
    page = render_page(facts(several_api_servers=True), [new_stats(2048), new_stats(2048)])

    assert series_of(page) == real
    assert value(page, "vllm:num_requests_running") is None


def test_label_values_of_fixed_families_are_those_of_a_real_page() -> None:
    """Sleep states, finished reasons, sources and rejection reasons."""

    def label_values(page: str) -> set[tuple[str, str, str]]:
        return {
            (sample.name, name, text)
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            for name, text in sample.labels.items()
            if name in ("sleep_state", "finished_reason", "source", "reason")
        }

    real = label_values((EVIDENCE / "real-0.32.0-after.prom").read_text())

    assert label_values(render_page(facts(), [worked_stats()])) == real


def test_unset_cache_config_labels_read_as_on_a_real_page() -> None:
    """What no simulated engine sets has vLLM's own value."""
    page = (EVIDENCE / "real-0.32.0-encoder.prom").read_text()
    real = next(
        sample.labels
        for family in text_string_to_metric_families(page)
        if family.name == "vllm:cache_config_info"
        for sample in family.samples
    )
    set_by_its_operator = {"kv_cache_memory_bytes"}

    for name in CACHE_CONFIG_DEFAULTS.keys() - set_by_its_operator:
        assert CACHE_CONFIG_DEFAULTS[name] == real[name], name


def test_an_encoder_says_that_it_has_no_cache() -> None:
    """One block, no size, no concurrency and no prefix caching, as on a real encoder's page."""
    labels = cache_config(CARD.servers[2], CARD.cards[0])

    assert labels["num_gpu_blocks"] == "1"
    assert labels["kv_cache_size_tokens"] == "None"
    assert labels["kv_cache_max_concurrency"] == "None"
    assert labels["effective_attention_block_size"] == "None"
    assert labels["enable_prefix_caching"] == "False"


def test_model_names_are_escaped() -> None:
    """A quote, a backslash and a line break in a name come back as they were."""
    name = 'a "b"\\c\nd'

    page = render_page(facts(model_name=name), [worked_stats()])

    assert value(page, "vllm:num_requests_running", model_name=name) == 0
    assert value(page, "vllm:request_prompt_tokens_count", model_name=name) == 0


def test_histograms_are_cumulative() -> None:
    """A bucket counts every observation at or below its bound."""
    stats = worked_stats()
    for tokens in (1, 150, 200, 201, 5000):
        stats.histograms.prompt_tokens.observe(tokens)

    page = render_page(facts(), [stats])

    name = "vllm:request_prompt_tokens"
    assert value(page, f"{name}_bucket", le="200.0") == 3
    assert value(page, f"{name}_bucket", le="2000.0") == 4
    assert value(page, f"{name}_bucket", le="+Inf") == 5
    assert value(page, f"{name}_count") == 5
    assert value(page, f"{name}_sum") == pytest.approx(5552)
