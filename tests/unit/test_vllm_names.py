import re

import pytest
from tests.unit.evidence import NO_PAGES, PAGE_NAMES, page

from kvheadroom.node.vllm_names import MEANING_OF, PREFIXES, SPELLINGS, Reading, Spelling

# "real-servers/0.32.0-lora/busy" → 0.32.0
_VERSION = re.compile(r"real-(?:servers/)?(\d+\.\d+\.\d+)")

recorded = [
    (name, match[1])
    for name in PAGE_NAMES
    if name not in NO_PAGES and (match := _VERSION.search(name)) and "disable" not in name
]


def number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def covers(spelling: Spelling, version: str) -> bool:
    first = spelling.first is None or number(spelling.first) <= number(version)
    return first and (spelling.last is None or number(version) <= number(spelling.last))


@pytest.mark.parametrize(("name", "version"), recorded)
@pytest.mark.parametrize("reading", ["kv_used_ratio", "waiting_by_reason", "sleep_state"])
def test_a_version_announces_the_names_the_table_gives_it(
    name: str, version: str, reading: Reading
) -> None:
    """The HELP lines of recorded servers, 0.10.2 to 0.32.0, against the first and last versions."""
    body = page(name)
    spellings = SPELLINGS[reading]

    announced = {each.name for each in spellings if f"# TYPE vllm:{each.name} ".encode() in body}
    # Several API servers hold back the gauges until the first traffic.
    if not announced and b"process_start_time_seconds" not in body:
        return
    assert announced == {each.name for each in spellings if covers(each, version)}


@pytest.mark.parametrize("reading", SPELLINGS)
def test_spellings_are_newest_first(reading: Reading) -> None:
    """Where a page has two names of one thing, the first in the table wins."""
    firsts = [number(each.first) if each.first else () for each in SPELLINGS[reading]]

    assert firsts == sorted(firsts, reverse=True)


@pytest.mark.parametrize("prefix", ["vllm:", "vllm_", "ray_vllm:", "ray_vllm_"])
def test_every_prefix_is_understood(prefix: str) -> None:
    """Ray and prometheus_client 0.23 to 0.26 rewrite the colon (client_python issue 1177)."""
    assert prefix in PREFIXES
    assert MEANING_OF[f"{prefix}kv_cache_usage_perc"].reading == "kv_used_ratio"
    assert MEANING_OF[f"{prefix}request_prompt_tokens_bucket"].part == "bucket"


def test_neighbors_with_similar_names_are_not_confused() -> None:
    """iteration_tokens_total is a histogram, *_created a time, lora_requests_info another thing."""
    for name in (
        "vllm:iteration_tokens_total_sum",
        "vllm:prompt_tokens_created",
        "vllm:prompt_tokens_by_source_total",
        "vllm:lora_requests_info",
        "vllm:cpu_cache_usage_perc",
        "vllm:request_prompt_tokens_created",
    ):
        assert name not in MEANING_OF
