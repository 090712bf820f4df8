"""Read over how many GPUs a server spreads, and refuse what the model's heads do not divide by."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvheadroom.engine.option_values import OptionValue
from kvheadroom.errors import ConfigError
from kvheadroom.model.facts import ModelFacts


@dataclass(frozen=True, slots=True)
class ParallelSizes:
    """Ranks of each kind of parallelism, 1 without.

    Attributes:
        tensor: Ranks that divide the heads.
        pipeline: Stages that divide the layers.
        data: Engines with a pool each.
        decode_context: Ranks that divide a request's tokens.
        prefill_context: Ranks that divide a prompt's tokens.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    decode_context: int = 1
    prefill_context: int = 1


def read_parallel_sizes(options: Mapping[str, OptionValue], facts: ModelFacts) -> ParallelSizes:
    """Return the parallel sizes in *options*.

    Raises:
        ConfigError: A size is not above 0, or vLLM refuses it for this model.

    Source:
        vLLM 0.32, the model configuration's check against the parallel one.
    """
    sizes = ParallelSizes(
        tensor=_size(options, "tensor-parallel-size"),
        pipeline=_size(options, "pipeline-parallel-size"),
        data=_size(options, "data-parallel-size"),
        decode_context=_size(options, "decode-context-parallel-size"),
        prefill_context=_size(options, "prefill-context-parallel-size"),
    )
    _check_heads(sizes, facts)
    _check_decode_context(sizes, facts)
    return sizes


def _size(options: Mapping[str, OptionValue], name: str) -> int:
    value = options.get(name)
    if value is None:
        return 1
    if not isinstance(value, int) or value < 1:
        raise ConfigError(f"--{name}: must be above 0")
    return value


def _check_heads(sizes: ParallelSizes, facts: ModelFacts) -> None:
    if facts.query_heads is not None and facts.query_heads % sizes.tensor:
        raise ConfigError(
            f"--tensor-parallel-size {sizes.tensor} does not divide the model's "
            f"{facts.query_heads} attention heads: vLLM refuses that"
        )


def _check_decode_context(sizes: ParallelSizes, facts: ModelFacts) -> None:
    ranks = sizes.decode_context
    if sizes.tensor % ranks:
        raise ConfigError(
            f"--decode-context-parallel-size {ranks} does not divide "
            f"--tensor-parallel-size {sizes.tensor}: vLLM refuses that"
        )
    if ranks == 1 or facts.is_latent or facts.kv_heads is None:
        return
    most = sizes.tensor // facts.kv_heads
    if ranks > most or sizes.tensor <= facts.kv_heads:
        raise ConfigError(
            f"--decode-context-parallel-size {ranks} needs --tensor-parallel-size of at least "
            f"{max(ranks, 2) * facts.kv_heads} for {facts.kv_heads} key-value heads"
        )
    if facts.query_heads is not None and facts.query_heads // facts.kv_heads % ranks:
        raise ConfigError(
            f"--decode-context-parallel-size {ranks} does not divide the model's "
            f"{facts.query_heads // facts.kv_heads} query heads per key-value head"
        )
