import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from kvheadroom.node.log_follow import FollowedBoots
from kvheadroom.poll.log_watch import LogWatch
from kvheadroom.readings import BootReading

FOUND = FollowedBoots(BootReading(version="0.32.0"))


@dataclass
class Script:
    """A log that gives what the script says, step by step."""

    steps: list[Callable[[], FollowedBoots]]
    closed: list[bool] = field(default_factory=list)

    def read(self) -> FollowedBoots:
        return self.steps.pop(0)()

    def close(self) -> None:
        self.closed.append(True)


def fault() -> FollowedBoots:
    raise RuntimeError("secret")


def test_what_the_log_says_is_the_outcome() -> None:
    """Before the first poll nothing is known."""
    watch = LogWatch("e", Script([lambda: FOUND]))
    assert watch.outcome.latest is None

    watch.poll()

    assert watch.outcome == FOUND


def test_a_fault_keeps_what_was_known() -> None:
    """A start that was read stays true; the fault is named without its text."""
    watch = LogWatch("e", Script([lambda: FOUND, fault]))
    watch.poll()

    watch.poll()

    assert watch.outcome.latest == FOUND.latest
    assert watch.outcome.problem == "internal error: RuntimeError"


def test_a_log_is_closed_when_its_reading_ends() -> None:
    """A disk that hangs holds up nobody, and what is read is not closed under the reader."""
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> FollowedBoots:
        begun.set()
        assert go_on.wait(10)
        return FOUND

    source = Script([slow])
    watch = LogWatch("e", source)
    reader = threading.Thread(target=watch.poll)
    reader.start()
    assert begun.wait(10)

    watch.close()
    closed_while_read = list(source.closed)
    go_on.set()
    reader.join(10)

    assert closed_while_read == []
    assert source.closed == [True]


def test_a_closed_log_is_not_read() -> None:
    """A poll may come late."""
    source = Script([])
    watch = LogWatch("e", source)
    watch.close()

    watch.poll()

    assert watch.outcome.latest is None
