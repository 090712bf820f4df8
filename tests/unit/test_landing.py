import base64
import hashlib
from html.parser import HTMLParser

import pytest

from kvheadroom.errors import Reason
from kvheadroom.faces import landing
from kvheadroom.readings import SourceHealth


class Parsed(HTMLParser):
    """A page as a browser reads it: its elements, links, table cells and style."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str | None] = []
        self.addresses: list[str | None] = []
        self.cells: list[str] = []
        self.style = ""
        self.words = ""
        self._inside = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._inside = tag
        named = dict(attrs)
        if tag == "a":
            self.links.append(named.get("href"))
        self.addresses += [named[name] for name in ("href", "src", "action") if name in named]
        if tag == "td":
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "style":
            self.style += data
        else:
            self.words += data
        if self._inside == "td":
            self.cells[-1] += data


def health(*, up: bool, reason: Reason | None = None, detail: str | None = None) -> SourceHealth:
    return SourceHealth(
        source="vllm", target="gpu-1:8000", up=up, reason=reason, detail=detail, failures={}
    )


def test_the_page_names_the_version() -> None:
    """A person who opens the page sees what runs."""
    assert "9.8.7" in Parsed(landing.render("9.8.7", "/metrics", [])).words


def test_the_page_links_to_the_metrics() -> None:
    """The link follows the configured telemetry path."""
    assert Parsed(landing.render("1", "/kv/metrics", [])).links == ["/kv/metrics"]


def test_a_source_that_is_down_says_why() -> None:
    """Target, state, bounded reason and the line for a person are all in its row."""
    sources = [health(up=False, reason="unreachable", detail="connection refused")]

    cells = Parsed(landing.render("1", "/metrics", sources)).cells

    assert cells == ["vllm", "gpu-1:8000", "down", "unreachable: connection refused", "never"]


def test_the_last_data_is_dated_in_utc() -> None:
    """Unix second 1,000,000,000 was 2001-09-09 01:46:40 UTC."""
    source = SourceHealth(
        source="nvml",
        target="driver",
        up=True,
        reason=None,
        detail=None,
        failures={},
        last_success_unix_seconds=1_000_000_000,
    )

    cells = Parsed(landing.render("1", "/metrics", [source])).cells

    assert cells == ["nvml", "driver", "up", "", "2001-09-09 01:46:40"]


def test_no_source_is_said_in_words() -> None:
    """Without a source there is no empty table."""
    page = Parsed(landing.render("1", "/metrics", []))

    assert "table" not in page.tags
    assert "No source" in page.words


@pytest.mark.parametrize("hostile", ["<script>alert(1)</script>", "</td><img src=x>", "&lt;b&gt;"])
def test_text_from_outside_stays_text(hostile: str) -> None:
    """A server's answer cannot put elements into the page; it is shown as it came."""
    page = Parsed(landing.render("1", "/m", [health(up=False, reason="tls", detail=hostile)]))

    assert not {"script", "img", "b"} & set(page.tags)
    assert f"tls: {hostile}" in page.cells


def test_the_policy_admits_this_style_sheet_and_nothing_else() -> None:
    """The policy's hash is that of the style in the page, so a browser applies it."""
    page = Parsed(landing.render("1", "/metrics", []))
    digest = base64.b64encode(hashlib.sha256(page.style.encode()).digest()).decode()

    directives = dict(
        directive.strip().split(" ", 1) for directive in landing.CONTENT_SECURITY_POLICY.split(";")
    )

    assert directives["default-src"] == "'none'"
    assert directives["style-src"] == f"'sha256-{digest}'"
    assert "script-src" not in directives


def test_the_page_needs_no_other_machine_and_no_script() -> None:
    """Everything it refers to is a path on this server."""
    page = Parsed(landing.render("1", "/metrics", [health(up=True)]))

    assert "script" not in page.tags
    assert page.addresses == ["/metrics"]
    assert "url(" not in page.style
    assert "@import" not in page.style
