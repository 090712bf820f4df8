"""GPUs by name, with the bytes their drivers report, and by an amount of memory."""

from collections.abc import Mapping
from typing import Final

from kvheadroom.engine.options import Device
from kvheadroom.errors import ConfigError
from kvheadroom.units import MIB, parse_bytes

# Bytes as the CUDA driver reported them on such a card; nvidia-smi shows the same, in MiB. The
# label on the box is 1 to 2 GiB more.
PRESETS: Final[Mapping[str, Device]] = {
    "t4": Device(15_655_829_504, (7, 5), "Tesla T4"),
    "l4": Device(23_659_151_360, (8, 9), "NVIDIA L4"),
    "a100-80gb": Device(85_095_874_560, (8, 0), "NVIDIA A100-SXM4-80GB"),
    "h100": Device(85_029_158_912, (9, 0), "NVIDIA H100 80GB HBM3"),
    "h200": Device(143_771 * MIB, (9, 0), "NVIDIA H200"),
    "b200": Device(191_514_345_472, (10, 0), "NVIDIA B200"),
    "rtx5090": Device(33_661_911_040, (12, 0), "NVIDIA GeForce RTX 5090"),
}


_ALIASES: Final = {"a100-80gb": "a100", "h100": "h100-80gb", "rtx5090": "5090"}


def find_gpu(text: str) -> Device:
    """Return the GPU that *text* names: a preset, or an amount of memory such as ``12GiB``.

    An amount alone has no compute capability; a current data-center GPU's is then assumed where a
    default depends on it.

    Raises:
        ConfigError: Neither.
    """
    key = text.lower().replace(" ", "").replace("_", "-")
    for name, device in PRESETS.items():
        # A driver's own name for the card will do as well.
        if key in {name, _ALIASES.get(name), (device.name or "").lower().replace(" ", "")}:
            return device
    try:
        total_bytes = parse_bytes(text)
    except ConfigError as error:
        known = ", ".join(PRESETS)
        raise ConfigError(
            f"no such GPU: {text!r} (write an amount like 24GiB, or {known})"
        ) from error
    if total_bytes < MIB:
        raise ConfigError(f"a GPU has more memory than {text!r} (write 24GiB)")
    return Device(total_bytes=total_bytes)
