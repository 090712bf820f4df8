"""Models whose layers keep more than one thing: indexer keys, rings, windows of convolutions."""

from typing import Final

from kvheadroom.errors import ModelConfigError
from kvheadroom.model.families.latent import latent_layer
from kvheadroom.model.families.recurrent import delta_net, kda_layer, softmax_block
from kvheadroom.model.fields import (
    Config,
    head_dim,
    hidden_size,
    kv_heads,
    layer_count,
    optional_whole,
    section,
    strings,
    whole,
    wholes,
)
from kvheadroom.model.layers import (
    AttentionLayer,
    Block,
    ConvolutionLayer,
    KeyLayer,
    LatentLayer,
    RingLayer,
    SourceLayer,
    StateLayer,
)

_HALF_BYTES: Final = 2
_ROPE_AXES: Final = 3
# 16-bit elements that one position takes beside a key.
_POSITION_ELEMENTS: Final = 4
_SPARSE_KINDS: Final = frozenset({"deepseek_sparse_attention", "sparse_attention", "sparse"})
_INDEXED_KINDS: Final = frozenset({"full_attention", "indexed_attention"})
_SOURCE_RATIOS: Final = frozenset({0, 1, 2})
# Keys of a page that the paged scoring kernel takes.
_PAGED_KEYS: Final = (32, 64)


def _kinds(text: Config, name: str, default: tuple[str, ...]) -> tuple[str, ...]:
    kinds = strings(text, name) or default
    if len(kinds) < layer_count(text):
        raise ModelConfigError(f"{name} names {len(kinds)} layers of {layer_count(text)}")
    return kinds[: layer_count(text)]


def scored_blocks(text: Config) -> tuple[Block, ...]:
    """Return the layers of MiniMax-M3: attention, and a key per token where blocks are chosen.

    Raises:
        ModelConfigError: A field is missing.
    """
    sparse = section(text, "sparse_attention_config")
    dense = softmax_block(text)
    chosen = wholes(sparse, "sparse_attention_freq") or ()
    if not any(chosen):
        return (dense,) * layer_count(text)
    block = whole(sparse, "sparse_block_size", default=128)
    scored = (*dense, KeyLayer(whole(sparse, "sparse_index_dim"), kernel_keys=(block,)))
    return tuple(
        scored if index < len(chosen) and chosen[index] else dense
        for index in range(layer_count(text))
    )


def listed_indexer_blocks(text: Config) -> tuple[Block, ...]:
    """Return the layers of HY-V4: latent attention, sparse where ``layer_types`` says so.

    Raises:
        ModelConfigError: A list describes too few layers.
    """
    count = layer_count(text)
    kinds = strings(text, "layer_types") or ()
    default = tuple("shared" if (index - 1) % 4 and index else "full" for index in range(count))
    modes = _kinds(text, "indexer_types", default)
    plain: Block = (latent_layer(text, indexed=False),)
    indexed: Block = (latent_layer(text, indexed=True),)
    return tuple(
        indexed
        if index < len(kinds) and kinds[index] in _SPARSE_KINDS and modes[index] == "full"
        else plain
        for index in range(count)
    )


def pooled_key_blocks(text: Config) -> tuple[Block, ...]:
    """Return the layers of GLM-5-Next: delta attention, and latent attention over pooled keys.

    Raises:
        ModelConfigError: A field is missing or names another kind of layer.
    """
    default = tuple(
        "linear_attention" if (index + 1) % 4 else "indexed_attention"
        for index in range(layer_count(text))
    )
    linear = section(text, "linear_attn_config")
    # A section that bounds the gate wins; one that says nothing leaves the class's own bound.
    bound = linear.get("gate_lower_bound", text.get("linear_lower_bound", -5.0))
    if bound is None and linear and linear.get("safe_gate", True):
        bound = -5.0
    state = kda_layer(
        whole({**text, **linear}, "num_heads", "linear_num_heads")
        if linear
        else whole(text, "linear_num_heads"),
        whole(linear, "head_dim") if linear.get("head_dim") else whole(text, "linear_head_dim"),
        whole({**text, **linear}, "short_conv_kernel_size", "linear_conv_kernel_dim", default=4),
        bounded=bound is not None,
    )
    indexed = _pooled_block(text)
    kinds = _kinds(text, "layer_types", default)
    unknown = sorted(set(kinds) - _INDEXED_KINDS - {"linear_attention"})
    if unknown:
        raise ModelConfigError(f"layer_types holds {unknown[0]!r}, unknown for this class")
    return tuple(indexed if kind in _INDEXED_KINDS else state for kind in kinds)


def _pooled_block(text: Config) -> Block:
    latent = latent_layer({**text, "index_topk": None}, indexed=False)
    dim, pool = whole(text, "index_head_dim"), whole(text, "index_kpool")
    if pool == 1:
        return (latent_layer(text, indexed=True),)
    # The tail keeps a key and its gate for every token of the open pool.
    tail = RingLayer(2 * dim * _HALF_BYTES, pool, doubles=True)
    keys = KeyLayer(dim, pool, quantized=True, kernel_keys=_PAGED_KEYS)
    return (keys, tail, latent)


def delta_net_positioned_key_blocks(text: Config) -> tuple[Block, ...]:
    """Return the layers of Qwen4-Exp with images, which keeps positions beside open keys.

    Raises:
        ModelConfigError: A field is missing or names another kind of layer.
    """
    return delta_net_key_blocks(
        text, positioned="mrope_section" in section(text, "rope_parameters")
    )


def delta_net_key_blocks(text: Config, *, positioned: bool = False) -> tuple[Block, ...]:
    """Return the layers of Qwen4-Exp: gated delta nets, and attention over averaged keys.

    Raises:
        ModelConfigError: A field is missing or names another kind of layer.
    """
    every = whole(text, "full_attention_interval", default=4)
    default = tuple(
        "linear_attention" if (index + 1) % every else "indexed_attention"
        for index in range(layer_count(text))
    )
    kinds = _kinds(text, "layer_types", default)
    unknown = sorted(set(kinds) - _INDEXED_KINDS - {"linear_attention"})
    if unknown:
        raise ModelConfigError(f"layer_types holds {unknown[0]!r}, unknown for this class")
    state, full = (
        delta_net(text),
        (
            *_averaged_keys(text, positioned=positioned),
            *softmax_block(text),
        ),
    )
    embedded = frozenset(wholes(text, "ple_layer_ids") or ())
    own = (*_embedding_state(text), *state) if embedded else state
    return tuple(
        full if kind in _INDEXED_KINDS else own if index + 1 in embedded else state
        for index, kind in enumerate(kinds)
    )


def _averaged_keys(text: Config, *, positioned: bool) -> Block:
    if optional_whole(text, "indexer_n_heads") is None:
        return ()
    dim, ratio = whole(text, "indexer_head_dim"), whole(text, "indexer_compress_ratio")
    row = dim
    if positioned:
        row = -(-dim // _POSITION_ELEMENTS) * _POSITION_ELEMENTS + _ROPE_AXES * _POSITION_ELEMENTS
    return (RingLayer(row * _HALF_BYTES, ratio), KeyLayer(dim, ratio))


def _embedding_state(text: Config) -> Block:
    """Return the dilated convolution behind the embeddings of n-grams."""
    taps = (whole(text, "ple_conv_kernel_size") - 1) * whole(text, "ngram_size")
    width = whole(text, "hc_count") * hidden_size(text)
    return (StateLayer("short_conv", width, taps + 1, replicated=True),)


def padded_latent_blocks(text: Config) -> tuple[Block, ...]:
    """Return the layers of dots3-note: sparse latent attention and wider windows of it.

    Raises:
        ModelConfigError: A field is missing.
    """
    window, full = _note_kinds(text)
    return tuple(
        window if kind == "sliding_attention" else full for kind in _kinds(text, "layer_types", ())
    )


def _note_kinds(text: Config) -> tuple[Block, Block]:
    """Return a layer with a window and one without."""
    window = LatentLayer(
        latent_dim=whole(text, "swa_kv_lora_rank"),
        rope_dim=whole(text, "swa_qk_rope_head_dim"),
        window=whole(text, "sliding_window_size"),
    )
    full = LatentLayer(
        latent_dim=whole(text, "kv_lora_rank"),
        rope_dim=whole(text, "qk_rope_head_dim"),
        indexer_dim=whole(text, "index_head_dim"),
        stored_dim=window.row_dim,
    )
    return (window,), (full,)


def sourced_blocks(text: Config) -> tuple[Block, ...]:
    """Return the layers of DeepSeek-V4.1: windows, and rows on the layers that are sources.

    Raises:
        ModelConfigError: ``compress_ratios`` is short, or holds a ratio that the class has not.
    """
    ratios = wholes(text, "compress_ratios") or ()
    sources = frozenset(wholes(text, "kv_source_layer_ids") or ())
    indexed = frozenset(wholes(text, "index_source_layer_ids") or ())
    count = layer_count(text)
    if not set(ratios) <= _SOURCE_RATIOS:
        raise ModelConfigError(f"compress_ratios holds {max(ratios)}; known are 0, 1 and 2")
    blocks: list[Block] = []
    for index in range(count):
        ratio = ratios[index] if index < len(ratios) else 0
        if ratio and not (sources and indexed):
            raise ModelConfigError("kv_source_layer_ids and index_source_layer_ids must be given")
        own = ratio if index in sources else 0
        blocks.append((_source_layer(text, own, indexed=index in indexed),))
    return tuple(blocks)


def _source_layer(text: Config, ratio: int, *, indexed: bool) -> SourceLayer:
    return SourceLayer(
        row_dim=whole(text, "head_dim"),
        window=whole(text, "sliding_window"),
        source_ratio=ratio,
        indexer_dim=whole(text, "index_head_dim") if indexed else None,
    )


def convolved_blocks(text: Config) -> tuple[Block, ...]:
    """Return the layers of Inkling: attention, full or local, and its convolutions' window.

    Raises:
        ModelConfigError: A field is missing.
    """
    local = frozenset(wholes(text, "local_layer_ids") or ())
    near, full = _inkling_kinds(text)
    return tuple(near if index in local else full for index in range(layer_count(text)))


def _inkling_kinds(text: Config) -> tuple[Block, Block]:
    """Return a local layer and one that sees everything."""
    dim = head_dim(text)
    full = _convolved_block(text, kv_heads(text), dim, None)
    near = _convolved_block(
        text,
        whole(text, "swa_num_key_value_heads", default=kv_heads(text)),
        whole(text, "swa_head_dim", default=dim),
        whole(text, "sliding_window_size", default=512),
    )
    return near, full


def _convolved_block(text: Config, heads: int, dim: int, window: int | None) -> Block:
    # Keys, values and the two outputs that are convolved, padded to a power of two.
    part = 2 * dim + 2 * (hidden_size(text) // heads)
    taps = whole(text, "sconv_kernel_size", "conv_kernel_size", default=4)
    return (
        ConvolutionLayer(heads, 1 << (part - 1).bit_length(), taps),
        AttentionLayer(heads, dim, dim, window=window),
    )


def own_draft_blocks(
    architecture: str, text: Config, blocks: tuple[Block, ...], count: int
) -> tuple[Block, ...] | None:
    """Return what each of *count* draft modules adds, where a class has a rule of its own."""
    match architecture:
        case "DeepseekV41ForCausalLM":
            # Behind the last layer every one is a window.
            return ((_source_layer(text, 0, indexed=False),),) * count
        case "Dots3NoteForCausalLM" | "HYV4ForCausalLM":
            return _listed_drafts(text, count)
        case "InklingForCausalLM":
            near, full = _inkling_kinds(text)
            local = frozenset(wholes(section(text, "mtp_config"), "local_layer_ids") or ())
            return tuple(near if index in local else full for index in range(count))
        case "MiniMaxM3SparseForCausalLM":
            scored = [block for block in blocks if len(block) > 1]
            return tuple(scored[:1]) * whole(text, "num_mtp_modules", default=1)
    return None


def _listed_drafts(text: Config, count: int) -> tuple[Block, ...] | None:
    """Return the drafts whose kinds stand behind those of the layers, if they do."""
    kinds = (strings(text, "layer_types") or ())[layer_count(text) :][:count]
    if len(kinds) < count:
        return None
    if "swa_kv_lora_rank" in text:
        window, full = _note_kinds(text)
        return tuple(window if kind == "sliding_attention" else full for kind in kinds)
    return tuple((latent_layer(text, indexed=kind in _SPARSE_KINDS),) for kind in kinds)
