"""The simulated node's processes, as a look at a real one finds them."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

from kvheadroom.demo.description import DemoServer
from kvheadroom.engine.flags import parse_serve_command
from kvheadroom.live.found_servers import FoundServer
from kvheadroom.live.process_tree import Owner, Rank
from kvheadroom.live.server_address import ServerAddress
from kvheadroom.poll.discovery import Discovered, GpuOwner
from kvheadroom.readings import GpuReading, ModelFiles

_TENANT_NAME: Final = "python"
# Servers are numbered apart from their workers.
_FIRST_SERVER_PID: Final = 4100


class SimulatedProcesses:
    """Looks like the node's processes, without a ``/proc``."""

    target: Final = "/proc"

    def __init__(self, servers: Sequence[DemoServer], uuids: Sequence[str]) -> None:
        """Take the servers and the UUID of every GPU by its index."""
        self._servers = MappingProxyType(
            {
                server.name: _found(server, _FIRST_SERVER_PID + number, uuids)
                for number, server in enumerate(servers)
            }
        )

    def look(self, gpus: Sequence[GpuReading]) -> Discovered:
        """Return the servers and who holds memory on the *gpus*."""
        held = (process.pid for gpu in gpus for process in gpu.processes or ())
        owners = {pid: self._owner(pid) for pid in held}
        return Discovered(self._servers, MappingProxyType(owners))

    def _owner(self, pid: int) -> GpuOwner:
        for name, server in self._servers.items():
            if pid in server.ranks:
                owner = Owner("engine", server.pid, server.ranks[pid])
                return GpuOwner(owner, name, pid=pid, process_name="VLLM::EngineCor")
        return GpuOwner(Owner("other"), pid=pid, process_name=_TENANT_NAME)


def _found(server: DemoServer, pid: int, uuids: Sequence[str]) -> FoundServer:
    ranks = {
        worker: Rank(data=data, pipeline=0, tensor=tensor)
        for data, workers in enumerate(server.pids_by_rank)
        for tensor, worker in enumerate(workers)
    }
    return FoundServer(
        pid=pid,
        started_ticks=1,
        address=ServerAddress(server.url.partition("://")[2], server.url, is_listening=True),
        fingerprint=server.name,
        command=parse_serve_command(server.command),
        environment=MappingProxyType({}),
        devices=tuple(uuids[int(gpu)] for rank in server.gpus_by_rank for gpu in rank),
        ranks=MappingProxyType(ranks),
        model=ModelFiles(folder=server.model, config=server.model_config_path),
    )
