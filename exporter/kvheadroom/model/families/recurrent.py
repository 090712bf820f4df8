"""Models with layers that keep a state of fixed size: Mamba, delta nets, short convolutions."""

from collections.abc import Callable, Mapping
from typing import Final

from kvheadroom.errors import ModelConfigError
from kvheadroom.model.families.latent import latent_layer
from kvheadroom.model.fields import (
    Config,
    head_dim,
    hidden_size,
    kv_heads,
    layer_count,
    optional_whole,
    query_heads,
    section,
    strings,
    whole,
    wholes,
)
from kvheadroom.model.layers import AttentionLayer, Block, StateLayer

# Elements of the only head that the kernel which exports states in the middle of a prefill takes.
_CHECKPOINTED_DIM: Final = 128
_ATTENTION: Final = frozenset({"full_attention", "attention", "*", "global_attention"})


def recurrent_blocks(architecture: str, text: Config) -> tuple[Block, ...]:
    """Return the layers of the recurrent or hybrid class *architecture*.

    Raises:
        ModelConfigError: A field is missing or says what the class does not have.
    """
    return _READERS[architecture](text)


def softmax_block(text: Config) -> Block:
    """Return one full-attention layer."""
    dim = head_dim(text)
    return (AttentionLayer(kv_heads(text), dim, dim),)


def _mixed(types: tuple[str, ...], kinds: Mapping[str, Block]) -> tuple[Block, ...]:
    unknown = sorted(set(types) - set(kinds))
    if unknown:
        raise ModelConfigError(f"layer types hold {unknown[0]!r}, unknown for this class")
    return tuple(kinds[kind] for kind in types)


def _types(text: Config, *names: str) -> tuple[str, ...] | None:
    """Return the kind of each layer by the first of *names* that is given.

    Raises:
        ModelConfigError: It names fewer layers than there are.
    """
    for name in names:
        given = strings(text, name)
        if given is not None:
            count = optional_whole(text, "num_hidden_layers") or len(given)
            if len(given) < count:
                raise ModelConfigError(f"{name} names {len(given)} layers of {count}")
            return given[:count]
    return None


def delta_net(text: Config) -> Block:
    """Return one gated delta net layer (Qwen3-Next and later, OLMo-Hybrid)."""
    keys, values = whole(text, "linear_num_key_heads"), whole(text, "linear_num_value_heads")
    key_dim, value_dim = whole(text, "linear_key_head_dim"), whole(text, "linear_value_head_dim")
    prescribed = text.get("mamba_ssm_dtype")
    return (
        StateLayer(
            kind="gdn",
            conv_channels=2 * key_dim * keys + value_dim * values,
            conv_kernel=whole(text, "linear_conv_kernel_dim", default=4),
            heads=values,
            state_shape=(value_dim, key_dim),
            recurrent_dtype=str(prescribed) if prescribed else None,
        ),
    )


def _delta_net_blocks(text: Config) -> tuple[Block, ...]:
    every = whole(text, "full_attention_interval", default=4)
    types = _types(text, "layer_types") or tuple(
        "linear_attention" if (index + 1) % every else "full_attention"
        for index in range(layer_count(text))
    )
    return _mixed(
        types, {"linear_attention": delta_net(text), "full_attention": softmax_block(text)}
    )


def kda_layer(heads: int, dim: int, kernel: int, *, bounded: bool = False) -> Block:
    """Return one Kimi delta attention layer, whose gate may have a lower bound."""
    return (
        StateLayer(
            kind="kda",
            conv_channels=3 * heads * dim,
            conv_kernel=kernel,
            heads=heads,
            state_shape=(dim, dim),
            recurrent_dtype="float32",
            checkpointed=bounded and dim == _CHECKPOINTED_DIM,
        ),
    )


def _kimi_linear_blocks(text: Config) -> tuple[Block, ...]:
    linear = section(text, "linear_attn_config")
    full: Block = (latent_layer(text, indexed=False),)
    types = _types(text, "layer_types")
    if not linear and types is None:
        return (full,) * layer_count(text)
    state = kda_layer(
        whole({**text, **linear}, "linear_num_heads", "num_heads"),
        whole(linear, "head_dim") if linear else whole(text, "linear_head_dim"),
        whole({**text, **linear}, "short_conv_kernel_size", "linear_conv_kernel_dim", default=4),
        bounded=linear.get("gate_lower_bound") is not None,
    )
    if not linear:
        return _mixed(types or (), {"linear_attention": state, "full_attention": full})
    # The lists count layers from 1.
    recurrent = frozenset(wholes(linear, "kda_layers") or ())
    return tuple(state if index + 1 in recurrent else full for index in range(layer_count(text)))


def _bailing_linear_blocks(text: Config) -> tuple[Block, ...]:
    every = whole(text, "layer_group_size", default=1)
    dim = head_dim(text)
    state: Block = (
        StateLayer(kind="linear_attention", heads=query_heads(text), state_shape=(dim, dim)),
    )
    full: Block = (latent_layer(text, indexed=False),)
    return tuple(state if (index + 1) % every else full for index in range(layer_count(text)))


def _bailing_kda_blocks(text: Config) -> tuple[Block, ...]:
    count, every = layer_count(text), whole(text, "layer_group_size", default=1)
    state = kda_layer(
        query_heads(text), head_dim(text), whole(text, "short_conv_kernel_size", default=4)
    )
    full: Block = (latent_layer(text, indexed=False),)
    return tuple(
        full if (index + 1) % every == 0 or index >= count // every * every else state
        for index in range(count)
    )


def _minimax_blocks(text: Config) -> tuple[Block, ...]:
    kinds = wholes(text, "attn_type_list")
    types = _types(text, "layer_types")
    if kinds is not None:
        types = tuple("full_attention" if kind else "linear_attention" for kind in kinds)
    if types is None:
        raise ModelConfigError("attn_type_list or layer_types must name every layer")
    dim = head_dim(text)
    state: Block = (
        StateLayer(kind="linear_attention", heads=query_heads(text), state_shape=(dim, dim)),
    )
    return _mixed(types, {"linear_attention": state, "full_attention": softmax_block(text)})


def _mamba1(inner: int, state_dim: int, kernel: int) -> Block:
    return (
        StateLayer(
            kind="mamba1",
            conv_channels=inner,
            conv_kernel=kernel,
            heads=inner,
            state_shape=(state_dim,),
        ),
    )


def _mamba2(text: Config, inner: int, names: Mapping[str, str]) -> StateLayer:
    """Return a Mamba 2 layer whose fields bear the *names* of its class."""
    heads, dim = whole(text, names["heads"]), whole(text, names["head_dim"])
    state_dim = whole(text, names["state"])
    return StateLayer(
        kind="mamba2",
        conv_channels=inner,
        conv_kernel=whole(text, names["kernel"], default=4),
        heads=heads,
        state_shape=(dim, state_dim),
        groups=whole(text, names["groups"], default=1),
        state_dim=state_dim,
    )


_COMMON_NAMES: Final = {
    "heads": "mamba_n_heads",
    "head_dim": "mamba_d_head",
    "state": "mamba_d_state",
    "kernel": "mamba_d_conv",
    "groups": "mamba_n_groups",
}


def _expanded(text: Config, name: str = "mamba_expand") -> int:
    return whole(text, name, default=2) * hidden_size(text)


def _mamba_blocks(text: Config) -> tuple[Block, ...]:
    inner = optional_whole(text, "intermediate_size") or _expanded(text, "expand")
    layer = _mamba1(
        inner, whole(text, "state_size", default=16), whole(text, "conv_kernel", default=4)
    )
    return (layer,) * layer_count(text)


def _mamba2_blocks(text: Config) -> tuple[Block, ...]:
    names = {
        "heads": "num_heads",
        "head_dim": "head_dim",
        "state": "state_size",
        "kernel": "conv_kernel",
        "groups": "n_groups",
    }
    return ((_mamba2(text, _expanded(text, "expand"), names),),) * layer_count(text)


def _jamba_blocks(text: Config) -> tuple[Block, ...]:
    period = whole(text, "attn_layer_period", default=8)
    offset = optional_whole(text, "attn_layer_offset")
    offset = 4 if offset is None else offset
    state = _mamba1(
        _expanded(text),
        whole(text, "mamba_d_state", default=16),
        whole(text, "mamba_d_conv", default=4),
    )
    full = softmax_block(text)
    return tuple(full if index % period == offset else state for index in range(layer_count(text)))


def _granite_blocks(text: Config) -> tuple[Block, ...]:
    types = _types(text, "layer_types", "layers_block_type") or ("mamba",) * layer_count(text)
    full = softmax_block(text)
    if all(kind in _ATTENTION for kind in types):
        return (full,) * len(types)
    state: Block = (_mamba2(text, _expanded(text), _COMMON_NAMES),)
    return _mixed(
        types, {"mamba": state, "linear_attention": state, **dict.fromkeys(_ATTENTION, full)}
    )


def _bamba_blocks(text: Config) -> tuple[Block, ...]:
    attention = frozenset(wholes(text, "attn_layer_indices") or ())
    state: Block = (_mamba2(text, _expanded(text), _COMMON_NAMES),)
    full = softmax_block(text)
    return tuple(full if index in attention else state for index in range(layer_count(text)))


def _falcon_h1_blocks(text: Config) -> tuple[Block, ...]:
    inner = optional_whole(text, "mamba_d_ssm") or _expanded(text)
    # Both run side by side in every layer.
    block = (*softmax_block(text), _mamba2(text, inner, _COMMON_NAMES))
    return (block,) * layer_count(text)


def _zamba2_blocks(text: Config) -> tuple[Block, ...]:
    names = {**_COMMON_NAMES, "heads": "n_mamba_heads", "head_dim": "mamba_headdim"}
    state = _mamba2(text, _expanded(text), {**names, "groups": "mamba_ngroups"})
    dim = whole(text, "attention_head_dim", default=2 * hidden_size(text) // query_heads(text))
    attention = AttentionLayer(kv_heads(text), dim, dim)
    types = _types(text, "layers_block_type")
    hybrid = frozenset(wholes(text, "hybrid_layer_ids") or ())
    return tuple(
        (attention, state) if (types[index] == "hybrid" if types else index in hybrid) else (state,)
        for index in range(layer_count(text))
    )


def _nemotron_h_blocks(text: Config) -> tuple[Block, ...]:
    pattern = text.get("hybrid_override_pattern")
    types = (
        tuple(pattern)
        if isinstance(pattern, str)
        else _types(text, "layers_block_type", "layer_types")
    )
    if types is None:
        raise ModelConfigError("hybrid_override_pattern or layers_block_type must name every layer")
    names = {
        "heads": "mamba_num_heads",
        "head_dim": "mamba_head_dim",
        "state": "ssm_state_size",
        "kernel": "conv_kernel",
        "groups": "n_groups",
    }
    inner = whole(text, "mamba_num_heads") * whole(text, "mamba_head_dim")
    layer = _mamba2(text, inner, names)
    prescribed = str(text.get("mamba_ssm_cache_dtype") or "float32")
    state: Block = (
        StateLayer(
            kind="mamba2",
            conv_channels=layer.conv_channels,
            conv_kernel=layer.conv_kernel,
            heads=layer.heads,
            state_shape=layer.state_shape,
            groups=layer.groups,
            state_dim=layer.state_dim,
            recurrent_dtype=prescribed,
        ),
    )
    kinds: dict[str, Block] = dict.fromkeys(("-", "E", "mlp", "moe"), ())
    kinds |= dict.fromkeys(("M", "mamba", "linear_attention"), state)
    kinds |= dict.fromkeys(_ATTENTION, softmax_block(_nemotron_h_attention(text)))
    return _mixed(types, kinds)


def _nemotron_h_attention(text: Config) -> Config:
    given = optional_whole(text, "head_dim", "attention_head_dim")
    return {**text, "head_dim": given} if given else text


def _lfm2_blocks(text: Config) -> tuple[Block, ...]:
    count = layer_count(text)
    full_indices = wholes(text, "full_attn_idxs")
    types = _types(text, "layer_types")
    if types is None:
        chosen = frozenset(range(count) if full_indices is None else full_indices)
        types = tuple("full_attention" if i in chosen else "conv" for i in range(count))
    state: Block = (
        StateLayer(
            kind="short_conv",
            conv_channels=whole(text, "conv_dim", default=hidden_size(text)),
            conv_kernel=whole(text, "conv_L_cache", default=3),
        ),
    )
    return _mixed(types, {"conv": state, "full_attention": softmax_block(text)})


_READERS: Final[Mapping[str, Callable[[Config], tuple[Block, ...]]]] = {
    "BailingMoeV2_5ForCausalLM": _bailing_linear_blocks,
    "BailingMoeV3ForCausalLM": _bailing_kda_blocks,
    "BambaForCausalLM": _bamba_blocks,
    "FalconH1ForCausalLM": _falcon_h1_blocks,
    "FalconMambaForCausalLM": _mamba_blocks,
    "GraniteMoeHybridForCausalLM": _granite_blocks,
    "JambaForCausalLM": _jamba_blocks,
    "KimiLinearForCausalLM": _kimi_linear_blocks,
    "Lfm2ForCausalLM": _lfm2_blocks,
    "Lfm2MoeForCausalLM": _lfm2_blocks,
    "MambaForCausalLM": _mamba_blocks,
    "Mamba2ForCausalLM": _mamba2_blocks,
    "MiniMaxForCausalLM": _minimax_blocks,
    "MiniMaxM1ForCausalLM": _minimax_blocks,
    "MiniMaxText01ForCausalLM": _minimax_blocks,
    "NemotronHForCausalLM": _nemotron_h_blocks,
    "NemotronHPuzzleForCausalLM": _nemotron_h_blocks,
    "OlmoHybridForCausalLM": _delta_net_blocks,
    "Qwen3NextForCausalLM": _delta_net_blocks,
    "Qwen3_5ForCausalLM": _delta_net_blocks,
    "Qwen3_5MoeForCausalLM": _delta_net_blocks,
    "Zamba2ForCausalLM": _zamba2_blocks,
}
