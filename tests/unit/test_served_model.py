"""Where a server's model lies, by the layout of the Hugging Face cache."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from kvheadroom.errors import ConfigError
from kvheadroom.node.process_root import ProcessRoot
from kvheadroom.node.served_model import find_served_model, hub_cache
from kvheadroom.readings import ModelFiles

COMMIT = "c" * 40


@pytest.fixture
def container(tmp_path: Path) -> Path:
    """The root of a container whose process has pid 7, entered through ``/proc``."""
    root = tmp_path / "container"
    (root / "srv").mkdir(parents=True)
    (tmp_path / "proc" / "7").mkdir(parents=True)
    (tmp_path / "proc" / "7" / "root").symlink_to(root)
    return root


def find(
    container: Path,
    model: str,
    *,
    environment: Mapping[str, str] | None = None,
    download_folder: str | None = None,
    revision: str | None = None,
) -> ModelFiles | None:
    root = ProcessRoot(str(container.parent / "proc"), 7, "/srv", is_contained=True)
    return find_served_model(
        root,
        model,
        environment=environment or {},
        download_folder=download_folder,
        revision=revision,
    )


def add_model(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model-00001-of-00002.safetensors").touch()
    (folder / "model-00002-of-00002.safetensors").touch()
    (folder / "model.safetensors.index.json").write_text("{}")


def add_snapshot(cache: Path, revision: str = "main") -> None:
    """A snapshot as huggingface_hub makes it: names that are relative links to blobs."""
    repository = cache / "models--org--m"
    snapshot, blobs = repository / "snapshots" / COMMIT, repository / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "aa").write_text("{}")
    (blobs / "bb").touch()
    (snapshot / "config.json").symlink_to("../../blobs/aa")
    (snapshot / "model.safetensors").symlink_to("../../blobs/bb")
    (repository / "refs").mkdir()
    (repository / "refs" / revision).write_text(COMMIT)


def names(found: ModelFiles | None) -> list[str]:
    return [] if found is None else [path.name for path in found.weights]


@pytest.mark.parametrize("model", ["/models/m", "../models/m", "/models/./x/../m/"])
def test_a_folder_is_found_as_the_server_wrote_it(container: Path, model: str) -> None:
    """Absolute or relative to the server's working directory, inside its own root."""
    add_model(container / "models" / "m")

    found = find(container, model)

    assert found is not None
    assert found.config == Path(f"{container.parent}/proc/7/root/models/m/config.json")
    assert len(found.weights) == 2
    assert found.index is not None


def test_a_link_out_of_a_container_stays_inside(container: Path) -> None:
    """An absolute link means the container's root, where the kernel would lead us to ours."""
    add_model(container / "mnt" / "disk" / "m")
    (container / "models").symlink_to("/mnt/disk")
    (container / "srv" / "up").symlink_to("../../../../../../mnt/disk")

    assert find(container, "/models/m") is not None
    assert find(container, "up/m") is not None
    (container / "secret").symlink_to("/etc/hostname")
    assert find(container, "/secret") is None


def test_links_in_a_circle_end(container: Path) -> None:
    """A loop of links is no model, and no hang."""
    (container / "a").symlink_to("/b")
    (container / "b").symlink_to("/a")

    assert find(container, "/a") is None


@pytest.mark.parametrize(
    ("environment", "cache"),
    [
        ({}, "root/.cache/huggingface/hub"),
        ({"HOME": "/home/llm"}, "home/llm/.cache/huggingface/hub"),
        ({"XDG_CACHE_HOME": "/cache"}, "cache/huggingface/hub"),
        ({"HF_HOME": "/hf", "XDG_CACHE_HOME": "/cache"}, "hf/hub"),
        ({"HF_HUB_CACHE": "/hub", "HF_HOME": "/hf"}, "hub"),
        ({"HUGGINGFACE_HUB_CACHE": "/old"}, "old"),
        ({"HF_HOME": "~/hf", "HOME": "/home/llm"}, "home/llm/hf/hub"),
        ({"HF_HUB_CACHE": "cache"}, "srv/cache"),
    ],
)
def test_a_hub_id_is_found_in_the_servers_own_cache(
    container: Path, environment: Mapping[str, str], cache: str
) -> None:
    """Its variables say where it keeps what it downloads, in the order of huggingface_hub."""
    add_snapshot(container / cache)

    found = find(container, "org/m", environment=environment)

    assert names(found) == ["bb"]
    assert hub_cache(environment).strip("/").endswith(cache.removeprefix("srv/"))


def test_a_download_folder_takes_the_caches_place(container: Path) -> None:
    """--download-dir is where vLLM's own download goes."""
    add_snapshot(container / "dl")

    assert names(find(container, "org/m", download_folder="/dl")) == ["bb"]
    assert find(container, "org/m") is None


def test_a_revision_is_a_branch_or_a_commit(container: Path) -> None:
    """Refs name commits; a commit needs none."""
    add_snapshot(container / "root/.cache/huggingface/hub", revision="v2")

    assert find(container, "org/m", revision="v2") is not None
    assert find(container, "org/m", revision=COMMIT) is not None
    assert find(container, "org/m") is None


def test_a_folder_named_like_an_id_comes_first(container: Path) -> None:
    """What exists as a path is served, before the hub is thought of."""
    add_snapshot(container / "root/.cache/huggingface/hub")
    add_model(container / "srv" / "org" / "m")

    assert len(names(find(container, "org/m"))) == 2


def test_a_file_means_its_folder(container: Path) -> None:
    """A GGUF file is served with the config beside it."""
    add_model(container / "models" / "m")
    (container / "models" / "m" / "q4.gguf").touch()

    found = find(container, "/models/m/q4.gguf")

    assert found is not None
    assert found.config.name == "config.json"


@pytest.mark.parametrize("model", ["org/none", "/none", "none", "\0", "", "//", "../.."])
def test_what_is_not_there_is_none(container: Path, model: str) -> None:
    """A model that is not on this machine is unknown."""
    assert find(container, model) is None


def test_only_a_regular_file_of_some_size_is_read(container: Path) -> None:
    """A process may name a device or something endless as its configuration."""
    root = ProcessRoot(str(container.parent / "proc"), 7, "/srv", is_contained=True)
    (container / "big").write_bytes(b"x" * 100)

    assert root.find_file("/big", 100).read_bytes() == b"x" * 100
    for path, most in (("/big", 99), ("/srv", 100), ("/none", 100)):
        with pytest.raises(ConfigError, match=path):
            root.find_file(path, most)
