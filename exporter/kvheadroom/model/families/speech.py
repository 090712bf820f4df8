"""Encoder-decoder models: each decoder layer also caches the encoder's keys and values."""

from kvheadroom.model.fields import Config, hidden_size, whole
from kvheadroom.model.layers import AttentionLayer, Block, CrossAttentionLayer


def decoder_blocks(text: Config) -> tuple[Block, ...]:
    """Return the decoder layers of Whisper and its like.

    Raises:
        ModelConfigError: A field is missing.
    """
    heads = whole(text, "decoder_attention_heads", "num_attention_heads")
    dim = hidden_size(text) // heads
    block: Block = (AttentionLayer(heads, dim, dim), CrossAttentionLayer(heads, dim))
    return (block,) * whole(text, "decoder_layers", "num_hidden_layers", "num_layers")
