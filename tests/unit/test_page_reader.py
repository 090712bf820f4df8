import math
import random
import re
import tracemalloc
from collections.abc import Iterable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from tests.unit.evidence import NO_PAGES, PAGE_NAMES, page

from kvheadroom.errors import SourceError
from kvheadroom.node.page_reader import PageReader, Sample
from kvheadroom.node.vllm_names import MEANING_OF
from kvheadroom.node.vllm_page import read_server_page

Plain = tuple[str, dict[str, str], float]

WANTED = ("kept", "kept_total", "kept_hist_bucket", "kept_hist_sum", "kept_hist_count")


def plain(samples: Iterable[Sample]) -> list[Plain]:
    return [(series.name, dict(series.labels), value) for series, value in samples]


def by_oracle(text: str, wanted: Iterable[str]) -> list[Plain]:
    """Return the wanted samples as the Prometheus client library parses them."""
    names = frozenset(wanted)
    return [
        (sample.name, sample.labels, float(sample.value))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in names
    ]


def same(ours: list[Plain], theirs: list[Plain]) -> bool:
    return len(ours) == len(theirs) and all(
        mine[:2] == other[:2] and (mine[2] == other[2] or math.isnan(mine[2] + other[2]))
        for mine, other in zip(ours, theirs, strict=True)
    )


# --- real pages -------------------------------------------------------------------------------

real_pages = [name for name in PAGE_NAMES if name not in NO_PAGES]


@pytest.mark.parametrize("name", real_pages)
def test_a_real_page_reads_as_the_client_library_reads_it(name: str) -> None:
    """Every wanted sample, in the page's order, from a reader that has seen nothing before."""
    body = page(name)

    ours = plain(PageReader(MEANING_OF).read(body))

    assert same(ours, by_oracle(body.decode(), MEANING_OF))
    assert ours or name == "pages/real-0.32.0-disable-log-stats"


def test_a_warm_reader_reads_every_page_as_a_cold_one_does() -> None:
    """What is remembered of one server's pages never shows up in another's."""
    warm = PageReader(MEANING_OF)
    for name in [*real_pages, *reversed(real_pages)]:
        body = page(name)
        assert same(plain(warm.read(body)), by_oracle(body.decode(), MEANING_OF)), name


def test_changed_values_are_read_anew() -> None:
    """A page whose every number differs from the last one's gives the new numbers."""
    body = page("pages/real-0.32.0-idle")
    numbers = random.Random(7)
    warm = PageReader(MEANING_OF)
    warm.read(body)

    changed = re.sub(rb" [0-9.e+]+\n", lambda _: b" %d.5\n" % numbers.randrange(10**6), body)

    assert same(plain(warm.read(changed)), by_oracle(changed.decode(), MEANING_OF))


def test_a_wanted_sample_added_to_any_family_of_a_known_page_is_seen() -> None:
    """Families that were passed over on earlier pages are looked into when they grow."""
    body = page("pages/real-0.32.0-idle")
    lines = body.splitlines(keepends=True)
    stray = b'vllm:num_preemptions_total{engine="7"} 3\n'
    warm = PageReader(MEANING_OF)
    before = len(warm.read(body))

    for position in range(0, len(lines), 11):
        grown = b"".join([*lines[:position], stray, *lines[position:]])
        assert len(warm.read(grown)) == before + 1, position
        warm = PageReader(MEANING_OF)
        warm.read(body)


def test_a_known_series_is_the_same_object_on_every_page() -> None:
    """Labels are parsed once, not once a poll."""
    warm = PageReader(MEANING_OF)
    body = page("pages/made-modern-97pct")

    first, second = warm.read(body), warm.read(body)

    assert all(one[0] is other[0] for one, other in zip(first, second, strict=True))


# --- any page ---------------------------------------------------------------------------------

names = st.sampled_from([*WANTED, "other", "kept_created", "keptx", "http_seconds", "k"])
label_names = st.sampled_from(["engine", "model_name", "le", "_x"])
label_values = st.text(
    st.sampled_from('ab01 \t\\"\n,{}=#é☃'), max_size=8
) | st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=6)  # fmt: skip
numbers = st.one_of(
    st.integers(-(2**40), 2**40).map(str),
    st.floats(allow_nan=False).map(repr),
    st.sampled_from(["NaN", "+Inf", "-Inf", "1e3", "1.5E-07", "-0.0", "0"]),
)
spaces = st.sampled_from([" ", "  ", "\t"])
stamps = st.sampled_from(["", "", "", " 1796030824000", " -5"])


def escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


@st.composite
def sample_lines(draw: st.DrawFn) -> str:
    labels: dict[str, str] = draw(st.dictionaries(label_names, label_values, max_size=3))
    inside = ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items())
    inside += draw(st.sampled_from(["", ","])) if labels else ""
    braces = f"{{{inside}}}" if labels else draw(st.sampled_from(["", "{}"]))
    indent, end = draw(st.sampled_from(["", "", " "])), draw(st.sampled_from(["", "", "\r", " "]))
    # The oracle splits value and stamp at blanks when there is one, else at tabs.
    blank = draw(spaces)
    stamp = draw(stamps).replace(" ", blank if "\t" not in blank else "\t")
    return f"{indent}{draw(names)}{braces}{blank}{draw(numbers)}{stamp}{end}"


@st.composite
def comment_lines(draw: st.DrawFn) -> str:
    name = draw(names)
    kinds = st.sampled_from(["gauge", "histogram", "untyped"])
    return draw(
        st.sampled_from(
            [
                f"# HELP {name} Text with # HELP kept 5 inside.",
                f"# HELP {name}",
                f"# HELP {name} Text.\n# TYPE {name} {draw(kinds)}",
                f"# TYPE {name} {draw(kinds)}",
                "# kept 1",
                "#",
                "",
            ]
        )
    )


pages = st.lists(sample_lines() | comment_lines(), max_size=25).map(lambda x: "\n".join(x) + "\n")


@settings(deadline=None)
@given(pages)
def test_any_page_reads_as_the_client_library_reads_it(text: str) -> None:
    """Escapes, label order, blanks, stamps, odd numbers, comments, strays, families unannounced."""
    assert same(plain(PageReader(WANTED).read(text.encode())), by_oracle(text, WANTED))


@settings(deadline=None)
@given(pages, pages)
def test_remembered_labels_do_not_bend_the_next_page(first: str, second: str) -> None:
    """The bytes before a value mean the same on every page, whatever else changed around them."""
    warm = PageReader(WANTED)
    warm.read(first.encode())
    warm._families.clear()

    assert same(plain(warm.read(second.encode())), by_oracle(second, WANTED))


@pytest.mark.parametrize(
    "line",
    [
        "kept",
        "kept ",
        'kept{a="1"}',
        "kept x",
        "kept 1_000",
        "kept 1 2 3",
        'kept{a="1" 5',
        "kept{a=1} 5",
        'kept{a="1",a="2"} 5',
        'kept{a="1"b="2"} 5',
    ],
)
def test_a_wanted_line_that_cannot_be_read_fails_the_page(line: str) -> None:
    """Half a page is no page: Prometheus itself drops a scrape with one bad line."""
    warm = PageReader(WANTED)
    warm.read(b'kept 1\nkept{a="1"} 2\n')

    for reader in (PageReader(WANTED), warm):
        with pytest.raises(SourceError) as failed:
            reader.read(f"{line}\n".encode())
        assert failed.value.reason == "not_metrics"
        assert "kept" in str(failed.value)


# --- hostile pages ----------------------------------------------------------------------------


def test_ever_new_labels_do_not_grow_memory() -> None:
    """Sixty thousand series, none seen twice, leave less than 32 MiB behind."""
    reader = PageReader(WANTED)
    tracemalloc.start()
    try:
        for number in range(200):
            body = "".join(f'kept{{id="{number}-{i}-{"x" * 300}"}} 1\n' for i in range(300))
            reader.read(f"# HELP family_{number} x\n{body}".encode())
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert held_bytes < 32 * 1024**2


@pytest.mark.parametrize(
    "body",
    [
        b'kept{a="' + b"x" * 8_000_000 + b'"} 1\n',
        b'kept{a="' + b"\\\\" * 4_000_000 + b'"} 1\n',
        b'kept{a="' + b'\\"' * 4_000_000 + b"\n",
        b"kept{" + b"," * 8_000_000 + b"\n",
        b"kept" * 2_000_000 + b"\n",
        b"kept{" + b"} 11111x" * 1_000_000 + b"\n",
        b"kept " + b"1" * 8_000_000 + b"x\n",
        b"kept 1" + b" " * 8_000_000 + b"x\n",
        b"# HELP " * 1_000_000 + b"\n",
        b"\n# HELP kept x" * 500_000,
        b" " * 8_000_000 + b"\n",
    ],
    ids=[
        "long",
        "escapes",
        "open",
        "commas",
        "name",
        "closed",
        "digits",
        "gap",
        "help-in-line",
        "families",
        "blank",
    ],
)
def test_a_monstrous_page_is_read_or_refused(body: bytes) -> None:
    """Eight megabytes of anything; read in a way that goes back and forth, they never end."""
    with suppress(SourceError):
        PageReader(WANTED).read(body)
    with suppress(SourceError):
        read_server_page(body, PageReader(MEANING_OF))


def test_a_page_of_a_million_wanted_lines_is_too_large() -> None:
    """No server has that many, and reading them would hold up every other poll."""
    with pytest.raises(SourceError) as failed:
        PageReader(WANTED).read(b"kept 1\n" * 1_000_000)

    assert failed.value.reason == "too_large"
