from pathlib import Path

import pytest

from kvheadroom.live.boot_change import BootCapacity
from kvheadroom.poll.boot_book import BootBook

OLD = BootCapacity(version="0.25.1", tokens=240_000)
NEW = BootCapacity(version="0.26.0", tokens=196_800)


def test_an_upgrade_is_seen_over_our_own_restart(tmp_path: Path) -> None:
    """Both containers may be replaced at once."""
    path = tmp_path / "boots.json"
    BootBook(path).observe("e", OLD, restarts=3)

    past = BootBook(path).observe("e", NEW, restarts=0)

    assert (past.previous, past.current) == (OLD, NEW)


def test_without_a_file_each_run_begins_anew() -> None:
    """Within a run a restart is compared all the same."""
    book = BootBook()
    book.observe("e", OLD, restarts=0)

    assert book.observe("e", NEW, restarts=1).previous == OLD
    assert BootBook().observe("e", NEW, restarts=0).previous is None


def test_a_file_is_written_only_when_a_budget_changes(tmp_path: Path) -> None:
    """Not at every poll."""
    path = tmp_path / "boots.json"
    book = BootBook(path)
    book.observe("e", OLD, restarts=0)
    path.unlink()

    book.observe("e", OLD, restarts=0)

    assert not path.exists()


def test_a_damaged_file_is_replaced(tmp_path: Path) -> None:
    """It costs one comparison."""
    path = tmp_path / "boots.json"
    path.write_bytes(b"\xff{")

    assert BootBook(path).observe("e", OLD, restarts=0).previous is None
    assert BootBook(path).observe("e", NEW, restarts=0).previous == OLD


@pytest.mark.parametrize("place", ["missing/boots.json", "folder"])
def test_a_file_that_cannot_be_written_stops_nothing(tmp_path: Path, place: str) -> None:
    """A missing folder, or a folder in its place."""
    (tmp_path / "folder").mkdir()
    book = BootBook(tmp_path / place)

    book.observe("e", OLD, restarts=0)

    assert book.observe("e", NEW, restarts=1).previous == OLD
    assert not [entry for entry in tmp_path.iterdir() if entry.name.startswith(".")]


def test_a_log_recalls_what_no_file_holds(tmp_path: Path) -> None:
    """The start before this one stands above it."""
    assert BootBook().observe("e", NEW, restarts=0, earlier=OLD).previous == OLD
