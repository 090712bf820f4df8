"""Find the texts in a message of vLLM's startup: versions, names, dtypes, backends, milestones."""

import re
from collections.abc import Iterator, Mapping
from typing import Final, Literal, NamedTuple

from kvheadroom.node.log_arguments import parse_dict, parse_pairs, without_secrets

Opening = Literal["front", "arguments", "engine"]
"""The three lines a start begins with, in their order."""

# Of an engine's printed config; the rest is compilation detail.
_SETTINGS: Final = (
    "model",
    "dtype",
    "max_seq_len",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "decode_context_parallel_size",
    "quantization",
    "enforce_eager",
    "kv_cache_dtype",
    "device_config",
    "served_model_name",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "chunked_prefill_enabled",
    "load_format",
    "speculative_config",
)
_LONGEST_CONFIG: Final = 64 * 1024


class _Wording(NamedTuple):
    needle: str
    name: str
    pattern: re.Pattern[str]


def _wording(needle: str, name: str, pattern: str) -> _Wording:
    return _Wording(needle, name, re.compile(pattern))


_FACTS: Final = (
    _wording("api server version", "version", r"vLLM API server version (\S{1,80})"),
    _wording("  version ", "version", r"█ {1,4}version (\S{1,80})"),
    _wording("  model ", "model", r"█ {1,4}model {1,6}(\S{1,300})"),
    _wording("llm engine (", "version", r"LLM engine \(v([^\s()]{1,80})\)"),
    _wording("resolved architecture", "architecture", r"Resolved architecture: (\w{1,100})"),
    _wording(
        "attention backend",
        "attention_backend",
        r"Using (?:AttentionBackendEnum\.)?(\S{1,60}) "
        r"attention backend",
    ),
    _wording(
        " backend",
        "attention_backend",
        r"Using (Flash ?Attention|Flash ?Infer|XFormers|Torch SDPA|\w{1,30} MLA)(?: backend| V1)",
    ),
    _wording("kv cache layout", "kv_layout", r"Using (\w{1,20}) KV cache layout"),
    _wording("v2 model runner", "model_runner", r"Using (V2) Model Runner"),
    _wording("detected platform", "platform", r"detected platform (\w{1,20})"),
    _wording("kv cache size:", "device", r"(\w{2,10}(?: \+ host)?) KV cache size:"),
    _wording(
        "kv cache group sizes", "kv_group_tokens", r"kv cache group sizes \(([\d, ]{1,200})\)"
    ),
    _wording("using fp8 data type", "kv_cache_dtype", r"Using (fp8\w{0,10}) data type to store kv"),
)
_NOTES: Final = (
    ("graph memory profiling is disabled", "graphs_not_counted"),
    ("graph memory profiling is enabled", "graphs_counted"),
    ("hybrid kv cache manager is disabled", "hybrid_manager_off"),
    ("skipped memory profiling", "profiling_skipped"),
    ("attention-free model, using derived max_model_len", "attention_free"),
    ("sleep mode freed", "slept"),
)
_READY: Final = ("application startup complete",)
_SIZED: Final = ("init engine (",)
_SHUTDOWN: Final = (
    "[shutdown]",
    "shutdown initiated",
    "shutting down fastapi",
    "application shutdown complete",
    "finished server process",
    "info:     shutting down",
    "received sigterm",
)
_LOAD: Final = re.compile(
    r"Running: (?P<running>\d{1,9}) reqs.{0,80}?(?:Waiting|Pending): (?P<waiting>\d{1,9}) reqs"
    r".{0,120}?KV cache usage: (?P<used>\d{1,3}(?:\.\d{1,6})?)%"
)
_RANK: Final = re.compile(r"\brank (?P<rank>\d{1,6}) in world size \d{1,6} is assigned as")


class LoadLine(NamedTuple):
    """The periodic line: requests running and waiting, share of the pool in use (0-1)."""

    running: int
    waiting: int
    kv_used_ratio: float


def opening_in(text: str) -> Opening | None:
    """Return which of the lines a start begins with *text* is, or ``None``."""
    # A logged request may quote anything.
    if "prompt:" in text:
        return None
    if "vLLM API server version" in text or "█  version " in text:
        return "front"
    if text.startswith(("non-default args:", "args: Namespace(")):
        return "arguments"
    if "LLM engine (v" in text and "with config" in text:
        return "engine"
    return None


def arguments_in(text: str) -> Mapping[str, object]:
    """Return the arguments a server prints, without secrets; empty when *text* is another line."""
    _, found, printed = text[:_LONGEST_CONFIG].partition("args: ")
    if not found:
        return {}
    return parse_dict(printed) if printed.startswith("{") else parse_pairs(printed)


def settings_in(text: str) -> Mapping[str, str]:
    """Return what an engine's config line says about memory; empty when *text* is another line."""
    _, found, printed = text[:_LONGEST_CONFIG].partition("with config: ")
    entries = parse_pairs(printed) if found else {}
    kept = {name: entries[name] for name in _SETTINGS if entries.get(name) is not None}
    return {
        name: without_secrets(str(value)).removeprefix("torch.") for name, value in kept.items()
    }


def facts_in(text: str) -> Iterator[tuple[str, str]]:
    """Yield name and value of each fact *text* states."""
    lowered = text.lower()
    for needle, name, pattern in _FACTS:
        if needle in lowered and (match := pattern.search(text)):
            yield name, without_secrets(match[1])


def notes_in(text: str) -> Iterator[str]:
    """Yield the kinds of the other statements in *text* that matter to capacity."""
    lowered = text.lower()
    for needle, note in _NOTES:
        if needle in lowered:
            yield note


def is_ready(text: str) -> bool:
    """Return whether the server says that it accepts requests."""
    return _any_of(_READY, text)


def is_sized(text: str) -> bool:
    """Return whether the engine says that its KV cache is made."""
    return _any_of(_SIZED, text)


def is_shutdown(text: str) -> bool:
    """Return whether the server says that it stops in order."""
    return _any_of(_SHUTDOWN, text)


def load_in(text: str) -> LoadLine | None:
    """Return the traffic of the periodic line, or ``None``."""
    match = _LOAD.search(text) if "throughput" in text else None
    if match is None:
        return None
    return LoadLine(int(match["running"]), int(match["waiting"]), float(match["used"]) / 100)


def rank_in(text: str) -> int | None:
    """Return the global rank that *text* gives to the process that says it."""
    match = _RANK.search(text)
    return int(match["rank"]) if match else None


def _any_of(needles: tuple[str, ...], text: str) -> bool:
    lowered = text.lower()
    return any(needle in lowered for needle in needles)
