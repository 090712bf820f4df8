"""What fp8 caches would hold, against vLLM's own plans of the same memory with and without."""

from collections import defaultdict
from functools import cache

import pytest
from tests.unit.engine_views import engine
from tests.unit.oracle import Case, cases, draft_of, model_of, options_of

from kvheadroom.live.engine_facts import EngineFacts
from kvheadroom.live.engine_view import EngineView
from kvheadroom.live.what_if import fp8_what_if

_DTYPE_FLAG = "--kv-cache-dtype"
_BOTH = {"auto", "fp8"}
_SAME = ("max_model_len", "max_in_flight_tokens")


@cache
def pairs() -> tuple[tuple[Case, Case], ...]:
    """Cases that differ in the cache's dtype only: without, and with fp8."""
    found: defaultdict[tuple[object, ...], dict[str, Case]] = defaultdict(dict)
    for case in cases():
        flags = list(case["flags"])
        dtype = "auto"
        if _DTYPE_FLAG in flags:
            at = flags.index(_DTYPE_FLAG)
            dtype = flags[at + 1]
            del flags[at : at + 2]
        if case["error"] is None and case["tokens"]:
            settled = [case["resolved"][name] for name in _SAME]
            key = (case["model"], *flags, str(case["avail_bytes"]), case["gpu"], *settled)
            found[key][dtype] = case
    return tuple((one["auto"], one["fp8"]) for one in found.values() if one.keys() >= _BOTH)


def view_of(case: Case, *, is_told: bool) -> EngineView:
    """The engine that *case* started, its command known or only its labels."""
    options, resolved = options_of(case), case["resolved"]
    labels = {
        "num_gpu_blocks": str(case["num_blocks"]),
        "block_size": str(case["block_size"]),
        "cache_dtype": "auto",
        "kv_cache_size_tokens": str(case["tokens"]),
        "kv_cache_max_concurrency": str(case["max_concurrency"]),
        "enable_prefix_caching": str(resolved["enable_prefix_caching"]),
        "mamba_cache_mode": resolved["mamba_cache_mode"],
    }
    known = EngineFacts(
        layers=model_of(case),
        draft=draft_of(options),
        tensor_parallel=options.tensor_parallel,
        options=options if is_told else None,
    )
    return engine(labels=labels, known=known, max_model_len=resolved["max_model_len"])


@pytest.mark.parametrize("is_told", [True, False], ids=["command", "labels"])
def test_nearly_every_model_has_an_answer(*, is_told: bool) -> None:
    """The oracle's sweep over dtypes and GPUs holds dozens of pairs; few stay without one."""
    views = [view_of(plain, is_told=is_told) for plain, _ in pairs()]

    found = [fp8_what_if(view, context_tokens=1000, requests=1) for view in views]

    assert len(found) > 50
    assert sum(one is not None and one.tokens is not None for one in found) > 0.85 * len(found)


@pytest.mark.parametrize("is_told", [True, False], ids=["command", "labels"])
@pytest.mark.parametrize(("plain", "quantized"), pairs(), ids=lambda case: case["id"])
def test_an_fp8_cache_holds_what_vllm_plans(plain: Case, quantized: Case, *, is_told: bool) -> None:
    """From the engine's blocks alone, to within the blocks that whole ones leave over.

    Where the GPU is not known and decides, nothing is said.
    """
    found = fp8_what_if(view_of(plain, is_told=is_told), context_tokens=1000, requests=1)

    if found is None or found.tokens is None:
        # Its code ignores the dtype, so vLLM plans the same either way.
        assert not is_told or quantized["tokens"] == plain["tokens"]
        return
    lost = 1 - found.tokens / quantized["tokens"]
    rounding = 0.0 if is_told else 0.01
    assert -rounding <= lost <= 2 / plain["num_blocks"] + 2 / quantized["num_blocks"] + rounding
