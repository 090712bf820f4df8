"""The oracle's cases, and the options of the server each of them describes."""

import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from kvheadroom.engine.options import Device, EngineOptions, Speculation
from kvheadroom.model.config import read_model
from kvheadroom.model.layers import ModelLayers

_FOLDER = Path(__file__).parent.parent / "evidence" / "oracle"

Case = Mapping[str, Any]


@cache
def cases() -> tuple[Case, ...]:
    with gzip.open(_FOLDER / "cases.jsonl.gz", "rt") as lines:
        return tuple(json.loads(line) for line in lines)


@cache
def config_at(path: str) -> Mapping[str, Any]:
    """Return the config.json at *path* below the oracle's folder."""
    config: Mapping[str, Any] = json.loads((_FOLDER / path).read_text())
    return config


@cache
def model_at(path: str) -> ModelLayers:
    return read_model(config_at(path))


def model_of(case: Case) -> ModelLayers:
    return model_at(f"configs/{case['model']}.json")


def draft_of(options: EngineOptions) -> ModelLayers | None:
    speculation = options.speculation
    if speculation is None or speculation.model is None:
        return None
    return model_at(f"{speculation.model}/config.json")


def options_of(case: Case) -> EngineOptions:
    """Return the options of *case*: its flags, and the defaults vLLM filled in."""
    flags, resolved = case["flags"], case["resolved"]
    batched = resolved["max_num_batched_tokens"]
    major, minor = case["capability"].split(".")
    fitted = _value(flags, "--max-model-len", int, 0) == -1
    return EngineOptions(
        version=(0, 32, 0),
        device=Device(case["gpu_total_bytes"], (int(major), int(minor)), case["gpu"]),
        max_model_len=None if fitted else resolved["max_model_len"],
        max_num_batched_tokens=batched,
        max_num_seqs=resolved["max_num_seqs"],
        concurrent_batches=resolved["max_in_flight_tokens"] // batched,
        tensor_parallel=_value(flags, "--tensor-parallel-size", int, 1),
        pipeline_parallel=_value(flags, "--pipeline-parallel-size", int, 1),
        decode_context_parallel=_value(flags, "--decode-context-parallel-size", int, 1),
        dtype=resolved["dtype"],
        kv_cache_dtype=_value(flags, "--kv-cache-dtype", str, "auto"),
        block_size=_value(flags, "--block-size", int, None),
        prefix_caching=resolved["enable_prefix_caching"],
        hybrid_manager="--disable-hybrid-kv-cache-manager" not in flags,
        mamba_cache_mode=resolved["mamba_cache_mode"],
        mamba_cache_dtype=_value(flags, "--mamba-cache-dtype", str, "auto"),
        mamba_ssm_cache_dtype=_value(flags, "--mamba-ssm-cache-dtype", str, "auto"),
        mamba_block_size=_value(flags, "--mamba-block-size", int, None),
        num_gpu_blocks_override=_value(flags, "--num-gpu-blocks-override", int, None),
        enforce_eager="--enforce-eager" in flags,
        attention_backend=_value(flags, "--attention-backend", str, None),
        speculation=_value(flags, "--speculative-config", _speculation, None),
        runner=resolved["runner"],
    )


def _value(
    flags: Sequence[str],
    name: str,
    convert: Callable[[str], Any],
    default: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    return convert(flags[flags.index(name) + 1]) if name in flags else default


def _speculation(text: str) -> Speculation:
    given = json.loads(text)
    return Speculation(given["method"], given["num_speculative_tokens"], given.get("model"))
