"""Join what was read of GPUs, processes and engines into one picture of the node."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from kvheadroom.live.boot_change import boot_change
from kvheadroom.live.card_view import CardView, view_cards
from kvheadroom.live.engine_facts import EngineFacts
from kvheadroom.live.engine_view import EngineView, boot_capacity, earlier_capacity
from kvheadroom.live.found_servers import FoundServer
from kvheadroom.live.intruders import IntruderPast
from kvheadroom.live.ledger import ProcessOwner
from kvheadroom.live.program_names import program_name
from kvheadroom.live.rank_places import GpuTenant, ServerOnNode, engine_at
from kvheadroom.poll.boot_book import BootBook
from kvheadroom.poll.discovery import Discovered, GpuOwner
from kvheadroom.poll.server_watch import ServerOutcome
from kvheadroom.readings import GpuReading

# MIG devices come and go under new names.
_MOST_DEPARTED: Final = 256


class NodeJudge:
    """Carries what outlives one picture: who was there before, and what earlier starts had.

    For one thread at a time.

    Args:
        boots: Every engine's last budgets.
    """

    def __init__(self, boots: BootBook) -> None:
        self._boots = boots
        self._intruders: Mapping[str, IntruderPast] = {}

    def cards(
        self,
        gpus: Sequence[GpuReading],
        outcomes: Mapping[str, ServerOutcome],
        found: Mapping[str, FoundServer],
        discovered: Discovered,
    ) -> tuple[CardView, ...]:
        """Return every GPU's view.

        Args:
            gpus: As the driver told them last.
            outcomes: What each watched server's last poll gave.
            found: The process of each watched server, where it is known.
            discovered: What the last look at the processes found.
        """
        servers = [
            ServerOnNode(key, found.get(key), outcome.facts, outcome.engines)
            for key, outcome in outcomes.items()
        ]
        keys = {(server.pid, server.started_ticks): key for key, server in found.items()}
        named = {
            server_id: keys.get((server.pid, server.started_ticks), server_id)
            for server_id, server in discovered.servers.items()
        }
        by_key = {server.server: server for server in servers}
        tenants = {
            pid: _tenant(owner, named, by_key, discovered.servers)
            for pid, owner in discovered.owners.items()
        }
        cards = view_cards(gpus, servers, tenants, self._intruders)
        # A GPU that the driver does not list for a poll comes back with who is a stranger there.
        seen = {card.gpu.uuid: card.past for card in cards}
        gone = [item for item in self._intruders.items() if item[0] not in seen]
        self._intruders = {**dict(gone[-_MOST_DEPARTED:]), **seen}
        return cards

    def engines(self, outcomes: Mapping[str, ServerOutcome]) -> tuple[EngineView, ...]:
        """Return every engine that answered, its start held against the one before."""
        return tuple(self._compared(view) for one in outcomes.values() for view in one.engines)

    def _compared(self, view: EngineView) -> EngineView:
        past = self._boots.observe(
            view.engine,
            boot_capacity(view),
            restarts=view.restarts,
            earlier=earlier_capacity(view),
        )
        return replace(view, boot_change=boot_change(past))


def _tenant(
    owner: GpuOwner,
    named: Mapping[str, str],
    servers: Mapping[str, ServerOnNode],
    found: Mapping[str, FoundServer],
) -> GpuTenant:
    """Return who a process is, by the names under which servers are watched."""
    kind = owner.owner.kind
    if owner.server_id is None or kind not in {"engine", "unknown"}:
        name = program_name(owner.process_name)
        return GpuTenant(ProcessOwner("other" if kind == "engine" else kind, name))
    key = named.get(owner.server_id, owner.server_id)
    server = found.get(owner.server_id)
    rank = server.ranks.get(owner.pid or 0) if server else None
    rank = rank or owner.owner.rank
    watched = servers.get(key)
    # One that is not watched has nothing but its name.
    watched = servers.get(key) or ServerOnNode(key, None, EngineFacts())
    name, _ = engine_at(watched, rank.data if rank else None)
    own_pid = owner.namespace_pid
    return GpuTenant(ProcessOwner("engine", name), key, rank, own_pid)
