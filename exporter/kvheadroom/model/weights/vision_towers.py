"""Vision transformers that several models share."""

from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.parts import Part, Ranks, Tensor, norm
from kvheadroom.model.weights.tower_parts import (
    UNDIVIDED,
    attention,
    encoder_layer,
    feed_forward,
    grid,
    held_layers,
    narrow,
    patches,
    whole,
    wide,
)


def clip(v: Fields, r: Ranks, *, layers: int, last_norm: bool = False) -> list[Part]:
    """Return OpenAI's CLIP encoder, whose patches have no bias and a class token beside them."""
    width = v.hidden
    return [
        Tensor(width * (1 + grid(v) + 1)),
        patches(v, width, bias=False),
        norm(width, bias=True),
        *encoder_layer(r, width, v.whole("intermediate_size")) * layers,
        *[norm(width, bias=True)] * last_norm,
    ]


def siglip(
    v: Fields, r: Ranks, *, layers: int | None = None, last_norm: bool | None = None
) -> list[Part]:
    """Return Google's SigLIP encoder without its pooling head.

    Args:
        v: Its fields.
        r: The ranks.
        layers: That are built; ``None`` is all.
        last_norm: Whether the last norm is; ``None`` follows whether all layers are.
    """
    width, every = v.hidden, v.layers("num_hidden_layers")
    held = every if layers is None else layers
    normed = held == every if last_norm is None else last_norm
    return [
        patches(v, width),
        Tensor(grid(v) * width),
        *encoder_layer(r, width, v.whole("intermediate_size")) * held,
        *[norm(width, bias=True)] * normed,
    ]


def siglip_of_any_size(v: Fields, r: Ranks) -> list[Part]:
    """Return SigLIP 2, which scales the positions of ``num_patches`` to the image's shape."""
    width = v.hidden
    return [
        patches(v, width),
        Tensor(v.whole("num_patches") * width),
        *encoder_layer(r, width, v.whole("intermediate_size")) * v.layers("num_hidden_layers"),
        norm(width, bias=True),
    ]


def pixtral(v: Fields, r: Ranks, *, layers: int | None = None) -> list[Part]:
    """Return Mistral's encoder."""
    width = v.hidden
    held = v.layers("num_hidden_layers") if layers is None else layers
    block = encoder_layer(
        r, width, v.whole("intermediate_size"), bias=False, gated=True, norm_bias=False
    )
    return [patches(v, width, bias=False), norm(width), *block * held]


def intern(v: Fields, r: Ranks, *, layers: int, least_heads: int = 0) -> list[Part]:
    """Return OpenGVLab's InternViT.

    Args:
        v: Its fields.
        r: The ranks.
        layers: That are built.
        least_heads: Heads are padded to so many.
    """
    width, heads = v.hidden, v.heads
    padded = max(heads, least_heads)
    # Heads that the ranks do not divide are whole on each.
    attends = r if padded % r.tensor == 0 else UNDIVIDED
    inner = padded * (width // heads)
    block: list[Part] = [
        Tensor(2 * width),
        *attention(attends, width, inner=inner, bias=v.says("qkv_bias")),
        *[norm(2 * inner)] * v.says("qk_normalization"),
        *feed_forward(r, width, v.whole("intermediate_size")),
        norm(2 * width, bias=v.get("norm_type") == "layer_norm"),
    ]
    return [Tensor(width * (1 + grid(v) + 1)), patches(v, width), *block * layers]


def intern_of_transformers(v: Fields, r: Ranks) -> list[Part]:
    """Return InternViT as Transformers names its fields, with whole attention on every rank."""
    width = v.hidden
    block: list[Part] = [
        Tensor(2 * width),
        *attention(UNDIVIDED, width, bias=v.says("attention_bias")),
        *[norm(2 * width)] * v.says("use_qk_norm"),
        *feed_forward(r, width, v.whole("intermediate_size")),
        norm(2 * width, bias=v.get("norm_type") == "layer_norm"),
    ]
    tokens = Tensor(width * (1 + grid(v) + 1))
    return [tokens, patches(v, width), *block * v.layers("num_hidden_layers")]


def moon(v: Fields, r: Ranks) -> list[Part]:
    """Return Moonshot's MoonViT, trained at a fixed height and width of positions."""
    width = v.whole("hidden_size")
    positions = v.whole("init_pos_emb_height") * v.whole("init_pos_emb_width")
    block = encoder_layer(r, width, v.whole("intermediate_size"))
    return [
        patches(v, width),
        Tensor(positions * width),
        *block * v.layers("num_hidden_layers"),
        norm(width, bias=True),
    ]


def aim(v: Fields, r: Ranks, *, positions: int) -> list[Part]:
    """Return Apple's AIMv2 without its last norm."""
    width = v.hidden
    block: list[Part] = [
        *attention(r, width, bias=v.says("qkv_bias"), output_bias=v.says("use_bias")),
        *feed_forward(r, width, v.whole("intermediate_size"), bias=v.says("use_bias"), gated=True),
        norm(2 * width),
    ]
    return [
        Tensor(positions * width),
        patches(v, width),
        norm(width),
        *block * v.layers("num_hidden_layers"),
    ]


def qwen2(v: Fields, r: Ranks, *, outputs: int) -> list[Part]:
    """Return Qwen2-VL's encoder with its merger."""
    width = v.whole("embed_dim")
    block = encoder_layer(r, width, int(width * v.number("mlp_ratio", 4.0)))
    return [
        _frames(v, width),
        norm(width, bias=True),
        *block * v.layers("depth"),
        *_merger(r, _merged(v, width), outputs),
    ]


def qwen2_5(v: Fields, r: Ranks) -> list[Part]:
    """Return Qwen2.5-VL's encoder with its merger; EXAONE's has fewer key heads."""
    width = v.hidden
    heads = v.whole("num_heads")
    kv = width // heads * v.whole("num_key_value_heads", default=heads)
    block: list[Part] = [
        *attention(r, width, kv=kv),
        *feed_forward(r, width, v.whole("intermediate_size"), gated=True),
        norm(2 * width),
    ]
    return [
        _frames(v, width),
        norm(width),
        *block * v.layers("depth"),
        *_merger(r, _merged(v, width), v.whole("out_hidden_size")),
    ]


def qwen3(v: Fields, r: Ranks) -> list[Part]:
    """Return Qwen3-VL's encoder with its merger and those that feed deeper layers."""
    width = v.hidden
    merged = _merged(v, width)
    merger = _merger(r, merged, v.whole("out_hidden_size"))
    deep = len(v.per_layer("deepstack_visual_indexes"))
    return [
        *qwen3_layers(v, r),
        *merger,
        norm(width, bias=True),
        *[*merger, norm(merged, bias=True)] * deep,
    ]


def qwen3_layers(v: Fields, r: Ranks) -> list[Part]:
    """Return Qwen3-VL's encoder without what merges its patches."""
    width = v.hidden
    return [
        _frames(v, width),
        Tensor(width + v.whole("num_position_embeddings") * width),
        *encoder_layer(r, width, v.whole("intermediate_size")) * v.layers("depth"),
    ]


def glm(v: Fields, r: Ranks, *, positions: bool, inner: int, merged: int) -> list[Part]:
    """Return the encoder of GLM-4.1V and GLM-OCR.

    Args:
        v: Its fields.
        r: The ranks.
        positions: It has learned positions and a norm behind the patches; else norms of heads.
        inner: Elements inside a layer's dense part.
        merged: Elements inside the merger's.
    """
    width, out, bias = v.hidden, v.whole("out_hidden_size"), v.says("attention_bias")
    head_norms = norm(2 * (width // v.whole("num_heads")))
    block: list[Part] = [
        *attention(r, width, bias=bias, output_bias=bias),
        *feed_forward(r, width, inner, bias=bias and not positions, gated=True),
        norm(2 * width),
        *[head_norms] * (not positions),
    ]
    return [
        whole(_values(v), width),
        *[Tensor(grid(v) * width + width)] * positions,
        *block * v.layers("depth"),
        norm(width),
        whole(width * v.whole("spatial_merge_size", default=2) ** 2, out),
        wide(r, out, out, bias=False),
        norm(out, bias=True),
        *feed_forward(r, out, merged, bias=False, gated=True),
    ]


def _values(v: Fields) -> int:
    """Return the pixels of one patch over the frames it spans."""
    channels = v.whole("in_channels", "in_chans", default=3)
    return channels * v.whole("temporal_patch_size", default=2) * v.whole("patch_size") ** 2


def _frames(v: Fields, width: int) -> Tensor:
    return whole(_values(v), width, bias=False)


def _merged(v: Fields, width: int) -> int:
    return width * v.whole("spatial_merge_size", default=2) ** 2


def _merger(r: Ranks, inner: int, outputs: int) -> list[Part]:
    """Return the two matrices that merge neighboring patches."""
    return [wide(r, inner, inner), narrow(r, inner, outputs)]


def chosen_layers(v: Fields, chosen: object) -> int:
    """Return the layers of *v* that are built when only that of *chosen* is read."""
    return held_layers(v.layers("num_hidden_layers"), chosen)
