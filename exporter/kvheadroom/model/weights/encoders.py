"""Models that see all tokens at once, and the one that decodes beside such an encoder."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kvheadroom.model.weights.attention import grouped_attention
from kvheadroom.model.weights.family import Ends, Family
from kvheadroom.model.weights.feed_forward import layer, plain
from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.parts import (
    FLOAT32,
    Part,
    Ranks,
    Tensor,
    column,
    norm,
    row,
    vocabulary,
)

NO_ENDS: Final = Ends(embedding="none", head="none", norm="none")


def _bert_embeddings(c: Fields, r: Ranks) -> list[Part]:
    """Return the embeddings of tokens and kinds of text, and of positions unless they rotate."""
    rotates = c.get("position_embedding_type") == "rotary"
    return [
        vocabulary(r, c.whole("vocab_size"), c.hidden),
        *([] if rotates else [vocabulary(r, c.whole("max_position_embeddings"), c.hidden)]),
        vocabulary(r, c.whole("type_vocab_size"), c.hidden),
        norm(c.hidden, bias=True),
    ]


def labels(c: Fields) -> int:
    """Return how many labels a classifier tells apart."""
    labels = c.get("id2label")
    named = len(labels) if isinstance(labels, Mapping) else 0
    return named or c.whole("num_labels", default=2)


def _classified(c: Fields, r: Ranks) -> list[Part]:
    """Return the embeddings and a classifier of two layers, float32 and whole on every rank."""
    head = (c.hidden + labels(c)) * (c.hidden + 1)
    return [*_bert_embeddings(c, r), Tensor(head, FLOAT32)]


def _tokens_classified(c: Fields, r: Ranks) -> list[Part]:
    return [*_bert_embeddings(c, r), Tensor(labels(c) * (c.hidden + 1), FLOAT32)]


def _words_predicted(c: Fields, r: Ranks) -> list[Part]:
    """Return the embeddings and a head over the vocabulary, whole on every rank."""
    dense, decoder = c.hidden * (c.hidden + 1), c.whole("vocab_size") * (c.hidden + 1)
    return [*_bert_embeddings(c, r), Tensor(dense + decoder), norm(c.hidden, bias=True)]


def _bge_m3(c: Fields, r: Ranks) -> list[Part]:
    """Return the embeddings and the heads for sparse and for per-token vectors."""
    return [*_bert_embeddings(c, r), Tensor((c.hidden + 1) * (c.hidden + 1), FLOAT32)]


def classifying(family: Family) -> Family:
    """Return a decoder with one row per label in place of its output head."""

    def score(c: Fields, r: Ranks) -> list[Part]:
        before = family.every(c, r) if family.every else []
        return [*before, Tensor(labels(c) * c.hidden, FLOAT32)]

    return replace(family, ends=replace(family.ends, head="none"), every=score)


_BERT: Final = layer(
    grouped_attention(qkv_bias=True, output_bias=True), plain(bias=True), norm_bias=True
)


def _modernbert_embeddings(c: Fields, r: Ranks) -> list[Part]:
    bias = c.says("norm_bias")
    return [vocabulary(r, c.whole("vocab_size"), c.hidden), norm(2 * c.hidden, bias=bias)]


def _modernbert_classified(c: Fields, r: Ranks) -> list[Part]:
    bias = c.says("classifier_bias")
    dense = c.hidden * (c.hidden + bias) + c.hidden * (2 if c.says("norm_bias") else 1)
    head = labels(c) * (c.hidden + 1)
    return [*_modernbert_embeddings(c, r), Tensor(dense + head, FLOAT32)]


def _modernbert_tokens_classified(c: Fields, r: Ranks) -> list[Part]:
    dense = c.hidden * (c.hidden + c.says("classifier_bias"))
    return [
        *_modernbert_embeddings(c, r),
        Tensor(dense),
        norm(c.hidden, bias=c.says("norm_bias")),
        Tensor(labels(c) * (c.hidden + 1), FLOAT32),
    ]


def _modernbert_layer(c: Fields, r: Ranks, index: int) -> list[Part]:
    """Return a layer whose attention is normed but for the first one's."""
    inner, bias = c.whole("intermediate_size"), c.says("mlp_bias")
    return [
        *grouped_attention(qkv_bias="attention_bias", output_bias="attention_bias")(c, r, index),
        column(r, "mlp.Wi", c.hidden, 2 * inner, bias=bias),
        row(r, "mlp.Wo", inner, c.hidden, bias=bias),
        *[norm(c.hidden, bias=c.says("norm_bias"))] * (1 if index == 0 else 2),
    ]


def _whisper_attention(r: Ranks, width: int) -> list[Part]:
    # Keys have no bias in the checkpoint; fused with queries and values they are given one.
    return [
        column(r, "self_attn.qkv_proj", width, width, width, width, bias=True),
        row(r, "self_attn.out_proj", width, width, bias=True),
        norm(width, bias=True),
    ]


def _whisper_feed_forward(r: Ranks, width: int, inner: int) -> list[Part]:
    return [
        column(r, "mlp.fc1", width, inner, bias=True),
        row(r, "mlp.fc2", inner, width, bias=True),
        norm(width, bias=True),
    ]


def _whisper_decoder(c: Fields, r: Ranks, _index: int) -> list[Part]:
    width = c.hidden
    return [
        *_whisper_attention(r, width) * 2,
        *_whisper_feed_forward(r, width, c.whole("decoder_ffn_dim")),
    ]


def _whisper_encoder(c: Fields, r: Ranks, _index: int) -> list[Part]:
    return [
        *_whisper_attention(r, c.hidden),
        *_whisper_feed_forward(r, c.hidden, c.whole("encoder_ffn_dim")),
    ]


def _whisper_tables(c: Fields, _r: Ranks) -> list[Part]:
    """Return the convolutions and embeddings, which no rank divides."""
    width, kernel = c.hidden, 3
    convolutions = width * (c.whole("num_mel_bins") * kernel + 1) + width * (width * kernel + 1)
    positions = c.whole("max_source_positions") + c.whole("max_target_positions")
    return [
        Tensor(convolutions + (positions + c.whole("vocab_size")) * width),
        norm(2 * width, bias=True),
    ]


_ROBERTA: Final = Family(_BERT, NO_ENDS, every=_bert_embeddings, staged=False)
_CLASSIFIER: Final = Family(_BERT, NO_ENDS, every=_classified, staged=False)
_TOKEN_CLASSIFIER: Final = Family(_BERT, NO_ENDS, every=_tokens_classified, staged=False)
_WORD_PREDICTOR: Final = Family(_BERT, NO_ENDS, every=_words_predicted, staged=False)

ENCODERS: Final[Mapping[str, Family]] = {
    "BertModel": Family(_BERT, NO_ENDS, every=_bert_embeddings, staged=False),
    "BertForMaskedLM": _WORD_PREDICTOR,
    "BertSpladeSparseEmbeddingModel": _WORD_PREDICTOR,
    "BertForTokenClassification": _TOKEN_CLASSIFIER,
    "RobertaForTokenClassification": _TOKEN_CLASSIFIER,
    "XLMRobertaForTokenClassification": _TOKEN_CLASSIFIER,
    "BgeM3EmbeddingModel": Family(_BERT, NO_ENDS, every=_bge_m3, staged=False),
    "RobertaForMaskedLM": _ROBERTA,
    "RobertaModel": _ROBERTA,
    "XLMRobertaModel": _ROBERTA,
    "RobertaForSequenceClassification": _CLASSIFIER,
    "XLMRobertaForSequenceClassification": _CLASSIFIER,
    "BertForSequenceClassification": _CLASSIFIER,
    "ModernBertModel": Family(
        _modernbert_layer, NO_ENDS, every=_modernbert_embeddings, staged=False
    ),
    "ModernBertForSequenceClassification": Family(
        _modernbert_layer, NO_ENDS, every=_modernbert_classified, staged=False
    ),
    "ModernBertForTokenClassification": Family(
        _modernbert_layer, NO_ENDS, every=_modernbert_tokens_classified, staged=False
    ),
    "WhisperForConditionalGeneration": Family(
        _whisper_decoder,
        NO_ENDS,
        {"num_attention_heads": 1},
        every=_whisper_tables,
        encoder=_whisper_encoder,
        layers=("decoder_layers",),
    ),
}
