"""Under which exposition names vLLM's versions publish each reading we use."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

Reading = Literal[
    "requests_running",
    "requests_waiting",
    "waiting_by_reason",
    "kv_used_ratio",
    "preemptions_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "finished_total",
    "prompt_tokens",
    "generation_tokens",
    "sleep_state",
    "cache_config",
    "started_unix_seconds",
]
Part = Literal["value", "bucket", "sum", "count"]


@dataclass(frozen=True, slots=True)
class Spelling:
    """One name of one reading.

    Attributes:
        name: As the page writes it, without the prefix.
        first: First vLLM version that has it; ``None`` for all since its first metrics.
        last: Last version that publishes it unasked; ``None`` while it lives.
    """

    name: str
    first: str | None = None
    last: str | None = None


@dataclass(frozen=True, slots=True)
class Meaning:
    """What one sample name on a page stands for.

    Attributes:
        reading: Which of our readings it feeds.
        age: 0 for the newest spelling of that reading, 1 for the one before it, and so on.
        part: The sample's place in a histogram; ``value`` for all others.
    """

    reading: Reading
    age: int
    part: Part


# Ray prepends its own prefix and cannot carry the colon; prometheus_client drops the colon too
# when OpenMetrics is negotiated (prometheus/client_python issue 1177).
PREFIXES: Final = ("vllm:", "vllm_", "ray_vllm:", "ray_vllm_")

# Newest first. A counter without `_total` is how Ray's exporter writes it.
SPELLINGS: Final[Mapping[Reading, tuple[Spelling, ...]]] = MappingProxyType(
    {
        "requests_running": (Spelling("num_requests_running"),),
        "requests_waiting": (Spelling("num_requests_waiting"),),
        "waiting_by_reason": (Spelling("num_requests_waiting_by_reason", first="0.20.0"),),
        "kv_used_ratio": (
            Spelling("kv_cache_usage_perc", first="0.9.2"),
            Spelling("gpu_cache_usage_perc", last="0.10.2"),
        ),
        "preemptions_total": (Spelling("num_preemptions_total"), Spelling("num_preemptions")),
        "prompt_tokens_total": (Spelling("prompt_tokens_total"), Spelling("prompt_tokens")),
        "generation_tokens_total": (
            Spelling("generation_tokens_total"),
            Spelling("generation_tokens"),
        ),
        "finished_total": (Spelling("request_success_total"), Spelling("request_success")),
        "prompt_tokens": (Spelling("request_prompt_tokens"),),
        "generation_tokens": (Spelling("request_generation_tokens"),),
        "sleep_state": (Spelling("engine_sleep_state", first="0.11.1"),),
        "cache_config": (Spelling("cache_config_info"),),
    }
)
HISTOGRAMS: Final = frozenset[Reading]({"prompt_tokens", "generation_tokens"})

# The one name that is Python's client library's, not vLLM's: it has no prefix.
PROCESS_START: Final = "process_start_time_seconds"
# Families that every vLLM server of one process publishes beside its own.
COMPANION_PREFIXES: Final = ("python_", "process_", "http_")

_PARTS: Final[tuple[Part, ...]] = ("bucket", "sum", "count")


def _meanings() -> dict[str, Meaning]:
    meanings = {PROCESS_START: Meaning("started_unix_seconds", age=0, part="value")}
    for reading, spellings in SPELLINGS.items():
        for age, spelling in enumerate(spellings):
            for prefix in PREFIXES:
                full_name = prefix + spelling.name
                if reading in HISTOGRAMS:
                    for part in _PARTS:
                        meanings[f"{full_name}_{part}"] = Meaning(reading, age, part)
                else:
                    meanings[full_name] = Meaning(reading, age, "value")
    return meanings


MEANING_OF: Final[Mapping[str, Meaning]] = MappingProxyType(_meanings())
