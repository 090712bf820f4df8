"""Models whose layers all cache a key and a value per token: full, sliding or chunked."""

from typing import Final, Literal

from kvheadroom.errors import ModelConfigError
from kvheadroom.model.classes import AttentionFacts
from kvheadroom.model.fields import (
    Config,
    head_dim,
    kv_heads,
    layer_count,
    optional_whole,
    query_heads,
    section,
    strings,
    whole,
    wholes,
)
from kvheadroom.model.layers import AttentionLayer, Block

Sight = Literal["full", "sliding", "chunked"]

_SIGHT_OF_TYPE: Final[dict[str, Sight]] = {
    "full_attention": "full",
    "attention": "full",
    "global_attention": "full",
    "global": "full",
    "sliding_attention": "sliding",
    "sliding": "sliding",
    "local": "sliding",
    "chunked_attention": "chunked",
}
_SIGHTS: Final[tuple[Sight, Sight]] = ("sliding", "full")


def softmax_blocks(text: Config, facts: AttentionFacts) -> tuple[Block, ...]:
    """Return the layers of a model that follows *facts* and its own fields.

    Raises:
        ModelConfigError: A field is missing or contradicts another.
    """
    dim = head_dim(text, facts.head_dim)
    layers: dict[Sight, Block] = {
        sight: (
            AttentionLayer(
                kv_heads=kv_heads(text),
                head_dim=dim,
                value_head_dim=dim,
                window=_window(text, facts) if sight == "sliding" else None,
                chunk=whole(text, "attention_chunk_size") if sight == "chunked" else None,
                sink=facts.sink or _granite_sink(text),
            ),
        )
        for sight in set(sights(text, facts))
    }
    return tuple(layers[sight] for sight in sights(text, facts))


def sights(text: Config, facts: AttentionFacts) -> tuple[Sight, ...]:
    """Return what each layer sees.

    Raises:
        ModelConfigError: ``layer_types`` names a kind that is not softmax attention, or too few.
    """
    count = layer_count(text)
    types = strings(text, "layer_types")
    if types is None:
        return _default_sights(text, facts, count)
    unknown = sorted({name for name in types if name not in _SIGHT_OF_TYPE})
    if unknown:
        raise ModelConfigError(f"layer_types holds {unknown[0]!r}, unknown for this class")
    if len(types) < count:
        raise ModelConfigError(f"layer_types names {len(types)} layers of {count}")
    seen = tuple(_SIGHT_OF_TYPE[name] for name in types[:count])
    plain = _alike("full", count)
    if "sliding" in seen and _window(text, facts) is None:
        return plain
    # Some classes look at one window for the whole model only, and drop it where layers differ.
    return plain if facts.uniform and len(set(seen)) > 1 else seen


def _default_sights(text: Config, facts: AttentionFacts, count: int) -> tuple[Sight, ...]:
    window = _window(text, facts)
    every = _period(text, facts)
    plain = _alike("full", count)
    if window is None:
        return plain
    if every:
        full = 0 if facts.full_first else every - 1
        return tuple(_SIGHTS[index % every == full] for index in range(count))
    first = optional_whole(text, "max_window_layers") if facts.uniform else 0
    return _alike("sliding", count) if first == 0 else plain


def _alike(sight: Sight, count: int) -> tuple[Sight, ...]:
    return (sight,) * count


def _period(text: Config, facts: AttentionFacts) -> int:
    if facts.full_every is None:
        return 0
    given = text.get(facts.pattern_field, text.get("_sliding_window_pattern"))
    if isinstance(given, str):
        return len(given)
    return given if isinstance(given, int) and given > 0 else facts.full_every


def _window(text: Config, facts: AttentionFacts) -> int | None:
    """Return the tokens of the sliding window; ``None`` where it is absent or switched off."""
    if text.get("use_sliding_window") is False:
        return None
    if facts.uniform and not text.get("use_sliding_window"):
        return None
    given = optional_whole(text, "sliding_window")
    if given is None and "sliding_window" not in text:
        given = facts.window
    return given + facts.window_extra if given else None


def _granite_sink(text: Config) -> bool:
    kind = str(text.get("model_type", ""))
    sliding = kind.endswith("_swa") or bool(text.get("layer_types"))
    return bool(text.get("attention_sinks", kind.startswith("granite") and sliding))


def falcon_blocks(text: Config) -> tuple[Block, ...]:
    """Return the layers of Falcon, whose older models share one key-value head."""
    heads = kv_heads(text)
    if not text.get("new_decoder_architecture") and text.get("multi_query", True):
        heads = 1
    dim = head_dim(text)
    return ((AttentionLayer(heads, dim, dim),),) * layer_count(text)


def bigcode_blocks(text: Config) -> tuple[Block, ...]:
    """Return the layers of GPT-BigCode, which share one key-value head unless told otherwise."""
    dim = head_dim(text)
    heads = 1 if text.get("multi_query", True) else query_heads(text)
    return ((AttentionLayer(heads, dim, dim),),) * layer_count(text)


def hrm_blocks(text: Config) -> tuple[Block, ...]:
    """Return the layers of HRM-Text, which run in cycles that each have a cache of their own."""
    dim = head_dim(text, 128)
    block = (AttentionLayer(query_heads(text), dim, dim),)
    cycles = whole(text, "H_cycles", default=2) * (whole(text, "L_cycles", default=3) + 1)
    stack = optional_whole(text, "num_layers_per_stack") or layer_count(text)
    return (block,) * (stack * cycles)


def dbrx_blocks(text: Config) -> tuple[Block, ...]:
    """Return the layers of DBRX and MPT, which keep their head count in a section of its own."""
    heads = optional_whole(section(text, "attn_config"), "kv_n_heads") or query_heads(text)
    dim = head_dim(text)
    return ((AttentionLayer(heads, dim, dim),),) * layer_count(text)


def expanded_latent_blocks(text: Config) -> tuple[Block, ...]:
    """Return the layers of MiniCPM3: a latent projection whose expanded heads are cached."""
    dim = whole(text, "qk_nope_head_dim") + whole(text, "qk_rope_head_dim")
    return ((AttentionLayer(query_heads(text), dim, dim),),) * layer_count(text)


def searched_blocks(text: Config) -> tuple[Block, ...]:
    """Return the layers of DeciLM/Nemotron-NAS, where a search cut each layer to size.

    Raises:
        ModelConfigError: ``block_configs`` does not describe every layer.
    """
    configs = text.get("block_configs")
    dim, queries = head_dim(text), query_heads(text)
    if not isinstance(configs, list) or len(configs) < layer_count(text):
        raise ModelConfigError("block_configs must describe every layer")
    blocks: list[Block] = []
    for config in configs:
        attention = section(config, "attention")
        if attention.get("no_op") or attention.get("replace_with_linear"):
            blocks.append(())
        else:
            heads = queries // whole(attention, "n_heads_in_group", default=1)
            blocks.append((AttentionLayer(heads, dim, dim),))
    return tuple(blocks)


def llama4_blocks(text: Config) -> tuple[Block, ...]:
    """Return the layers of Llama 4: chunks where positions rotate, everything where not.

    Raises:
        ModelConfigError: ``no_rope_layers`` does not describe every layer.
    """
    count = layer_count(text)
    interval = whole(text, "no_rope_layer_interval", default=4)
    rotates = wholes(text, "no_rope_layers") or tuple(
        int((index + 1) % interval != 0) for index in range(count)
    )
    if len(rotates) < count:
        raise ModelConfigError(f"no_rope_layers names {len(rotates)} layers of {count}")
    chunk = optional_whole(text, "attention_chunk_size")
    dim = head_dim(text)
    chunked: Block = (AttentionLayer(kv_heads(text), dim, dim, chunk=chunk or None),)
    full: Block = (AttentionLayer(kv_heads(text), dim, dim),)
    return tuple(chunked if rotates[index] else full for index in range(count))


def gemma4_blocks(text: Config, facts: AttentionFacts) -> tuple[Block, ...]:
    """Return the layers of Gemma 4, whose global heads are wider and may be fewer."""
    dim = head_dim(text, facts.head_dim)
    heads = kv_heads(text)
    shared_heads = optional_whole(text, "num_global_key_value_heads")
    global_heads = shared_heads if text.get("attention_k_eq_v", True) and shared_heads else heads
    global_dim = whole(text, "global_head_dim", default=512)
    full: Block = (AttentionLayer(global_heads, global_dim, global_dim),)
    sliding: Block = (AttentionLayer(heads, dim, dim, window=_window(text, facts)),)
    seen = sights(text, facts)
    return own_caches(text, tuple(full if sight == "full" else sliding for sight in seen))


def own_caches(text: Config, blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """Return *blocks* without the last ``num_kv_shared_layers``, which read earlier caches."""
    shared = optional_whole(text, "num_kv_shared_layers") or 0
    own = max(0, len(blocks) - shared)
    return blocks[:own] + ((),) * (len(blocks) - own)


def mimo2_blocks(text: Config) -> tuple[Block, ...]:
    """Return the layers of MiMo-V2, whose values are narrower than its keys.

    Raises:
        ModelConfigError: ``hybrid_layer_pattern`` does not describe every layer.
    """
    pattern = wholes(text, "hybrid_layer_pattern")
    if pattern is None:
        types = strings(text, "layer_types") or ()
        pattern = tuple(int(kind == "sliding_attention") for kind in types)
    if len(pattern) < layer_count(text):
        raise ModelConfigError("hybrid_layer_pattern must describe every layer")
    full, sliding = _mimo2_full(text), mimo2_sliding(text)
    return tuple(sliding if pattern[index] else full for index in range(layer_count(text)))


def _mimo2_full(text: Config) -> Block:
    dim = head_dim(text)
    return (
        AttentionLayer(
            kv_heads(text),
            dim,
            whole(text, "v_head_dim", default=dim),
            sink=bool(text.get("add_full_attention_sink_bias")),
        ),
    )


def mimo2_sliding(text: Config) -> Block:
    """Return one sliding layer of MiMo-V2, the kind its draft modules are of as well."""
    dim = whole(text, "swa_head_dim", default=head_dim(text))
    return (
        AttentionLayer(
            whole(text, "swa_num_key_value_heads", default=kv_heads(text)),
            dim,
            whole(text, "swa_v_head_dim", "v_head_dim", default=dim),
            window=whole(text, "sliding_window_size", "sliding_window"),
            sink=bool(text.get("add_swa_attention_sink_bias")),
        ),
    )


def step3p5_blocks(text: Config) -> tuple[Block, ...]:
    """Return the layers of Step-3.5, whose sliding layers have heads of their own."""
    count = layer_count(text)
    types = strings(text, "layer_types") or tuple(
        "sliding_attention" if index % 2 == 0 else "full_attention" for index in range(count)
    )
    other = section(text, "attention_other_setting")
    dim = head_dim(text)
    blocks: list[Block] = []
    for kind in types[:count]:
        own = other if kind == other.get("attention_type") else text
        window = optional_whole(text, "sliding_window") if kind == "sliding_attention" else None
        heads = optional_whole(own, "num_attention_groups") or kv_heads(text)
        own_dim = optional_whole(own, "head_dim") or dim
        blocks.append((AttentionLayer(heads, own_dim, own_dim, window=window or None),))
    return tuple(blocks)
