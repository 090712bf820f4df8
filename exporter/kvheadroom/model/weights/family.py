"""What a class of models is made of, and how pipeline stages share its two ends."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.parts import (
    Block,
    Part,
    Ranks,
    norm,
    vocabulary,
)

Extra = Callable[[Fields, Ranks], list[Part]]
"""Parameters outside the layers."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Where a class puts what stands before and after its layers, when stages divide them.

    Attributes:
        embedding: Stage of the embedding; ``tied_last`` adds a copy on the last stage when the
            output head is that embedding.
        head: Stage of an output head of its own; ``none`` for a class without one.
        norm: Stage of the last normalization.
        norm_bias: That normalization shifts, too.
        head_bias: The head has a bias.
        always_tied: The class has no head of its own whatever the config says.
        never_tied: It always has one.
    """

    embedding: Literal["first", "tied_last", "every", "none"] = "tied_last"
    head: Literal["last", "every", "none"] = "last"
    norm: Literal["last", "every", "none"] = "last"
    norm_bias: bool = False
    head_bias: bool = False
    always_tied: bool = False
    never_tied: bool = False

    def held(self, c: Fields, part: str, *, first: bool, last: bool) -> bool:
        """Return whether a stage holds the ``embedding``, ``head`` or ``norm``."""
        tied = self.always_tied or c.tied
        where = {"embedding": self.embedding, "head": self.head, "norm": self.norm}[part]
        stages = {"every": True, "first": first, "last": last, "none": False}
        stages["tied_last"] = first or (tied and last)
        return stages[where] and not (part == "head" and tied and not self.never_tied)

    def parts(self, c: Fields, r: Ranks, *, first: bool, last: bool) -> list[Part]:
        """Return the parameters of one stage's ends."""
        parts: list[Part] = []
        if self.held(c, "embedding", first=first, last=last):
            parts.append(vocabulary(r, _rows(c), c.hidden))
        if self.held(c, "head", first=first, last=last):
            parts.append(vocabulary(r, _rows(c), c.hidden, bias=self.head_bias))
        if self.held(c, "norm", first=first, last=last):
            parts.append(norm(c.hidden, bias=self.norm_bias))
        return parts


EVERY_STAGE: Final = Ends(embedding="every", head="every", norm="every")
"""Of the classes that do not look at their stage: each stage holds both ends."""
UNTIED_EVERY_STAGE: Final = replace(EVERY_STAGE, never_tied=True)
"""Of those among them that do not look at ``tie_word_embeddings`` either."""
UNTIED: Final = Ends(embedding="first", never_tied=True)
"""Of the classes that look at their stage, but not at ``tie_word_embeddings``."""


def _rows(c: Fields) -> int:
    return c.whole("padded_vocab_size", "vocab_size")


@dataclass(frozen=True, slots=True)
class Family:
    """How the parameters of one class follow from its config.

    Attributes:
        block: The parameters of one layer.
        ends: Embedding, last norm and output head.
        defaults: What the class assumes for a field the file leaves out.
        every: More parameters on every stage.
        inputs: More parameters wherever the embedding is.
        last: More parameters on the last stage.
        staged: Stages divide the layers; otherwise each holds all of them.
        encoder: One of the ``encoder_layers`` that stages divide like the decoder's.
        layers: Names of the field that counts the layers.
        halves: Parts of a counted layer that stages may part; each is a block.
        keeps_head: A pooling server builds the output head that it never uses.
    """

    block: Block
    ends: Ends = Ends()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    every: Extra | None = None
    inputs: Extra | None = None
    last: Extra | None = None
    staged: bool = True
    encoder: Block | None = None
    layers: tuple[str, ...] = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    halves: int = 1
    keeps_head: bool = False


def stage_layers(layers: int, stages: int, stage: int) -> range:
    """Return the layers of one pipeline stage.

    Source:
        vLLM 0.32 gives the layers that are left over to the last stages but the very last.
    """
    base, left = divmod(layers, stages)
    counts = [base] * stages
    for back in range(2, left + 2):
        counts[-back] += 1
    start = sum(counts[:stage])
    return range(start, start + counts[stage])
