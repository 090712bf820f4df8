"""Models of several modalities: towers before a language model of any known class."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from kvheadroom.model.config import language_config, text_class
from kvheadroom.model.weights.family import Extra, Family
from kvheadroom.model.weights.fields import Fields
from kvheadroom.model.weights.tower_fields import FIELDS_OF_TOWER

_IMAGE: Final = frozenset({"image"})
_MOVING: Final = frozenset({"image", "video"})
_HEARD: Final = frozenset({"audio"})


@dataclass(frozen=True, slots=True)
class Tower:
    """An encoder and what leads from it into the language model.

    Attributes:
        parts: Its parameters, from the fields around the language model's.
        modalities: It is left out when the server takes none of these; ``None`` never.
        section: It is built where the config has this object; ``None`` always.
        by_request: Ranks may each hold it whole and share out requests instead.
    """

    parts: Extra
    modalities: frozenset[str] | None = _IMAGE
    section: str | None = "vision_config"
    by_request: bool = False

    def stands(self, values: Mapping[str, Any], without: Collection[str]) -> bool:
        """Return whether a server that takes nothing of *without* builds it."""
        if self.section is not None and not isinstance(values.get(self.section), Mapping):
            return False
        return self.modalities is None or not self.modalities <= frozenset(without)


def by_request(tower: Tower) -> Tower:
    """Return *tower* of a class that follows ``--mm-encoder-tp-mode data``."""
    return replace(tower, by_request=True)


def kept(parts: Extra, section: str | None = "vision_config") -> Tower:
    """Return what is built whatever the server takes."""
    return Tower(parts, None, section)


def watching(parts: Extra) -> Tower:
    """Return a tower for images and what moves."""
    return Tower(parts, _MOVING)


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
        head: Whose ``tie_word_embeddings`` counts: the field outside the text before the text's
            own, either of them, or the text's own alone.
        tied: What is meant outside where the file does not say; ``None`` nothing.
        text_tied: What is meant inside the text where the file does not say.
        defaults: What the class assumes for a field outside the text.
        outer_fields: Fields outside the text that decide about the language model, too.
        keeps_head: A pooling server builds the output head that it never uses.
    """

    towers: tuple[Tower, ...]
    text: str | Callable[[Mapping[str, Any]], str] | None = None
    family: Family | None = None
    head: Literal["outside", "either", "text"] = "outside"
    tied: bool | None = None
    text_tied: bool | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    outer_fields: tuple[str, ...] = ()
    keeps_head: bool = False

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
        outer = _said(outside, self.tied)
        inner = _said({} if text is outside else text, self.text_tied)
        stated = outer if outer is not None else inner
        match self.head:
            case "either":
                stated = bool(outer) or bool(inner)
            case "text":
                stated = inner
        seen = {name: outside[name] for name in self.outer_fields if name in outside}
        if stated is not None:
            seen["tie_word_embeddings"] = stated
        return {**text, **seen} if seen else text

    def surroundings(self, architecture: str, config: Mapping[str, Any]) -> Fields:
        """Return the fields that towers read, the language model's under ``text_config``."""
        values = {name: _with_class_defaults(value) for name, value in around(config).items()}
        text = language_config(config)
        return Fields(architecture, {**values, "text_config": text}, self.defaults)


def _with_class_defaults(value: object) -> object:
    """Return a section with the fields that its config class fills in."""
    if not isinstance(value, Mapping):
        return value
    return {**FIELDS_OF_TOWER.get(str(value.get("model_type")), {}), **value}


def _said(values: Mapping[str, Any], default: bool | None) -> bool | None:
    value = values.get("tie_word_embeddings")
    return default if value is None else bool(value)


def around(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the object that holds the language model and its towers."""
    inner = config.get("thinker_config")
    return inner if isinstance(inner, Mapping) else config
