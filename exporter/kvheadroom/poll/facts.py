"""What is known of a server's engines without asking them: the model's config.json."""

import logging
import threading
from pathlib import Path

from kvheadroom.errors import ConfigError, ModelConfigError
from kvheadroom.live.engine_view import EngineFacts
from kvheadroom.model.config import read_model
from kvheadroom.model.layers import ModelLayers
from kvheadroom.node.model_files import find_config, read_config
from kvheadroom.readings import ServerReading

_log = logging.getLogger(__name__)


# What a server serves: its model's root and, since the folder may have changed, its start.
_Served = tuple[str | None, float | None]


class EngineFactsSource:
    """Gives the facts of one server's engines; a file is read once.

    Args:
        name: Configured name of the server.
        model_config: Configured config.json; ``None`` looks for it.
        tensor_parallel: Ranks of one engine.
        discovery: Look for the config.json where the server says its model is. Only sound for a
            server on this machine: the same path elsewhere may hold another model.

    Raises:
        ConfigError: The configured config.json cannot be read.
    """

    def __init__(
        self,
        *,
        name: str | None,
        model_config: Path | None,
        tensor_parallel: int,
        discovery: bool,
    ) -> None:
        self._name = name
        self._tensor_parallel = tensor_parallel
        self._discovery = discovery and model_config is None
        self._served: _Served | None = None
        self._layers = _read_layers(model_config) if model_config is not None else None

    def __call__(self, reading: ServerReading) -> EngineFacts:
        """Return the facts, given what the server says of its model; never waits for a disk."""
        served = (reading.model_root, reading.started_unix_seconds)
        if self._discovery and served != self._served:
            self._served, self._layers = served, None
            # A model folder may lie on a network that does not answer.
            threading.Thread(
                target=self._discover, args=(served,), name="model-config", daemon=True
            ).start()
        return EngineFacts(
            name=self._name, layers=self._layers, tensor_parallel=self._tensor_parallel
        )

    def _discover(self, served: _Served) -> None:
        root, _ = served
        path = find_config(root) if root is not None else None
        try:
            layers = _read_layers(path) if path is not None else None
        except ConfigError as error:
            _log.warning("model config found, not used", extra={"fields": {"detail": str(error)}})
            return
        # The server may serve another model by now.
        if served == self._served:
            self._layers = layers


def _read_layers(path: Path) -> ModelLayers | None:
    config = read_config(path)
    try:
        return read_model(config)
    except ModelConfigError as error:
        fields = {"model_config": str(path), "detail": str(error)}
        _log.warning("KV bytes unknown", extra={"fields": fields})
        return None
