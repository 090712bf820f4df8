"""Tell which GPUs a process was given, from the variables that hide the others."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvheadroom.live.process_tree import Rank
from kvheadroom.readings import GpuReading

_CUDA: Final = "CUDA_VISIBLE_DEVICES"
_CONTAINER: Final = "NVIDIA_VISIBLE_DEVICES"
_ORDER: Final = "CUDA_DEVICE_ORDER"
_INDEX: Final = re.compile(r"\s*(\d+)\s*")
_MIG_OF_OLD: Final = re.compile(r"MIG-GPU-[^/]+/\d+/\d+")


def visible_devices(
    environment: Mapping[str, str] | None,
    gpus: Sequence[GpuReading],
    *,
    is_contained: bool = False,
    device_ids: str | None = None,
) -> tuple[str, ...] | None:
    """Return the devices a process sees, in its own order, by uuid.

    Args:
        environment: The process's; ``None`` if it may not be read.
        gpus: Every GPU and MIG device of the node, in NVML's order.
        is_contained: It is in a container, which may hold fewer devices than the node.
        device_ids: vLLM's ``--device-ids``, which chooses among what is visible.

    Returns:
        ``None`` where it cannot be told: no GPU is known, a number stands for an order that is
        not, or MIG is named as drivers before 470 did.

    Source:
        CUDA's rules: the first invalid entry ends the list, a uuid may be cut short as long as it
        is unique. Numbers follow the speed of the cards unless ``CUDA_DEVICE_ORDER`` is
        ``PCI_BUS_ID``; with cards all alike both orders are NVML's.
    """
    if environment is None or not gpus:
        return None
    present = _in_container(environment, gpus) if is_contained else list(gpus)
    if present is None:
        return None
    given = environment.get(_CUDA)
    seen = _countable(present) if given is None else _chosen(given, present, environment)
    if seen is None or device_ids is None:
        return None if seen is None else tuple(gpu.uuid for gpu in seen)
    wanted = [_INDEX.fullmatch(entry) for entry in device_ids.split(",")]
    if not all(match and int(match[1]) < len(seen) for match in wanted):
        return None
    return tuple(seen[int(match[1])].uuid for match in wanted if match)


def _in_container(
    environment: Mapping[str, str], gpus: Sequence[GpuReading]
) -> list[GpuReading] | None:
    given = environment.get(_CONTAINER, "all").strip()
    if given in ("", "all", "void"):
        return list(gpus)
    if given == "none":
        return []
    wanted = [_named(entry, gpus, by_order=gpus) for entry in given.split(",")]
    if any(gpu is None for gpu in wanted):
        return None
    # Inside, devices stand in the order of the bus, however they were asked for.
    chosen = {gpu.uuid for gpu in wanted if gpu is not None}
    return [gpu for gpu in gpus if gpu.uuid in chosen]


def _chosen(
    given: str, present: Sequence[GpuReading], environment: Mapping[str, str]
) -> list[GpuReading] | None:
    order = _countable(present)
    names = {gpu.name for gpu in order}
    is_known = environment.get(_ORDER) == "PCI_BUS_ID" or len(names) <= 1
    chosen: list[GpuReading] = []
    for entry in given.split(","):
        index = _INDEX.fullmatch(entry)
        if (index and not is_known) or _MIG_OF_OLD.fullmatch(entry.strip()):
            return None
        gpu = _named(entry, present, by_order=order)
        if gpu is None:
            break
        if gpu in chosen:
            # CUDA refuses a device given twice, and shows none.
            return []
        chosen.append(gpu)
    return chosen


def _named(
    entry: str, gpus: Sequence[GpuReading], *, by_order: Sequence[GpuReading]
) -> GpuReading | None:
    """Return the device that *entry* means: a number, NVML's ``0:2``, or the start of a uuid."""
    entry = entry.strip()
    if _INDEX.fullmatch(entry):
        at = int(entry)
        return by_order[at] if at < len(by_order) else None
    if not entry.startswith(("GPU-", "MIG-")):
        return next((gpu for gpu in gpus if ":" in entry and gpu.gpu == entry), None)
    matching = [gpu for gpu in gpus if gpu.uuid.lower().startswith(entry.lower())]
    return matching[0] if len(matching) == 1 else None


def _countable(gpus: Sequence[GpuReading]) -> list[GpuReading]:
    """Return the devices that a number may mean: whole GPUs, and of a cut one the first slice."""
    cut = {gpu.gpu.partition(":")[0] for gpu in gpus if ":" in gpu.gpu}
    found: list[GpuReading] = []
    taken: set[str] = set()
    for gpu in gpus:
        parent, is_slice, _ = gpu.gpu.partition(":")
        if (is_slice or parent not in cut) and parent not in taken:
            taken.add(parent)
            found.append(gpu)
    return found


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many ranks a server was told to have on this node, by dimension."""

    data: int = 1
    pipeline: int = 1
    tensor: int = 1
    prefill_context: int = 1
    first_data: int = 0


def rank_at(position: int, sizes: Sizes) -> Rank:
    """Return the rank whose GPU is the server's visible device number *position*.

    Source:
        vLLM 0.32 numbers ranks tensor first, then prefill context, pipeline and data.
    """
    rest, tensor = divmod(position, sizes.tensor)
    rest, context = divmod(rest, sizes.prefill_context)
    data, pipeline = divmod(rest, sizes.pipeline)
    others = {"PCP": context} if sizes.prefill_context > 1 else {}
    return Rank(sizes.first_data + data, pipeline, tensor, others)


def settled(rank: Rank, sizes: Sizes) -> Rank:
    """Return *rank* with 0 for every dimension that has one rank only, and so is not titled."""
    return Rank(
        data=_or_first(rank.data, sizes.data, sizes.first_data),
        pipeline=_or_first(rank.pipeline, sizes.pipeline),
        tensor=_or_first(rank.tensor, sizes.tensor),
        others=rank.others,
    )


def completed(rank: Rank, by_position: Rank) -> Rank:
    """Return *rank* with what it does not know taken from *by_position*."""
    return Rank(
        data=by_position.data if rank.data is None else rank.data,
        pipeline=by_position.pipeline if rank.pipeline is None else rank.pipeline,
        tensor=by_position.tensor if rank.tensor is None else rank.tensor,
        others={**by_position.others, **rank.others},
    )


def _or_first(rank: int | None, size: int, first: int = 0) -> int | None:
    return first if rank is None and size == 1 else rank
