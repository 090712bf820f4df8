"""Softmax models whose windows, loops or sinks stand in fields of their own."""

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
from kvheadroom.model.layers import AttentionLayer, Block

_MUSE_WINDOW: Final = 2048
# Every so many layers of Muse Glimmer, counted from the last, one has no positions and no window.
_MUSE_STRIDE: Final = 4
_PANGU_LATENT: Final = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank")


def _attention(text: Config, window: int | None = None) -> AttentionLayer:
    dim = head_dim(text)
    return AttentionLayer(kv_heads(text), dim, dim, window=window)


def chunk_as_window_blocks(text: Config) -> tuple[Block, ...]:
    """Return the layers of RNJ-1, which keeps a window where it attends to chunks.

    Raises:
        ModelConfigError: ``layer_types`` names too few layers, or another kind.
    """
    kinds = strings(text, "layer_types") or ()
    if len(kinds) < layer_count(text):
        raise ModelConfigError(f"layer_types names {len(kinds)} layers of {layer_count(text)}")
    # Any other kind sees everything.
    chunked = "chunked_attention" in kinds
    window = whole(text, "sliding_window") if chunked else None
    full, local = (_attention(text),), (_attention(text, window),)
    return tuple(
        local if kind == "chunked_attention" else full for kind in kinds[: layer_count(text)]
    )


def listed_window_blocks(text: Config) -> tuple[Block, ...]:
    """Return the layers of PLaMo 3, whose windows are listed or follow a pattern.

    Raises:
        ModelConfigError: Neither is given, or the list is short.
    """
    windows = _listed_windows(text)
    if len(windows) < layer_count(text):
        raise ModelConfigError(f"sliding_window lists {len(windows)} layers of {layer_count(text)}")
    blocks = {window: (_attention(text, window),) for window in set(windows)}
    return tuple(blocks[window] for window in windows[: layer_count(text)])


def _listed_windows(text: Config) -> tuple[int | None, ...]:
    for name in ("interleaved_sliding_window", "sliding_window"):
        value = text.get(name)
        if isinstance(value, list):
            return tuple(optional_whole({name: item}, name) or None for item in value)
    window = whole(text, "window_size", "sliding_window", "interleaved_sliding_window")
    kinds = strings(text, "layer_types")
    if kinds is not None:
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    every = whole(text, "sliding_window_pattern")
    return tuple(window if (index + 1) % every else None for index in range(layer_count(text)))


def looped_blocks(text: Config) -> tuple[Block, ...]:
    """Return the layers of IQuest-LoopCoder, which run several times: first in full, then local."""
    text = {**text, "head_dim": None}
    local = _attention(text, whole(text, "loop_window_size", default=64))
    block: Block = (_attention(text), *(local,) * (whole(text, "loop_num", default=2) - 1))
    return (block,) * layer_count(text)


def unrotated_full_blocks(text: Config) -> tuple[Block, ...]:
    """Return the layers of Muse Glimmer: a window where positions rotate, everything where not.

    Raises:
        ModelConfigError: ``no_rope_layers`` does not describe every layer.
    """
    count = layer_count(text)
    rotates = wholes(text, "no_rope_layers") or tuple(
        int((count - 1 - index) % _MUSE_STRIDE != 0) for index in range(count)
    )
    if len(rotates) < count:
        raise ModelConfigError(f"no_rope_layers names {len(rotates)} layers of {count}")
    window = optional_whole(text, "sliding_window")
    if "sliding_window" not in text:
        window = _MUSE_WINDOW
    text = {**text, "head_dim": whole(text, "head_dim", default=128)}
    local, full = (_attention(text, window or None),), (_attention(text),)
    return tuple(local if rotates[index] == 1 else full for index in range(count))


def pangu_blocks(text: Config) -> tuple[Block, ...]:
    """Return the layers of openPangu Pro V2: keys and values behind learned ones.

    Raises:
        ModelConfigError: The fields describe another member of the family.
    """
    if all(text.get(name) is not None for name in _PANGU_LATENT):
        raise ModelConfigError("a latent openPangu model is served by PanguUltraMoEForCausalLM")
    sink = optional_whole(text, "param_sink_number")
    if not sink:
        return ((_attention(text),),) * layer_count(text)
    layer = AttentionLayer(
        kv_heads=kv_heads(text),
        head_dim=whole(text, "qk_nope_dim") + whole(text, "qk_rope_dim"),
        value_head_dim=whole(text, "v_channels"),
        sink_tokens=sink,
    )
    return ((layer,),) * layer_count(text)


def paired_blocks(text: Config) -> tuple[Block, ...]:
    """Return the layers of Cosmos 3 Edge, whose halves stages may part: attention, then dense."""
    kinds = strings(text, "layers_block_type")
    attention: Block = (_attention(text),)
    if kinds is None:
        return (attention, ()) * layer_count(text)
    return tuple(() if kind in {"mlp", "-"} else attention for kind in kinds)
