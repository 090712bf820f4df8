"""What an engine's KV pool holds, by what it reports and what its model is known to be."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from kvheadroom.engine import versions
from kvheadroom.engine.versions import Version
from kvheadroom.live.model_pool import ModelPool, model_pool
from kvheadroom.model.layers import AttentionLayer, ModelLayers

KvLayout = Literal[
    "uniform",  # every layer caches every token: blocks x block size is the capacity
    "hybrid",  # groups of different kinds share the pool: only the engine's own figures hold
    "assumed_uniform",  # nothing contradicts uniform, nothing proves it either
    "none",  # an encoder: no KV cache
    "unknown",  # this version's labels cannot be trusted without the model's config
]
TokensSource = Literal["engine", "computed", "assumed_uniform"]


_LARGEST: Final = 1e15


@dataclass(frozen=True, slots=True)
class Capacity:
    """The KV pool of one engine.

    Attributes:
        layout: How blocks relate to tokens.
        blocks: vLLM's ``num_gpu_blocks`` of this engine, the null block included.
        block_tokens: Tokens one block holds; ``None`` unless *layout* is (assumed) uniform.
        tokens: What the pool holds in tokens, as vLLM counts it at start.
        tokens_source: Where *tokens* came from.
        max_model_len: Tokens of the longest request the engine admits.
        full_request_blocks: Blocks vLLM reserves for one request of *max_model_len* tokens.
        label_block_tokens: ``block_size`` as the engine reports it, where that is to be trusted.
        pool: What the model's layers say of it; ``None`` while the model is not known, or does
            not agree with what the engine reports.
    """

    layout: KvLayout
    blocks: int
    block_tokens: int | None = None
    tokens: int | None = None
    tokens_source: TokensSource | None = None
    max_model_len: int | None = None
    full_request_blocks: int | None = None
    label_block_tokens: int | None = None
    pool: ModelPool | None = None

    @property
    def bytes_per_block(self) -> int | None:
        """Bytes of one block over all ranks."""
        return None if self.pool is None else self.pool.bytes_per_block

    @property
    def usable_blocks(self) -> int:
        """Blocks a request can hold: all but block 0, vLLM's null block."""
        return max(0, self.blocks - 1)

    @property
    def bytes(self) -> int | None:
        """Bytes of the whole pool over all ranks."""
        return None if self.bytes_per_block is None else self.blocks * self.bytes_per_block

    @property
    def first_stage_bytes(self) -> int | None:
        """Bytes of the pool on one rank of the first pipeline stage."""
        return None if self.pool is None else self.blocks * self.pool.allocation.bytes_per_block[0]

    def blocks_for(self, context_tokens: int) -> int | None:
        """Return the blocks a request of *context_tokens* holds; ``None`` when not known.

        A request longer than *max_model_len* can never run, so it has no answer either.
        """
        if self.max_model_len is not None and context_tokens > self.max_model_len:
            return None
        if self.block_tokens is not None:
            return -(-context_tokens // self.block_tokens)
        if self.pool is not None:
            return self.pool.blocks_for(context_tokens)
        return self.full_request_blocks if context_tokens == self.max_model_len else None


def engine_capacity(
    labels: Mapping[str, str],
    *,
    engines: int,
    version: Version | None,
    max_model_len: int | None,
    layers: ModelLayers | None,
    tensor_parallel: int = 1,
) -> Capacity | None:
    """Return the KV pool that ``cache_config_info`` labels describe.

    Args:
        labels: The labels of this engine's ``cache_config_info``, as they stand.
        engines: Engines on the page; newer versions report the sum of their blocks on each.
        version: The server's version; ``None`` is read as a recent one.
        max_model_len: From ``/v1/models``, tokens.
        layers: The model, where its config.json is known.
        tensor_parallel: Ranks of the engine, for the bytes.

    Returns:
        The pool, or ``None`` while the engine has not reported its blocks.

    Source:
        vLLM's cache_config_info by version: README, "What is trusted".
    """
    reported = _whole(labels, "num_gpu_blocks")
    if not reported:
        return None
    blocks = reported // engines if _is_summed(version) else reported
    if _is_encoder(labels, blocks):
        return Capacity(layout="none", blocks=0)
    concurrency = _number(labels, "kv_cache_max_concurrency")
    tokens = _whole(labels, "kv_cache_size_tokens")
    if tokens is not None and concurrency:
        max_model_len = max_model_len or _implied_max_model_len(tokens, concurrency)
    need = round(blocks / concurrency) if concurrency else None
    trusted = _trusts_block_size(version, layers)
    pool = None
    if layers is not None:
        pool = model_pool(
            layers,
            labels,
            version=version,
            blocks=blocks,
            block_tokens=_whole(labels, "block_size") if trusted else None,
            max_model_len=max_model_len,
            full_request_blocks=need,
            tensor_parallel=tensor_parallel,
        )
    # Since 0.31 the engine states what a full-attention block holds, context parallelism included.
    stated = _whole(labels, "effective_attention_block_size") or _whole(labels, "block_size")
    layout, block_tokens = _layout(
        labels, stated if trusted else None, pool, max_model_len=max_model_len, need=need
    )
    source: TokensSource | None = "engine" if tokens is not None else None
    if tokens is None and block_tokens is not None:
        tokens = blocks * block_tokens
        source = "computed" if layout == "uniform" else "assumed_uniform"
    if need is None and block_tokens is not None and max_model_len is not None:
        need = -(-max_model_len // block_tokens)
    return Capacity(
        layout=layout,
        blocks=blocks,
        block_tokens=block_tokens,
        tokens=tokens,
        tokens_source=source,
        max_model_len=max_model_len,
        full_request_blocks=need,
        label_block_tokens=_whole(labels, "block_size") if trusted else None,
        pool=pool,
    )


def _is_summed(version: Version | None) -> bool:
    return version is None or version >= versions.BLOCKS_SUMMED_OVER_ENGINES


def _is_encoder(labels: Mapping[str, str], blocks: int) -> bool:
    # vLLM allocates one symbolic block for a model that caches nothing, and has no size to tell.
    sizeless = labels.get("kv_cache_size_tokens") == "None"
    return labels.get("is_attention_free") == "True" or (blocks == 1 and sizeless)


def _trusts_block_size(version: Version | None, layers: ModelLayers | None) -> bool:
    """Return whether the block size label is what the worker uses.

    From 0.18 to 0.22 it is the front end's; for a model known to have plain attention only, both
    are the same.
    """
    unsynced = version is not None and (
        versions.BLOCK_SIZE_CHOSEN_BY_WORKER <= version < versions.BLOCK_SIZE_LABEL_SYNCED
    )
    return not unsynced or (layers is not None and _is_plain(layers))


def _is_plain(layers: ModelLayers) -> bool:
    return all(
        isinstance(layer, AttentionLayer) and layer.window is None and layer.chunk is None
        for block in layers.blocks
        for layer in block
    )


def _layout(
    labels: Mapping[str, str],
    block_tokens: int | None,
    pool: ModelPool | None,
    *,
    max_model_len: int | None,
    need: int | None,
) -> tuple[KvLayout, int | None]:
    """Return the layout and, where it is (assumed) uniform, the tokens of one block."""
    if need is not None and max_model_len is not None and block_tokens is not None:
        # The engine's own figures settle it: a uniform pool reserves exactly the request's blocks.
        uniform = need == -(-max_model_len // block_tokens)
        return ("uniform", block_tokens) if uniform else ("hybrid", None)
    if pool is not None:
        return ("uniform", block_tokens) if pool.is_uniform else ("hybrid", None)
    if block_tokens is None:
        return "unknown", None
    if _looks_recurrent(labels):
        return "hybrid", None
    return "assumed_uniform", block_tokens


def _looks_recurrent(labels: Mapping[str, str]) -> bool:
    return (
        labels.get("mamba_cache_mode", "none") not in {"none", "None"}
        or labels.get("mamba_block_size", "None") != "None"
        or labels.get("mamba_page_size_padded", "None") != "None"
    )


def _implied_max_model_len(tokens: int, concurrency: float) -> int | None:
    """Return L from tokens = int(concurrency x L), where only one whole number fits."""
    lowest = -(-tokens // concurrency)
    return int(lowest) if lowest + 1 > (tokens + 1) / concurrency else None


def _number(labels: Mapping[str, str], name: str) -> float | None:
    try:
        value = float(labels.get(name, "None"))
    except ValueError:
        return None
    # Beyond any real pool; a page may hold any number.
    return value if 0 < value < _LARGEST else None


def _whole(labels: Mapping[str, str], name: str) -> int | None:
    value = _number(labels, name)
    return int(value) if value is not None and value == int(value) else None
