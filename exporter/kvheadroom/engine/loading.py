"""What a server holds beside its model's parameters, and what of them it moves off the GPU."""

from collections.abc import Mapping
from typing import Final

from kvheadroom.engine.option_values import OptionValue
from kvheadroom.engine.options import AdapterBuffers, Loading
from kvheadroom.errors import ConfigError
from kvheadroom.units import GIB

_ADAPTER_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
_DEFAULT_RANK: Final = 16
_ADAPTER_DTYPES: Final = ("auto", "float16", "bfloat16")
# Options that change which buffers there are, or which parameters are moved.
_ADAPTER_CHANGES: Final = (
    *("fully-sharded-loras", "lora-target-modules", "enable-tower-connector-lora"),
    *("enable-mixed-moe-lora-format", "enable-moe-shared-loras"),
)
_OFFLOAD_CHANGES: Final = ("cpu-offload-params", "offload-group-size")
_SWITCHED_ON_BY: Final = frozenset(
    {"cpu-offload-gb", "enable-lora", "offload-backend", "offload-group-size"}
)
_NOTHING: Final = Loading()


def read_loading(options: Mapping[str, OptionValue], dtype: str) -> Loading:
    """Return what *options* say of adapters and offloading.

    Args:
        options: Of the command.
        dtype: Of the model, which adapters have unless they are told another.

    Raises:
        ConfigError: vLLM would refuse a value.

    Source:
        vLLM 0.32, the LoRA and offloading configurations.
    """
    if _SWITCHED_ON_BY.isdisjoint(options):
        return _NOTHING
    gib = options.get("cpu-offload-gb") or 0
    if isinstance(gib, bool) or not isinstance(gib, int | float) or not 0 <= gib < float("inf"):
        raise ConfigError("--cpu-offload-gb: must be 0 or more GiB")
    adapters = _adapters(options, dtype) if options.get("enable-lora") is True else None
    changes = [name for name in _OFFLOAD_CHANGES if options.get(name)]
    if options.get("offload-backend") == "prefetch":
        changes.append("offload-backend")
    if adapters is not None:
        changes += [name for name in _ADAPTER_CHANGES if options.get(name)]
    return Loading(int(gib * GIB), adapters, changes[0] if changes else None)


def _adapters(options: Mapping[str, OptionValue], dtype: str) -> AdapterBuffers:
    slots, rank = options.get("max-loras", 1), options.get("max-lora-rank", _DEFAULT_RANK)
    if not isinstance(slots, int) or slots < 1:
        raise ConfigError("--max-loras: must be above 0")
    if not isinstance(rank, int) or rank not in _ADAPTER_RANKS:
        known = ", ".join(str(each) for each in _ADAPTER_RANKS)
        raise ConfigError(f"--max-lora-rank: must be one of {known}")
    kept = options.get("max-cpu-loras")
    if isinstance(kept, int) and kept < slots:
        raise ConfigError(f"--max-cpu-loras {kept} is less than --max-loras {slots}")
    own = options.get("lora-dtype") or "auto"
    if own not in _ADAPTER_DTYPES:
        raise ConfigError(f"--lora-dtype: must be one of {', '.join(_ADAPTER_DTYPES)}")
    return AdapterBuffers(slots, rank, dtype if own == "auto" else str(own))
