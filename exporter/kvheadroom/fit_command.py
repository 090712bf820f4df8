"""``kvheadroom fit``: ask a running kvheadroom, and say its answer with the verdict first."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from kvheadroom.errors import ConfigError, KvHeadroomError
from kvheadroom.faces.document import decode
from kvheadroom.faces.fit import FIT_PATH, EngineFitDocument, FitsDocument, WhatIfDocument
from kvheadroom.node.engine_url import parse_engine_url
from kvheadroom.node.http import EngineHttp
from kvheadroom.units import parse_token_count

_TIMEOUT_SECONDS: Final = 5.0
_MOST_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FitFlags:
    """The command line of ``fit``.

    Attributes:
        url: The kvheadroom to ask; credentials in it are sent as basic auth.
        context: Tokens of one request, as a person writes them.
        requests: How many of them.
        engine: Whose answer is wanted; ``None`` wants every one.
        ca_file: PEM file to trust instead of the usual authorities.
    """

    url: str
    context: str
    requests: int = 1
    engine: str | None = None
    ca_file: Path | None = None


def ask_fit(flags: FitFlags) -> FitsDocument:
    """Return what the kvheadroom at the URL answers.

    Raises:
        ConfigError: A flag or a file cannot be used.
        SourceError: It does not answer.
        KvHeadroomError: It answers something else, or has no such engine.
    """
    query = urlencode(
        {"context_tokens": parse_token_count(flags.context), "requests": flags.requests}
    )
    fits = decode(_answer(flags, f"{FIT_PATH}?{query}"), FitsDocument, path=FIT_PATH)
    if flags.engine is None:
        return fits
    chosen = tuple(one for one in fits.engines if one.engine == flags.engine)
    if not chosen:
        known = ", ".join(one.engine for one in fits.engines) or "none"
        raise KvHeadroomError(f"no such engine: {flags.engine!r}; there are: {known}")
    return FitsDocument(context_tokens=fits.context_tokens, requests=fits.requests, engines=chosen)


def all_fit(fits: FitsDocument) -> bool:
    """Return whether every engine that was asked about is known to take the requests."""
    return bool(fits.engines) and all(engine.fits for engine in fits.engines)


def as_text(fits: FitsDocument) -> str:
    """Return the answer as text that ends with a newline."""
    if not fits.engines:
        return "UNKNOWN: no engine answers\n"
    parts = ["\n".join(_engine(engine, fits)) for engine in fits.engines]
    return "\n\n".join(parts) + "\n"


def _answer(flags: FitFlags, path: str) -> bytes:
    ca_file = None if flags.ca_file is None else str(flags.ca_file)
    try:
        http = EngineHttp(parse_engine_url(flags.url), ca_file=ca_file)
    except OSError as error:
        raise ConfigError(f"--ca-file {ca_file}: {error.strerror or error}") from error
    try:
        return http.get(
            path,
            accept="application/json",
            deadline_monotonic_seconds=time.monotonic() + _TIMEOUT_SECONDS,
            max_bytes=_MOST_BYTES,
        )
    finally:
        http.close()


def _engine(engine: EngineFitDocument, fits: FitsDocument) -> Iterator[str]:
    asked = f"{fits.requests:,} more of {fits.context_tokens:,} tokens on {engine.engine} now"
    if engine.fits is None:
        yield f"UNKNOWN: {asked}"
    else:
        verdict = "FITS" if engine.fits else "DOES NOT FIT"
        yield f"{verdict}: {asked}; {engine.possible or 0:,} would"
    yield f"  {engine.reason}"
    yield from _admitted(engine)
    if engine.restarts:
        yield "  after a restart with"
    for restart in engine.restarts:
        yield f"    {restart.change}: {_outcome(restart)}"


def _admitted(engine: EngineFitDocument) -> Iterator[str]:
    """Yield how many prompts are admitted at once, where that is another number."""
    admitted, possible = engine.admitted, engine.possible or 0
    if admitted is None or admitted == possible:
        return
    if admitted > possible:
        yield (
            f"  prompts of that length alone: {admitted:,} would be admitted, and may preempt "
            "each other as their answers grow"
        )
    else:
        yield f"  {admitted:,} of them at once, the others as the windows of those before close"


def _outcome(restart: WhatIfDocument) -> str:
    if restart.reason is not None:
        return restart.reason
    gain = "" if restart.gain_ratio is None else f" ({restart.gain_ratio:+.0%} room)"
    text = (
        f"{restart.requests or 0:,} resident at once instead of {restart.requests_now or 0:,}"
        f"{gain}, {restart.tokens or 0:,} tokens instead of {restart.tokens_now or 0:,}"
    )
    if restart.more_requests is not None:
        verdict = "fits" if restart.fits else "does not fit"
        text += f"; {restart.more_requests:,} more beside the load of now: {verdict}"
    return text if restart.evidence is None else f"{text} ({restart.evidence})"
