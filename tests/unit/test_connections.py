import asyncio
from unittest.mock import create_autospec

from kvheadroom.faces.connections import Connection, ConnectionTable

FOREVER = float("inf")


def enter(table: ConnectionTable, deadline: float = FOREVER) -> Connection:
    return table.admit(create_autospec(asyncio.Transport, instance=True), deadline)


def was_cut_off(connection: Connection) -> bool:
    return bool(connection.transport.abort.called)  # type: ignore[attr-defined]


def test_the_oldest_silent_connection_makes_room() -> None:
    """In a table full of silence a newcomer takes the longest silent one's place."""
    table = ConnectionTable(3)
    crowd = [enter(table) for _ in range(4)]

    assert [was_cut_off(each) for each in crowd] == [True, False, False, False]
    assert len(table) == 3


def test_a_connection_that_has_spoken_outlives_the_silent_crowd() -> None:
    """However many say nothing, the scraper's connection stays."""
    table = ConnectionTable(4)
    scraper = enter(table)
    table.spoke(scraper)

    for _ in range(50):
        enter(table)

    assert not was_cut_off(scraper)


def test_idle_connections_do_not_keep_newcomers_out() -> None:
    """When all have spoken, the one that has been quiet for longest makes room."""
    table = ConnectionTable(3)
    first, second, third = (enter(table) for _ in range(3))
    for each in (first, second, third, first):
        table.spoke(each)

    enter(table)

    assert [was_cut_off(each) for each in (first, second, third)] == [False, True, False]


def test_newcomers_do_not_push_one_another_out_of_a_table_of_idle_ones() -> None:
    """Two scrapers that arrive together both find a place, at the expense of the idle."""
    table = ConnectionTable(4)
    for _ in range(4):
        table.spoke(enter(table))

    newcomers = [enter(table), enter(table)]

    assert not any(was_cut_off(each) for each in newcomers)


def test_the_overdue_are_cut_off() -> None:
    """A deadline that has come ends its connection and no other."""
    table = ConnectionTable(3)
    overdue, in_time = enter(table, deadline=10.0), enter(table, deadline=10.1)

    table.abort_overdue(10.0)

    assert was_cut_off(overdue)
    assert not was_cut_off(in_time)


def test_the_longest_stalled_is_cut_off_first() -> None:
    """Who has not read for longest goes; who has read again does not."""
    table = ConnectionTable(3)
    recovered, older, newer = (enter(table) for _ in range(3))
    for each in (recovered, older, newer):
        table.stalled(each)
    table.flowing(recovered)

    assert table.abort_longest_stalled()
    assert [was_cut_off(each) for each in (recovered, older, newer)] == [False, True, False]


def test_without_a_stalled_connection_none_is_cut_off() -> None:
    """The table says so instead of taking a healthy one."""
    table = ConnectionTable(3)
    table.spoke(enter(table))

    assert not table.abort_longest_stalled()


def test_a_closed_connection_is_forgotten() -> None:
    """Its place is free, and a late word about it changes nothing."""
    table = ConnectionTable(2)
    closed = enter(table)

    table.discard(closed)
    table.spoke(closed)

    assert len(table) == 0
