"""Which features are on: chunked prefill, prefix caching, async steps, the hybrid manager."""

from collections.abc import Mapping
from typing import Final

from kvheadroom.engine.flags import ServeCommand
from kvheadroom.engine.option_values import OptionValue
from kvheadroom.engine.options import Device, MambaCacheMode, Speculation
from kvheadroom.engine.speculation import HIDDEN_STATE_METHODS, needs_v1_runner, schedules_ahead
from kvheadroom.engine.versions import Version
from kvheadroom.errors import ConfigError
from kvheadroom.model.classes import MODALITIES
from kvheadroom.model.facts import ModelFacts, Runner

# The V1 engine: prefix caching and chunked prefill by default (vLLM 0.8.0).
_V1_ENGINE: Final[Version] = (0, 8, 0)
# Chunked local attention keeps groups of its own (vLLM 0.14.0); a connector may as well (0.24.0).
_CHUNKS_GROUPED: Final[Version] = (0, 14, 0)
_CONNECTORS_GROUPED: Final[Version] = (0, 24, 0)
# State caches of a mode (vLLM 0.15.0); one of them, "all", until 0.31.
_STATE_MODES: Final[Version] = (0, 15, 0)
_STATE_MODE_ALL_GONE: Final[Version] = (0, 32, 0)
# Hybrids cache prefixes by default, and steps in flight count in sizing (vLLM 0.26.0).
_HYBRIDS_CACHE_PREFIXES: Final[Version] = (0, 26, 0)
_STEPS_COUNT: Final[Version] = (0, 26, 0)
# The V2 model runner serves whatever it supports (vLLM 0.29.0).
_V2_RUNNER: Final[Version] = (0, 29, 0)

_GROUPING_CONNECTORS: Final = (
    *("Nixl", "Mooncake", "Offloading", "SimpleCPUOffload", "MoRIIO", "Multi", "HiSparse"),
    *("DecodeBench", "ExampleHiddenStates"),
)
_WHOLE_PROMPT_POOLING: Final = frozenset({"MEAN", "CLS"})
_SYNCHRONOUS_EXECUTORS: Final = frozenset({"external_launcher"})
_FALSE_WORDS: Final = frozenset({"", "0", "false", "no"})


def refused_modalities(options: Mapping[str, OptionValue]) -> frozenset[str]:
    """Return the modalities that no request may hold: encoders of nothing else are not built.

    Source:
        vLLM 0.32: a limit of 0, or ``--language-model-only``, replaces a tower by nothing.
    """
    if options.get("language-model-only") is True:
        return MODALITIES
    limits = options.get("limit-mm-per-prompt")
    if not isinstance(limits, dict):
        return frozenset()
    return frozenset(name for name, limit in limits.items() if _count(limit) == 0)


def _count(limit: object) -> object:
    return limit.get("count") if isinstance(limit, dict) else limit


def splits_prompts(options: Mapping[str, OptionValue], facts: ModelFacts, runner: Runner) -> bool:
    """Return whether a prompt may be split over steps (chunked prefill).

    Source:
        vLLM 0.32, ``is_chunked_prefill_supported``.
    """
    given = options.get("enable-chunked-prefill")
    if isinstance(given, bool):
        return given
    if facts.attention == "encoder_decoder":
        return False
    return runner == "generate" or not _pools_whole_prompt(options, facts)


def prefix_caching(
    options: Mapping[str, OptionValue], facts: ModelFacts, runner: Runner, version: Version
) -> bool:
    """Return whether full blocks are kept for later requests.

    Source:
        vLLM 0.32, ``is_prefix_caching_supported``; hybrids off before 0.26.
    """
    if options.get("mm-encoder-only") is True:
        return False
    given = options.get("enable-prefix-caching")
    if isinstance(given, bool):
        return given
    if version < _V1_ENGINE or facts.attention in ("attention_free", "encoder_decoder"):
        return False
    if runner == "pooling":
        return not _pools_whole_prompt(options, facts)
    return facts.attention != "hybrid" or version >= _HYBRIDS_CACHE_PREFIXES


def mamba_cache_mode(
    options: Mapping[str, OptionValue],
    facts: ModelFacts,
    version: Version,
    *,
    prefix_caching: bool,
) -> MambaCacheMode:
    """Return how the states of recurrent layers are cached.

    Raises:
        ConfigError: A mode that the version does not have.
    """
    given = options.get("mamba-cache-mode", "none")
    if given not in ("none", "align", "all"):
        raise ConfigError("--mamba-cache-mode: must be none or align")
    if given == "all" and version >= _STATE_MODE_ALL_GONE:
        raise ConfigError("--mamba-cache-mode all: gone since vLLM 0.32")
    has_states = facts.attention in ("hybrid", "attention_free")
    if not has_states:
        return "align" if given == "align" else "all" if given == "all" else "none"
    if not prefix_caching or version < _STATE_MODES:
        return "none"
    return "all" if given == "all" else "align"


def concurrent_batches(
    command: ServeCommand,
    stages: int,
    speculation: Speculation | None,
    runner: Runner,
    device: Device,
    version: Version,
) -> int:
    """Return how many steps may hold tokens at once, as sizing counts them.

    Source:
        vLLM 0.32, ``max_concurrent_batches`` and the conditions of async scheduling.
    """
    if version < _STEPS_COUNT:
        return 1
    config = command.options.get("speculative-config")
    forced = command.environment.get("VLLM_USE_V2_MODEL_RUNNER")
    is_v2 = version >= _V2_RUNNER if forced is None else forced.lower() not in _FALSE_WORDS
    is_v2 = is_v2 and not needs_v1_runner(speculation, config)
    given = command.options.get("async-scheduling")
    executor = command.options.get("distributed-executor-backend")
    ahead = given if isinstance(given, bool) else (
        runner == "generate"
        and (device.name or "").lower() != "cpu"
        and schedules_ahead(speculation, config)
        and executor not in _SYNCHRONOUS_EXECUTORS
        and (stages == 1 or is_v2)
    )  # fmt: skip
    if ahead and is_v2:
        return stages + 1
    return 2 if ahead and stages == 1 else stages


def hybrid_manager(
    command: ServeCommand,
    facts: ModelFacts,
    speculation: Speculation | None,
    version: Version,
) -> bool:
    """Return whether layers of different kinds get groups of their own.

    Source:
        vLLM 0.32, the rules that turn the hybrid KV-cache manager off.
    """
    given = command.options.get("disable-hybrid-kv-cache-manager")
    if isinstance(given, bool):
        return not given
    if facts.is_chunked_local:
        drafts = speculation is not None and speculation.method in HIDDEN_STATE_METHODS
        word = command.environment.get("VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE")
        allowed = version >= _CHUNKS_GROUPED if word is None else word.lower() not in _FALSE_WORDS
        if drafts or not allowed:
            return False
    return _connector_allows_groups(command.options, version)


def _connector_allows_groups(options: Mapping[str, OptionValue], version: Version) -> bool:
    transfer = options.get("kv-transfer-config")
    if version < _CHUNKS_GROUPED:
        return transfer is None and options.get("kv-events-config") is None
    if not isinstance(transfer, dict):
        return True
    connector = str(transfer.get("kv_connector", ""))
    return version >= _CONNECTORS_GROUPED and connector.startswith(_GROUPING_CONNECTORS)


def _pools_whole_prompt(options: Mapping[str, OptionValue], facts: ModelFacts) -> bool:
    pooler = options.get("pooler-config", options.get("override-pooler-config"))
    asked = pooler if isinstance(pooler, dict) else {}
    kind = asked.get("seq_pooling_type", asked.get("pooling_type"))
    step = facts.architecture == "Qwen2ForProcessRewardModel"
    step = step or asked.get("tok_pooling_type") == "STEP"
    return (
        facts.attention == "encoder_only"
        or facts.pools_first_token
        or step
        or (isinstance(kind, str) and kind.upper() in _WHOLE_PROMPT_POOLING)
    )
