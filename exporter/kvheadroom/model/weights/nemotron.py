"""Nemotron-H, whose layers are one kind each, and the models that a search cut to size."""

from collections.abc import Mapping
from typing import Final

from kvheadroom.errors import ModelConfigError
from kvheadroom.model.weights.attention import Heads, grouped_attention
from kvheadroom.model.weights.dense import llama_attention
from kvheadroom.model.weights.family import UNTIED_EVERY_STAGE, Family
from kvheadroom.model.weights.feed_forward import gated, plain, routed
from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.parts import Block, Part, Ranks, norm, replicated
from kvheadroom.model.weights.states import Mamba2, mamba2

_SEARCHED_MULTIPLE: Final = 256


def _mamba_fields(c: Fields) -> Mamba2:
    heads = c.whole("mamba_num_heads")
    return Mamba2(
        inner=heads * c.whole("mamba_head_dim"),
        heads=heads,
        groups=c.whole("n_groups"),
        state=c.whole("ssm_state_size"),
        kernel=c.whole("conv_kernel"),
        conv_bias=c.says("use_conv_bias"),
        bias=c.says("use_bias"),
    )


def _experts(c: Fields, r: Ranks, index: int) -> list[Part]:
    """Return experts, between projections to a narrower space where the config has one."""
    shared, latent = c.count("n_shared_experts"), c.count("moe_latent_size")
    width = shared * c.whole("moe_shared_expert_intermediate_size") if shared else 0
    bias = c.says("mlp_bias")
    parts = routed(
        "n_routed_experts",
        "moe_intermediate_size",
        name="mixer",
        shared=plain(lambda _c: width, name="mixer.shared_experts") if shared else None,
        correction=True,
        gated_experts=False,
        inner_hidden=latent or None,
        precise_router=True,
    )(c, r, index)
    if not latent:
        return parts
    return [
        *parts,
        replicated("mixer.fc1_latent_proj", c.hidden, latent, bias=bias),
        replicated("mixer.fc2_latent_proj", latent, c.hidden, bias=bias),
    ]


_KINDS: Final[Mapping[str, Block]] = {
    "M": mamba2(_mamba_fields, name="mixer"),
    "*": grouped_attention(name="mixer", qkv_bias="attention_bias", output_bias="attention_bias"),
    "-": plain(name="mixer", bias="mlp_bias"),
    "E": _experts,
}
_NAMES: Final = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}


def _layer(c: Fields, r: Ranks, index: int) -> list[Part]:
    pattern = c.get("hybrid_override_pattern") or c.get("layers_block_type")
    if not isinstance(pattern, str | list) or index >= len(pattern):
        raise ModelConfigError(f"{c.architecture}: hybrid_override_pattern is missing or short")
    kind = _NAMES.get(pattern[index], pattern[index])
    if kind not in _KINDS:
        raise ModelConfigError(
            f"{c.architecture}: hybrid_override_pattern has no kind {kind!r:.20}"
        )
    return [*_KINDS[kind](c, r, index), norm(c.hidden)]


def _puzzle_layer(c: Fields, r: Ranks, index: int) -> list[Part]:
    """Return a layer whose sizes its own block states where they differ from the model's."""
    own = c.at("block_configs", index)
    if not isinstance(own, Mapping):
        raise ModelConfigError(f"{c.architecture}: block_configs[{index}] must be an object")
    return _layer(Fields(c.architecture, {**c.values, **own}, c.defaults), r, index)


def _searched_width(c: Fields, own: Fields) -> int:
    """Return the width of a dense layer: stated, or by the factor that the search chose."""
    if own.get("ffn_mult") is None:
        return own.whole("intermediate_size")
    width = int(2 * own.number("ffn_mult", 1.0) * c.hidden / 3)
    return -(-width // _SEARCHED_MULTIPLE) * _SEARCHED_MULTIPLE


def _searched_layer(c: Fields, r: Ranks, index: int) -> list[Part]:
    """Return a layer of DeciLM, which may lack attention, its dense layer, or both."""
    block = c.at("block_configs", index)
    if not isinstance(block, Mapping):
        raise ModelConfigError(f"{c.architecture}: block_configs[{index}] must be an object")
    of_block = Fields(c.architecture, block, {})
    attention, feed_forward = of_block.part("attention"), of_block.part("ffn")
    parts: list[Part] = []
    if not attention.get("no_op"):
        kv = c.heads // attention.whole("n_heads_in_group")

        def heads(c: Fields, _index: int) -> Heads:
            return Heads(c.heads, kv, c.head_dim, c.head_dim)

        parts += [*llama_attention(c, r, index, heads=heads), norm(c.hidden)]
    if not feed_forward.get("no_op"):
        width = _searched_width(c, feed_forward)
        parts += [*gated(lambda _c: width, bias="mlp_bias")(c, r, index), norm(c.hidden)]
    return parts


NEMOTRON: Final[Mapping[str, Family]] = {
    "DeciLMForCausalLM": Family(_searched_layer),
    "NemotronHForCausalLM": Family(_layer, UNTIED_EVERY_STAGE),
    "NemotronHPuzzleForCausalLM": Family(_puzzle_layer, UNTIED_EVERY_STAGE),
}
