"""What is known of a server's engines without asking them: command, model, startup log."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from kvheadroom.engine.options import Device
from kvheadroom.live.boot_figures import is_boot_of
from kvheadroom.live.engine_facts import EngineFacts
from kvheadroom.live.found_servers import FoundServer
from kvheadroom.node.log_follow import FollowedBoots
from kvheadroom.node.model_files import find_config, read_config
from kvheadroom.poll.server_model import ServerModel, ServerQuestion, work_out
from kvheadroom.readings import ServerReading

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerSurroundings:
    """What a look at the node found of a server.

    Attributes:
        found: Its process; ``None`` while none is known to be its.
        device: Its first GPU.
    """

    found: FoundServer | None = None
    device: Device = field(default_factory=Device)


class EngineFactsSource:
    """Gives the facts of one server's engines; files are read once, and never waited for.

    Args:
        name: Configured name of the server.
        server: What its engines are called by instead of their address.
        model_config: Configured config.json; ``None`` looks for it.
        tensor_parallel: Configured ranks of one engine, where its command is not known.
        discovery: Look for the config.json where the server says its model is. Only sound for a
            server on this machine: the same path elsewhere may hold another model.
        boots: What the server's startup log says now; ``None`` without one.

    Raises:
        ConfigError: The configured config.json cannot be read.
    """

    def __init__(
        self,
        *,
        name: str | None = None,
        server: str | None = None,
        model_config: Path | None = None,
        tensor_parallel: int = 1,
        discovery: bool,
        boots: Callable[[], FollowedBoots] | None = None,
    ) -> None:
        self._surroundings = ServerSurroundings()
        self._name = name
        self._server = server
        self._model_config = model_config
        self._tensor_parallel = tensor_parallel
        self._discovery = discovery
        self._boots = boots
        self._asked: tuple[ServerQuestion, str | None] | None = None
        self._model = ServerModel()
        if model_config is not None:
            # Refused here and now, rather than in the middle of the night.
            read_config(model_config)
            question = ServerQuestion(model_config, None, None, Device(), None)
            self._asked, self._model = (question, None), work_out(question)
            self._warn(self._model)

    def notice(self, surroundings: ServerSurroundings) -> None:
        """Take over what a look at the node found of the server."""
        self._surroundings = surroundings

    def __call__(self, reading: ServerReading | None) -> EngineFacts:
        """Return the facts, given the server's last answer; ``None`` before the first."""
        surroundings = self._surroundings
        found = surroundings.found
        root = reading.model_root if reading is not None and self._discovery else None
        config = self._model_config or (found.model.config if found and found.model else None)
        question = ServerQuestion(
            config=config,
            command=found.command if found else None,
            version=reading.vllm_version if reading else None,
            device=surroundings.device,
            started_unix_seconds=reading.started_unix_seconds if reading else None,
        )
        asked = (question, None if config is not None else root)
        if asked != self._asked and (reading is not None or self._asked is None):
            self._asked = asked
            # A model folder may lie on a network that does not answer.
            threading.Thread(
                target=self._look_up, args=(asked,), name="model-config", daemon=True
            ).start()
        return self._facts(reading)

    def _facts(self, reading: ServerReading | None) -> EngineFacts:
        model = self._model
        boots = self._boots() if self._boots is not None else FollowedBoots()
        options, found = model.options, self._surroundings.found
        return EngineFacts(
            name=self._name,
            server=self._server,
            process=(found.pid, found.started_ticks) if found else None,
            layers=model.layers,
            draft=model.draft,
            tensor_parallel=options.tensor_parallel if options else self._tensor_parallel,
            options=options,
            rules=model.rules,
            stage_weights_bytes=model.stage_weights_bytes,
            boot=boots.latest if boots.latest and _is_of(boots, reading) else None,
            earlier_boot=boots.previous,
            problem=model.problem,
        )

    def _look_up(self, asked: tuple[ServerQuestion, str | None]) -> None:
        question, root = asked
        if question.config is None and root is not None:
            question = replace(question, config=find_config(root))
        model = work_out(question)
        # The server may be another by now.
        if asked == self._asked:
            self._model = model
            self._warn(model)

    def _warn(self, model: ServerModel) -> None:
        if model.problem is not None:
            fields = {"server": self._name or self._server or "", "detail": model.problem}
            _log.warning("not everything of the engine's budget is known", extra={"fields": fields})


def _is_of(boots: FollowedBoots, reading: ServerReading | None) -> bool:
    if boots.latest is None or reading is None:
        return boots.latest is not None
    return is_boot_of(
        boots.latest,
        version=reading.vllm_version,
        kv_tokens=None,
        max_model_len=reading.max_model_len,
    )
