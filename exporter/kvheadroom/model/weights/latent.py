"""Decoders with multi-head latent attention."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kvheadroom.model.weights.attention import grouped_attention, latent_attention
from kvheadroom.model.weights.experts import after_dense_layers, optional_shared
from kvheadroom.model.weights.family import EVERY_STAGE, UNTIED, Family
from kvheadroom.model.weights.feed_forward import either, gated, layer, routed
from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.parts import (
    FLOAT32,
    Part,
    Ranks,
    Tensor,
    column,
    norm,
    replicated,
    row,
    share,
    vocabulary,
)

_INT32: Final = 4
# The ratio whose layers read only the tokens that an indexer chooses.
_V4_SPARSE_RATIO: Final = 4
_FLOAT32_ROUTERS: Final = frozenset({"Glm4MoeLiteForCausalLM"})
# The kernel's query heads are padded to this.
_V4_LEAST_HEADS: Final = 64


def _chooses_without_groups(c: Fields) -> bool:
    return bool(c.get("topk_method") == "noaux_tc")


def _experts(c: Fields, r: Ranks, index: int) -> list[Part]:
    return routed(
        "n_routed_experts",
        "moe_intermediate_size",
        shared=optional_shared,
        router_bytes=FLOAT32 if c.architecture in _FLOAT32_ROUTERS else None,
        correction=_chooses_without_groups(c),
    )(c, r, index)


_FEED_FORWARD: Final = either(after_dense_layers, _experts, gated())


def indexer(c: Fields, _r: Ranks, _index: int) -> list[Part]:
    """Return what chooses the tokens that sparse attention reads, whole on every rank."""
    heads, dim = c.whole("index_n_heads"), c.whole("index_head_dim")
    return [
        replicated("self_attn.indexer.wq_b", c.whole("q_lora_rank"), heads * dim),
        replicated("self_attn.indexer.wk_weights_proj", c.hidden, dim, heads, quantizable=False),
        Tensor(2 * dim, FLOAT32),
    ]


def _minicpm3_attention(c: Fields, r: Ranks, index: int) -> list[Part]:
    return latent_attention(c, r, index, fused=False)


def _longcat_layer(c: Fields, r: Ranks, index: int) -> list[Part]:
    """Return two attentions and two dense layers around one set of experts."""
    half = layer(latent_attention, gated("ffn_hidden_size", name="mlps"))(c, r, index)
    return [
        *half,
        *half,
        *routed(
            "n_routed_experts",
            "expert_ffn_hidden_size",
            router_bytes=FLOAT32,
            correction=True,
            zero_experts="zero_expert_num",
        )(c, r, index),
    ]


def _pangu_experts(c: Fields, r: Ranks, index: int) -> list[Part]:
    return routed(
        "n_routed_experts",
        "moe_intermediate_size",
        shared=optional_shared,
        correction="router_enable_expert_bias",
    )(c, r, index)


def _sandwich_norms(c: Fields, _r: Ranks, _index: int) -> list[Part]:
    return [norm(2 * c.hidden)] if c.says("sandwich_norm") else []


def _ngram_tables(c: Fields, r: Ranks) -> list[Part]:
    """Return the tables of hashed n-grams, all in one, and what leads from them to the residual.

    Source:
        vLLM 0.32: table *i* has ratio x vocabulary + 2 *i* + 1 rows.
    """
    tables = c.layers("emb_split_num") * (c.layers("emb_neighbor_num") - 1)
    smallest = c.whole("ngram_vocab_size_ratio") * c.whole("vocab_size") + 1
    width = c.hidden // tables if tables else 0
    rows = tables * smallest + tables * (tables - 1)
    return [vocabulary(r, rows, width), Tensor(tables * width * c.hidden)]


def _v4_compressor(c: Fields, dim: int, ratio: int) -> list[Part]:
    """Return what folds *ratio* tokens into one row; short ratios overlap."""
    rows = dim * (2 if ratio == _V4_SPARSE_RATIO else 1)
    return [
        Tensor(ratio * rows, FLOAT32),
        replicated("attn.compressor.fused_wkv_wgate", c.hidden, rows, rows, quantizable=False),
        norm(dim),
    ]


def one_key_attention(c: Fields, r: Ranks) -> list[Part]:
    """Return attention with one key head, whose output passes groups of a low rank."""
    dim, rank = c.head_dim, c.whole("q_lora_rank")
    groups, group_rank = c.whole("o_groups"), c.whole("o_lora_rank")
    own_heads = share(c.heads, r.tensor, "attention heads")
    return [
        Tensor(max(own_heads, _V4_LEAST_HEADS), FLOAT32),
        replicated("attn.fused_wqa_wkv", c.hidden, rank, dim),
        norm(rank + dim),
        column(r, "attn.wq_b", rank, c.heads * dim),
        column(r, "attn.wo_a", c.heads * dim // groups, groups * group_rank),
        row(r, "attn.wo_b", groups * group_rank, c.hidden),
    ]


def _v4_attention(c: Fields, r: Ranks, index: int) -> list[Part]:
    parts, rank = one_key_attention(c, r), c.whole("q_lora_rank")
    ratio = c.at("compress_ratios", index)
    if ratio and ratio > 1:
        parts += _v4_compressor(c, c.head_dim, ratio)
    if ratio == _V4_SPARSE_RATIO:
        heads, key = c.whole("index_n_heads"), c.whole("index_head_dim")
        parts += [
            replicated("attn.indexer.wq_b", rank, heads * key),
            replicated("attn.indexer.weights_proj", c.hidden, heads, quantizable=False),
            *_v4_compressor(c, key, ratio),
        ]
    return parts


def stream_experts(c: Fields, r: Ranks, index: int) -> list[Part]:
    """Return experts; the first layers look them up by token instead of scoring them."""
    hashed = index < c.count("num_hash_layers")
    parts = routed(
        "n_routed_experts",
        "moe_intermediate_size",
        name="ffn",
        shared=optional_shared,
        correction=not hashed and _chooses_without_groups(c),
    )(c, r, index)
    if hashed:
        parts.append(Tensor(c.whole("vocab_size") * c.whole("num_experts_per_tok"), _INT32))
    return parts


def stream_mixing(c: Fields, _r: Ranks, _index: int) -> list[Part]:
    """Return what mixes the parallel residual streams around attention and experts."""
    streams = c.whole("hc_mult")
    mixes = (2 + streams) * streams
    return [Tensor(2 * (mixes * (streams * c.hidden + 1) + 3), FLOAT32)]


def _v4_head(c: Fields, _r: Ranks) -> list[Part]:
    streams = c.whole("hc_mult")
    return [Tensor(streams * (streams * c.hidden + 1) + 1, FLOAT32)]


def _has_no_latent(c: Fields, _index: int) -> bool:
    return not (c.count("qk_nope_head_dim") or c.count("qk_rope_head_dim"))


# Small models of the class have plain attention.
_DEEPSEEK: Final = Family(
    layer(
        either(
            _has_no_latent,
            grouped_attention(qkv_bias="attention_bias", output_bias="attention_bias"),
            latent_attention,
        ),
        _FEED_FORWARD,
    ),
    UNTIED,
)
_LONGCAT: Final = Family(_longcat_layer, UNTIED, layers=("num_layers",))
_SPARSE: Final = Family(
    layer(latent_attention, indexer, _FEED_FORWARD), UNTIED, {"topk_method": "noaux_tc"}
)

LATENT: Final[Mapping[str, Family]] = {
    "DeepseekV2ForCausalLM": _DEEPSEEK,
    "DeepseekV3ForCausalLM": _DEEPSEEK,
    "Glm4MoeLiteForCausalLM": Family(
        _DEEPSEEK.block, UNTIED, {"topk_method": "noaux_tc", "first_k_dense_replace": 1}
    ),
    "DeepseekV32ForCausalLM": _SPARSE,
    "GlmMoeDsaForCausalLM": _SPARSE,
    "DeepseekV4ForCausalLM": Family(
        layer(_v4_attention, stream_experts, stream_mixing), UNTIED, every=_v4_head
    ),
    "MiniCPM3ForCausalLM": Family(
        layer(_minicpm3_attention, gated()),
        EVERY_STAGE,
        {"tie_word_embeddings": True},
    ),
    "LongcatFlashForCausalLM": _LONGCAT,
    "LongcatFlashNgramForCausalLM": replace(_LONGCAT, inputs=_ngram_tables),
    "AXK1ForCausalLM": Family(
        layer(latent_attention, _FEED_FORWARD, norms=3),
        UNTIED,
        {"topk_method": "noaux_tc", "first_k_dense_replace": 1},
    ),
    "MistralLarge3ForCausalLM": _DEEPSEEK,
    "PanguUltraMoEForCausalLM": Family(
        layer(
            latent_attention,
            either(after_dense_layers, _pangu_experts, gated(bias="mlp_bias")),
            _sandwich_norms,
        )
    ),
}
