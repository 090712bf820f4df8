import base64
import hashlib
from html.parser import HTMLParser

import pytest

from kvheadroom.errors import Reason
from kvheadroom.faces import landing
from kvheadroom.live.card_view import view_cards
from kvheadroom.live.engine_facts import EngineFacts
from kvheadroom.live.engine_view import (
    EnginePast,
    EngineView,
    ViewOptions,
    view_engine,
)
from kvheadroom.live.snapshot import Snapshot
from kvheadroom.readings import EngineReading, GpuReading, ServerReading, SourceHealth


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
        self._in_cell = False
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
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""
        if tag == "td":
            self._in_cell = False

    def handle_data(self, data: str) -> None:
        if self._inside == "style":
            self.style += data
        else:
            self.words += data
        if self._in_cell:
            self.cells[-1] += data


def health(*, up: bool, reason: Reason | None = None, detail: str | None = None) -> SourceHealth:
    return SourceHealth(
        source="vllm", target="gpu-1:8000", up=up, reason=reason, detail=detail, failures={}
    )


def test_the_page_names_the_version() -> None:
    """A person who opens the page sees what runs."""
    assert "9.8.7" in Parsed(landing.render("9.8.7", "/metrics", Snapshot())).words


def test_the_page_links_to_the_metrics() -> None:
    """The link follows the configured telemetry path."""
    assert Parsed(landing.render("1", "/kv/metrics", Snapshot())).links == ["/kv/metrics"]


def test_a_source_that_is_down_says_why() -> None:
    """Target, state, bounded reason and the line for a person are all in its row."""
    sources = [health(up=False, reason="unreachable", detail="connection refused")]

    cells = Parsed(landing.render("1", "/metrics", Snapshot(sources=tuple(sources)))).cells

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

    cells = Parsed(landing.render("1", "/metrics", Snapshot(sources=(source,)))).cells

    assert cells == ["nvml", "driver", "up", "", "2001-09-09 01:46:40"]


def test_no_source_is_said_in_words() -> None:
    """Without a source there is no empty table."""
    page = Parsed(landing.render("1", "/metrics", Snapshot()))

    assert "table" not in page.tags
    assert "No source" in page.words


@pytest.mark.parametrize("hostile", ["<script>alert(1)</script>", "</td><img src=x>", "&lt;b&gt;"])
def test_text_from_outside_stays_text(hostile: str) -> None:
    """A server's answer cannot put elements into the page; it is shown as it came."""
    hostile_snapshot = Snapshot(sources=(health(up=False, reason="tls", detail=hostile),))
    page = Parsed(landing.render("1", "/m", hostile_snapshot))

    assert not {"script", "img", "b"} & set(page.tags)
    assert f"tls: {hostile}" in page.cells


def test_the_policy_admits_this_style_sheet_and_nothing_else() -> None:
    """The policy's hash is that of the style in the page, so a browser applies it."""
    page = Parsed(landing.render("1", "/metrics", Snapshot()))
    digest = base64.b64encode(hashlib.sha256(page.style.encode()).digest()).decode()

    directives = dict(
        directive.strip().split(" ", 1) for directive in landing.CONTENT_SECURITY_POLICY.split(";")
    )

    assert directives["default-src"] == "'none'"
    assert directives["style-src"] == f"'sha256-{digest}'"
    assert "script-src" not in directives


def test_the_page_needs_no_other_machine_and_no_script() -> None:
    """Everything it refers to is a path on this server."""
    page = Parsed(landing.render("1", "/metrics", Snapshot(sources=(health(up=True),))))

    assert "script" not in page.tags
    assert page.addresses == ["/metrics"]
    assert "url(" not in page.style
    assert "@import" not in page.style


def engine(**reading: object) -> EngineView:
    page = EngineReading(rank="0", **reading)  # type: ignore[arg-type]
    view, _ = view_engine(
        page,
        ServerReading(engines=(page,), max_model_len=2048),
        target="gpu-1:8000",
        facts=EngineFacts(),
        past=EnginePast(),
        options=ViewOptions(context_tokens=(1024,)),
        at_seconds=0.0,
    )
    return view


def test_an_engine_says_how_many_more_requests_fit() -> None:
    """9 of 199 usable blocks of 128 tokens are free: one more request of 1,024 tokens."""
    view = engine(
        model_name="tiny",
        kv_used_ratio=190 / 199,
        cache_config={"num_gpu_blocks": "200", "block_size": "128"},
    )

    words = Parsed(landing.render("1", "/metrics", Snapshot(engines=(view,)))).words

    assert "95.5%" in words
    assert "1 of 1,024 tokens" in words
    assert "0 of 2,048 tokens (max)" in words


def test_unknown_usage_is_said_as_unknown() -> None:
    """Before the first request nothing is known, and nothing is shown as 0."""
    words = Parsed(landing.render("1", "/metrics", Snapshot(engines=(engine(),)))).words

    assert "unknown" in words
    assert "0%" not in words


def test_a_gpu_shows_its_memory_in_binary_units() -> None:
    """12,288 MiB is 12 GiB."""
    card = GpuReading(gpu="0", uuid="U", total_bytes=12_288 * 1024**2)

    cells = Parsed(
        landing.render("1", "/metrics", Snapshot(cards=view_cards((card,), (), {}, {})))
    ).cells

    assert "12.00 GiB" in cells
    assert cells.count("unknown") == 3
