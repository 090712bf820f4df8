"""Which pipeline stage serves which layer."""

from collections.abc import Sequence


def stage_of_layers(layers: int, stages: int) -> tuple[int, ...]:
    """Return the stage of each of *layers* decoder layers.

    What does not divide goes to the stages before the last, the last but one first.

    Source:
        vLLM's ``get_pp_indices`` without ``VLLM_PP_LAYER_PARTITION``.
    """
    sizes = [layers // stages] * stages
    for step in range(layers % stages):
        sizes[-2 - step] += 1
    return tuple(stage for stage, size in enumerate(sizes) for _ in range(size))


def bytes_per_stage(
    available_bytes: int | Sequence[int], *, stages: int, ranks_per_stage: int
) -> tuple[int, ...]:
    """Return the cache memory of the poorest rank of each stage, bytes.

    Args:
        available_bytes: One number for all ranks, or one for each stage or each rank.
        stages: Pipeline stages.
        ranks_per_stage: Ranks that share a stage's layers.

    Raises:
        ValueError: As many numbers as neither stages nor ranks.
    """
    if isinstance(available_bytes, int):
        return (available_bytes,) * stages
    given = tuple(available_bytes)
    if len(given) == 1:
        return given * stages
    if len(given) == stages:
        return given
    if len(given) == stages * ranks_per_stage:
        return tuple(
            min(given[stage * ranks_per_stage : (stage + 1) * ranks_per_stage])
            for stage in range(stages)
        )
    raise ValueError(
        f"{len(given)} memory figures for {stages} stages of {ranks_per_stage} ranks each"
    )
