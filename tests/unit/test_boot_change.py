import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.startup_logs import only_boot, server_log

from kvheadroom.live.boot_change import (
    BootCapacity,
    BootPast,
    boot_change,
    capacity_of_boot,
    dump_boots,
    load_boots,
    observe_boot,
    recall_boot,
)
from kvheadroom.node.boot_reading import boot_reading
from kvheadroom.units import GIB

BEFORE = BootCapacity(
    version="0.25.1", tokens=240_000, bytes=30 * GIB, blocks=15_000, max_model_len=8_192,
    utilization=0.92,
)  # fmt: skip
# Public reports of upgrades: a hybrid's pool lost 18 to 24 %, and a model on one A100 went from
# about 55,000 tokens to about 525,000.
AFTER = BootCapacity(
    version="0.26.0", tokens=196_800, bytes=round(24.6 * GIB), blocks=12_300,
    max_model_len=8_192, utilization=0.92,
)  # fmt: skip


def past_of(*starts: BootCapacity | None) -> BootPast:
    past = BootPast()
    for restarts, seen in enumerate(starts):
        past = observe_boot(past, seen, restarts=restarts)
    return past


def test_an_upgrade_that_took_capacity_is_said_with_both_versions() -> None:
    """240,000 to 196,800 tokens is 18 % less."""
    change = boot_change(past_of(BEFORE, AFTER))

    assert change is not None
    assert change.ratio == pytest.approx(-0.18)
    assert (change.before_version, change.now_version) == ("0.25.1", "0.26.0")
    assert change.is_notable
    assert change.text == "vLLM 0.25.1 → 0.26.0: KV tokens -18.0%, 240,000 → 196,800"


def test_a_gain_in_the_same_memory_is_another_way_of_counting() -> None:
    """55,000 to 525,000 tokens, 9.5 times as many, while the bytes stay."""
    before = BootCapacity(version="0.20.0", tokens=55_000, bytes=20 * GIB)
    now = BootCapacity(version="0.21.0", tokens=525_000, bytes=20 * GIB)

    change = boot_change(past_of(before, now))

    assert change is not None
    assert "x9.5" in change.text
    assert "in the same memory" in change.text


def test_settings_that_changed_are_told_beside() -> None:
    """They explain what no version did."""
    now = BootCapacity(version="0.25.1", tokens=120_000, utilization=0.5, max_model_len=8_192)

    change = boot_change(past_of(BEFORE, now))

    assert change is not None
    assert "utilization 0.92 → 0.5" in change.text
    assert "max_model_len" not in change.text


def test_bytes_are_compared_where_a_version_tells_no_tokens() -> None:
    """Blocks come last: their size may have changed."""
    old = BootCapacity(version="0.9.0", bytes=30 * GIB, blocks=15_000)

    change = boot_change(past_of(old, AFTER))

    assert change is not None
    assert change.measure == "bytes"
    assert change.ratio == pytest.approx(-0.18)


def test_nothing_is_said_before_a_second_start() -> None:
    """Nor while the engine tells nothing."""
    assert boot_change(past_of(None, BEFORE, None)) is None


def test_a_plain_restart_keeps_the_comparison() -> None:
    """The same budget but for a few blocks is no news; the upgrade still is."""
    again = BootCapacity(
        version="0.26.0", tokens=196_700, blocks=12_294, max_model_len=8_192, utilization=0.92
    )

    change = boot_change(past_of(BEFORE, AFTER, again, AFTER))

    assert change is not None
    assert change.before == 240_000


def test_a_figure_that_arrives_late_is_no_start() -> None:
    """Of two engines on a page one may show first, so that the sum of blocks is divided wrongly."""
    past = observe_boot(BootPast(), BootCapacity(blocks=30_000), restarts=0)
    past = observe_boot(past, BEFORE, restarts=0)

    assert (past.previous, past.current) == (None, BEFORE)


def test_what_one_poll_does_not_tell_stays_known() -> None:
    """``/version`` may not answer for a while."""
    past = observe_boot(past_of(BEFORE), BootCapacity(blocks=15_000), restarts=0)

    assert past.current == BEFORE


def test_the_budget_before_our_own_restart_is_compared_with() -> None:
    """An upgrade may replace both containers at once."""
    kept = load_boots(dump_boots({"e": past_of(BEFORE)}))

    past = observe_boot(kept["e"], AFTER, restarts=0)

    assert past.previous == BEFORE
    assert boot_change(observe_boot(kept["e"], BEFORE, restarts=0)) is None


def test_logs_of_two_starts_are_compared() -> None:
    """Real servers: 20,480 tokens under 0.10.2 and 5,120 under 0.32.0."""
    old, new = (
        capacity_of_boot(boot_reading(only_boot(server_log(name))))
        for name in ("0.10.2", "0.32.0-lora")
    )

    change = boot_change(past_of(old, new))

    assert change is not None
    assert (change.before, change.now, change.ratio) == (20_480, 5_120, -0.75)


def test_a_log_recalls_the_start_before_this_one() -> None:
    """Whether it is read before or after the engine's page."""
    first = recall_boot(observe_boot(BootPast(), AFTER, restarts=0), BEFORE)
    later = observe_boot(recall_boot(BootPast(), BEFORE), AFTER, restarts=0)

    assert first == later == BootPast(BEFORE, AFTER, restarts=0)
    assert recall_boot(first, AFTER) == first


def test_a_log_recalls_nothing_that_is_known_better() -> None:
    """What was kept over our own restart is the start before; the log's may be an older one."""
    kept = load_boots(dump_boots({"e": past_of(BEFORE)}))["e"]

    assert recall_boot(kept, AFTER) == kept


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"format": 2, "engines": {}}',
        '{"format": 1, "engines": []}',
        '{"format": 1, "engines": {"e": 1}}',
        "[" * 100_000,
    ],
)
def test_a_state_that_cannot_be_read_is_none(text: str) -> None:
    """Another format, or damage."""
    assert load_boots(text) == {}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["current", "previous", "tokens", "version", "blocks", "utilization"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_whatever_a_state_holds_is_read_without_a_fault(kept: object) -> None:
    """What is left can be compared."""
    text = json.dumps({"format": 1, "engines": {"e": kept, "f": {"current": kept}}})

    for past in load_boots(text).values():
        boot_change(observe_boot(past, AFTER, restarts=0))
