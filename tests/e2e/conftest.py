"""What end-to-end tests share: page servers, and answers that hang."""

import threading
from collections.abc import Callable, Iterator

import pytest
from tests.e2e.page_server import PageServer


@pytest.fixture
def servers() -> Iterator[Callable[[], PageServer]]:
    """Make page servers that are closed when the test ends."""
    made: list[PageServer] = []

    def make() -> PageServer:
        made.append(PageServer())
        return made[-1]

    yield make
    for server in made:
        server.close()


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Let hanging answers go when the test ends."""
    event = threading.Event()
    yield event
    event.set()
