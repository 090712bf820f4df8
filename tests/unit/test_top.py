import io

import pytest
from rich.console import Console
from tests.unit.demo_snapshot import demo_snapshot

from kvheadroom.faces.document import (
    CacheDocument,
    EngineDocument,
    FitDocument,
    GpuDocument,
    NodeDocument,
    RestartDocument,
    ShareDocument,
    SourceDocument,
)
from kvheadroom.faces.node_document import node_document
from kvheadroom.faces.top import render
from kvheadroom.units import GIB


def drawn(node: NodeDocument, columns: int = 80, rows: int | None = None) -> list[str]:
    """Return the lines of *node* on a terminal without colors."""
    stream = io.StringIO()
    Console(file=stream, width=columns, color_system=None, highlight=False).print(
        render(node, columns, rows)
    )
    return stream.getvalue().splitlines()


def node(*, gpu: GpuDocument | None = None, engine: EngineDocument | None = None) -> NodeDocument:
    return NodeDocument(
        version="1",
        complete=True,
        gpus=(gpu,) if gpu else (),
        engines=(engine,) if engine else (),
    )


@pytest.mark.parametrize("profile", ["card", "rack"])
@pytest.mark.parametrize("columns", [80, 140])
def test_no_line_is_wider_than_the_terminal(profile: str, columns: int) -> None:
    """Works over SSH at 80 columns."""
    document = node_document("1", demo_snapshot(profile))

    assert max(map(len, drawn(document, columns))) <= columns


def test_the_bar_shows_shares_of_the_card() -> None:
    """Half of a card's memory is half of the bar."""
    gpu = GpuDocument(
        gpu="0",
        uuid="U",
        total_bytes=80 * GIB,
        ledger=(
            ShareDocument(component="weights", bytes=40 * GIB, source="log", owner="chat"),
            ShareDocument(component="kv_used", bytes=20 * GIB, source="computed", owner="chat"),
            ShareDocument(component="free", bytes=20 * GIB, source="measured"),
        ),
    )

    bar = next(line for line in drawn(node(gpu=gpu), 82) if line.startswith("["))

    assert (bar.count("█"), bar.count("▓"), bar.count(" ")) == (40, 20, 20)


def test_a_card_without_a_ledger_says_why() -> None:
    """Unified memory has none of its own."""
    gpu = GpuDocument(gpu="0", uuid="U", name="GB10", ledger_absent="no memory of its own")

    assert any("no memory of its own" in line for line in drawn(node(gpu=gpu)))


def test_an_engine_shows_what_is_left() -> None:
    """Places, queue, what was lost, usage, how many more, what binds and until when."""
    engine = EngineDocument(
        engine="chat",
        target="h:1",
        requests_running=12,
        requests_waiting=3,
        requests_preempted=2,
        max_num_seqs=32,
        cache=CacheDocument(layout="uniform", blocks=100, usable_blocks=99, used_ratio=0.75),
        headroom=(FitDocument(context="8192", context_tokens=8192, requests=4),),
        limit="kv",
        exhaustion_seconds=130.0,
    )

    (row,) = (line.split() for line in drawn(node(engine=engine)) if line.startswith("chat"))

    assert row == ["chat", "12/32", "3", "2", "▓▓▓▓▓▓░░", "75%", "4", "of", "8K", "KV", "2m", "10s"]


def test_unknown_is_not_zero() -> None:
    """An engine whose page tells nothing yet."""
    engine = EngineDocument(engine="chat", target="h:1")

    (row,) = (line.split() for line in drawn(node(engine=engine)) if line.startswith("chat"))

    assert row == ["chat", "?", "?", "?", "unknown", "-", "-"]


def test_what_needs_a_person_is_a_sentence() -> None:
    """A stalled engine, a server that would not start again, a source that is down."""
    document = NodeDocument(
        version="1",
        complete=True,
        sources=(
            SourceDocument(source="nvml", target="driver", up=False, reason="lost", detail="fell"),
        ),
        gpus=(
            GpuDocument(
                gpu="0",
                uuid="U",
                restarts=(
                    RestartDocument(
                        server="embed", starts=False, needed_bytes=4 * GIB, free_bytes=GIB
                    ),
                ),
            ),
        ),
        engines=(
            EngineDocument(
                engine="chat", target="h:1", stalled=True, stall_evidence="/health answers 503"
            ),
        ),
    )

    text = " ".join(" ".join(drawn(document)).split())

    assert "stalled: /health answers 503" in text
    assert "would not start again on GPU 0: asks for 4.00 GiB, would find 1.00 GiB" in text
    assert "nvml driver down: lost: fell" in text


def test_engines_come_first_where_not_all_fits() -> None:
    """Eight cards are taller than a terminal of 24 lines, and what is left must be seen."""
    document = node_document("1", demo_snapshot("rack"))

    lines = drawn(document, rows=24)
    whole = drawn(document)

    usages = [line for line in lines[:24] if line.count("▓") + line.count("░") == 8]
    assert len(usages) == len(document.engines)
    assert not any("FULL IN" in line for line in whole[:24])
    assert drawn(document, rows=len(whole) + 3) == whole


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("127.0.0.1:43663/0", ":43663/0"),
        ("10.12.14.16:8000/0", "…16:8000/0"),
        ("chat", "chat"),
    ],
)
def test_engines_called_by_address_are_told_apart(name: str, shown: str) -> None:
    """At 80 columns an address does not fit; its end says more than its beginning."""
    engine = EngineDocument(engine=name, target="h:1")

    row = drawn(node(engine=engine))[-1]

    assert row.split()[0].endswith(shown)
