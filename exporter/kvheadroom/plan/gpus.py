"""GPUs and their slices by name, with the bytes CUDA reports, and by an amount of memory."""

from collections.abc import Mapping
from typing import Final

from kvheadroom.engine.options import Device
from kvheadroom.errors import ConfigError
from kvheadroom.units import GIB, MIB, parse_bytes

# Bytes as CUDA reports them on such a card, which is what vLLM takes its share of. nvidia-smi
# counts the driver's reserve as well, and the box says 1 to 2 GiB more; drivers differ by some MiB.
# A figure in GiB was printed with two decimals.
_CARDS: Final[Mapping[str, Device]] = {
    # As the recorded answers of vLLM's allocator state them (tests/evidence/oracle).
    "t4": Device(15_655_829_504, (7, 5), "Tesla T4"),
    "l4": Device(23_659_151_360, (8, 9), "NVIDIA L4"),
    "a100-80gb": Device(85_095_874_560, (8, 0), "NVIDIA A100-SXM4-80GB"),
    "h100": Device(85_029_158_912, (9, 0), "NVIDIA H100 80GB HBM3"),
    "b200": Device(191_514_345_472, (10, 0), "NVIDIA B200"),
    "rtx5090": Device(33_661_911_040, (12, 0), "NVIDIA GeForce RTX 5090"),
    # deviceQuery, bottlerocket-os/bottlerocket pull request 3873.
    "a100-40gb": Device(42_298_834_944, (8, 0), "NVIDIA A100-SXM4-40GB"),
    # PyTorch's device properties, printed in MiB in public repositories.
    "a10g": Device(22_587 * MIB, (8, 6), "NVIDIA A10G"),
    "a40": Device(45_416 * MIB, (8, 6), "NVIDIA A40"),
    "l40s": Device(45_589 * MIB, (8, 9), "NVIDIA L40S"),
    "h200": Device(143_156 * MIB, (9, 0), "NVIDIA H200"),
    "rtx3090": Device(24_259 * MIB, (8, 6), "NVIDIA GeForce RTX 3090"),
    "rtxa5000": Device(24_138 * MIB, (8, 6), "NVIDIA RTX A5000"),
    "rtxa6000": Device(48_676 * MIB, (8, 6), "NVIDIA RTX A6000"),
    "rtxpro6000": Device(97_250 * MIB, (12, 0), "NVIDIA RTX PRO 6000 Blackwell Server Edition"),
    # PyTorch's "total capacity" in ali-vilab/VGen issue 104.
    "rtx4090": Device(int(23.64 * GIB), (8, 9), "NVIDIA GeForce RTX 4090"),
    # vLLM's own check of free memory in public startup logs; GB10's is shared with the CPU.
    "gb10": Device(int(121.63 * GIB), (12, 1), "NVIDIA GB10"),
    "gb300": Device(int(276.62 * GIB), (10, 3), "NVIDIA GB300"),
}
# Memory of a MIG slice, GiB.
_SLICES: Final[Mapping[str, Mapping[str, float]]] = {
    # PyTorch's device properties, 9728 MiB.
    "a100-80gb": {"1g.10gb": 9.5},
    # nvidia-smi, XuehaiPan/nvitop pull request 8.
    "a100-40gb": {"3g.20gb": 19.5},
    # PyTorch's device properties in a public repository.
    "h100": {"3g.40gb": 39.25},
    # nvidia-smi mig -lgip, NVIDIA/mig-parted issue 120.
    "h200": {
        **dict.fromkeys(("1g.18gb", "1g.18gb+me"), 16.0),
        **dict.fromkeys(("1g.35gb", "2g.35gb"), 32.25),
        **dict.fromkeys(("3g.71gb", "4g.71gb"), 69.5),
    },
    # The same, NVIDIA/gpu-operator pull request 1351.
    "b200": {
        **dict.fromkeys(("1g.23gb", "1g.23gb+me"), 20.5),
        **dict.fromkeys(("1g.45gb", "2g.45gb"), 44.25),
    },
}
PRESETS: Final[Mapping[str, Device]] = {
    **_CARDS,
    **{
        f"{card}/{profile}": Device(
            int(gib * GIB), _CARDS[card].capability, f"{_CARDS[card].name} MIG {profile}"
        )
        for card, profiles in _SLICES.items()
        for profile, gib in profiles.items()
    },
}


_ALIASES: Final = {
    "a100-80gb": "a100",
    "h100": "h100-80gb",
    **{f"rtx{model}": model for model in ("3090", "4090", "5090", "a5000", "a6000")},
}


def find_gpu(text: str) -> Device:
    """Return the GPU that *text* names: a card, a MIG slice of one, or an amount of memory.

    Args:
        text: ``h100``, ``h200/1g.18gb``, the driver's name of either, or ``12GiB``.

    An amount alone has no compute capability; a current data-center GPU's is then assumed where a
    default depends on it.

    Raises:
        ConfigError: Neither.
    """
    key = text.lower().replace(" ", "").replace("_", "-")
    card, _, profile = key.partition("/")
    for name, device in PRESETS.items():
        own, _, own_profile = name.partition("/")
        # A driver's own name for the card will do as well.
        if key == (device.name or "").lower().replace(" ", "") or (
            card in {own, _ALIASES.get(own)} and profile == own_profile
        ):
            return device
    if profile:
        raise ConfigError(
            f"no such MIG slice is known: {text!r} (write its memory as nvidia-smi shows it, like "
            f"9728MiB, or {', '.join(name for name in PRESETS if '/' in name)})"
        )
    try:
        total_bytes = parse_bytes(text)
    except ConfigError as error:
        raise ConfigError(
            f"no such GPU: {text!r} (write an amount like 24GiB, or {', '.join(_CARDS)})"
        ) from error
    if total_bytes < MIB:
        raise ConfigError(f"a GPU has more memory than {text!r} (write 24GiB)")
    return Device(total_bytes=total_bytes)
