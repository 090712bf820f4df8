"""What NVML's raw numbers mean: memory without sentinels, one entry per process, a MIG profile."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kvheadroom.readings import GpuProcess

# NVML_VALUE_NOT_AVAILABLE (-1) in a 64-bit unsigned field.
NOT_AVAILABLE_U64: Final = 2**64 - 1

_PROFILE_IN_NAME: Final = re.compile(r"\bMIG (\S+)")
_MIB_PER_GIB: Final = 1024


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """A device's memory in bytes; total = reserved + used + free wherever all four are known.

    Attributes:
        total_bytes: Memory of the device.
        reserved_bytes: What driver and firmware keep; ``None`` where it is part of ``used_bytes``.
        used_bytes: Allocated by processes.
        free_bytes: What an allocation can still get.
    """

    total_bytes: int | None = None
    reserved_bytes: int | None = None
    used_bytes: int | None = None
    free_bytes: int | None = None


def gpu_memory(*, total: int, free: int, reserved: int | None) -> GpuMemory:
    """Return the memory NVML reports, with what is used computed rather than read.

    NVML's own ``used`` is ambiguous: nvml.h says of the version-2 call that it includes the
    reserved bytes, and of the version-2 struct that it is what is allocated. What is neither free
    nor reserved is the same under both readings.

    Args:
        total: Bytes as NVML gives them, all ones when unknown.
        free: As *total*.
        reserved: As *total*; ``None`` from the version-1 call, which has no such field.

    Returns:
        Bytes. Free and used are ``None`` when the numbers contradict each other: on machines
        where the operating system owns GPU memory (GH200) they are not taken at one instant.

    Source:
        nvml.h 13.5, nvmlDeviceGetMemoryInfo_v2 and nvmlMemory_v2_t; idle A100 readings in
        rust-nvml issue 57.
    """
    known_total = _known(total) or None  # no device has 0 bytes
    known_free, known_reserved = _known(free), None if reserved is None else _known(reserved)
    if known_total is None or known_free is None:
        return GpuMemory(total_bytes=known_total, reserved_bytes=known_reserved)
    used = known_total - (known_reserved or 0) - known_free
    if used < 0:
        return GpuMemory(total_bytes=known_total, reserved_bytes=known_reserved)
    return GpuMemory(known_total, known_reserved, used, known_free)


def merge_processes(listed: Iterable[tuple[int, int | None]]) -> tuple[GpuProcess, ...]:
    """Return each process once, by pid, with the most bytes any list gives for it.

    A process with both a compute and a graphics context is in both lists with the same total, so
    its entries are not to be added.

    Args:
        listed: Pid and bytes of every entry of every list; ``None`` or all ones is unknown.
    """
    used_by_pid: dict[int, int | None] = {}
    for pid, used_bytes in listed:
        seen = (used_by_pid.get(pid), None if used_bytes is None else _known(used_bytes))
        used_by_pid[pid] = max((known for known in seen if known is not None), default=None)
    return tuple(GpuProcess(pid, used_by_pid[pid]) for pid in sorted(used_by_pid))


def mig_profile_in_name(name: str | None) -> str | None:
    """Return ``1g.10gb`` from ``NVIDIA H100 80GB HBM3 MIG 1g.10gb``; ``None`` if none is named."""
    match = _PROFILE_IN_NAME.search(name or "")
    return match[1] if match else None


def mig_profile_of(*, gpu_slices: int, compute_slices: int, memory_mib: int) -> str:
    """Return the profile that a MIG device's attributes spell, for drivers that do not name it.

    Args:
        gpu_slices: Slices of the GPU instance, 1 to 8.
        compute_slices: Slices of the compute instance; fewer than *gpu_slices* when several
            compute instances share the memory.
        memory_mib: Memory of the GPU instance, MiB; profiles are named by the next whole GiB.
    """
    compute = "" if compute_slices == gpu_slices else f"{compute_slices}c."
    return f"{compute}{gpu_slices}g.{-(-memory_mib // _MIB_PER_GIB)}gb"


def _known(number: int) -> int | None:
    return None if number == NOT_AVAILABLE_U64 else number
