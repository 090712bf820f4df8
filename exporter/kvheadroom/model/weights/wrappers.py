"""Models of several modalities: towers before a language model of any known class."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kvheadroom.model.config import language_config, text_class
from kvheadroom.model.weights.family import Extra, Family
from kvheadroom.model.weights.fields import Fields

_SEEN: Final = frozenset({"image", "video"})
_HEARD: Final = frozenset({"audio"})


@dataclass(frozen=True, slots=True)
class Tower:
    """An encoder and what leads from it into the language model.

    Attributes:
        parts: Its parameters, from the fields around the language model's.
        modalities: It is left out when the server takes none of these.
        section: It is built where the config has this object; ``None`` always.
    """

    parts: Extra
    modalities: frozenset[str] = _SEEN
    section: str | None = "vision_config"

    def stands(self, values: Mapping[str, Any], without: Collection[str]) -> bool:
        """Return whether a server that takes nothing of *without* builds it."""
        if self.section is not None and not isinstance(values.get(self.section), Mapping):
            return False
        return not self.modalities <= frozenset(without)


def hearing(parts: Extra, section: str | None = "audio_config") -> Tower:
    """Return a tower for sound."""
    return Tower(parts, _HEARD, section)


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A class of towers and a language model.

    Attributes:
        towers: Every stage holds them.
        text: The language model's class, or a function of the config that names it; ``None`` is
            what the language model's own fields name.
        family: The language model, where no class of its own serves it.
        tied: The output head is the embedding where the file says nothing outside the text.
        tied_by_either: Enough that the text's own fields say so.
        flat_tied: It is where the text's fields lie outside, whatever they say.
        defaults: What the class assumes for a field outside the text.
    """

    towers: tuple[Tower, ...]
    text: str | Callable[[Mapping[str, Any]], str] | None = None
    family: Family | None = None
    tied: bool | None = None
    tied_by_either: bool = False
    flat_tied: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def text_class(self, config: Mapping[str, Any]) -> str:
        """Return the class whose parameters the language model of *config* has.

        Raises:
            ModelConfigError: No known class is named.
        """
        if callable(self.text):
            return self.text(config)
        return self.text or text_class(config)

    def text_values(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the language model's fields, with what the outer ones say about its head."""
        text, outside = language_config(config), around(config)
        outer = outside.get("tie_word_embeddings")
        stated = self.tied if outer is None else bool(outer)
        if self.tied_by_either:
            inner = self.flat_tied if text is outside else text.get("tie_word_embeddings")
            stated = bool(stated) or bool(inner)
        return text if stated is None else {**text, "tie_word_embeddings": stated}

    def surroundings(self, architecture: str, config: Mapping[str, Any]) -> Fields:
        """Return the fields that towers read, the language model's under ``text_config``."""
        values = around(config)
        text = language_config(config)
        return Fields(architecture, {**values, "text_config": text}, self.defaults)


def around(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the object that holds the language model and its towers."""
    inner = config.get("thinker_config")
    return inner if isinstance(inner, Mapping) else config
