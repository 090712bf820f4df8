"""Find the files of the model that a running server was told to serve."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from kvheadroom.node.process_root import ProcessRoot
from kvheadroom.readings import ModelFiles

_CONFIG_NAMES: Final = ("config.json", "params.json")
_WEIGHT_ENDINGS: Final = (".safetensors", ".bin", ".pt", ".gguf")
_MOST_FILES: Final = 4096
_DEFAULT_REVISION: Final = "main"


def find_served_model(
    root: ProcessRoot,
    model: str,
    *,
    environment: Mapping[str, str],
    download_folder: str | None = None,
    revision: str | None = None,
) -> ModelFiles | None:
    """Return the files of *model*, or ``None`` where this machine does not have them.

    Args:
        root: The server's file system.
        model: ``--model``: a folder, relative ones included, a file in it, or a hub id.
        environment: The server's, for ``HF_HUB_CACHE``, ``HF_HOME``, ``XDG_CACHE_HOME``, ``HOME``.
        download_folder: ``--download-dir``, which takes the place of the hub's cache.
        revision: ``--revision``: branch, tag or commit.

    Source:
        Layout of the Hugging Face cache: models--ORG--NAME/refs/REVISION holds the name of a
        folder below snapshots/. vLLM takes what exists as a path for one, before the hub.
    """
    for folder in _folders(root, model, environment, download_folder, revision):
        found = _model_in(root, folder)
        if found is not None:
            return found
    return None


def hub_cache(environment: Mapping[str, str]) -> str:
    """Return the folder in which a process of that *environment* keeps what it downloads."""
    if cache := environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE"):
        return _expanded(cache, environment)
    if home := environment.get("HF_HOME"):
        return f"{_expanded(home, environment)}/hub"
    caches = environment.get("XDG_CACHE_HOME") or f"{environment.get('HOME') or '/root'}/.cache"
    return f"{_expanded(caches, environment)}/huggingface/hub"


def _expanded(path: str, environment: Mapping[str, str]) -> str:
    return f"{environment.get('HOME') or '/root'}{path[1:]}" if path[:2] in ("~", "~/") else path


def _folders(
    root: ProcessRoot,
    model: str,
    environment: Mapping[str, str],
    download_folder: str | None,
    revision: str | None,
) -> Iterator[str]:
    yield _expanded(model, environment)
    if model.startswith(("/", ".")):
        return
    if model.endswith(".gguf"):
        yield model.rpartition("/")[0]
    caches = [download_folder] if download_folder else [hub_cache(environment)]
    for cache in caches:
        repository = f"{cache}/models--{model.replace('/', '--')}"
        wanted = revision or _DEFAULT_REVISION
        commit = _text(root, f"{repository}/refs/{wanted}") or wanted
        yield f"{repository}/snapshots/{commit}"


def _model_in(root: ProcessRoot, folder: str) -> ModelFiles | None:
    found = root.find(folder)
    if found is None:
        return None
    if found.is_file():
        return _model_in(root, folder.rpartition("/")[0] or ".")
    configs = (root.find(f"{folder}/{name}") for name in _CONFIG_NAMES)
    config = next((path for path in configs if path is not None and path.is_file()), None)
    if config is None:
        return None
    weights = (
        root.find(f"{folder}/{name}") for name in _names(found) if name.endswith(_WEIGHT_ENDINGS)
    )
    return ModelFiles(
        folder=folder,
        config=config,
        weights=tuple(path for path in weights if path is not None),
        index=root.find(f"{folder}/model.safetensors.index.json"),
    )


def _names(folder: Path) -> list[str]:
    try:
        names = [path.name for _, path in zip(range(_MOST_FILES), folder.iterdir(), strict=False)]
    except OSError:
        return []
    return sorted(names)


def _text(root: ProcessRoot, path: str) -> str | None:
    found = root.find(path)
    try:
        if found is None or not found.is_file():
            return None
        with found.open("rb") as stream:
            return stream.read(256).decode("ascii").strip() or None
    except (OSError, ValueError):
        return None
