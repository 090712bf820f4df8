"""Decoders that choose what to attend to, mix several residual streams or convolve their inputs."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kvheadroom.model.own_fields import OWN_FIELDS
from kvheadroom.model.weights.attention import latent_attention
from kvheadroom.model.weights.experts import after_dense_layers, optional_shared, qwen_routed
from kvheadroom.model.weights.family import UNTIED, Ends, Family
from kvheadroom.model.weights.feed_forward import either, gated, layer, routed
from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.latent import indexer, stream_mixing
from kvheadroom.model.weights.parts import (
    FLOAT32,
    Experts,
    Linear,
    Part,
    Ranks,
    Tensor,
    column,
    kv_share,
    norm,
    replicated,
    row,
    share,
)
from kvheadroom.model.weights.states import delta_attention, gated_delta_net

_SPARSE_KINDS: Final = frozenset({"deepseek_sparse_attention", "sparse_attention", "sparse"})
# The router's rows are padded to a multiple of this in Inkling.
_ROUTER_ROWS: Final = 8


def _scored(c: Fields, index: int) -> bool:
    freq = c.part("sparse_attention_config").per_layer("sparse_attention_freq")
    return index < len(freq) and bool(freq[index])


def _m3_attention(c: Fields, r: Ranks, index: int) -> list[Part]:
    """Return attention whose blocks an index of few heads may choose."""
    dim, own = c.head_dim, share(c.heads, r.tensor, "attention heads")
    kv = kv_share(c.kv_heads, r.tensor)
    rows: tuple[int, ...] = (own * dim, kv * dim, kv * dim)
    norms = 2 * dim
    if _scored(c, index):
        sparse = c.part("sparse_attention_config")
        key = sparse.whole("sparse_index_dim")
        heads = kv_share(sparse.whole("sparse_num_index_heads"), r.tensor)
        rows, norms = (*rows, heads * key, key), norms + 2 * key
    return [
        Linear("self_attn.qkv_proj", c.hidden, rows),
        row(r, "self_attn.o_proj", c.heads * dim, c.hidden),
        norm(norms),
    ]


def _m3_is_routed(c: Fields, index: int) -> bool:
    return c.get("moe_layer_freq") is None or bool(c.at("moe_layer_freq", index))


def _m3_experts(c: Fields, r: Ranks, index: int) -> list[Part]:
    shared = c.count("n_shared_experts", default=1)
    width = shared * c.whole("shared_intermediate_size", "intermediate_size")
    name = "block_sparse_moe"
    return routed(
        "num_local_experts",
        "intermediate_size",
        name=name,
        shared=gated(lambda _c: width, name=f"{name}.shared_experts") if shared else None,
        router_bytes=FLOAT32,
        correction="use_routing_bias",
        usual=False,
    )(c, r, index)


def _inkling_is_local(c: Fields, index: int) -> bool:
    return index in c.per_layer("local_layer_ids")


def _inkling_attention(c: Fields, r: Ranks, index: int) -> list[Part]:
    """Return attention with learned distances, its keys, values and output convolved."""
    local = _inkling_is_local(c, index)
    own = "swa_" if local else ""
    heads = c.whole(f"{own}num_attention_heads", "num_attention_heads")
    kv_heads = c.whole(f"{own}num_key_value_heads", "num_key_value_heads")
    dim = c.whole(f"{own}head_dim", "head_dim", default=c.head_dim)
    queries = share(heads, r.tensor, "attention heads")
    kv, apart = kv_share(kv_heads, r.tensor), c.whole("d_rel")
    rows = (queries * dim, kv * dim, kv * dim, apart * queries)
    reach = c.whole("sliding_window_size" if local else "rel_extent")
    taps = c.whole("sconv_kernel_size", "conv_kernel_size", default=4)
    hidden = share(c.hidden, r.tensor, "convolution channels")
    return [
        Linear("attn.qkvr", c.hidden, rows, c.says("q_bias")),
        row(r, "attn.wo_ud", heads * dim, c.hidden, bias=c.says("o_bias")),
        Tensor(apart * reach + 2 * dim + (2 * kv * dim + 2 * hidden) * taps),
    ]


def _inkling_width(c: Fields) -> int:
    own = c.get("moe_intermediate_size")
    return c.whole("moe_intermediate_size" if own else "intermediate_size")


def _inkling_dense(c: Fields, r: Ranks, index: int) -> list[Part]:
    parts = gated(lambda f: f.whole("dense_intermediate_size", "intermediate_size"))(c, r, index)
    return [*parts, Tensor(1)] if c.says("use_global_scale") else parts


def _inkling_experts(c: Fields, r: Ranks, _index: int) -> list[Part]:
    """Return routed experts and those that every token passes, stored like them."""
    experts, always = c.whole("n_routed_experts"), c.whole("n_shared_experts")
    width = share(_inkling_width(c), r.expert_tensor, "experts")
    known = -(-(experts + always) // _ROUTER_ROWS) * _ROUTER_ROWS
    own = share(_inkling_width(c), r.tensor, "experts")
    parts: list[Part] = [
        Tensor(known * c.hidden),
        Experts("mlp.experts", -(-experts // r.expert), c.hidden, width, usual=False),
        Tensor(always * own * 3 * c.hidden),
    ]
    scalars = c.says("use_global_scale") + (experts if c.says("use_gate_bias") else 0)
    return [*parts, Tensor(scalars, FLOAT32)] if scalars else parts


def _inkling_table(c: Fields, _r: Ranks) -> list[Part]:
    """Return the embedding, which every rank holds whole."""
    rows = c.whole("padded_vocab_size", "vocab_size")
    return [Tensor((rows + c.says("use_embed_norm")) * c.hidden)]


def _listed_as_sparse(c: Fields, index: int) -> bool:
    if c.get("mlp_layer_types") is None:
        return index >= 1
    return bool(c.at("mlp_layer_types", index) == "sparse")


def _hy_indexer(c: Fields, r: Ranks, index: int) -> list[Part]:
    kinds, modes = c.per_layer("layer_types"), c.per_layer("indexer_types")
    sparse = index < len(kinds) and kinds[index] in _SPARSE_KINDS
    full = modes[index] == "full" if modes else index == 0 or (index - 1) % 4 == 0
    return indexer(c, r, index) if sparse and full else []


def _hy_attention(c: Fields, r: Ranks, index: int) -> list[Part]:
    parts = latent_attention(c, r, index)
    if c.says("gated_mla"):
        width = c.whole("v_head_dim") if c.get("gating_type") == "elementwise" else 1
        parts.append(column(r, "self_attn.linear_gate", c.hidden, c.heads * width))
    if c.says("learnable_sink"):
        parts.append(Tensor(share(c.heads, r.tensor, "attention heads"), FLOAT32))
    return parts


def _hy_streams(c: Fields, _r: Ranks, _index: int) -> list[Part]:
    if not c.says("enable_ihc"):
        return []
    streams = c.whole("hc_mult")
    return [Tensor(2 * (2 * streams * (streams * c.hidden + 1) + 2), FLOAT32)]


def _hy_head(c: Fields, _r: Ranks) -> list[Part]:
    if not c.says("enable_ihc"):
        return []
    streams = c.whole("hc_mult")
    return [Tensor(streams * (streams * c.hidden + 1) + 1, FLOAT32)]


def _glm_is_linear(c: Fields, index: int) -> bool:
    if c.get("layer_types") is None:
        return (index + 1) % 4 != 0
    return bool(c.at("layer_types", index) == "linear_attention")


def _glm_delta(c: Fields, r: Ranks, _index: int) -> list[Part]:
    linear = c.values.get("linear_attn_config")
    own = linear if isinstance(linear, Mapping) else {}
    return delta_attention(
        c,
        r,
        heads=int(own.get("num_heads") or c.whole("linear_num_heads")),
        dim=int(own.get("head_dim") or c.whole("linear_head_dim")),
        taps=int(own.get("short_conv_kernel_size") or c.whole("linear_conv_kernel_dim")),
    )


def _glm_attention(c: Fields, r: Ranks, index: int) -> list[Part]:
    """Return latent attention over keys that are pooled before they are scored."""
    key, pool = c.whole("index_head_dim"), c.whole("index_kpool")
    parts = [*latent_attention(c, r, index), *indexer(c, r, index)]
    return [*parts, Tensor(pool * key, FLOAT32), Tensor(key * c.hidden)] if pool > 1 else parts


def _glm_is_routed(c: Fields, index: int) -> bool:
    if c.get("mlp_layer_types") is None:
        return index >= min(3, c.whole("num_hidden_layers"))
    return bool(c.at("mlp_layer_types", index) == "sparse")


def _glm_streams(c: Fields, r: Ranks, index: int) -> list[Part]:
    return stream_mixing(c, r, index) if c.get("mhc") else []


def _qwen4_is_full(c: Fields, index: int) -> bool:
    if c.per_layer("layer_types"):
        return bool(c.at("layer_types", index) != "linear_attention")
    return (index + 1) % c.whole("full_attention_interval", default=4) == 0


def _qwen4_attention(c: Fields, r: Ranks, _index: int) -> list[Part]:
    """Return gated attention, with the index's queries and key fused into its matrix."""
    dim, own = c.head_dim, share(c.heads, r.tensor, "attention heads")
    kv = kv_share(c.kv_heads, r.tensor)
    rows: tuple[int, ...] = (2 * own * dim, kv * dim, kv * dim)
    norms = 2 * dim
    if c.get("indexer_n_heads") is not None:
        key = c.whole("indexer_head_dim")
        rows, norms = (*rows, (c.whole("indexer_n_heads") + 1) * key), norms + 2 * key
    return [
        Linear("self_attn.qkv_proj", c.hidden, rows, c.says("attention_bias")),
        row(r, "self_attn.o_proj", c.heads * dim, c.hidden),
        norm(norms),
    ]


def _qwen4_embedded(c: Fields, _r: Ranks, index: int) -> list[Part]:
    """Return what mixes in the embeddings of n-grams, whose table stays in the host's memory."""
    if index + 1 not in c.per_layer("ple_layer_ids"):
        return []
    wide, inner = c.whole("hc_count") * c.hidden, c.whole("ple_embed_dim", default=c.hidden)
    return [
        replicated("ple.kv_proj", inner, wide, c.hidden),
        Tensor((3 + c.whole("ple_conv_kernel_size")) * wide),
    ]


def _qwen4_streams(c: Fields, _r: Ranks, _index: int) -> list[Part]:
    streams, rank = c.whole("hc_count"), c.whole("hc_lowrank")
    wide = streams * c.hidden
    # A weight for each pair of streams is computed with the low rank's input.
    return [Tensor(2 * (wide + (rank + streams * streams) * wide + wide * rank))]


def _qwen4_mixer(c: Fields, _r: Ranks) -> list[Part]:
    wide = c.whole("hc_count") * c.hidden
    return [Tensor(wide + 2 * c.whole("hc_lowrank") * wide)]


def _note_is_local(c: Fields, index: int) -> bool:
    return bool(c.at("layer_types", index) == "sliding_attention")


_NOTE_FIELDS: Final = (
    *("num_attention_heads", "q_lora_rank", "kv_lora_rank"),
    *("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "attention_gate_type"),
)


def _note_attention(c: Fields, r: Ranks, index: int) -> list[Part]:
    """Return gated latent attention of the layer's own sizes."""
    local = _note_is_local(c, index)
    if local:
        own = {name: c.get(f"swa_{name}") for name in _NOTE_FIELDS}
        c = replace(c, values={**c.values, **own})
    value = 1 if c.get("attention_gate_type") == "headwise" else c.whole("v_head_dim")
    gate = (
        replicated("self_attn.g_proj", c.hidden, c.heads)
        if value == 1
        else column(r, "self_attn.g_proj", c.hidden, c.heads * value)
    )
    parts = [*latent_attention(c, r, index), gate, norm(c.whole("qk_rope_head_dim"))]
    return parts if local else [*parts, *indexer(c, r, index)]


_DEEPSEEK_EXPERTS: Final = routed(
    "n_routed_experts", "moe_intermediate_size", shared=optional_shared, correction=True
)

MINIMAX_M3: Final = Family(
    layer(
        _m3_attention,
        either(_m3_is_routed, _m3_experts, gated("dense_intermediate_size")),
    ),
    UNTIED,
    {"use_routing_bias": True},
)
INKLING: Final = Family(
    layer(
        _inkling_attention,
        either(
            lambda c, index: index >= c.count("dense_mlp_idx"), _inkling_experts, _inkling_dense
        ),
    ),
    Ends(embedding="none", head="every", norm="every", never_tied=True),
    OWN_FIELDS["inkling_model"],
    every=_inkling_table,
)
GLM5_NEXT: Final = Family(
    layer(
        either(_glm_is_linear, _glm_delta, _glm_attention),
        either(_glm_is_routed, _DEEPSEEK_EXPERTS, gated()),
        _glm_streams,
    ),
    UNTIED,
    OWN_FIELDS["glm5_next_text"],
)
QWEN4_EXP: Final = Family(
    layer(
        either(_qwen4_is_full, _qwen4_attention, gated_delta_net),
        _qwen4_embedded,
        qwen_routed,
        _qwen4_streams,
        norms=0,
    ),
    Ends(embedding="every", head="every", norm="none", never_tied=True),
    OWN_FIELDS["qwen4_exp_text"],
    last=_qwen4_mixer,
)

INDEXED: Final[Mapping[str, Family]] = {
    "Dots3NoteForCausalLM": Family(
        layer(_note_attention, either(after_dense_layers, _DEEPSEEK_EXPERTS, gated())), UNTIED
    ),
    "Glm5NextForCausalLM": GLM5_NEXT,
    "HYV4ForCausalLM": Family(
        layer(
            _hy_attention,
            _hy_indexer,
            either(
                _listed_as_sparse,
                routed(
                    "n_routed_experts",
                    "moe_intermediate_size",
                    shared=optional_shared,
                    router_bytes=FLOAT32,
                    correction=True,
                ),
                gated(),
            ),
            _hy_streams,
        ),
        Ends(),
        OWN_FIELDS["hy_v4"],
        last=_hy_head,
    ),
    "InklingForCausalLM": INKLING,
    "MiniMaxM3SparseForCausalLM": MINIMAX_M3,
    "Qwen4ExpForCausalLM": QWEN4_EXP,
}
