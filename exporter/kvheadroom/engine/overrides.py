"""Lay what a command says of a model over its config.json, as vLLM does before reading it."""

from collections.abc import Mapping
from typing import Any, Final

from kvheadroom.engine.flags import ServeCommand
from kvheadroom.errors import ConfigError

# Newer files call the scaling of positions by the second name; a model has one of them.
_ROPE_NAMES: Final = ("rope_scaling", "rope_parameters")
# Plain dictionaries in a config, and so replaced whole where sections of it are merged.
_DICTIONARIES: Final = frozenset({"quantization_config", "compression_config"})


def with_overrides(config: Mapping[str, Any], command: ServeCommand) -> Mapping[str, Any]:
    """Return *config* (config.json) as the server that *command* starts sees it.

    Args:
        config: Left as it is; returned itself where the command changes nothing.
        command: Its ``--hf-overrides``, ``--rope-scaling`` and ``--rope-theta`` are applied.

    Raises:
        ConfigError: An override is no JSON object.

    Source:
        vLLM 0.32, the model configuration: sections of the config (``text_config``) are merged,
        any other value, ``rope_scaling`` among them, is replaced. Up to 0.10 the two rope options
        set the fields of their names.
    """
    overrides: dict[str, Any] = {}
    scaling, theta = command.options.get("rope-scaling"), command.options.get("rope-theta")
    if scaling is not None:
        overrides["rope_scaling"] = _object("rope-scaling", scaling)
    if theta is not None:
        overrides["rope_theta"] = theta
    given = command.options.get("hf-overrides")
    if given is not None:
        overrides.update(_object("hf-overrides", given))
    return _merged(config, overrides) if overrides else config


def _object(option: str, value: object) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    raise ConfigError(f"--{option}: must be a JSON object")


def _merged(
    config: Mapping[str, Any], overrides: Mapping[str, Any], *, within: bool = False
) -> dict[str, Any]:
    """Return *config* under *overrides*; *within* a section every mapping merges."""
    merged = dict(config)
    for name, other in (_ROPE_NAMES, _ROPE_NAMES[::-1]):
        # Either name sets the one scaling there is.
        if name in overrides and other in merged and other not in overrides:
            merged[name] = merged.pop(other)
    for key, value in overrides.items():
        present = merged.get(key)
        if (
            isinstance(value, Mapping)
            and isinstance(present, Mapping)
            and (within or _is_section(key))
        ):
            merged[key] = _merged(present, value, within=True)
        else:
            merged[key] = value
    return merged


def _is_section(key: str) -> bool:
    return key.endswith("_config") and key not in _DICTIONARIES
