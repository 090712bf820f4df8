from dataclasses import replace

from kvheadroom.live.intruders import Intruder, IntruderPast, observe_intruders
from kvheadroom.live.ledger import ProcessOwner
from kvheadroom.readings import GpuProcess, GpuReading
from kvheadroom.units import GIB, MIB

OWNERS = {
    10: ProcessOwner("engine", "a/0"),
    11: ProcessOwner("engine", "b/0"),
    20: ProcessOwner("other", "Xorg"),
    21: ProcessOwner("other", "python"),
    22: ProcessOwner("offline", "offline vllm"),
    98: ProcessOwner("unknown", "unknown"),
    99: ProcessOwner("unknown", "unknown"),
}


def gpu(**held_mib: int | None) -> GpuReading:
    processes = (
        GpuProcess(int(name.lstrip("p")), None if held is None else held * MIB)
        for name, held in held_mib.items()
    )
    return GpuReading(gpu="0", uuid="GPU-1", total_bytes=24 * GIB, processes=tuple(processes))


def after(*readings: GpuReading) -> tuple[Intruder, ...]:
    past = IntruderPast()
    for reading in readings:
        past = observe_intruders(past, reading, OWNERS)
    return past.intruders


def test_who_comes_while_an_engine_holds_the_gpu_is_an_intruder_at_once() -> None:
    """In the first poll that shows it, with all it holds."""
    assert after(gpu(p10=20_000), gpu(p10=20_000, p21=700)) == (
        Intruder(21, "python", 700 * MIB, is_new=True),
    )


def test_an_intruder_stays_one_while_it_holds_the_memory() -> None:
    """A scrape may come many polls later; what it holds then is what counts."""
    there = gpu(p10=20_000, p21=700)

    assert after(gpu(p10=20_000), there, there, gpu(p10=20_000, p21=900)) == (
        Intruder(21, "python", 900 * MIB, is_new=True),
    )
    assert after(gpu(p10=20_000), there, gpu(p10=20_000)) == ()


def test_who_was_there_before_is_a_tenant() -> None:
    """A desktop that ran when watching began took nothing from the engine."""
    assert after(gpu(p10=20_000, p20=500), gpu(p10=20_000, p20=520)) == ()


def test_a_tenant_that_grows_takes_memory() -> None:
    """300 MiB more than it had, also when it got there in small steps."""
    steps = [gpu(p10=20_000, p20=500 + 30 * n) for n in range(11)]

    assert after(*steps) == (Intruder(20, "Xorg", 300 * MIB, is_new=False),)


def test_an_engine_that_starts_beside_another_is_no_intruder() -> None:
    """Two engines may share a card."""
    assert after(gpu(p10=9_000), gpu(p10=9_000, p11=9_000)) == ()


def test_vllm_without_a_server_is_an_intruder() -> None:
    """A notebook's ``LLM(...)`` is nobody's engine."""
    [found] = after(gpu(p10=9_000), gpu(p10=9_000, p22=9_000))

    assert found.name == "offline vllm"


def test_on_a_gpu_without_engines_nobody_intrudes() -> None:
    """A training job on a free card is at home."""
    assert after(gpu(), gpu(p21=9_000), gpu(p21=20_000)) == ()


def test_an_engine_that_arrives_measures_beside_who_is_there() -> None:
    """Whoever came first is a tenant from then on."""
    assert after(gpu(p21=2_000), gpu(p21=2_000, p10=9_000), gpu(p21=2_000, p10=9_000)) == ()


def test_a_process_out_of_sight_intrudes_beside_engines_in_sight() -> None:
    """Where the engines' pids are known, one that is not is a stranger's."""
    assert after(gpu(p10=9_000), gpu(p10=9_000, p99=300)) == (
        Intruder(99, "unknown", 300 * MIB, is_new=True),
    )


def test_where_no_pid_is_known_nothing_is_said() -> None:
    """In a container without the host's pids, any process may be the engine's own."""
    assert after(gpu(p98=9_000), gpu(p98=9_000, p99=300)) == ()


def test_who_has_not_been_looked_up_is_nobody_yet() -> None:
    """The driver may list an engine's new process before anyone has looked whose it is."""
    assert after(gpu(p10=9_000), gpu(p10=9_000, p30=300)) == ()


def test_an_engine_that_ended_is_no_intruder_while_it_is_listed() -> None:
    """The driver lists a process on for a moment; what takes its pid later is another program."""
    two, gone = gpu(p10=9_000, p11=9_000), {**OWNERS, 11: ProcessOwner("unknown", "unknown")}
    past = observe_intruders(IntruderPast(), two, OWNERS)
    past = observe_intruders(past, two, gone)
    past = observe_intruders(past, two, gone)

    assert past.intruders == ()

    other = {**OWNERS, 11: ProcessOwner("other", "python")}
    past = observe_intruders(past, gpu(p10=9_000, p11=500), other)
    assert past.intruders == (Intruder(11, "python", 500 * MIB, is_new=True),)


def test_an_intruder_without_bytes_is_named() -> None:
    """WSL lists processes and tells no bytes."""
    assert after(gpu(p10=None, p20=None), gpu(p10=None, p20=None, p21=None)) == (
        Intruder(21, "python", None, is_new=True),
    )


def test_a_missing_list_changes_nothing() -> None:
    """What was known stays, and who is there afterwards is compared with before."""
    blind = replace(gpu(), processes=None)
    past = observe_intruders(IntruderPast(), gpu(p10=9_000), OWNERS)

    assert observe_intruders(past, blind, OWNERS) == past
    assert len(after(gpu(p10=9_000), blind, gpu(p10=9_000, p21=300))) == 1
