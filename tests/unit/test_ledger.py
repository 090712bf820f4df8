from dataclasses import replace
from random import Random

import pytest

from kvheadroom.live.ledger import (
    Component,
    Ledger,
    NoLedger,
    OwnerKind,
    ProcessOwner,
    RankOnCard,
    gpu_ledger,
)
from kvheadroom.live.rank_parts import Part, PartSource, RankParts
from kvheadroom.readings import GpuProcess, GpuReading
from kvheadroom.units import GIB, MIB

UUID = "GPU-1"
ENGINE = "127.0.0.1:8000/0"
STRANGER = ProcessOwner("other", "python")


def gib(amount: float) -> int:
    return round(amount * GIB)


def card(
    used_gib: float,
    *processes: tuple[int, float | None],
    total_gib: float = 24.0,
    reserved_gib: float | None = 0.5,
) -> GpuReading:
    reserved = 0 if reserved_gib is None else gib(reserved_gib)
    return GpuReading(
        gpu="0",
        uuid=UUID,
        total_bytes=gib(total_gib),
        reserved_bytes=None if reserved_gib is None else reserved,
        used_bytes=gib(used_gib),
        free_bytes=gib(total_gib) - reserved - gib(used_gib),
        processes=tuple(
            GpuProcess(pid, None if held is None else gib(held)) for pid, held in processes
        ),
    )


def part(amount_gib: float, source: PartSource = "log") -> Part:
    return Part(gib(amount_gib), source)


PARTS = RankParts(
    weights=part(8, "computed"),
    kv=part(9, "computed"),
    context=part(0.25, "estimated"),
    non_torch=part(0.25, "estimated"),
    cuda_graph=part(0.5, "estimated"),
    activation=part(2.5, "estimated"),
)


def rank(
    pid: int | None = 10, parts: RankParts = PARTS, *, engine: str = ENGINE, uuid: str = UUID
) -> RankOnCard:
    return RankOnCard(engine, uuid, pid, parts, kv_used_ratio=0.25)


def owners(*ranks: RankOnCard) -> dict[int, ProcessOwner]:
    return {one.pid: ProcessOwner("engine", one.engine) for one in ranks if one.pid is not None}


def ledger(gpu: GpuReading, *ranks: RankOnCard, **named: ProcessOwner) -> Ledger:
    whose = owners(*ranks) | {int(pid.lstrip("p")): owner for pid, owner in named.items()}
    found = gpu_ledger(gpu, ranks, whose)
    assert isinstance(found, Ledger)
    assert sum(entry.bytes for entry in found.entries) == found.total_bytes == gpu.total_bytes
    return found


def held(found: Ledger, component: Component, owner: str | None = None) -> float:
    return found.sum_of(component, owner) / GIB


def test_a_process_is_divided_into_what_its_rank_holds_and_a_rest() -> None:
    """20.75 held: 8 weights, 9 pool, 3.5 usual, and 0.25 that nothing accounts for."""
    found = ledger(card(21.75, (10, 20.75), (11, 1)), rank(), p11=STRANGER)

    assert held(found, "unexplained", ENGINE) == 0.25
    assert held(found, "process", "python") == 1
    assert [
        (entry.component, entry.bytes / GIB) for entry in found.entries if entry.pid is None
    ] == [("reserved", 0.5), ("unexplained", 0.0), ("free", 1.75)]


def test_a_pool_says_what_of_it_is_in_use() -> None:
    """A quarter of 9 GiB is 2.25."""
    [pool] = [entry for entry in ledger(card(21, (10, 21)), rank()).entries if entry.used_bytes]

    assert (pool.component, pool.used_bytes) == ("kv", gib(2.25))


def test_an_estimate_is_cut_to_what_the_process_holds() -> None:
    """18 held, 17 known: context, non-torch and graphs take the last GiB, activation nothing."""
    found = ledger(card(18, (10, 18)), rank())

    assert held(found, "cuda_graph") == 0.5
    [activation] = [entry for entry in found.entries if entry.component == "activation"]
    assert (activation.bytes, activation.planned_bytes) == (0, gib(2.5))
    assert found.unexplained_bytes == 0


def test_what_the_log_says_is_not_cut_except_a_peak() -> None:
    """Captured graphs of 1.5 and 0.5 of what is usual stay; a peak is an upper limit."""
    logged = replace(PARTS, cuda_graph=part(1.5), activation=part(3))

    found = ledger(card(19, (10, 19)), rank(parts=logged))

    assert held(found, "cuda_graph") == 1.5
    assert held(found, "non_torch") == 0.25
    assert held(found, "activation") == 0
    assert found.unexplained_bytes == 0


def test_more_claimed_than_held_is_said() -> None:
    """Weights and pool of 17 in a process of 15 leave minus 2, and a line that says so."""
    found = ledger(card(15, (10, 15)), rank())

    assert held(found, "unexplained", ENGINE) == -2
    assert any("15.00 GiB" in note and "17.00 GiB" in note for note in found.notes)


def test_memory_no_process_holds_is_unexplained() -> None:
    """Kernel memory and processes of other containers are in ``used`` and in no list."""
    found = ledger(card(22, (10, 20.5)), rank())

    assert held(found, "unexplained") == 1.5


def test_processes_that_add_up_to_more_than_used_leave_a_negative_rest() -> None:
    """Drivers count shared memory once for the card and once for each process."""
    found = ledger(card(21, (10, 20.5), (11, 1)), rank(), p11=STRANGER)

    assert held(found, "unexplained") == -0.5
    assert any("more is claimed" in note for note in found.notes)


def test_an_old_driver_counts_its_reserve_as_used() -> None:
    """The version-1 call knows no reserve: it is in the rest, and that is said."""
    found = ledger(card(21, (10, 20.5), reserved_gib=None), rank())

    assert held(found, "unexplained") == 0.5
    assert not [entry for entry in found.entries if entry.component == "reserved"]
    assert any("reserve" in note for note in found.notes)


@pytest.mark.parametrize(
    "gpu",
    [
        card(21, (10, None)),
        card(21, (4711, 21)),
        card(21),
        replace(card(21), processes=None),
    ],
    ids=["no bytes (WSL)", "host pids", "empty list", "no list"],
)
def test_a_rank_without_bytes_is_explained_from_what_is_left(gpu: GpuReading) -> None:
    """21 used: 17 known, 3.5 usual, 0.5 unexplained, whatever the list of processes lacks."""
    found = ledger(gpu, rank())

    assert held(found, "kv") == 9
    assert held(found, "activation") == 2.5
    assert held(found, "unexplained") == 0.5


def test_a_strangers_bytes_explain_no_rank() -> None:
    """A process known to be another program is no rank, even where a rank has no pid."""
    found = ledger(card(21, (11, 3)), rank(pid=None), p11=STRANGER)

    assert held(found, "process", "python") == 3
    assert held(found, "activation") == 0
    assert held(found, "unexplained") == 0


def test_a_stranger_without_bytes_is_named() -> None:
    """What it holds is in the rest, and the note says whose it is."""
    found = ledger(card(21, (10, None), (11, None)), rank(), p11=STRANGER)

    assert any("1 process(es): python" in note for note in found.notes)


def test_a_process_out_of_sight_is_an_entry_where_every_rank_has_its_own() -> None:
    """Nothing says whose it is."""
    found = ledger(card(21.5, (10, 20.5), (12, 1)), rank())

    assert held(found, "process", "unknown") == 1


def test_two_engines_on_one_card() -> None:
    """Each process is divided by itself, so each engine has a rest of its own."""
    small = RankParts(
        weights=part(1.25),
        kv=part(0.25),
        context=part(0.25, "estimated"),
        activation=part(0.5, "estimated"),
    )

    found = ledger(
        card(23, (10, 20.75), (20, 2.25)),
        rank(),
        rank(20, small, engine="embed"),
    )

    assert held(found, "unexplained", ENGINE) == 0.25
    assert held(found, "unexplained", "embed") == 0
    assert held(found, "weights") == 9.25


def test_ranks_of_other_cards_are_passed_over() -> None:
    """Of an engine over two cards, each card shows its own rank only."""
    found = ledger(card(21, (10, 20.5)), rank(), rank(11, uuid="GPU-2"))

    assert held(found, "weights") == 8


def test_a_process_of_an_engine_that_is_no_rank_here_is_one_entry() -> None:
    """A worker may hold a context on a second card, and a MIG device's parent lists its ranks."""
    found = ledger(card(0.4, (10, 0.4)), rank(uuid="MIG-1"))

    [entry] = [entry for entry in found.entries if entry.pid == 10]
    assert (entry.component, entry.owner, entry.bytes) == ("process", ENGINE, gib(0.4))


def test_an_engine_of_an_unknown_model_has_no_mystery() -> None:
    """Without its weights and pool, what its process holds is its own, not unexplained."""
    unknown = RankParts(context=part(0.25, "estimated"))

    found = ledger(card(20.5, (10, 20.5)), rank(parts=unknown))

    assert held(found, "process", ENGINE) == 20.25
    assert found.unexplained_bytes == 0
    assert any("weights" in note and "KV pool" in note for note in found.notes)


@pytest.mark.parametrize("kv", [None, part(9, "configured")], ids=["page down", "pool given"])
def test_an_engine_that_is_still_loading_owes_nothing(kv: Part | None) -> None:
    """5 of 8 GiB loaded: no more is claimed than is there, and 3 are said to come."""
    found = ledger(card(5.25, (10, 5.25)), rank(parts=replace(PARTS, kv=kv)))

    [weights] = [entry for entry in found.entries if entry.component == "weights"]
    assert (weights.bytes, weights.planned_bytes) == (gib(5), gib(8))
    assert found.unexplained_bytes == 0


def test_an_engine_whose_page_is_down_keeps_its_process() -> None:
    """What is neither weights nor usual is its pool, of unknown size, and no mystery."""
    found = ledger(card(20.5, (10, 20.5)), rank(parts=replace(PARTS, kv=None)))

    assert held(found, "weights") == 8
    assert held(found, "process", ENGINE) == 20.5 - 8 - 3.5
    assert found.unexplained_bytes == 0


def test_a_rank_without_a_pid_is_found_by_its_engine() -> None:
    """Its process is known to be the engine's, though not which of its ranks it is."""
    whose = {10: ProcessOwner("engine", ENGINE), 12: ProcessOwner("engine", ENGINE)}

    found = gpu_ledger(card(21.25, (10, 20.75), (12, 0.5)), [rank(pid=None)], whose)

    assert isinstance(found, Ledger)
    assert held(found, "process", ENGINE) == 0.5
    assert held(found, "unexplained", ENGINE) == 0.25
    assert {entry.pid for entry in found.entries if entry.component == "kv"} == {10}


@pytest.mark.parametrize(
    "gpu",
    [
        replace(card(21), total_bytes=None, used_bytes=None, free_bytes=None),
        replace(card(21), used_bytes=None, free_bytes=None),
    ],
)
def test_a_gpu_without_memory_of_its_own_has_no_ledger(gpu: GpuReading) -> None:
    """GB10 shares the host's memory, and its driver reports none."""
    found = gpu_ledger(gpu, [rank()], {})

    assert isinstance(found, NoLedger)
    assert "reports" in found.reason


def test_the_sum_holds_whatever_is_read() -> None:
    """2,000 random cards: missing lists, bytes, pids, owners, parts; every one adds up."""
    random = Random(20261130)
    kinds: tuple[OwnerKind, ...] = ("engine", "offline", "other", "unknown")

    def some_part() -> Part | None:
        source: PartSource = random.choice(("log", "computed", "estimated", "configured"))
        return random.choice((None, Part(random.randrange(30 * GIB), source)))

    for _ in range(2_000):
        total = random.randrange(1, 80 * GIB)
        reserved = random.choice((None, random.randrange(GIB)))
        free = random.randrange(total)
        pids = [random.randrange(20) for _ in range(random.randrange(6))]
        gpu = GpuReading(
            gpu="0",
            uuid=UUID,
            total_bytes=total,
            reserved_bytes=reserved,
            free_bytes=free,
            used_bytes=random.choice((total - free - (reserved or 0), random.randrange(total))),
            processes=random.choice(
                (None, tuple(GpuProcess(p, random.choice((None, 7 * MIB * p))) for p in set(pids)))
            ),
        )
        ranks = [
            RankOnCard(
                f"e{n}",
                random.choice((UUID, "GPU-2")),
                random.choice((None, *range(20))),
                RankParts(*(some_part() for _ in range(6))),
            )
            for n in range(random.randrange(4))
        ]
        whose = {p: ProcessOwner(random.choice(kinds), "x") for p in pids if random.random() < 0.7}

        found = gpu_ledger(gpu, ranks, whose)

        assert isinstance(found, Ledger)
        assert sum(entry.bytes for entry in found.entries) == total
