"""Every class of model whose parameters are known, by its name in ``architectures``."""

from collections.abc import Mapping
from typing import Final

from kvheadroom.model.weights.bailing import BAILING
from kvheadroom.model.weights.dense import DENSE
from kvheadroom.model.weights.diffusion import DIFFUSION
from kvheadroom.model.weights.encoders import ENCODERS, classifying
from kvheadroom.model.weights.experts import EXPERTS
from kvheadroom.model.weights.family import Family
from kvheadroom.model.weights.fixed_towers import FIXED_TOWERS
from kvheadroom.model.weights.gated_attention import GATED_ATTENTION
from kvheadroom.model.weights.gemma import GEMMA
from kvheadroom.model.weights.gemma_towers import GEMMA_TOWERS
from kvheadroom.model.weights.hybrid import HYBRID
from kvheadroom.model.weights.indexed import INDEXED
from kvheadroom.model.weights.kimi import KIMI
from kvheadroom.model.weights.latent import LATENT
from kvheadroom.model.weights.layer_norm import LAYER_NORM
from kvheadroom.model.weights.minicpm import MINICPM
from kvheadroom.model.weights.nemotron import NEMOTRON
from kvheadroom.model.weights.newer_towers import NEWER_TOWERS
from kvheadroom.model.weights.own_towers import OWN_TOWERS
from kvheadroom.model.weights.pooling import POOLING
from kvheadroom.model.weights.retrieval import RETRIEVAL, SEEING_RETRIEVAL
from kvheadroom.model.weights.rotary_encoders import ROTARY_ENCODERS
from kvheadroom.model.weights.sourced import SOURCED
from kvheadroom.model.weights.sparse_layers import SPARSE_LAYERS
from kvheadroom.model.weights.speech import SPEECH
from kvheadroom.model.weights.vision import VISION
from kvheadroom.model.weights.wrappers import Wrapper

_CAUSAL: Final = "ForCausalLM"
_DECODERS: Final = {
    **DENSE,
    **LAYER_NORM,
    **GATED_ATTENTION,
    **GEMMA,
    **EXPERTS,
    **LATENT,
    **INDEXED,
    **KIMI,
    **HYBRID,
    **BAILING,
    **NEMOTRON,
    **SPARSE_LAYERS,
}
_CLASSIFIERS: Final = {
    name.replace(_CAUSAL, "ForSequenceClassification"): classifying(family)
    for name, family in _DECODERS.items()
    if name.endswith(_CAUSAL)
}

FAMILIES: Final[Mapping[str, Family]] = {
    **_CLASSIFIERS,
    **_DECODERS,
    **POOLING,
    **ENCODERS,
    **ROTARY_ENCODERS,
    **RETRIEVAL,
}

WRAPPERS: Final[Mapping[str, Wrapper]] = {
    **VISION,
    **NEWER_TOWERS,
    **DIFFUSION,
    **SOURCED,
    **SPEECH,
    **GEMMA_TOWERS,
    **FIXED_TOWERS,
    **OWN_TOWERS,
    **MINICPM,
    **SEEING_RETRIEVAL,
}
