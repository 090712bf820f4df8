"""Whose the processes on a GPU are, joined from what was found and what engines answered."""

from collections.abc import Mapping

from kvheadroom.live.card_view import CardView
from kvheadroom.live.engine_view import EngineView
from kvheadroom.live.found_servers import FoundServer
from kvheadroom.live.process_tree import Owner, Rank
from kvheadroom.live.server_address import ServerAddress
from kvheadroom.poll.boot_book import BootBook
from kvheadroom.poll.discovery import Discovered, GpuOwner
from kvheadroom.poll.health import unpolled
from kvheadroom.poll.judge import NodeJudge
from kvheadroom.poll.server_watch import ServerOutcome
from kvheadroom.readings import EngineReading, GpuProcess, GpuReading
from kvheadroom.units import GIB

FOUND = FoundServer(100, 1, ServerAddress("h:1", "http://h:1"), fingerprint="a")


def gpu(**held_gib: float) -> GpuReading:
    processes = (GpuProcess(int(pid[1:]), int(held * GIB)) for pid, held in held_gib.items())
    return GpuReading(
        gpu="0", uuid="GPU-0", total_bytes=24 * GIB, free_bytes=GIB, processes=tuple(processes)
    )


def owner(pid: int, rank: Rank | None = None) -> GpuOwner:
    return GpuOwner(Owner("engine", 100, rank=rank or Rank()), "h:1", pid)


STRANGER = GpuOwner(Owner("other"), pid=7, process_name="python")


def look(
    judge: NodeJudge, owners: Mapping[int, GpuOwner], *gpus: GpuReading, rank: str = "0"
) -> tuple[CardView, ...]:
    engine = EngineView(
        engine=f"h:1/{rank}",
        target="h:1",
        reading=EngineReading(rank=rank),
        vllm_version=None,
        capacity=None,
        headroom=None,
        traffic=None,
        preemptions_total=None,
        restarts=0,
    )
    outcome = ServerOutcome(unpolled("vllm", "h:1"), engines=(engine,))
    found = Discovered({"h:1": FOUND}, owners)
    return judge.cards(gpus, {"h:1": outcome}, {"h:1": FOUND}, found)


def test_a_context_beside_the_rank_is_no_second_rank() -> None:
    """A front end that touched the GPU, and a core beside its worker, hold no weights and pool."""
    owners = {pid: owner(pid) for pid in (100, 101, 102)}

    (card,) = look(NodeJudge(BootBook()), owners, gpu(p100=0.3, p101=0.5, p102=9))

    assert [rank.pid for rank in card.ranks] == [102]
    assert {one.name for one in card.owners.values()} == {"h:1/0"}


def test_the_only_engine_is_called_as_it_calls_itself() -> None:
    """One of several nodes' engines has another number than 0, and its title may not tell."""
    (card,) = look(NodeJudge(BootBook()), {101: owner(101)}, gpu(p101=9), rank="3")

    assert card.engines == ("h:1/3",)
    assert card.owners[101].name == "h:1/3"


def test_an_intruder_is_one_still_after_the_driver_was_away() -> None:
    """A poll in which the driver does not answer makes no stranger a tenant."""
    judge = NodeJudge(BootBook())
    owners = {101: owner(101), 7: STRANGER}
    look(judge, owners, gpu(p101=9))
    intruded = gpu(p101=9, p7=2)
    look(judge, owners, intruded)

    look(judge, owners)
    (card,) = look(judge, owners, intruded)

    assert card.intruders is not None
    assert [one.pid for one in card.intruders] == [7]
