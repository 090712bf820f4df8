"""Read numbers out of a config.json, whose fields may be missing, null or anything."""

from collections.abc import Mapping
from typing import Any, Final

from kvheadroom.errors import ModelConfigError

Config = Mapping[str, Any]

# Beyond any real model; a file may hold any number.
_LARGEST: Final = 10**10
_MOST_LAYERS: Final = 10_000


def optional_whole(config: Config, *names: str) -> int | None:
    """Return the first of *names* that is given, or ``None``.

    Raises:
        ModelConfigError: It is not a whole number from 0 upward.
    """
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _LARGEST:
            raise ModelConfigError(f"config.json: {name} must be a whole number, not {value!r:.40}")
        return value
    return None


def whole(config: Config, *names: str, default: int | None = None) -> int:
    """Return the first of *names* that is given, else *default*.

    Raises:
        ModelConfigError: None is given and there is no default, or it is not above 0.
    """
    value = optional_whole(config, *names)
    if value is None:
        value = default
    if value is None:
        raise ModelConfigError(f"config.json lacks {' or '.join(names)}")
    if value <= 0:
        raise ModelConfigError(f"config.json: {names[0]} must be above 0, not {value}")
    return value


def strings(config: Config, name: str) -> tuple[str, ...] | None:
    """Return the list of strings called *name*, or ``None`` when it is absent or empty.

    Raises:
        ModelConfigError: It is something else.
    """
    value = config.get(name)
    if not value:
        return None
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise ModelConfigError(f"config.json: {name} must be a list of strings")
    return tuple(value)


def wholes(config: Config, name: str) -> tuple[int, ...] | None:
    """Return the list of whole numbers called *name*, or ``None`` when it is absent.

    Raises:
        ModelConfigError: It is something else.
    """
    value = config.get(name)
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not all(isinstance(item, int) for item in value):
        raise ModelConfigError(f"config.json: {name} must be a list of whole numbers")
    return tuple(value)


def section(config: Config, name: str) -> Config:
    """Return the object called *name*; empty when it is absent or no object."""
    value = config.get(name)
    return value if isinstance(value, Mapping) else {}


def layer_count(config: Config) -> int:
    """Return the decoder layers of *config*.

    Raises:
        ModelConfigError: No field says how many, or it says a senseless number.
    """
    given = optional_whole(
        config, "num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"
    )
    if given is None:
        # Newer Nemotron-H files only name the layers.
        names = config.get("layers_block_type") or config.get("hybrid_override_pattern")
        given = len(names) if isinstance(names, str | list) else None
    if given is None or not 0 < given <= _MOST_LAYERS:
        raise ModelConfigError(
            f"config.json: num_hidden_layers must be 1 to {_MOST_LAYERS}, not {given}"
        )
    return given


def query_heads(config: Config) -> int:
    """Return the query heads of *config*.

    Raises:
        ModelConfigError: No field says how many.
    """
    return whole(
        config, "num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"
    )


def hidden_size(config: Config) -> int:
    """Return the width of *config*'s residual stream.

    Raises:
        ModelConfigError: No field says it.
    """
    return whole(config, "hidden_size", "n_embd", "n_embed", "d_model", "dim")


def kv_heads(config: Config) -> int:
    """Return the key-value heads of *config*; as many as query heads where it does not say."""
    given = optional_whole(
        config,
        "n_head_kv",
        "num_kv_heads",
        "num_key_value_heads",
        "multi_query_group_num",
        "num_attention_groups",
    )
    return given or query_heads(config)


def head_dim(config: Config, default: int | None = None) -> int:
    """Return the elements of one head: given, the class's *default*, or width by heads."""
    given = optional_whole(config, "head_dim", "kv_channels", "hidden_size_per_head") or default
    if given:
        return given
    width, heads = hidden_size(config), query_heads(config)
    if width < heads:
        raise ModelConfigError(f"config.json: hidden_size {width} is below {heads} heads")
    return width // heads
