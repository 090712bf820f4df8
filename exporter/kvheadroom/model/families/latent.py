"""Models of multi-head latent attention, with and without a sparse indexer."""

from typing import Final

from kvheadroom.errors import ModelConfigError
from kvheadroom.model.fields import (
    Config,
    head_dim,
    kv_heads,
    layer_count,
    optional_whole,
    strings,
    whole,
    wholes,
)
from kvheadroom.model.layers import AttentionLayer, Block, LatentLayer

_RATIO_OF_TYPE: Final = {
    "sliding_attention": 0,
    "compressed_sparse_attention": 4,
    "heavily_compressed_attention": 128,
}
_INDEXED_RATIO: Final = 4


def latent_layer(text: Config, *, indexed: bool) -> LatentLayer:
    """Return one latent layer, with the indexer's key beside it when *indexed*.

    Raises:
        ModelConfigError: A dimension is missing.
    """
    return LatentLayer(
        latent_dim=whole(text, "kv_lora_rank"),
        rope_dim=optional_whole(text, "qk_rope_head_dim") or 0,
        indexer_dim=whole(text, "index_head_dim", default=128) if indexed else None,
    )


def longcat_blocks(text: Config) -> tuple[Block, ...]:
    """Return the layers of LongCat-Flash, two attentions in each.

    Raises:
        ModelConfigError: A dimension is missing.

    Source:
        Its config class counts attentions in ``num_hidden_layers`` and layers in ``num_layers``.
    """
    layers = optional_whole(text, "num_layers") or layer_count(text) // 2
    return tuple(block * 2 for block in latent_blocks({**text, "num_hidden_layers": layers}))


def latent_blocks(text: Config) -> tuple[Block, ...]:
    """Return the layers of a DeepSeek-like model.

    Raises:
        ModelConfigError: A dimension is missing.
    """
    count = layer_count(text)
    if optional_whole(text, "kv_lora_rank") is None:
        dim = head_dim(text)
        return ((AttentionLayer(kv_heads(text), dim, dim),),) * count
    sparse = optional_whole(text, "index_topk") is not None
    plain: Block = (latent_layer(text, indexed=False),)
    indexed: Block = (latent_layer(text, indexed=True),)
    return tuple(
        indexed if sparse and _selects_itself(text, index) else plain for index in range(count)
    )


def _selects_itself(text: Config, index: int) -> bool:
    """Return whether layer *index* has an indexer instead of another layer's selection."""
    pattern = text.get("index_topk_pattern")
    if pattern is not None:
        return not (index < len(pattern) and pattern[index] == "S")
    every = whole(text, "index_topk_freq", default=1)
    offset = optional_whole(text, "index_skip_topk_offset")
    return max(index - (2 if offset is None else offset) + 1, 0) % every == 0


def compressed_blocks(text: Config) -> tuple[Block, ...]:
    """Return the layers of DeepSeek-V4: a window of rows, and rows for several tokens.

    Raises:
        ModelConfigError: ``compress_ratios`` does not describe every layer.
    """
    count = layer_count(text)
    ratios = wholes(text, "compress_ratios") or tuple(
        _RATIO_OF_TYPE.get(kind, -1) for kind in strings(text, "layer_types") or ()
    )
    if len(ratios) < count:
        raise ModelConfigError("compress_ratios must describe every layer")
    return tuple(compressed_block(text, ratio) for ratio in ratios[:count])


def compressed_block(text: Config, ratio: int) -> Block:
    """Return one layer of DeepSeek-V4 that stores a row for *ratio* tokens (0 and 1: none).

    Raises:
        ModelConfigError: The ratio is none that the class has.
    """
    if ratio not in {0, 1, 4, 128}:
        raise ModelConfigError(f"compress_ratios holds {ratio}; known are 0, 1, 4 and 128")
    rope = optional_whole(text, "qk_rope_head_dim") or 0
    return (
        LatentLayer(
            latent_dim=whole(text, "head_dim") - rope,
            rope_dim=rope,
            indexer_dim=whole(text, "index_head_dim", default=128)
            if ratio == _INDEXED_RATIO
            else None,
            window=whole(text, "sliding_window"),
            compress_ratio=max(1, ratio),
            compressed=True,
        ),
    )
