"""Decoders whose every layer is attention over grouped heads and one dense layer."""

from collections.abc import Callable, Mapping
from typing import Final

from kvheadroom.model.weights.attention import Heads, grouped_attention, usual_heads
from kvheadroom.model.weights.family import EVERY_STAGE, Ends, Family
from kvheadroom.model.weights.feed_forward import gated, layer, plain
from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.parts import Part, Ranks, Tensor, column, norm, row

_TIED: Final = {"tie_word_embeddings": True}
_HEADS_OF_128: Final = {"head_dim": 128}


def llama_attention(
    c: Fields, r: Ranks, index: int, *, heads: Callable[[Fields, int], Heads] = usual_heads
) -> list[Part]:
    """Return attention whose biases the fields of LLaMA's many relatives ask for."""
    output = bool(c.get("attention_bias") or c.get("bias"))
    own = c.get("qkv_bias")
    return grouped_attention(
        heads=heads, qkv_bias=output if own is None else bool(own), output_bias=output
    )(c, r, index)


_LLAMA: Final = Family(layer(llama_attention, gated(bias="mlp_bias")))
_PLAIN_LLAMA: Final = Family(layer(grouped_attention(), gated()))


def _chatglm_heads(c: Fields, _layer: int) -> Heads:
    kv = c.whole("multi_query_group_num") if c.get("multi_query_attention") else c.heads
    dim = c.whole("kv_channels", default=c.hidden // c.heads)
    return Heads(c.heads, kv, dim, dim)


def _chatglm_attention(c: Fields, r: Ranks, index: int) -> list[Part]:
    bias = bool(c.get("add_bias_linear"))
    return grouped_attention(
        heads=_chatglm_heads, qkv_bias=bias or bool(c.get("add_qkv_bias")), output_bias=bias
    )(c, r, index)


def _telechat2_biases(c: Fields, _r: Ranks, _layer: int) -> list[Part]:
    """Return the biases of the two projections that lead back into the residual."""
    return [Tensor(2 * c.hidden)]


def _telechat2_width(c: Fields) -> int:
    return c.whole("ffn_hidden_size", "intermediate_size")


def _step1_heads(c: Fields, _layer: int) -> Heads:
    kv = c.count("num_attention_groups", "num_key_value_heads")
    dim = c.hidden // c.heads
    return Heads(c.heads, kv or 1, dim, dim)


def _outer_norms(c: Fields, _r: Ranks, _layer: int) -> list[Part]:
    return [norm(2 * c.hidden)] if c.says("use_post_norm") else []


def _hrm_layers(c: Fields, r: Ranks, index: int) -> list[Part]:
    """Return a layer of the slow stack and one of the fast stack, without scales in their norms."""
    width = c.heads * c.head_dim
    bias = c.says("attention_bias")
    one = [
        column(r, "self_attn.gqkv_proj", c.hidden, width, width, width, width, bias=bias),
        row(r, "self_attn.o_proj", width, c.hidden, bias=bias),
        *gated(bias="mlp_bias")(c, r, index),
    ]
    return one * 2


def has_sinks(c: Fields, _layer: int) -> bool:
    """Return whether a Granite model's heads attend to learned sinks."""
    stated = c.get("attention_sinks")
    if stated is None:
        return "SWA" in c.architecture or bool(c.get("layer_types"))
    return bool(stated)


def _qwen_width(c: Fields) -> int:
    # The file states both halves of the gated layer together.
    return c.whole("intermediate_size") // 2


def _apertus_activation(_c: Fields, _r: Ranks, _layer: int) -> list[Part]:
    return [Tensor(2)]


_GLM: Final = grouped_attention(qkv_bias="attention_bias")
_QWEN3: Final = layer(
    grouped_attention(qkv_bias="attention_bias", output_bias="attention_bias", head_norms="head"),
    gated(),
)
_GRANITE: Final = layer(
    grouped_attention(qkv_bias="attention_bias", output_bias="attention_bias", sinks=has_sinks),
    gated(bias="mlp_bias"),
)
_SMOLLM3: Final = layer(
    grouped_attention(qkv_bias="attention_bias", output_bias="attention_bias"),
    gated(bias="mlp_bias"),
)
_CHATGLM: Final = Family(
    layer(_chatglm_attention, gated("ffn_hidden_size", bias="add_bias_linear")), EVERY_STAGE
)
_QWEN2: Final = Family(layer(grouped_attention(qkv_bias=True), gated()))
_OLMO2: Final = Family(
    layer(
        grouped_attention(
            qkv_bias="attention_bias", output_bias="attention_bias", head_norms="width"
        ),
        gated(),
    )
)
_COHERE: Final = Family(
    layer(
        grouped_attention(
            qkv_bias="attention_bias",
            output_bias="attention_bias",
            head_norms="every_head",
            normed="use_qk_norm",
        ),
        gated(),
        norms=1,
    ),
    Ends(embedding="every", norm="every", always_tied=True),
)

DENSE: Final[Mapping[str, Family]] = {
    "LlamaForCausalLM": _LLAMA,
    "LLaMAForCausalLM": _LLAMA,
    "LlamaModel": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "MistralModel": _LLAMA,
    "AquilaForCausalLM": _LLAMA,
    "AquilaModel": _LLAMA,
    "InternLMForCausalLM": _LLAMA,
    "InternLM3ForCausalLM": _LLAMA,
    "YiForCausalLM": _LLAMA,
    "Phi3ForCausalLM": _PLAIN_LLAMA,
    "InternLM2ForCausalLM": Family(
        layer(grouped_attention(qkv_bias="bias", output_bias="bias"), gated()), EVERY_STAGE
    ),
    "Qwen2ForCausalLM": _QWEN2,
    "Qwen2Model": _QWEN2,
    "Qwen3ForCausalLM": Family(_QWEN3),
    "Qwen3Model": Family(_QWEN3),
    "GraniteForCausalLM": Family(_GRANITE),
    "GraniteSWAForCausalLM": Family(_GRANITE, defaults=_TIED),
    "SmolLM3ForCausalLM": Family(_SMOLLM3, defaults=_TIED),
    "Ernie4_5ForCausalLM": Family(
        layer(
            grouped_attention(qkv_bias="use_bias", output_bias="use_bias"), gated(bias="use_bias")
        ),
        defaults=_TIED,
    ),
    "SeedOssForCausalLM": Family(
        layer(
            grouped_attention(qkv_bias="attention_bias", output_bias="attention_out_bias"),
            gated(bias="mlp_bias"),
        ),
        defaults={"attention_bias": True},
    ),
    "HunYuanDenseV1ForCausalLM": Family(_QWEN3),
    "Exaone4ForCausalLM": Family(layer(grouped_attention(head_norms="head"), gated())),
    "GlmForCausalLM": Family(layer(_GLM, gated())),
    "Glm4ForCausalLM": Family(layer(_GLM, gated(), norms=4)),
    "Olmo2ForCausalLM": _OLMO2,
    "Olmo3ForCausalLM": _OLMO2,
    "CohereForCausalLM": _COHERE,
    "Cohere2ForCausalLM": _COHERE,
    "ApertusForCausalLM": Family(
        layer(
            grouped_attention(
                qkv_bias="attention_bias", output_bias="attention_bias", head_norms="head"
            ),
            plain(bias="mlp_bias"),
            _apertus_activation,
        )
    ),
    "ArceeForCausalLM": Family(
        layer(
            grouped_attention(qkv_bias="attention_bias", output_bias="attention_bias"),
            plain(bias="mlp_bias"),
        )
    ),
    "ExaoneForCausalLM": _PLAIN_LLAMA,
    "OlmoForCausalLM": Family(
        layer(
            grouped_attention(qkv_bias="attention_bias", output_bias="attention_bias"),
            gated(),
            norms=0,
        ),
        Ends(norm="none"),
    ),
    "MiniCPMForCausalLM": Family(layer(grouped_attention(), gated()), EVERY_STAGE, _TIED),
    "MiMoForCausalLM": Family(_QWEN2.block),
    "SolarForCausalLM": _LLAMA,
    "ChatGLMModel": _CHATGLM,
    "ChatGLMForConditionalGeneration": _CHATGLM,
    "BaiChuanForCausalLM": _PLAIN_LLAMA,
    "BaichuanForCausalLM": _PLAIN_LLAMA,
    "CwmForCausalLM": Family(_PLAIN_LLAMA.block, defaults=_HEADS_OF_128),
    "HrmTextForCausalLM": Family(
        _hrm_layers,
        Ends(norm="none"),
        _HEADS_OF_128,
        every=lambda c, _r: [Tensor(c.hidden)],
        staged=False,
        layers=("num_layers_per_stack", "num_hidden_layers"),
    ),
    "HyperCLOVAXForCausalLM": Family(
        layer(
            grouped_attention(qkv_bias="attention_bias", output_bias="attention_bias"),
            gated(bias="mlp_bias"),
            _outer_norms,
        ),
        defaults={"use_post_norm": True},
    ),
    "IQuestCoderForCausalLM": _LLAMA,
    "Ministral3ForCausalLM": Family(_LLAMA.block, defaults=_HEADS_OF_128),
    "NanbeigeForCausalLM": _LLAMA,
    "PanguEmbeddedForCausalLM": _LLAMA,
    "QWenLMHeadModel": Family(
        layer(grouped_attention(name="attn", qkv_bias=True), gated(_qwen_width)), EVERY_STAGE
    ),
    "Step1ForCausalLM": Family(
        layer(
            grouped_attention(
                heads=_step1_heads, qkv_bias="attention_bias", output_bias="attention_bias"
            ),
            gated(bias="mlp_bias"),
        )
    ),
    "TeleChat2ForCausalLM": Family(
        layer(grouped_attention(), gated(_telechat2_width), _telechat2_biases)
    ),
    "TeleChat3ForCausalLM": _LLAMA,
    "TeleFLMForCausalLM": _LLAMA,
    "XverseForCausalLM": _LLAMA,
}
