"""Encoders and decoders that no other class shares."""

from collections.abc import Callable, Mapping
from typing import Final

from kvheadroom.errors import ModelConfigError
from kvheadroom.model.weights import audio_towers
from kvheadroom.model.weights import vision_towers as towers
from kvheadroom.model.weights.attention import grouped_attention
from kvheadroom.model.weights.family import Ends, Family
from kvheadroom.model.weights.feed_forward import either, gated, layer, routed
from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.parts import FLOAT32, Part, Ranks, Tensor, norm
from kvheadroom.model.weights.tower_parts import (
    UNDIVIDED,
    attention,
    encoder_layer,
    feed_forward,
    grid,
    linears,
    narrow,
    patches,
    seen,
    text_width,
    whole,
    wide,
)
from kvheadroom.model.weights.wrappers import Tower, Wrapper, by_request, kept, watching


def _ernie_experts(c: Fields, r: Ranks, index: int) -> list[Part]:
    """Return experts for text and for images, beside shared ones as wide as the text's."""
    counts = c.whole_at("moe_num_experts", 0), c.whole_at("moe_num_experts", 1)
    widths = c.whole_at("moe_intermediate_size", 0), c.whole_at("moe_intermediate_size", 1)
    shared = widths[0] * c.count("moe_num_shared_experts")
    parts = gated(lambda _c: shared, name="mlp.shared_experts")(c, r, index) if shared else []
    for kind, name in enumerate(("text_experts", "vision_experts")):
        parts += routed(
            _constant(counts[kind]),
            _constant(widths[kind]),
            name=f"mlp.{name}",
            router_bytes=FLOAT32,
        )(c, r, index)
    return [*parts, Tensor(2 * counts[0], FLOAT32)]


def _constant(value: int) -> Callable[[Fields], int]:
    return lambda _c: value


def _ernie_is_routed(c: Fields, index: int) -> bool:
    """Return whether a layer has experts.

    Raises:
        ModelConfigError: It would have them for one of text and images only.
    """
    last = c.layers("num_hidden_layers") - 1
    starts = [c.at("moe_layer_start_index", kind) for kind in range(2)]
    ends = [last, last]
    if c.get("moe_layer_end_index"):
        ends = [c.at("moe_layer_end_index", kind) for kind in range(2)]
    ranges = set()
    if all(isinstance(bound, int) for bound in (*starts, *ends)):
        ranges = {(starts[kind], min(ends[kind], last)) for kind in range(2)}
    if len(ranges) != 1:
        raise ModelConfigError(
            f"{c.architecture}: moe_layer_start_index and moe_layer_end_index must name the same "
            "layers for text and images"
        )
    ((first, end),) = ranges
    return bool(
        first <= index <= end and (index + 1) % c.whole("moe_layer_interval", default=1) == 0
    )


_ERNIE: Final = Family(
    layer(
        grouped_attention(qkv_bias="use_bias", output_bias="use_bias"),
        either(_ernie_is_routed, _ernie_experts, gated(bias="use_bias")),
    ),
    Ends(embedding="first"),
    {"tie_word_embeddings": True},
)


def _ernie_sees(c: Fields, r: Ranks) -> list[Part]:
    """Return Ernie's encoder and the resampler that merges over space and time."""
    v = seen(c)
    width = v.whole("embed_dim", "hidden_size")
    merged = c.whole("pixel_hidden_size", default=width) * c.whole("spatial_conv_size") ** 2
    frames = c.whole("temporal_conv_size")
    block = encoder_layer(r, width, int(width * v.number("mlp_ratio", 4.0)))
    temporal: list[Part] = []
    if c.get("use_temporal_conv") is not False:
        temporal = [wide(r, merged * frames, merged), wide(r, merged, merged)]
        temporal.append(norm(merged, bias=True))
    return [
        patches(v, width, bias=False),
        *block * v.layers("depth"),
        norm(width, bias=True),
        wide(r, merged, merged),
        wide(r, merged, merged),
        norm(merged, bias=True),
        *temporal,
        wide(r, merged, text_width(c)),
        norm(text_width(c)),
    ]


def _aria_sees(c: Fields, r: Ranks) -> list[Part]:
    """Return SigLIP without its last norm, and the queries that attend to it."""
    v, text = seen(c), text_width(c)
    width = v.hidden
    table = c.get("projector_patch_to_query_dict")
    queries = c.part("projector_patch_to_query_dict") if table else None
    most = max(queries.whole(name) for name in queries.values) if queries else 256
    return [
        *towers.siglip(v, r, last_norm=False),
        Tensor(most * width),
        whole(width, 3 * width, bias=False),
        whole(width, 5 * width),
        norm(3 * width, bias=True),
        wide(r, width, text, bias=False),
        narrow(r, text, text, bias=False),
    ]


def _aria_shared(c: Fields) -> int:
    return c.whole("intermediate_size") * c.whole("moe_num_shared_experts", default=2)


_ARIA: Final = Family(
    layer(
        grouped_attention(qkv_bias="attention_bias", output_bias="attention_bias"),
        routed(
            "moe_num_experts",
            "intermediate_size",
            shared=gated(_aria_shared, name="mlp.shared_experts"),
        ),
    ),
    Ends(never_tied=True),
)


def _blip2(c: Fields, r: Ranks) -> list[Part]:
    v, q = seen(c), c.part("qformer_config")
    width = v.hidden
    block = encoder_layer(r, width, v.whole("intermediate_size"))
    return [
        Tensor(width * (1 + grid(v) + 1)),
        patches(v, width),
        *block * v.layers("num_hidden_layers"),
        norm(width, bias=True),
        *audio_towers.qformer(q, seen=q.whole("encoder_hidden_size")),
        whole(q.hidden, text_width(c)),
    ]


def _blip2_queries(c: Fields, _r: Ranks) -> list[Part]:
    return [Tensor(c.whole("num_query_tokens", default=32) * c.part("qformer_config").hidden)]


def _ovis2(c: Fields, r: Ranks) -> list[Part]:
    """Return AIMv2 as a tokenizer: its output is a mix of the rows of a table."""
    t = c.part("visual_tokenizer_config")
    v = t.part("backbone_config")
    rows, indicators = t.whole("vocab_size"), 5
    stride = t.whole("hidden_stride", default=1)
    return [
        *towers.aim(v, r, positions=grid(v)),
        whole(v.hidden * stride * stride, rows - indicators, bias=False),
        norm(rows - indicators, bias=True),
        Tensor(rows * text_width(c)),
    ]


def _ovis2_5(c: Fields, r: Ranks) -> list[Part]:
    """Return SigLIP 2 as a tokenizer."""
    v = c.part("vit_config")
    rows, indicators = c.whole("visual_vocab_size"), 4
    merged = v.hidden * v.whole("hidden_stride", default=1) ** 2
    given = v.get("num_patches")
    scaled = isinstance(given, int) and given > 0
    table = Tensor((v.whole("num_patches") if scaled else grid(v)) * v.hidden)
    return [
        patches(v, v.hidden),
        *[table] * v.says("preserve_original_pe"),
        *encoder_layer(r, v.hidden, v.whole("intermediate_size")) * v.layers("num_hidden_layers"),
        norm(v.hidden, bias=True),
        whole(merged, rows - indicators, bias=False),
        norm(rows - indicators, bias=True),
        Tensor(rows * text_width(c)),
    ]


_OVIS2_5: Final = Wrapper((Tower(_ovis2_5, frozenset({"image", "video"}), "vit_config"),))
# Width, layers and heads.
_RADIO_SHAPES: Final = {
    "vit_base_patch16_224": (768, 12, 12),
    "vit_large_patch16_224": (1024, 24, 16),
    "vit_huge_patch16_224": (1280, 32, 16),
}


def _nemotron(c: Fields, r: Ranks) -> list[Part]:
    """Return RADIO, with one class token per teacher and as many registers as round them up."""
    v = seen(c)
    args = v.part("args")
    shape = _RADIO_SHAPES.get(str(args.get("model")))
    if shape is None:
        raise ModelConfigError(f"{c.architecture}: the encoder of images is not known")
    width, layers, heads = shape
    teachers = {str(t.get("name")) for t in args.per_layer("teachers") if isinstance(t, Mapping)}
    classes = len(teachers) if args.says("cls_token_per_teacher") else 1
    multiple = args.count("register_multiple")
    registers = multiple - classes % multiple if multiple else 0
    patch, text = v.whole("patch_size", default=16), c.part("text_config")
    frames = v.whole("video_temporal_patch_size", default=1)
    rows = (args.whole("cpe_max_size", default=2048) // patch) ** 2
    attends = r if heads % r.tensor == 0 else UNDIVIDED
    block: list[Part] = [
        Tensor(2 * width),
        *attention(attends, width),
        *feed_forward(r, width, 4 * width),
        norm(2 * width, bias=True),
    ]
    merged = width * round(1 / c.number("downsample_ratio", 0.5)) ** 2
    return [
        Tensor((rows + classes + registers) * width),
        whole(3 * patch * patch, width, bias=False),
        *[whole(3 * frames * patch * patch, width, bias=False)] * (frames > 1),
        *block * layers,
        *[norm(width, bias=True)] * bool(text.count("num_nextn_predict_layers")),
        norm(merged),
        *linears(merged, c.whole("projector_hidden_size"), text.hidden, bias=False),
    ]


def _perceives(c: Fields, r: Ranks) -> list[Part]:
    """Return Meta's Perception Encoder, two convolutions behind it and the projector."""
    v = seen(c)
    width, inner = v.whole("width"), int(v.whole("width") * v.number("mlp_ratio", 8960 / 1536))
    token = v.get("use_cls_token") is not False
    scales = [norm(2 * width)] if v.get("ls_init_value") is not None else []
    block = [*encoder_layer(r, width, inner), *scales]
    ends = v.says("use_ln_pre") + v.says("use_ln_post")
    positions = grid(v) + token if v.get("use_abs_posemb") is not False else 0
    return [
        Tensor((positions + token) * width),
        patches(v, width, bias=False),
        *[norm(width, bias=True)] * ends,
        *block * v.layers("layers"),
        whole(width * 9, 2 * width),
        whole(2 * width * 9, 4 * width),
        wide(r, 4 * width, text_width(c), bias=c.says("projector_bias")),
    ]


def _glm4v(c: Fields, r: Ranks) -> list[Part]:
    """Return EVA-CLIP as GLM-4V has it, and what merges its patches into the text's width."""
    v, text = seen(c), c.part("text_config")
    width, out, inner = v.hidden, text.hidden, text.whole("ffn_hidden_size")
    block = encoder_layer(r, width, v.whole("intermediate_size"))
    return [
        Tensor(2 * out),
        Tensor((1 + v.whole("num_positions")) * width),
        patches(v, width),
        *block * v.layers("num_hidden_layers"),
        whole(width * 2 * 2, out),
        whole(out, out, bias=False),
        norm(out, bias=True),
        *feed_forward(r, out, inner, bias=False, gated=True),
    ]


def _isaac(c: Fields, r: Ranks) -> list[Part]:
    return towers.siglip_of_any_size(seen(c), r)


def _isaac_projector(c: Fields, r: Ranks) -> list[Part]:
    v, text = seen(c), text_width(c)
    merged = v.hidden * v.whole("pixel_shuffle_scale_factor", default=1) ** 2
    return [
        wide(r, merged, 4 * merged, bias=False),
        narrow(r, 4 * merged, text, bias=False),
    ]


_SPATIAL_PROJECTORS: Final = 4


def _granite4(c: Fields, r: Ranks) -> list[Part]:
    """Return SigLIP, and a small transformer for each of its outputs that is read.

    Raises:
        ModelConfigError: ``downsample_rate`` is no pair such as ``4/8``.
    """
    v, text = seen(c), text_width(c)
    sides = [int(side) for side in str(c.get("downsample_rate")).split("/") if side.isdecimal()]
    if len(sides) != 2:  # noqa: PLR2004 - queries and window
        raise ModelConfigError(f"{c.architecture}: downsample_rate must be two numbers, as 4/8")
    q = Fields(c.architecture, {"hidden_size": v.hidden, **_GRANITE_QFORMER}, {})
    projector = [
        Tensor((sides[0] ** 2 + sides[1] ** 2) * v.hidden),
        *audio_towers.qformer(q, seen=v.hidden),
        norm(v.hidden, bias=True),
        whole(v.hidden, text),
    ]
    read = len(c.per_layer("deepstack_layer_map")) + _SPATIAL_PROJECTORS
    return [*towers.siglip(v, r, last_norm=False), Tensor(text), *projector * read]


_GRANITE_QFORMER: Final = {
    "intermediate_size": 3072,
    "num_hidden_layers": 1,
    "cross_attention_frequency": 1,
}
_QFORMER_DEFAULTS: Final = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "intermediate_size": 3072,
    "cross_attention_frequency": 2,
    "encoder_hidden_size": 1408,
}
_NEMOTRON_HEARS_NOTHING: Final = "sound_config"


def _nemotron_without_sound(c: Fields, r: Ranks) -> list[Part]:
    """Return what a model for images has.

    Raises:
        ModelConfigError: It has an encoder of sound, which is not known.
    """
    if c.get(_NEMOTRON_HEARS_NOTHING):
        raise ModelConfigError(f"{c.architecture}: the encoder of sound_config is not known")
    return _nemotron(c, r)


_NEMOTRON: Final = Wrapper(
    (Tower(_nemotron_without_sound, frozenset({"image", "video", "audio"})),)
)


OWN_TOWERS: Final[Mapping[str, Wrapper]] = {
    "AriaForConditionalGeneration": Wrapper((Tower(_aria_sees),), family=_ARIA, tied=False),
    "Blip2ForConditionalGeneration": Wrapper(
        (Tower(_blip2), kept(_blip2_queries)),
        defaults={
            "qformer_config": _QFORMER_DEFAULTS,
            "vision_config": {
                "hidden_size": 1408,
                "intermediate_size": 6144,
                "num_hidden_layers": 39,
                "image_size": 224,
                "patch_size": 14,
            },
        },
    ),
    "Ernie4_5_VLMoeForConditionalGeneration": Wrapper(
        (watching(_ernie_sees),), family=_ERNIE, tied=True
    ),
    "GLM4VForCausalLM": Wrapper((Tower(_glm4v),), "ChatGLMModel"),
    "Granite4VisionForConditionalGeneration": Wrapper((Tower(_granite4),), tied=False),
    "IsaacForConditionalGeneration": Wrapper(
        (by_request(Tower(_isaac)), Tower(_isaac_projector)), "Qwen3ForCausalLM"
    ),
    "NemotronH_Nano_VL_V2": _NEMOTRON,
    "NemotronH_Nano_Omni_Reasoning_V3": _NEMOTRON,
    "NemotronH_Omni_Reasoning_V3": _NEMOTRON,
    "NemotronH_Super_Omni_Reasoning_V3": _NEMOTRON,
    "StepVLForConditionalGeneration": Wrapper((by_request(Tower(_perceives)),)),
    "Ovis2_5": _OVIS2_5,
    "Ovis2_6ForCausalLM": _OVIS2_5,
    "Ovis2_6_MoeForCausalLM": _OVIS2_5,
    "Ovis": Wrapper((Tower(_ovis2, section="visual_tokenizer_config"),)),
}
