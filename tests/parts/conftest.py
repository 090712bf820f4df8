"""Parts the tests share: libraries compiled or fetched once, and a node to read them on."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.parts.fake_nvml import SONAME, FakeNvml, compile_library
from tests.parts.needs import fetch_debian, require

__all__ = ["require"]

REAL_NVML_CACHE = Path(__file__).parents[2] / ".cache" / "real-nvml"


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test library, with every function of a current driver."""
    return compile_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def old_nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test library without the functions that drivers of 2021 lack."""
    return compile_library(tmp_path_factory.mktemp("old-nvml"), old_driver=True)


@pytest.fixture(scope="session")
def real_nvml_directory() -> Path:
    """The directory of Debian's build of NVIDIA's own library, fetched once into .cache."""
    if not any(REAL_NVML_CACHE.rglob(SONAME)):
        fetch_debian(REAL_NVML_CACHE, "bookworm", "non-free", "libnvidia-ml1")
    return next(REAL_NVML_CACHE.rglob(SONAME)).parent


@pytest.fixture
def node(tmp_path: Path, nvml_library: Path) -> FakeNvml:
    """A node with a current driver and no GPU yet."""
    return FakeNvml(tmp_path / "node", nvml_library)


ReadNode = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def read_node(tmp_path_factory: pytest.TempPathFactory, nvml_library: Path) -> Iterator[ReadNode]:
    """A function that gives one long-running reader's next reading of the state it is given."""
    node = FakeNvml(tmp_path_factory.mktemp("node"), nvml_library)
    with node.reader() as reader:

        def read(*parts: dict[str, object], **state: object) -> dict[str, Any]:
            node.write(*parts, **state)
            return reader.read()

        yield read
