"""Read all there is to know of one vLLM server's process, each thing as seldom as it may change."""

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from kvheadroom.engine.api_keys import find_api_key
from kvheadroom.engine.command_line import SIZING_VARIABLES
from kvheadroom.engine.flags import ServeCommand, parse_serve_command
from kvheadroom.errors import ConfigError
from kvheadroom.live.found_servers import FoundServer, fingerprint
from kvheadroom.live.process_tree import (
    Start,
    is_server_command,
    launcher_arguments,
    parse_title,
)
from kvheadroom.live.server_address import Listening, ServerAddress, server_address
from kvheadroom.live.visible_devices import Sizes, visible_devices
from kvheadroom.node.pod_logs import PodNames
from kvheadroom.node.process_root import ProcessRoot
from kvheadroom.node.processes import ProcessTable
from kvheadroom.node.served_model import find_served_model
from kvheadroom.node.sockets import (
    is_same_network,
    listening_sockets,
    namespace_addresses,
    socket_inodes,
)
from kvheadroom.readings import (
    GpuReading,
    ListeningSocket,
    ModelFiles,
    ProcessDetails,
    ProcessReading,
)
from kvheadroom.redaction import Secret

_log = logging.getLogger(__name__)

ReadYaml = Callable[[Path], Mapping[str, Any]]

# What says where a server's files are and which GPUs it has.
_PLACE_VARIABLES: Final = frozenset(
    {
        *("HOME", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"),
        *("CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "HOSTNAME", "VLLM_CACHE_ROOT"),
    }
)
_MOST_CONFIG_BYTES: Final = 1024 * 1024
# From a server's start until it has read its configuration.
_READING_SECONDS: Final = 2.0
# A model that is being downloaded appears some time after its server.
_LOOKS_BETWEEN_SEARCHES: Final = 6


@dataclass(slots=True)
class _Known:
    """What was read of one process that serves.

    Attributes:
        argv: Its words when this was read; others mean another program.
        details: What else ``/proc`` told.
        command: What it was told; ``None`` with a *problem*.
        problem: Why the command is unknown.
        by_words: What its words alone say, whatever is in a file.
        api_key: What opens its doors.
        model: Its model's files, once found.
        looks: Looks since the model was last searched for.
        is_searching: That search goes on; its disk may hang.
    """

    argv: tuple[str, ...] = field(repr=False)
    details: ProcessDetails
    command: ServeCommand | None
    problem: str | None
    by_words: ServeCommand | None
    api_key: Secret | None
    model: ModelFiles | None = None
    looks: int = _LOOKS_BETWEEN_SEARCHES
    is_searching: bool = False


class ServerReader:
    """Reads servers; for one thread at a time.

    Args:
        proc: Where ``/proc`` is.
        read_yaml: Returns the mapping in a YAML file, or raises ConfigError.
        pod_logs: Where the kubelet keeps pods' logs; ``None`` knows no pod's name.
        start: Runs a function apart from the caller: a model may lie on a disk that hangs.
    """

    def __init__(
        self,
        proc: str,
        *,
        read_yaml: ReadYaml,
        pod_logs: str | None,
        start: Callable[[Callable[[], None]], None],
    ) -> None:
        self.table: Final = ProcessTable(
            proc, environment_names=SIZING_VARIABLES | _PLACE_VARIABLES
        )
        self._proc: Final = proc
        self._read_yaml: Final = read_yaml
        self._pods: Final = PodNames(pod_logs)
        self._start: Final = start
        self._known: dict[Start, _Known] = {}
        self._addresses: dict[Start, ServerAddress] = {}

    def servers(
        self,
        process: ProcessReading,
        family: Iterable[ProcessReading],
        gpus: Sequence[GpuReading],
    ) -> list[FoundServer]:
        """Return the servers that *process* is: one, or one for each port of a supervisor.

        Args:
            process: ``vllm serve``, or a launcher of one's own.
            family: Its descendants with titles.
            gpus: The node's.
        """
        known = self._know(process)
        doors = [one for one in family if (title := parse_title(one)) and title.role == "APIServer"]
        command = known.command
        if command is None or not command.options.get("data-parallel-multi-port-external-lb"):
            return [self._server(process, known, known.command, (process, *doors), gpus)]
        found: list[FoundServer] = []
        for door in doors:
            title = parse_title(door)
            rank = title.ranks.get("DP") if title else None
            if rank is not None:
                one = _one_of_several(command, rank)
                server = self._server(door, known, one, (door,), gpus)
                found.append(replace(server, fingerprint=self._fingerprint(process, known, rank)))
        return found

    def forget_all_but(self, processes: Mapping[int, ProcessReading]) -> None:
        """Forget what was read of processes that are no longer there."""
        for kept in (self._known, self._addresses):
            for pid, started_ticks in tuple(kept):
                process = processes.get(pid)
                if process is None or process.started_ticks != started_ticks:
                    del kept[pid, started_ticks]

    def pod_name(self, details: ProcessDetails) -> tuple[str | None, str | None]:
        """Return namespace and name of the pod that a process is in, as far as they are known."""
        if details.pod_uid is None:
            return None, None
        # A pod's host name is its own name, unless it says otherwise.
        host_name = (details.environment or {}).get("HOSTNAME")
        return self._pods.find(details.pod_uid) or (None, host_name)

    def _server(
        self,
        process: ProcessReading,
        known: _Known,
        command: ServeCommand | None,
        doors: Sequence[ProcessReading],
        gpus: Sequence[GpuReading],
    ) -> FoundServer:
        details = known.details
        self._search_model(known, process)
        namespace, pod = self.pod_name(details)
        device_ids = command.options.get("device-ids") if command else None
        return FoundServer(
            pid=process.pid,
            started_ticks=process.started_ticks,
            address=self._address(process, known, command, doors),
            fingerprint=self._fingerprint(process, known),
            command=command,
            problem=known.problem,
            api_key=known.api_key,
            environment=details.environment,
            working_directory=details.working_directory,
            devices=visible_devices(
                details.environment,
                gpus,
                is_contained=details.container_id is not None,
                device_ids=device_ids if isinstance(device_ids, str) else None,
            ),
            model=known.model,
            container_id=details.container_id,
            pod_uid=details.pod_uid,
            pod_namespace=namespace,
            pod_name=pod,
            systemd_unit=details.systemd_unit,
        )

    def _know(self, process: ProcessReading) -> _Known:
        start = (process.pid, process.started_ticks)
        known = self._known.get(start)
        if known is None or known.argv != process.argv:
            known = self._known[start] = self._read(process)
            self._addresses.pop(start, None)
        return known

    def _read(self, process: ProcessReading) -> _Known:
        details = self.table.details(process)
        root = self._root(process, details)
        config: Mapping[str, Any] = {}

        def read_config(path: str) -> Mapping[str, Any]:
            nonlocal config
            file = root.find_file(path, _MOST_CONFIG_BYTES)
            self._refuse_if_newer(file, path, process)
            config = self._read_yaml(file)
            return config

        argv = process.argv
        words = argv if is_server_command(argv) else launcher_arguments(argv)
        command, problem = None, None
        by_words: ServeCommand | None = None
        try:
            by_words = parse_serve_command(words, read_config=lambda _: {})
            command = parse_serve_command(words, read_config=read_config)
        except ConfigError as error:
            problem = str(error)
        else:
            given = (details.environment or {}).items()
            sizing = {name: value for name, value in given if name in SIZING_VARIABLES}
            command = replace(command, environment=MappingProxyType(sizing))
        key = find_api_key(words, config=config, from_environment=details.api_key)
        return _Known(argv, details, command, problem, by_words, key)

    def _refuse_if_newer(self, file: Path, path: str, process: ProcessReading) -> None:
        """Refuse a file that was changed after *process* read it.

        Raises:
            ConfigError: It says what the next start will be told.
        """
        started = self.table.start_unix_seconds(process)
        try:
            is_newer = started is not None and file.stat().st_mtime > started + _READING_SECONDS
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
        if is_newer:
            raise ConfigError(f"{path}: changed since the server started; what it was told is lost")

    def _fingerprint(self, process: ProcessReading, known: _Known, rank: int | None = None) -> str:
        return fingerprint(
            process.argv,
            working_directory=known.details.working_directory,
            devices=(known.details.environment or {}).get("CUDA_VISIBLE_DEVICES"),
            member="" if rank is None else str(rank),
        )

    def _address(
        self,
        process: ProcessReading,
        known: _Known,
        command: ServeCommand | None,
        doors: Sequence[ProcessReading],
    ) -> ServerAddress:
        start = (process.pid, process.started_ticks)
        before = self._addresses.get(start)
        # A socket stays where it is as long as its process lives.
        if before is not None and (before.is_listening or before.url is None):
            return before
        is_launcher = not is_server_command(process.argv) and parse_title(process) is None
        address = server_address(
            command or known.by_words,
            self._listening(process, known.details, doors),
            may_be_elsewhere=is_launcher or command is None,
        )
        self._addresses[start] = address
        return address

    def _listening(
        self, process: ProcessReading, details: ProcessDetails, doors: Sequence[ProcessReading]
    ) -> Listening:
        sockets = listening_sockets(self._proc, process.pid)
        is_ours = is_same_network(self._proc, process.pid, details.network_namespace)
        owned = self._owned(sockets, doors)
        # One of ours that does not listen yet is not behind any of them.
        is_asked = owned != () or not is_ours
        return Listening(
            owned=owned,
            others=sockets,
            is_our_network=is_ours,
            addresses=namespace_addresses(self._proc, process.pid) if is_asked else (),
            host_names=(os.uname().nodename,) if is_ours else (),
        )

    def _owned(
        self, sockets: Sequence[ListeningSocket] | None, doors: Sequence[ProcessReading]
    ) -> tuple[ListeningSocket, ...] | None:
        if sockets is None:
            return None
        held = [socket_inodes(self._proc, door.pid) for door in doors]
        if any(inodes is None for inodes in held):
            return None
        known_inodes = [one for one in held if one is not None]
        # What API servers share is their door; what one of them has beside it is not.
        inodes = frozenset.intersection(*known_inodes) or frozenset().union(*known_inodes)
        return tuple(socket for socket in sockets if socket.inode in inodes)

    def _search_model(self, known: _Known, process: ProcessReading) -> None:
        known.looks += 1
        command = known.command
        if command is None or command.model is None or known.model is not None:
            return
        if known.looks <= _LOOKS_BETWEEN_SEARCHES or known.is_searching:
            return
        known.looks, known.is_searching = 0, True
        model, root = command.model, self._root(process, known.details)

        def search() -> None:
            try:
                known.model = find_served_model(
                    root,
                    model,
                    environment=known.details.environment or {},
                    download_folder=_text(command, "download-dir"),
                    revision=_text(command, "revision"),
                )
            except OSError as error:
                _log.debug("model not found", extra={"fields": {"detail": str(error)}})
            finally:
                known.is_searching = False

        self._start(search)

    def _root(self, process: ProcessReading, details: ProcessDetails) -> ProcessRoot:
        return ProcessRoot(
            self._proc,
            process.pid,
            details.working_directory,
            is_contained=details.container_id is not None,
        )


def sizes_of(command: ServeCommand) -> Sizes:
    """Return how many ranks *command* puts on this node."""
    engines = _number(command, "data-parallel-size", 1)
    is_alone = "data-parallel-rank" in command.options
    first = _number(command, "data-parallel-rank", _number(command, "data-parallel-start-rank", 0))
    return Sizes(
        data=1 if is_alone else _number(command, "data-parallel-size-local", engines),
        pipeline=_number(command, "pipeline-parallel-size", 1),
        tensor=_number(command, "tensor-parallel-size", 1),
        prefill_context=_number(command, "prefill-context-parallel-size", 1),
        first_data=first,
    )


def _one_of_several(command: ServeCommand, rank: int) -> ServeCommand:
    """Return what the server of one data-parallel *rank* is told by its supervisor.

    Source:
        vLLM 0.32: ports follow the local ranks, and each rank is an engine of its own.
    """
    sizes = sizes_of(command)
    node_first = _number(command, "node-rank", 0) * sizes.data
    first = sizes.first_data if "data-parallel-start-rank" in command.options else node_first
    options = {**command.options, "data-parallel-rank": rank}
    del options["data-parallel-multi-port-external-lb"]
    return replace(command, port=command.port + rank - first, options=MappingProxyType(options))


def _number(command: ServeCommand, name: str, otherwise: int) -> int:
    value = command.options.get(name)
    return value if isinstance(value, int) and value >= 0 else otherwise


def _text(command: ServeCommand, name: str) -> str | None:
    value = command.options.get(name)
    return value if isinstance(value, str) else None
