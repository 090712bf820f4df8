from collections import Counter
from typing import Any

import pytest
from tests.unit.oracle import cases, config_at

from kvheadroom.engine.defaults import resolve_options
from kvheadroom.engine.flags import parse_serve_command
from kvheadroom.engine.options import Device, EngineOptions
from kvheadroom.model.facts import read_facts


def resolved(options: EngineOptions) -> dict[str, Any]:
    """Return *options* under the names that vLLM's configuration has for them."""
    return {
        "max_model_len": options.max_model_len or options.auto_fit_ceiling,
        "max_num_batched_tokens": options.max_num_batched_tokens,
        "max_num_seqs": options.max_num_seqs,
        "max_in_flight_tokens": options.max_num_batched_tokens * options.concurrent_batches,
        "dtype": options.dtype,
        "kv_cache_dtype": options.kv_cache_dtype,
        "enable_prefix_caching": options.prefix_caching,
        "mamba_cache_mode": options.mamba_cache_mode,
        "runner": options.runner,
    }


@pytest.mark.parametrize("named", [True, False])
def test_every_default_is_the_one_vllm_chose(named: bool) -> None:
    """All 995 recorded configurations come out equal, with and without the GPU's name.

    Source: vLLM 0.32.0's own resolution of the same flags (``resolved`` of each case).
    """
    wrong: Counter[tuple[str, str]] = Counter()
    for case in cases():
        options = resolve_options(
            parse_serve_command(case["flags"]),
            read_facts(config_at(f"configs/{case['model']}.json")),
            version=(0, 32, 0),
            device=Device(
                case["gpu_total_bytes"],
                (int(case["capability"].split(".")[0]), int(case["capability"].split(".")[1])),
                case["gpu"] if named else None,
            ),
        )
        for name, value in resolved(options).items():
            if case["resolved"][name] != value:
                wrong[case["id"], name] += 1

    assert not wrong
    assert len(cases()) == 995
