"""Decoders of the first generations: LayerNorm with shifts, one matrix into the dense layer."""

from collections.abc import Mapping
from typing import Final

from kvheadroom.model.weights.attention import Heads, grouped_attention
from kvheadroom.model.weights.family import Ends, Family
from kvheadroom.model.weights.feed_forward import gated, layer, plain
from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.parts import Part, Ranks, Tensor, norm, vocabulary

_TIED: Final = {"tie_word_embeddings": True}
_SHIFTED: Final = Ends(norm_bias=True)
_SHIFTED_EVERYWHERE: Final = Ends(embedding="every", head="every", norm="every", norm_bias=True)


def _falcon_heads(c: Fields, _layer: int) -> Heads:
    if c.get("new_decoder_architecture"):
        kv = c.whole("num_kv_heads", default=c.heads)
    else:
        kv = 1 if c.get("multi_query") else c.heads
    return Heads(c.heads, kv, c.head_dim, c.head_dim)


def _falcon_norms(c: Fields, _r: Ranks, _layer: int) -> list[Part]:
    new = bool(c.get("new_decoder_architecture"))
    side_by_side = c.count("num_ln_in_parallel_attn", default=2 if new else 1)
    two = side_by_side == 2 or not c.get("parallel_attn")  # noqa: PLR2004 - norms
    return [norm(c.hidden, bias=True)] * (2 if two else 1)


def _falcon_width(c: Fields) -> int:
    return c.whole("ffn_hidden_size", default=4 * c.hidden)


def _bigcode_layer(c: Fields, _r: Ranks, index: int) -> list[Part]:
    """Return a layer that every rank holds whole: its class has no plan for dividing it."""
    return layer(
        grouped_attention(
            name="attn", heads=_bigcode_heads, qkv_bias=True, output_bias=True, output="c_proj"
        ),
        plain(_gpt2_width, bias=True, lead_in="c_fc", lead_out="c_proj"),
        norm_bias=True,
    )(c, Ranks(), index)


def _gpt2_width(c: Fields) -> int:
    return c.whole("n_inner", default=4 * c.hidden)


def _bigcode_heads(c: Fields, _layer: int) -> Heads:
    return Heads(c.heads, 1 if c.says("multi_query") else c.heads, c.head_dim, c.head_dim)


def _gpt2_positions(c: Fields, _r: Ranks) -> list[Part]:
    return [Tensor(c.whole("n_positions", "max_position_embeddings") * c.hidden)]


def _shifted_head_norms(c: Fields, _r: Ranks, _layer: int) -> list[Part]:
    return [norm(2 * c.head_dim, bias=True)] if c.says("qk_layernorm") else []


def _opt_tables(c: Fields, r: Ranks) -> list[Part]:
    """Return embedding and head, narrower than the model in the smallest one, and positions."""
    # The first two rows of positions stand for padding.
    positions = Tensor((c.whole("max_position_embeddings") + 2) * c.hidden)
    narrow = c.whole("word_embed_proj_dim", default=c.hidden)
    between = [] if narrow == c.hidden else [Tensor(narrow * c.hidden)] * 2
    tables = [vocabulary(r, c.whole("vocab_size"), narrow)] * (1 if c.tied else 2)
    return [*tables, positions, *between]


def _opt_norm(c: Fields, _r: Ranks) -> list[Part]:
    return [norm(c.hidden, bias=True)] if c.get("do_layer_norm_before") is not False else []


_GPT_ATTENTION: Final = grouped_attention(qkv_bias=True, output_bias=True)
_GPT2: Final = layer(_GPT_ATTENTION, plain(_gpt2_width, bias=True), norm_bias=True)

_STABLELM: Final = Family(
    layer(grouped_attention(qkv_bias="use_qkv_bias"), gated(), norm_bias=True),
    _SHIFTED_EVERYWHERE,
)

LAYER_NORM: Final[Mapping[str, Family]] = {
    "NemotronForCausalLM": Family(
        layer(
            grouped_attention(qkv_bias="attention_bias", output_bias="attention_bias"),
            plain(bias="mlp_bias"),
            norm_bias=True,
        ),
        _SHIFTED,
    ),
    "StableLmForCausalLM": _STABLELM,
    "OPTForCausalLM": Family(
        layer(
            grouped_attention(qkv_bias="enable_bias", output_bias="enable_bias"),
            plain("ffn_dim", bias="enable_bias"),
            norm_bias=True,
        ),
        Ends(embedding="none", head="none", norm="none"),
        {"enable_bias": True, **_TIED},
        every=lambda c, r: [*_opt_tables(c, r), *_opt_norm(c, r)],
    ),
    "GPT2LMHeadModel": Family(_GPT2, _SHIFTED_EVERYWHERE, _TIED, every=_gpt2_positions),
    "FalconForCausalLM": Family(
        layer(
            grouped_attention(heads=_falcon_heads, qkv_bias="bias", output_bias="bias"),
            plain(_falcon_width, bias="bias"),
            _falcon_norms,
            norms=0,
        ),
        _SHIFTED_EVERYWHERE,
        _TIED,
    ),
    "PhiForCausalLM": Family(
        layer(_GPT_ATTENTION, plain(bias=True), norms=1, norm_bias=True), _SHIFTED
    ),
    "GPTNeoXForCausalLM": Family(
        layer(
            grouped_attention(qkv_bias="attention_bias", output_bias="attention_bias"),
            plain(bias=True),
            norm_bias=True,
        ),
        _SHIFTED,
        {"attention_bias": True},
    ),
    "Starcoder2ForCausalLM": Family(
        layer(
            grouped_attention(qkv_bias="use_bias", output_bias="use_bias"),
            plain(bias="use_bias"),
            norm_bias=True,
        ),
        _SHIFTED,
        {"tie_word_embeddings": True, "use_bias": True},
    ),
    "BloomForCausalLM": Family(
        layer(
            grouped_attention(
                name="self_attention", qkv_bias=True, output_bias=True, output="dense"
            ),
            plain(
                lambda c: 4 * c.hidden,
                bias=True,
                lead_in="dense_h_to_4h",
                lead_out="dense_4h_to_h",
            ),
            norm_bias=True,
        ),
        _SHIFTED_EVERYWHERE,
        _TIED,
        every=lambda c, _r: [norm(c.hidden, bias=True)],
    ),
    "GPTBigCodeForCausalLM": Family(
        _bigcode_layer,
        _SHIFTED,
        {"tie_word_embeddings": True, "multi_query": True},
        inputs=_gpt2_positions,
    ),
    "GPTJForCausalLM": Family(
        layer(
            grouped_attention(name="attn", output="out_proj"),
            plain(_gpt2_width, bias=True, lead_in="fc_in", lead_out="fc_out"),
            norms=1,
            norm_bias=True,
        ),
        Ends(embedding="every", head="every", norm="every", norm_bias=True, head_bias=True),
    ),
    "Jais2ForCausalLM": Family(
        layer(
            grouped_attention(qkv_bias="attention_bias", output_bias="attention_bias"),
            plain(bias="mlp_bias"),
            norm_bias=True,
        ),
        _SHIFTED,
        {"attention_bias": True, "mlp_bias": True},
    ),
    "OrionForCausalLM": Family(
        layer(grouped_attention(), gated(), norm_bias=True), _SHIFTED_EVERYWHERE
    ),
    "PersimmonForCausalLM": Family(
        layer(_GPT_ATTENTION, _shifted_head_norms, plain(bias=True), norm_bias=True),
        _SHIFTED_EVERYWHERE,
        {"qk_layernorm": True},
    ),
    "StableLMEpochForCausalLM": _STABLELM,
}
