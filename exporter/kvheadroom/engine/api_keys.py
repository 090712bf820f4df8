"""Find the key that opens a server's door, which nothing else that reads a command line keeps."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kvheadroom.engine.command_line import find_vllm_arguments
from kvheadroom.engine.config_words import words_of_config
from kvheadroom.errors import ConfigError
from kvheadroom.redaction import Secret

_OPTION: Final = "--api-key"
# Shorter ones may mean --api-server-count.
_SHORTEST_PREFIX: Final = "--api-k"


def find_api_key(
    argv: Sequence[str],
    *,
    config: Mapping[str, Any] | None = None,
    from_environment: Secret | None = None,
) -> Secret | None:
    """Return a key that the server takes; ``None`` where it asks for none.

    Args:
        argv: The server's command.
        config: Content of the file that ``--config`` names.
        from_environment: Its ``VLLM_API_KEY``.

    Source:
        vLLM 0.32: the last ``--api-key`` counts, each of its words is a key; the environment's
        counts where the command has none.
    """
    try:
        words = list(find_vllm_arguments(argv).words)
    except ConfigError:
        words = list(argv)
    keys = _keys([*words_of_config(config or {}), *words])
    return Secret(keys[0]) if keys else from_environment


def without_api_keys(argv: Sequence[str]) -> list[str]:
    """Return *argv* without ``--api-key`` and its values."""
    kept: list[str] = []
    is_value = False
    for word in argv:
        if _is_key_option(word):
            is_value = "=" not in word
            continue
        is_value = is_value and not word.startswith("-")
        if not is_value:
            kept.append(word)
    return kept


def _keys(words: list[str]) -> list[str]:
    keys: list[str] = []
    is_value = False
    for word in words:
        if _is_key_option(word):
            _, is_attached, key = word.partition("=")
            keys, is_value = ([key] if is_attached else []), not is_attached
        elif is_value and not word.startswith("-"):
            keys.append(word)
        else:
            is_value = False
    return [key for key in keys if key]


def _is_key_option(word: str) -> bool:
    name = word.partition("=")[0].replace("_", "-")
    return _OPTION.startswith(name) and name.startswith(_SHORTEST_PREFIX)
