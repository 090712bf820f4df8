"""A restart is counted once, whether the page or the process tells it first."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from kvheadroom.live.engine_facts import EngineFacts
from kvheadroom.live.engine_view import EnginePast, ViewOptions, view_engine
from kvheadroom.live.process_tree import Start
from kvheadroom.readings import EngineReading, ServerReading

FIRST, SECOND = (100, 1_000), (150, 9_000)
UNUSED = EngineReading("0", prompt_tokens_total=0.0, generation_tokens_total=0.0)
USED = replace(UNUSED, prompt_tokens_total=500.0, generation_tokens_total=40.0)

Poll = tuple[EngineReading, Start | None, float | None]


def restarts(polls: Sequence[Poll]) -> list[int]:
    """Restarts after each of the polls: what was read, the process known, the start told."""
    past, counted = EnginePast(), list[int]()
    for number, (reading, process, started) in enumerate(polls):
        server = ServerReading(engines=(reading,), started_unix_seconds=started)
        view, past = view_engine(
            reading,
            server,
            target="h:1",
            facts=EngineFacts(process=process),
            past=past,
            options=ViewOptions(),
            at_seconds=5.0 * number,
        )
        counted.append(view.restarts)
    return counted


@pytest.mark.parametrize(
    ("polls", "expected"),
    [
        ([(UNUSED, FIRST, None), (UNUSED, SECOND, None), (UNUSED, SECOND, None)], [0, 1, 1]),
        ([(USED, FIRST, None), (UNUSED, FIRST, None), (UNUSED, SECOND, None)], [0, 1, 1]),
        ([(USED, FIRST, None), (UNUSED, SECOND, None), (USED, SECOND, None)], [0, 1, 1]),
        ([(USED, FIRST, 1.0), (UNUSED, FIRST, 2.0), (USED, SECOND, 2.0)], [0, 1, 1]),
        ([(USED, FIRST, 1.0), (USED, SECOND, 1.0)], [0, 0]),
        ([(USED, None, None), (USED, FIRST, None), (USED, None, None)], [0, 0, 0]),
    ],
    ids=[
        "unused, without a start on its page",
        "page ahead of the look",
        "both at once",
        "start on the page",
        "page says it is the same",
        "found late, lost again",
    ],
)
def test_restarts_are_counted_once(polls: Sequence[Poll], expected: list[int]) -> None:
    """Of several API servers' pages, which tell no start, only counters and processes do."""
    assert restarts(polls) == expected
