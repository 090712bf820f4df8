"""Decoders whose every layer is attention over grouped heads and one dense layer."""

from collections.abc import Mapping
from typing import Final

from kvheadroom.model.weights.attention import Heads, grouped_attention
from kvheadroom.model.weights.family import EVERY_STAGE, Ends, Family
from kvheadroom.model.weights.feed_forward import gated, layer, plain
from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.parts import Part, Ranks, Tensor

_TIED: Final = {"tie_word_embeddings": True}


def _llama_attention(c: Fields, r: Ranks, index: int) -> list[Part]:
    output = bool(c.get("attention_bias") or c.get("bias"))
    own = c.get("qkv_bias")
    return grouped_attention(qkv_bias=output if own is None else bool(own), output_bias=output)(
        c, r, index
    )


_LLAMA: Final = Family(layer(_llama_attention, gated(bias="mlp_bias")))
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


def _apertus_activation(_c: Fields, _r: Ranks, _layer: int) -> list[Part]:
    return [Tensor(2)]


_GLM: Final = grouped_attention(qkv_bias="attention_bias")
_QWEN3: Final = layer(
    grouped_attention(qkv_bias="attention_bias", output_bias="attention_bias", head_norms="head"),
    gated(),
)
_GRANITE: Final = layer(
    grouped_attention(qkv_bias="attention_bias", output_bias="attention_bias"),
    gated(bias="mlp_bias"),
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
    "Ministral3ForCausalLM": _LLAMA,
    "AquilaForCausalLM": _LLAMA,
    "AquilaModel": _LLAMA,
    "InternLMForCausalLM": _LLAMA,
    "InternLM3ForCausalLM": _LLAMA,
    "YiForCausalLM": _LLAMA,
    "Phi3ForCausalLM": _PLAIN_LLAMA,
    "InternLM2ForCausalLM": Family(
        layer(grouped_attention(qkv_bias="bias", output_bias="bias"), gated())
    ),
    "Qwen2ForCausalLM": _QWEN2,
    "Qwen2Model": _QWEN2,
    "Qwen3ForCausalLM": Family(_QWEN3),
    "Qwen3Model": Family(_QWEN3),
    "GraniteForCausalLM": Family(_GRANITE),
    "SmolLM3ForCausalLM": Family(_GRANITE, defaults=_TIED),
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
    "ChatGLMModel": Family(
        layer(_chatglm_attention, gated("ffn_hidden_size", bias="add_bias_linear")),
        EVERY_STAGE,
    ),
}
