"""Classes that score or embed token by token: a known body and a small projection after it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kvheadroom.model.weights.dense import DENSE
from kvheadroom.model.weights.encoders import ENCODERS
from kvheadroom.model.weights.experts import EXPERTS
from kvheadroom.model.weights.family import Extra, Family
from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.hybrid import HYBRID
from kvheadroom.model.weights.parts import FLOAT32, Part, Ranks, Tensor, share
from kvheadroom.model.weights.tower_parts import text_width
from kvheadroom.model.weights.vision import VISION
from kvheadroom.model.weights.wrappers import Wrapper, kept

# transformers' class of the privacy filter: 8 entities with four marks each, and none.
_PRIVACY_LABELS: Final = 33
# The first of these that is given counts the elements of a token's vector.
_TOKEN_DIMENSIONS: Final = ("embed_dim", "dims", "dim", "projection_dim", "colbert_dim")
_COLQWEN3_5_DIMENSION: Final = 128


def _ending(family: Family, projection: Extra, **defaults: object) -> Family:
    """Return *family* with *projection* in place of an output head."""

    def every(c: Fields, r: Ranks) -> list[Part]:
        before = family.every(c, r) if family.every else []
        return [*before, *projection(c, r)]

    return replace(
        family,
        ends=replace(family.ends, head="none"),
        every=every,
        defaults={**family.defaults, **defaults},
    )


def _token_projection(c: Fields, _r: Ranks) -> list[Part]:
    """Return ColBERT's projection, float32 and whole on every rank."""
    return [Tensor(c.hidden * c.whole("colbert_dim", "dim", "projection_dim"), FLOAT32)]


def _jina_projector(c: Fields, _r: Ranks) -> list[Part]:
    half = c.hidden // 2
    return [Tensor(c.hidden * half + half * c.whole("embedding_size"))]


def _jina_vision_score(c: Fields, r: Ranks) -> list[Part]:
    """Return a scorer of two layers, float32 and divided."""
    width = text_width(c)
    own = share(width, r.tensor, "score")
    return [Tensor(own * (width + 1) + own + 1, FLOAT32)]


def _seen_token_projection(c: Fields, _r: Ranks) -> list[Part]:
    # Where no field says it, the projection is made of what the checkpoint holds.
    return [Tensor(c.count(*_TOKEN_DIMENSIONS) * text_width(c), FLOAT32)]


def _seen_biased_projection(c: Fields, _r: Ranks) -> list[Part]:
    elements = c.count(*_TOKEN_DIMENSIONS) or _COLQWEN3_5_DIMENSION
    return [Tensor(elements * (text_width(c) + 1), FLOAT32)]


def _pali_projection(c: Fields, _r: Ranks) -> list[Part]:
    # Where no field says it, the projection is made of what the checkpoint holds.
    width = c.whole("hidden_size", default=text_width(c))
    return [Tensor(c.count("embedding_dim", *_TOKEN_DIMENSIONS) * width, FLOAT32)]


def _scoring(seeing: Wrapper, projection: Extra) -> Wrapper:
    """Return *seeing* with *projection* beside an output head that it keeps."""
    return replace(seeing, towers=(*seeing.towers, kept(projection, None)), keeps_head=True)


def _privacy_score(c: Fields, _r: Ranks) -> list[Part]:
    labels = c.get("id2label")
    count = len(labels) if isinstance(labels, Mapping) else c.whole("num_labels")
    return [Tensor(count * (c.hidden + 1), FLOAT32)]


RETRIEVAL: Final[Mapping[str, Family]] = {
    "ColBERTLfm2Model": _ending(HYBRID["Lfm2ForCausalLM"], _token_projection),
    "ColBERTModernBertModel": _ending(ENCODERS["ModernBertModel"], _token_projection),
    "JinaForRanking": _ending(DENSE["Qwen3ForCausalLM"], _jina_projector),
    "OpenAIPrivacyFilterForTokenClassification": _ending(
        EXPERTS["GptOssForCausalLM"], _privacy_score, num_labels=_PRIVACY_LABELS
    ),
}

_COL_QWEN3: Final = _scoring(VISION["Qwen3VLForConditionalGeneration"], _seen_token_projection)

SEEING_RETRIEVAL: Final[Mapping[str, Wrapper]] = {
    "ColPaliForRetrieval": _scoring(VISION["PaliGemmaForConditionalGeneration"], _pali_projection),
    "ColQwen3": _COL_QWEN3,
    "ColQwen3_5": _scoring(VISION["Qwen3_5ForConditionalGeneration"], _seen_biased_projection),
    "JinaVLForRanking": _scoring(VISION["Qwen2VLForConditionalGeneration"], _jina_vision_score),
    "OpsColQwen3Model": _COL_QWEN3,
    "Qwen3VLNemotronEmbedModel": _COL_QWEN3,
}
