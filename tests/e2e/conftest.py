"""What end-to-end tests share: page servers, made nodes, and answers that hang."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.made_node import MadeNode
from tests.e2e.page_server import PageServer
from tests.parts.fake_nvml import compile_library


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


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An NVML whose answers a test writes."""
    return compile_library(tmp_path_factory.mktemp("library"))


@pytest.fixture
def made_node(tmp_path: Path, library: Path) -> Iterator[MadeNode]:
    """A node without GPUs or servers yet."""
    node = MadeNode(tmp_path, library)
    yield node
    node.close()
