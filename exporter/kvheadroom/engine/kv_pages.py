"""Bytes of one KV block of a plain full-attention model."""

from kvheadroom.model.attention import ELEMENT_BYTES, FullAttention


def kv_element_bytes(shape: FullAttention, kv_cache_dtype: str) -> int | None:
    """Return the bytes of one cached element under *kv_cache_dtype*.

    Args:
        shape: The model, whose own dtype ``auto`` stands for.
        kv_cache_dtype: vLLM's ``cache_dtype``: ``auto``, ``fp8``, ``bfloat16`` …

    Returns:
        Bytes, or ``None`` when it cannot be known here: an unlisted dtype, or ``auto`` on a
        checkpoint that prescribes its own cache dtype (the workers then use that one).
    """
    if kv_cache_dtype != "auto":
        return ELEMENT_BYTES.get(kv_cache_dtype)
    if shape.quantized_kv or shape.dtype is None:
        return None
    # vLLM serves a float32 checkpoint of a decoder in bfloat16 or float16: two bytes either way.
    return min(2, ELEMENT_BYTES[shape.dtype]) if shape.dtype in ELEMENT_BYTES else None


def bytes_per_block(
    shape: FullAttention, *, block_tokens: int, element_bytes: int, tensor_parallel: int = 1
) -> int:
    """Return the bytes one block id costs over **all** ranks of an engine.

    Ranks share the heads; once there are more ranks than heads, each keeps a copy of one.

    Args:
        shape: The model.
        block_tokens: Tokens a block holds.
        element_bytes: Bytes of one cached element.
        tensor_parallel: Ranks the heads are divided over.

    Returns:
        Bytes: 2 (one key, one value) x layers x heads kept x head_dim x element x tokens.

    Source:
        Kwon et al., SOSP 2023 (arXiv 2309.06180), section 3; head replication as vLLM divides.
    """
    heads_kept = tensor_parallel * max(1, shape.kv_heads // tensor_parallel)
    return 2 * shape.layers * heads_kept * shape.head_dim * element_bytes * block_tokens
