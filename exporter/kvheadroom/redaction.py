"""Keep keys, tokens and passwords out of whatever is kept of a command line or a log."""

import re
from collections.abc import Mapping
from typing import Any, Final

_SECRET_OPTIONS: Final = frozenset({"api-key", "hf-token"})
# Words of a name that mean a credential; `token` alone, since `max_tokens` counts them.
_SECRET_WORDS: Final = frozenset(
    {
        *("key", "keys", "apikey", "token", "secret", "secrets", "password", "passwd"),
        *("credential", "credentials", "authorization", "auth", "bearer", "cookie", "headers"),
    }
)
_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_URL_CREDENTIALS: Final = re.compile(r"(?<=://)[^/@\s]+@")
_URL_QUERY: Final = re.compile(r"(://[^\s?]*)\?\S*")


def without_credentials(text: str) -> str:
    """Return *text* without the user and password of any URL in it."""
    return _URL_CREDENTIALS.sub("", text) if "://" in text else text


def is_secret_option(name: str) -> bool:
    """Tell whether the option *name* (without dashes) carries a credential."""
    return name in _SECRET_OPTIONS


def without_secrets(value: Any) -> Any:  # noqa: ANN401  (a JSON value)
    """Return the JSON *value* without credentials: secret keys dropped, URLs stripped of theirs."""
    if isinstance(value, str):
        return _URL_QUERY.sub(r"\1", _URL_CREDENTIALS.sub("", value))
    if isinstance(value, Mapping):
        return {
            str(key): without_secrets(inner)
            for key, inner in value.items()
            if not names_a_secret(str(key))
        }
    if isinstance(value, list):
        return [without_secrets(inner) for inner in value]
    return value


def names_a_secret(name: str) -> bool:
    """Tell whether what is called *name* (``api_key``, ``hfToken``) holds a credential."""
    return any(word.lower() in _SECRET_WORDS for word in _WORD.findall(name))


class Secret:
    """A credential that shows itself to nobody who does not ask by name.

    Printing, formatting, copying into a record's text and logging all give the same mark.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the credential, to be sent to whom it belongs."""
        return self._text

    def __repr__(self) -> str:
        return "<secret>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> tuple[type["Secret"], tuple[str]]:
        raise TypeError("a secret is not written to a file")
