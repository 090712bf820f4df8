"""Every dashboard drawn from live data by Grafana's own libraries in a real browser."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.grafana.boards import BOARDS, load, panels_of
from tests.grafana.browser import Seen, SeenPanel, build_page, look_at, pixels, serve_page
from tests.grafana.conftest import Stored

pytestmark = pytest.mark.parts

# What a reader would come with: one node, one engine. KVHEADROOM_PICTURES=docs keeps the pictures.
CHOSEN = {
    "engine": {"instance": "workstation:10420", "engine": "chat"},
    "node": {"instance": "workstation:10420"},
}
#: How a value of each unit is written. A count has none.
WRITTEN = {
    "bytes": r"\d ?(B|KiB|MiB|GiB|TiB)\b",
    "percentunit": r"\d ?%",
    "percent": r"\d ?%",
    "s": r"\d ?(ms|s|mins?|hours?|days?)\b|not filling",
    "watt": r"\d ?W\b",
    "short": r"\d|none|kv",
}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("page") / "built"
    build_page(folder)
    with serve_page(folder) as address:
        yield address


@pytest.fixture(scope="module", params=BOARDS)
def drawn(
    request: pytest.FixtureRequest,
    page: str,
    stored: Stored,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[str, Seen]:
    """The board with its closed rows open: what other exporters say is in the recording too."""
    name = str(request.param)
    end = stored.ends_unix_seconds
    question = {
        "board": name,
        "prometheus": stored.prometheus(name).url,
        "from": f"{end - stored.span_seconds(name) * 0.93:.0f}",
        "to": f"{end:.0f}",
        "open": "yes",
        **CHOSEN.get(name, {}),
    }
    rows = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in panels_of(load(name)))
    seen = look_at(page, question, pixels(rows), tmp_path_factory.mktemp(name))
    if folder := os.environ.get("KVHEADROOM_PICTURES"):
        shutil.copy(seen.picture, Path(folder) / f"dashboard-{name}.png")
    return name, seen


def test_every_panel_is_drawn_without_error(drawn: tuple[str, Seen]) -> None:
    """Each title is on the page once, none says that it has no data, and no query failed."""
    name, seen = drawn
    titles = [re.sub(r"\$gpu\b", "0", panel["title"]) for panel in panels_of(load(name))]

    assert seen.errors == ()
    assert sorted(panel.title for panel in seen.panels) == sorted(titles)
    assert [panel.title for panel in seen.panels if panel.failed] == []
    assert [panel.title for panel in seen.panels if "No data" in panel.text] == []


def test_no_panel_covers_another_or_leaves_the_page(drawn: tuple[str, Seen]) -> None:
    """The boxes that the browser measured do not meet, and each has room for what is in it."""
    _, seen = drawn

    for number, panel in enumerate(seen.panels):
        assert panel.left >= 0
        assert panel.right <= 1400
        assert panel.bottom - panel.top > 100
        assert not [other.title for other in seen.panels[:number] if meet(panel, other)]


def meet(one: SeenPanel, other: SeenPanel) -> bool:
    across = min(one.right, other.right) - max(one.left, other.left)
    down = min(one.bottom, other.bottom) - max(one.top, other.top)
    return across > 0 and down > 0


def test_every_value_has_its_unit(drawn: tuple[str, Seen]) -> None:
    """Axes, numbers, legends and cells are written in the panel's unit."""
    name, seen = drawn
    by_title = {panel.title: panel for panel in seen.panels}

    for panel in panels_of(load(name)):
        found = by_title[re.sub(r"\$gpu\b", "0", panel["title"])]
        unit = panel["fieldConfig"]["defaults"]["unit"]
        text = " ".join((found.text.replace(panel["title"], "", 1), *found.axes))
        assert re.search(WRITTEN[unit], text), (found.title, text)
