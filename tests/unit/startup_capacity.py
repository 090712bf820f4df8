"""Public startup logs: does the memory they print make the tokens they print, by our rules?

``python -m tests.unit.startup_capacity`` reports the cases that do not come out, with the reason.
"""

import gzip
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvheadroom import (
    Allocation,
    Device,
    allocate,
    parse_serve_command,
    read_facts,
    read_model,
    resolve_options,
)
from kvheadroom.engine.versions import Version, parse_version
from kvheadroom.errors import KvHeadroomError
from kvheadroom.units import GIB

_FILE = Path(__file__).parents[1] / "evidence" / "startup-logs" / "capacity.json.gz"
_DATA = json.loads(gzip.decompress(_FILE.read_bytes()))
CASES: tuple[dict[str, Any], ...] = tuple(_DATA["cases"])

# Short names that people used in their posts.
_FLAGS = {
    "tp": "tensor-parallel-size", "pp": "pipeline-parallel-size", "dp": "data-parallel-size",
    "dcp": "decode-context-parallel-size",
}  # fmt: skip
# What decides about the size of the cache; the rest of what people post does not.
_SIZING = {
    *_FLAGS, "max_model_len", "max_num_batched_tokens", "max_num_seqs", "dtype", "kv_cache_dtype",
    "block_size", "enable_prefix_caching", "enforce_eager", "quantization", "runner",
    "disable_hybrid_kv_cache_manager", "mamba_ssm_cache_dtype", "mamba_cache_mode",
    "speculative_config", "enable_expert_parallel",
}  # fmt: skip
# A log rounds GiB to two places.
_ROUNDING_BYTES = 0.005 * GIB
_NEWEST: Version = (0, 32, 0)


@dataclass(frozen=True)
class Verdict:
    """Whether the printed figure lies in what the printed memory allows."""

    holds: bool
    reason: str


def judge(case: dict[str, Any]) -> Verdict | None:
    """Return the verdict on *case*; ``None`` where it prints too little to judge."""
    lines = case["lines"]
    printed = {name: lines[name] for name in ("kv_tokens", "num_gpu_blocks") if lines.get(name)}
    if not printed and lines.get("max_concurrency"):
        # Depends on more settings than people post, so it only stands in for the others.
        printed = {"max_concurrency": lines["max_concurrency"]}
    if not lines.get("available_kv_gib") or lines["available_kv_gib"] <= 0 or not printed:
        return None
    try:
        low, high = (_allocated(case, sign) for sign in (-1, 1))
    except KvHeadroomError as error:
        return Verdict(holds=False, reason=str(error))
    if not isinstance(low, Allocation) or not isinstance(high, Allocation):
        return Verdict(holds=False, reason=f"refused: {getattr(low, 'message', low)}")
    for name, value in printed.items():
        least, most = (_figure(found, name) for found in (low, high))
        slack = 0.0051 if name == "max_concurrency" else 0
        if not least - slack <= value <= most + slack:
            return Verdict(
                holds=False, reason=f"{name} {value:,} outside {least:,.2f} to {most:,.2f}"
            )
    return Verdict(holds=True, reason="")


def _allocated(case: dict[str, Any], sign: int) -> object:
    config = _in_full(_DATA["configs"][case["config"]])
    # ">=0.20" says little of what ran; a nightly is nearest to the newest.
    stated = "" if case["vllm_version"].startswith(">") else case["vllm_version"].lstrip("~ ")
    version = parse_version(stated) or _NEWEST
    total = case["lines"].get("total_gpu_memory_gib")
    device = Device(None if total is None else round(total * GIB), _capability(case["gpu"]))
    options = resolve_options(
        parse_serve_command(_command(case)), read_facts(config), version=version, device=device
    )
    available = case["lines"]["available_kv_gib"] * GIB + sign * _ROUNDING_BYTES
    layers = read_model(config)
    # An EAGLE head is one more layer of its model's own shape.
    drafts = case["args"].get("speculative_config") == "eagle"
    draft = replace(layers, blocks=layers.blocks[:1]) if drafts else None
    return allocate(layers, options, max(0, round(available)), draft=draft)


def _in_full(config: dict[str, Any]) -> dict[str, Any]:
    """Return *config* with a pattern of layers where only their number is known.

    On one stage the order does not matter.
    """
    counts = config.get("hybrid_counts")
    if counts is None:
        return config
    if config["model_type"] == "lfm2":
        kinds = ["conv"] * counts["mamba"] + ["full_attention"] * counts["attention"]
        return config | {"layer_types": kinds, "conv_L_cache": config["conv_L_cache"]}
    rest = counts.get("mlp", 0) + counts.get("moe", 0)
    pattern = "M" * counts["mamba"] + "*" * counts["attention"] + "-" * rest
    known = {name: value for name, value in config.items() if value is not None}
    return (
        {"num_attention_heads": config["num_key_value_heads"]}
        | known
        | {"hybrid_override_pattern": pattern}
    )


def _command(case: dict[str, Any]) -> list[str]:
    # These servers did start, with lengths beyond their models' too.
    words = ["VLLM_ALLOW_LONG_MAX_MODEL_LEN=1", "vllm", "serve", "model"]
    args = dict(case["args"])
    args.setdefault("max_model_len", case["lines"].get("max_concurrency_len"))
    for name, value in args.items():
        if (
            name not in _SIZING
            or value is None
            or "inferred" in str(value)
            or "default" in str(value)
        ):
            continue
        if value == "eagle":
            continue
        flag = f"--{_FLAGS.get(name, name)}"
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{name}")
        else:
            words += [flag, value if isinstance(value, str) else json.dumps(value)]
    return words


def _capability(gpu: str) -> tuple[int, int] | None:
    known = {
        "H100": (9, 0), "H200": (9, 0), "GH200": (9, 0), "A100": (8, 0), "L40": (8, 9),
        "L4": (8, 9), "4090": (8, 9), "3090": (8, 6), "A10": (8, 6), "A6000": (8, 6),
        "5090": (12, 0), "PRO 6000": (12, 0), "GB10": (12, 1), "B200": (10, 0), "T4": (7, 5),
    }  # fmt: skip
    return next((capability for name, capability in known.items() if name in gpu), None)


def _figure(found: Allocation, name: str) -> float:
    figures = {
        "kv_tokens": found.tokens,
        "num_gpu_blocks": found.num_blocks,
        "max_concurrency": found.max_concurrency,
    }
    return float(figures[name] or 0)


def main() -> None:
    """Print every case that does not come out, gold first."""
    judged = [(case, judge(case)) for case in CASES]
    told = [(case, verdict) for case, verdict in judged if verdict is not None]
    held = [case for case, verdict in told if verdict.holds]
    say = sys.stdout.write
    say(f"{len(told)} of {len(judged)} print enough to judge; {len(held)} come out\n")
    for case, verdict in sorted(told, key=lambda pair: not pair[0].get("gold")):
        if not verdict.holds:
            rank = "gold" if case.get("gold") else "rest"
            say(f"{rank}  {case['id']}  {case['vllm_version']}  {verdict.reason}\n")


if __name__ == "__main__":
    main()
