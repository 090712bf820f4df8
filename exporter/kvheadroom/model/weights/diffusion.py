"""DiffusionGemma: Gemma 4's decoder that refines a block of tokens at once."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kvheadroom.model.weights.family import EVERY_STAGE, Family
from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.gemma import GEMMA
from kvheadroom.model.weights.gemma_towers import GEMMA4_DEFAULTS, gemma4_sees
from kvheadroom.model.weights.parts import Part, Ranks, Tensor, norm
from kvheadroom.model.weights.wrappers import Tower, Wrapper, watching

_GEMMA4: Final = GEMMA["Gemma4ForCausalLM"]
# Of each so many layers the last sees everything.
_FULL_EVERY: Final = 6


def _block(c: Fields, r: Ranks, index: int) -> list[Part]:
    """Return a layer of Gemma 4, whose full ones take their values from the keys."""
    own: dict[str, object] = {
        "attention_k_eq_v": True,
        "enable_moe_block": bool(c.get("num_experts")),
    }
    if not c.per_layer("layer_types"):
        own["layer_types"] = [
            "sliding_attention" if (layer + 1) % _FULL_EVERY else "full_attention"
            for layer in range(c.layers("num_hidden_layers"))
        ]
    return _GEMMA4.block(replace(c, values={**c.values, **own}), r, index)


def _self_conditioning(c: Fields, _r: Ranks) -> list[Part]:
    """Return what feeds a block's last guess back, whole on every rank."""
    text = c.part("text_config")
    width = text.hidden
    inner = c.whole("self_conditioning_size", default=text.whole("intermediate_size"))
    return [Tensor(3 * width * inner), norm(width)]


DIFFUSION: Final[Mapping[str, Wrapper]] = {
    "DiffusionGemmaForBlockDiffusion": Wrapper(
        (watching(gemma4_sees), Tower(_self_conditioning, None, None)),
        family=Family(
            _block,
            EVERY_STAGE,
            {"head_dim": 256, "global_head_dim": 512, "tie_word_embeddings": True},
        ),
        defaults=GEMMA4_DEFAULTS,
    ),
}
