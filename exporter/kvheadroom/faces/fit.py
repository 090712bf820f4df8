"""``/api/v1/fit``: whether so many more requests of a length can be taken, as JSON."""

from collections.abc import Iterable, Mapping
from typing import Final

from kvheadroom.errors import ConfigError
from kvheadroom.faces.document import Part, encode
from kvheadroom.faces.web import Answer
from kvheadroom.live.fit import Fit, fit
from kvheadroom.live.snapshot import Snapshot
from kvheadroom.live.what_if import WhatIf
from kvheadroom.units import parse_token_count

FIT_PATH: Final = "/api/v1/fit"

_PARAMETERS: Final = frozenset({"engine", "context_tokens", "requests"})
_MOST_REQUESTS: Final = 1_000_000
_MOST_TOKENS: Final = 1_000_000_000
_TEXT: Final = "text/plain; charset=utf-8"


class WhatIfDocument(Part, frozen=True, kw_only=True):
    """What a restart with one setting changed would give."""

    change: str
    tokens: int | None = None
    tokens_now: int | None = None
    requests: int | None = None
    requests_now: int | None = None
    gain_ratio: float | None = None
    more_requests: int | None = None
    fits: bool | None = None
    reason: str | None = None
    evidence: str | None = None


class EngineFitDocument(Part, frozen=True, kw_only=True):
    """The answer for one engine; ``fits`` is left out where it is not known."""

    engine: str
    fits: bool | None = None
    possible: int | None = None
    admitted: int | None = None
    limit: str | None = None
    reason: str = ""
    blocks_each: int | None = None
    blocks_needed: int | None = None
    blocks_free: int | None = None
    places_free: int | None = None
    restarts: tuple[WhatIfDocument, ...] = ()


class FitsDocument(Part, frozen=True, kw_only=True):
    """The question and every engine's answer to it."""

    context_tokens: int
    requests: int
    engines: tuple[EngineFitDocument, ...] = ()


def answer_fit(query: Mapping[str, str], snapshot: Snapshot) -> Answer:
    """Return the answer to ``?engine=&context_tokens=8K&requests=10``.

    Without an engine all of them answer; without a number, for one request. What is wrong with the
    question is one line with status 400, an engine that is not there one with status 404.
    """
    try:
        tokens, requests = _question(query)
    except ConfigError as error:
        return Answer(400, _TEXT, f"{error}\n".encode())
    asked = query.get("engine")
    chosen = [view for view in snapshot.engines if asked in {None, view.engine}]
    if asked is not None and not chosen:
        known = ", ".join(view.engine for view in snapshot.engines) or "none"
        return Answer(404, _TEXT, f"no such engine: {asked!r}; there are: {known}\n".encode())
    fits = (
        fit(
            view,
            context_tokens=tokens,
            requests=requests,
            cards=snapshot.cards,
            engines=snapshot.engines,
        )
        for view in chosen
    )
    return Answer(200, "application/json", encode(_document(tokens, requests, fits)))


def _question(query: Mapping[str, str]) -> tuple[int, int]:
    """Return tokens and requests.

    Raises:
        ConfigError: A parameter is missing, unknown or no such number.
    """
    unknown = sorted(query.keys() - _PARAMETERS)
    if unknown:
        known = ", ".join(sorted(_PARAMETERS))
        raise ConfigError(f"unknown parameter: {unknown[0]!r}; there are: {known}")
    if "context_tokens" not in query:
        raise ConfigError("context_tokens is missing: tokens of one request, prompt and answer")
    tokens = parse_token_count(query["context_tokens"])
    if tokens > _MOST_TOKENS:
        raise ConfigError(f"context_tokens: at most {_MOST_TOKENS:,}")
    text = query.get("requests", "1")
    # Longer digits than Python agrees to read are no number of requests either.
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(_MOST_REQUESTS))
    if not is_number or not 1 <= int(text) <= _MOST_REQUESTS:
        raise ConfigError(f"requests: must be a whole number from 1 to {_MOST_REQUESTS:,}")
    return tokens, int(text)


def _document(tokens: int, requests: int, fits: Iterable[Fit]) -> FitsDocument:
    return FitsDocument(
        context_tokens=tokens,
        requests=requests,
        engines=tuple(_engine(one) for one in fits),
    )


def _engine(found: Fit) -> EngineFitDocument:
    return EngineFitDocument(
        engine=found.engine,
        fits=found.fits,
        possible=found.possible,
        admitted=found.admitted,
        limit=found.limit,
        reason=found.reason,
        blocks_each=found.blocks_each,
        blocks_needed=found.blocks_needed,
        blocks_free=found.blocks_free,
        places_free=found.places_free,
        restarts=tuple(_what_if(one) for one in found.restarts),
    )


def _what_if(found: WhatIf) -> WhatIfDocument:
    return WhatIfDocument(
        change=found.change,
        tokens=found.tokens,
        tokens_now=found.tokens_now,
        requests=found.requests,
        requests_now=found.requests_now,
        gain_ratio=found.gain_ratio,
        more_requests=found.more_requests,
        fits=found.fits,
        reason=found.reason,
        evidence=found.evidence,
    )
