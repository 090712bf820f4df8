"""Read fields of a config.json so that a missing or absurd one is named, never guessed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvheadroom.errors import ModelConfigError

# Beyond any real model; a file may hold any number.
_LARGEST: Final = 10**9
# Each is counted by itself, so their number bounds the time taken.
_MOST_LAYERS: Final = 2000

Rule = bool | str
"""A fact of a class: fixed, or the name of the field that says it (absent means no)."""


@dataclass(frozen=True, slots=True)
class Fields:
    """One config.json, or a part of it, with the defaults of its class.

    Attributes:
        architecture: Class name in ``architectures``.
        values: The parsed file.
        defaults: What the class assumes for a field the file leaves out.
    """

    architecture: str
    values: Mapping[str, Any]
    defaults: Mapping[str, Any]

    def get(self, *names: str) -> Any:  # noqa: ANN401 - a JSON value
        """Return the first of *names* that is set, else a default, else ``None``."""
        for source in (self.values, self.defaults):
            for name in names:
                if (value := source.get(name)) is not None:
                    return value
        return None

    def whole(self, *names: str, default: int | None = None) -> int:
        """Return the first of *names* that is set: a whole number above 0.

        Raises:
            ModelConfigError: None is set and *default* is ``None``, or the value is no such number.
        """
        value = self.get(*names)
        return self._checked(" or ".join(names), default if value is None else value)

    def whole_at(self, name: str, layer: int) -> int:
        """Return *name*, which may be stated once or for each layer.

        Raises:
            ModelConfigError: It is missing, or no whole number above 0.
        """
        value = self.get(name)
        return self._checked(name, self.at(name, layer) if isinstance(value, list) else value)

    def _checked(self, name: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < _LARGEST:
            raise ModelConfigError(
                f"{self.architecture}: {name} must be a whole number above 0, not {value!r:.60}"
            )
        return value

    def layers(self, *names: str, default: int | None = None) -> int:
        """Return the first of *names* that is set: how often a layer repeats.

        Raises:
            ModelConfigError: It is missing, or beyond any real model.
        """
        layers = self.whole(*names, default=default)
        if layers > _MOST_LAYERS:
            raise ModelConfigError(f"{self.architecture}: {names[0]} is {layers}, which is absurd")
        return layers

    def count(self, *names: str, default: int = 0) -> int:
        """Return the first of *names* that is set: a whole number, 0 included."""
        value = self.get(*names)
        return default if value is None or value == 0 else self.whole(*names)

    def number(self, name: str, default: float) -> float:
        """Return a real number above 0.

        Raises:
            ModelConfigError: It is something else.
        """
        value = self.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelConfigError(f"{self.architecture}: {name} must be a number")
        if not 0 < value < _LARGEST:
            raise ModelConfigError(f"{self.architecture}: {name} must be above 0 and finite")
        return float(value)

    def says(self, rule: Rule) -> bool:
        """Return whether *rule* holds for this model."""
        return rule if isinstance(rule, bool) else bool(self.get(rule))

    def per_layer(self, name: str) -> Sequence[Any]:
        """Return a field that holds one entry per layer; empty when absent.

        Raises:
            ModelConfigError: It is no list.
        """
        value = self.get(name)
        if value is None:
            return ()
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise ModelConfigError(f"{self.architecture}: {name} must be a list")
        return value

    def at(self, name: str, layer: int) -> Any:  # noqa: ANN401 - a JSON value
        """Return entry *layer* of the list *name*.

        Raises:
            ModelConfigError: The list is absent or too short.
        """
        entries = self.per_layer(name)
        if layer >= len(entries):
            raise ModelConfigError(f"{self.architecture}: {name} has no entry for layer {layer}")
        return entries[layer]

    def part(self, name: str) -> "Fields":
        """Return the nested object *name*, with this class's defaults for it.

        Raises:
            ModelConfigError: There is none.
        """
        value = self.values.get(name)
        if not isinstance(value, Mapping):
            raise ModelConfigError(f"{self.architecture}: {name} must be an object")
        defaults = self.defaults.get(name)
        return Fields(self.architecture, value, defaults if isinstance(defaults, Mapping) else {})

    @property
    def hidden(self) -> int:
        """Elements of the residual stream."""
        return self.whole("hidden_size", "n_embd", "n_embed", "d_model")

    @property
    def heads(self) -> int:
        """Query heads of the whole model."""
        return self.whole("num_attention_heads", "n_head", "n_heads")

    @property
    def kv_heads(self) -> int:
        """Key-value heads of the whole model."""
        return self.whole("num_key_value_heads", default=self.heads)

    @property
    def head_dim(self) -> int:
        """Elements of one head."""
        return self.whole("head_dim", default=self.hidden // self.heads)

    @property
    def tied(self) -> bool:
        """The output head is the embedding."""
        return bool(self.get("tie_embedding", "tie_word_embeddings"))
