"""Read how a server speculates, from whichever of vLLM's options say so."""

from typing import Any, Final

from kvheadroom.engine.flags import ServeCommand
from kvheadroom.engine.options import Speculation
from kvheadroom.errors import ConfigError
from kvheadroom.model.facts import ModelFacts

MULTI_TOKEN_PREDICTION: Final = "mtp"  # noqa: S105  (no password)

# Methods that read the target's hidden states, vLLM's "eagle" family.
HIDDEN_STATE_METHODS: Final = frozenset({"eagle", "eagle3", "mtp", "dflash", "dspark"})
# Methods that schedule ahead of the tokens they verify.
_ASYNC_METHODS: Final = HIDDEN_STATE_METHODS | {"extract_hidden_states", "ngram_gpu", "draft_model"}
# Methods that propose from the text itself, without weights of their own.
WEIGHTLESS_METHODS: Final = frozenset({"ngram", "ngram_gpu", "suffix"})
_V1_RUNNER_METHODS: Final = frozenset({"suffix", "medusa", "mlp_speculator", "custom_class"})
_DEFAULT_SUFFIX_DEPTH: Final = 24
# A draft's name that gives its method away, in the order vLLM looks.
_METHOD_OF_NAME: Final = (
    ("eagle-", "eagle"),
    ("eagle3", "eagle3"),
    ("dflash", "dflash"),
    ("dspark", "dspark"),
)
_KEEPS_ITS_METHOD: Final = frozenset({"eagle", "eagle3", "dflash", "dspark", "medusa"})


def read_speculation(command: ServeCommand, facts: ModelFacts) -> Speculation | None:
    """Return how the server speculates, or ``None`` when it does not.

    Raises:
        ConfigError: The options do not say how many tokens, and neither does the model.

    Source:
        vLLM 0.32, the speculative configuration's inference of its method.
    """
    given = _given(command)
    if not given:
        return None
    model = _text(given.get("model"))
    method = _method(_text(given.get("method")), model)
    tokens = given.get("num_speculative_tokens")
    if tokens is None and method == MULTI_TOKEN_PREDICTION:
        tokens = facts.draft_layers or None
    if tokens is None and method == "suffix":
        tokens = given.get("suffix_decoding_max_tree_depth", _DEFAULT_SUFFIX_DEPTH)
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise ConfigError("--speculative-config: num_speculative_tokens must be a number above 0")
    return Speculation(method, tokens, None if method in WEIGHTLESS_METHODS else model)


def schedules_ahead(speculation: Speculation | None, given: object) -> bool:
    """Tell whether async scheduling works with *speculation*; *given* is its configuration."""
    if speculation is None:
        return True
    padded = not (isinstance(given, dict) and given.get("disable_padded_drafter_batch"))
    return speculation.method in _ASYNC_METHODS and padded


def needs_v1_runner(speculation: Speculation | None, given: object) -> bool:
    """Tell whether the V2 model runner lacks what *speculation* asks for."""
    if speculation is None:
        return False
    parallel = isinstance(given, dict) and bool(given.get("parallel_drafting"))
    beyond_v2 = parallel and speculation.method not in ("dflash", "dspark")
    mixed_words = isinstance(given, dict) and bool(given.get("use_heterogeneous_vocab"))
    return speculation.method in _V1_RUNNER_METHODS or beyond_v2 or mixed_words


def _given(command: ServeCommand) -> dict[str, Any]:
    options = command.options
    config = options.get("speculative-config")
    given: dict[str, Any] = dict(config) if isinstance(config, dict) else {}
    shorthands = (
        ("method", "spec-method"),
        ("model", "spec-model"),
        ("num_speculative_tokens", "spec-tokens"),
        # Until 0.8 each was an option of its own.
        ("model", "speculative-model"),
        ("num_speculative_tokens", "num-speculative-tokens"),
    )
    for key, option in shorthands:
        value = options.get(option)
        if value is not None:
            given.setdefault(key, value)
    return given


def _method(method: str | None, model: str | None) -> str:
    if method is None and model is not None and model.strip("[]") == "ngram":
        return "ngram"
    if method is not None:
        method = method.strip("[]")
        if method.endswith("mtp"):
            return MULTI_TOKEN_PREDICTION
        if model is None or method in _KEEPS_ITS_METHOD:
            return method
    for part, implied in _METHOD_OF_NAME:
        if model is not None and part in model.lower():
            return implied
    return method or "draft_model"


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
