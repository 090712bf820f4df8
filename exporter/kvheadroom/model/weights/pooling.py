"""Decoders whose classes pool: without an output head, or with a head for scores."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kvheadroom.model.weights.dense import DENSE
from kvheadroom.model.weights.encoders import classifying, labels
from kvheadroom.model.weights.family import Extra, Family
from kvheadroom.model.weights.feed_forward import either
from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.hybrid import HYBRID
from kvheadroom.model.weights.latent import LATENT
from kvheadroom.model.weights.layer_norm import LAYER_NORM
from kvheadroom.model.weights.parts import FLOAT32, Part, Ranks, Tensor, share, vocabulary


def _without_head(family: Family, every: Extra | None = None) -> Family:
    return replace(family, ends=replace(family.ends, head="none"), every=every)


def _reward(scores: int) -> Extra:
    """Describe a head of two layers, both divided, with *scores* results."""

    def head(c: Fields, r: Ranks) -> list[Part]:
        own = share(c.hidden, r.tensor, "reward head")
        return [Tensor(own * (c.hidden + 1) + scores * (own + 1), FLOAT32)]

    return head


def _one_score(c: Fields, r: Ranks) -> list[Part]:
    return [Tensor(share(c.hidden, r.tensor, "reward head"), FLOAT32)]


def _projection(c: Fields, _r: Ranks) -> list[Part]:
    return [Tensor(c.whole("num_labels") * c.hidden)]


def _score_beside_head(c: Fields, r: Ranks) -> list[Part]:
    """Return one row per label, and the output head that the class keeps all the same."""
    return [
        Tensor(labels(c) * c.hidden, FLOAT32),
        vocabulary(r, c.whole("vocab_size"), c.hidden),
    ]


_QWEN2: Final = DENSE["Qwen2ForCausalLM"]
_QWEN3: Final = DENSE["Qwen3ForCausalLM"]
_LLAMA: Final = DENSE["LlamaForCausalLM"]
# Qwen 3 where it decodes; the encoders under the same name are LLaMA's layers.
_JINA_V5: Final = Family(
    either(lambda c, _index: c.says("is_decoder"), _QWEN3.block, _LLAMA.block),
    defaults={"is_decoder": True},
)

POOLING: Final[Mapping[str, Family]] = {
    "DeepseekV3BidirectionalModel": LATENT["DeepseekV3ForCausalLM"],
    "GPT2ForSequenceClassification": classifying(LAYER_NORM["GPT2LMHeadModel"]),
    "InternLM2ForRewardModel": _without_head(DENSE["InternLM2ForCausalLM"], _one_score),
    "JambaForSequenceClassification": _without_head(HYBRID["JambaForCausalLM"], _score_beside_head),
    "JinaEmbeddingsV5Model": _without_head(_JINA_V5),
    "LlamaBidirectionalForSequenceClassification": classifying(_LLAMA),
    "LlamaBidirectionalModel": _without_head(_LLAMA),
    "Qwen2ForProcessRewardModel": _without_head(_QWEN2, _reward(2)),
    "Qwen2ForRewardModel": _without_head(_QWEN2, _reward(1)),
    "VoyageQwen3BidirectionalEmbedModel": _without_head(_QWEN3, _projection),
}
