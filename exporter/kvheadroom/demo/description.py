"""A simulated server, as the operator of a real one would describe it."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class DemoServer:
    """One simulated vLLM server, as the operator of a real one would describe it.

    Attributes:
        name: Served model name.
        url: Base URL.
        model: Hub id of the model.
        model_config_path: The model's config.json.
        command: Command line that would start it.
        gpus_by_rank: GPU indices of each data-parallel rank.
        pids_by_rank: Process on each of those GPUs, in the same shape.
    """

    name: str
    url: str
    model: str
    model_config_path: Path
    command: tuple[str, ...]
    gpus_by_rank: tuple[tuple[str, ...], ...]
    pids_by_rank: tuple[tuple[int, ...], ...]
