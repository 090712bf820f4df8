"""Decide which ready bytes of the latest page a client gets, from its Accept headers."""

import gzip
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Final

TEXT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

# Level 1 costs an eighth of level 9 and makes these pages only a little larger.
_GZIP_LEVEL: Final = 1

# Scrapes of other variants after which one is made on demand again.
_FORGOTTEN_AFTER: Final = 8

Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True)
class RenderedPage:
    """One poll's metrics; each variant is made when first asked for, and then kept.

    Attributes:
        render_text: Makes the Prometheus text format 0.0.4.
        render_openmetrics: Makes OpenMetrics 1.0.0.
        asked: Variants that clients asked for, of this page or one before it, and how many times
            they have asked for others since.
    """

    render_text: Callable[[], bytes]
    render_openmetrics: Callable[[], bytes]
    asked: dict[str, int] = field(default_factory=dict, compare=False)

    @cached_property
    def text(self) -> bytes:
        """Prometheus text format."""
        return self.render_text()

    @cached_property
    def text_gzip(self) -> bytes:
        """Prometheus text format, compressed."""
        return gzip.compress(self.text, _GZIP_LEVEL, mtime=0)

    @cached_property
    def openmetrics(self) -> bytes:
        """OpenMetrics."""
        return self.render_openmetrics()

    @cached_property
    def openmetrics_gzip(self) -> bytes:
        """OpenMetrics, compressed."""
        return gzip.compress(self.openmetrics, _GZIP_LEVEL, mtime=0)

    def make_like(self, earlier: "RenderedPage") -> None:
        """Make the variants that *earlier* or a page before it was asked for, ahead of a scrape.

        What somebody looked at once is not made for ever.
        """
        # In one call, since a scrape may add to the earlier page's at this moment.
        asked = dict(earlier.asked)
        self.asked.update(
            (variant, others) for variant, others in asked.items() if others < _FORGOTTEN_AFTER
        )
        for variant in self.asked:
            getattr(self, variant)


def choose(
    page: RenderedPage, accept: str | None, accept_encoding: str | None
) -> tuple[bytes, Headers]:
    """Return the body for a client and the headers that describe it.

    A client that accepts neither format gets plain text: a scrape in the wrong format can be
    read by a person, an empty one cannot.

    Args:
        page: The latest page.
        accept: The ``Accept`` header, ``None`` where there is none.
        accept_encoding: The ``Accept-Encoding`` header, ``None`` where there is none.
    """
    openmetrics, compressed = prefers_openmetrics(accept or ""), takes_gzip(accept_encoding or "")
    variant = ("openmetrics" if openmetrics else "text") + ("_gzip" if compressed else "")
    for other in page.asked:
        page.asked[other] += 1
    page.asked[variant] = 0
    body: bytes = getattr(page, variant)
    return body, (*_HEADERS[openmetrics, compressed], (b"content-length", b"%d" % len(body)))


@lru_cache(maxsize=32)
def prefers_openmetrics(accept: str) -> bool:
    """Return whether *accept* ranks OpenMetrics 1.0.0 above plain text.

    Source:
        RFC 9110, section 12.5.1: the most specific range that fits decides a type's weight.
        Version parameters take part in the match; ``escaping`` and ``charset`` do not, since
        every name of ours is plain ASCII.
    """
    openmetrics = _weight(accept, "application", "openmetrics-text", "1.0.0")
    return openmetrics > _weight(accept, "text", "plain", "0.0.4")


@lru_cache(maxsize=32)
def takes_gzip(accept_encoding: str) -> bool:
    """Return whether *accept_encoding* admits gzip and does not prefer the plain bytes.

    Source:
        RFC 9110, section 12.5.3.
    """
    weights: dict[str, float] = {}
    for coding, parameters in _ranges(accept_encoding):
        weights["gzip" if coding == "x-gzip" else coding] = _quality(parameters)
    compressed = weights.get("gzip", weights.get("*", 0.0))
    return compressed > 0 and compressed >= weights.get("identity", 0.0)


def _weight(accept: str, kind: str, subtype: str, version: str) -> float:
    specificity_of = {f"{kind}/{subtype}": 2, f"{kind}/*": 1, "*/*": 0}
    best = (-1, 0.0)
    for media_range, parameters in _ranges(accept):
        specificity = specificity_of.get(media_range)
        if specificity is None or parameters.get("version", version) != version:
            continue
        specificity += "version" in parameters
        best = max(best, (specificity, _quality(parameters)))
    return best[1]


def _ranges(header: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    for item in header.split(","):
        name, *parameters = (part.strip().lower() for part in item.split(";"))
        pairs = (parameter.partition("=") for parameter in parameters)
        yield name, {key.strip(): text.strip().strip('"') for key, _, text in pairs}


def _quality(parameters: Mapping[str, str]) -> float:
    text = parameters.get("q", "1")
    try:
        quality = float(text)
    except ValueError:
        return 0.0
    # Also turns a NaN, which float() reads, into 0.
    return quality if 0.0 <= quality <= 1.0 else 0.0


def _describe(openmetrics: bool, compressed: bool) -> Headers:
    content_type = OPENMETRICS_TYPE if openmetrics else TEXT_TYPE
    encoding = ((b"content-encoding", b"gzip"),) if compressed else ()
    return (
        (b"content-type", content_type.encode()),
        (b"vary", b"Accept, Accept-Encoding"),
        *encoding,
    )


_HEADERS: Final = {
    (openmetrics, compressed): _describe(openmetrics, compressed)
    for openmetrics in (False, True)
    for compressed in (False, True)
}
