import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvheadroom.faces.negotiation import (
    RenderedPage,
    choose,
    prefers_openmetrics,
    takes_gzip,
)

# Recorded from Debian's builds of these versions, scraping a socket with default settings.
PROMETHEUS_2_42 = (
    "application/openmetrics-text;version=1.0.0,"
    "application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_2_53 = (
    "application/openmetrics-text;version=1.0.0;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
PROMETHEUS_3_5 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
FIREFOX = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


class Counting:
    """Makes a page and counts how often each format was rendered."""

    def __init__(self) -> None:
        self.rendered: list[str] = []
        self.page = RenderedPage(self._text, self._openmetrics)

    def _text(self) -> bytes:
        self.rendered.append("text")
        return b"a 1\n"

    def _openmetrics(self) -> bytes:
        self.rendered.append("openmetrics")
        return b"a 1\n# EOF\n"


@pytest.mark.parametrize("accept", [PROMETHEUS_2_42, PROMETHEUS_2_53, PROMETHEUS_3_5])
def test_prometheus_gets_openmetrics(accept: str) -> None:
    """Every Prometheus ranks OpenMetrics 1.0.0 first and gets it."""
    assert prefers_openmetrics(accept)


@pytest.mark.parametrize(
    "accept",
    [
        "",
        "*/*",
        FIREFOX,
        "text/plain",
        "application/openmetrics-text;version=0.0.1",
        "application/openmetrics-text;version=2.0.0",
        "application/openmetrics-text;q=0",
        "application/openmetrics-text;q=0.2, text/plain;q=0.3",
        "application/openmetrics-text, text/plain",
        "application/json",
        "application/openmetrics-text;q=nan",
        "application/openmetrics-text;q=2",
    ],
)
def test_everyone_else_gets_plain_text(accept: str) -> None:
    """A header that does not rank OpenMetrics 1.0.0 above plain text gets plain text."""
    assert not prefers_openmetrics(accept)


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text",
        "APPLICATION/OpenMetrics-Text ; Version=1.0.0",
        'application/openmetrics-text;version="1.0.0";charset=utf-8',
        "application/*",
        "application/openmetrics-text;q=0.5, */*;q=0.1",
    ],
)
def test_the_spelling_of_a_range_does_not_matter(accept: str) -> None:
    """Case, spaces, quotes, unknown parameters and wildcards are read as RFC 9110 says."""
    assert prefers_openmetrics(accept)


@pytest.mark.parametrize(
    "ranges",
    [
        "application/*;q=0.9, application/openmetrics-text;q=0.1",
        "application/openmetrics-text;q=0.9, application/openmetrics-text;version=1.0.0;q=0.1",
    ],
)
def test_the_most_specific_range_decides(ranges: str) -> None:
    """RFC 9110, section 12.5.1: a wider range's weight gives way to the narrower one's."""
    assert not prefers_openmetrics(f"text/plain;q=0.5, {ranges}")


@pytest.mark.parametrize(
    ("accept_encoding", "expected"),
    [
        # The five examples of RFC 9110, section 12.5.3.
        ("compress, gzip", True),
        ("", False),
        ("*", True),
        ("compress;q=0.5, gzip;q=1.0", True),
        ("gzip;q=1.0, identity; q=0.5, *;q=0", True),
        # And its rules: weight 0 is a refusal, the higher weight wins.
        ("gzip;q=0", False),
        ("gzip;q=0, *", False),
        ("*;q=0", False),
        ("identity", False),
        ("identity, gzip;q=0.5", False),
        ("x-gzip", True),
        ("deflate, br, zstd", False),
    ],
)
def test_gzip_is_for_those_who_take_it(accept_encoding: str, *, expected: bool) -> None:
    """Compression follows Accept-Encoding and its weights."""
    assert takes_gzip(accept_encoding) is expected


@given(st.text(alphabet=st.characters(codec="latin-1"), max_size=80))
def test_no_header_breaks_negotiation(header: str) -> None:
    """Whatever a client sends, it gets a page."""
    body, headers = choose(Counting().page, header, header)

    assert dict(headers)[b"content-length"] == b"%d" % len(body)


@pytest.mark.parametrize("accept", ["", PROMETHEUS_3_5])
def test_the_compressed_page_is_the_page(accept: str) -> None:
    """Both encodings of a format carry the same text."""
    page = Counting().page
    plain, _ = choose(page, accept, None)
    compressed, headers = choose(page, accept, "gzip")

    assert dict(headers)[b"content-encoding"] == b"gzip"
    assert gzip.decompress(compressed) == plain


def test_the_content_type_names_the_format() -> None:
    """The types are the ones the two formats' specifications give."""
    page = Counting().page

    types = [
        dict(choose(page, accept, None)[1])[b"content-type"] for accept in ("", PROMETHEUS_3_5)
    ]

    assert types == [
        b"text/plain; version=0.0.4; charset=utf-8",
        b"application/openmetrics-text; version=1.0.0; charset=utf-8",
    ]


def test_caches_are_told_what_the_page_depends_on() -> None:
    """Vary names both headers, whichever variant was sent."""
    for accept_encoding in (None, "gzip"):
        _, headers = choose(Counting().page, None, accept_encoding)
        assert dict(headers)[b"vary"] == b"Accept, Accept-Encoding"


def test_nothing_is_rendered_before_it_is_asked_for() -> None:
    """A poll nobody scrapes costs no rendering, and no format costs another one's."""
    counting = Counting()
    assert counting.rendered == []

    choose(counting.page, PROMETHEUS_3_5, "gzip")

    assert counting.rendered == ["openmetrics"]


def test_a_variant_is_made_once() -> None:
    """The second scrape of a poll gets the very bytes of the first."""
    counting = Counting()

    first, _ = choose(counting.page, None, "gzip")
    second, _ = choose(counting.page, None, "gzip")

    assert first is second
    assert counting.rendered == ["text"]


def test_the_next_page_can_be_made_ahead() -> None:
    """What the last page was asked for is ready before the next scrape; nothing else is."""
    earlier, later = Counting(), Counting()
    choose(earlier.page, PROMETHEUS_3_5, None)

    later.page.make_like(earlier.page)

    assert later.rendered == ["openmetrics"]


def test_a_scrape_finds_its_format_ready_after_several_polls() -> None:
    """Polls come three to a scrape at the defaults, and those that nobody saw pass on the want."""
    earlier, unseen, latest = Counting(), Counting(), Counting()
    choose(earlier.page, PROMETHEUS_3_5, "gzip")

    unseen.page.make_like(earlier.page)
    latest.page.make_like(unseen.page)

    assert latest.rendered == ["openmetrics"]
    assert "openmetrics_gzip" in vars(latest.page)


def test_what_was_looked_at_once_is_not_made_for_ever() -> None:
    """A person's look at the plain text costs a few polls, and not every poll from then on."""
    looked = Counting()
    choose(looked.page, FIREFOX, None)

    for _ in range(8):
        choose(looked.page, PROMETHEUS_3_5, None)
        later = Counting()
        later.page.make_like(looked.page)
        looked = later

    assert looked.rendered == ["openmetrics"]
