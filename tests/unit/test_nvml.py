import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import NoReturn

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvheadroom.errors import SourceError
from kvheadroom.node import nvml
from kvheadroom.node.lanes import Lanes, if_alone
from kvheadroom.node.nvml import NvmlSource
from kvheadroom.node.nvml_values import (
    NOT_AVAILABLE_U64,
    GpuMemory,
    gpu_memory,
    merge_processes,
    mig_profile_in_name,
    mig_profile_of,
)
from kvheadroom.readings import GpuProcess, GpuReading, NvmlReading
from kvheadroom.units import MIB

# --- memory ---------------------------------------------------------------------------------


def test_an_idle_a100_uses_nothing_but_its_reserve() -> None:
    """The version-1 call shows 912 MB used where the version-2 call shows about 8 MB.

    Source: rust-nvml issue 57, an idle A100 of 81920 MiB.
    """
    total, used = 81_920 * MIB, int(7.8 * 10**6)
    reserved = 912 * 10**6 - used
    free = total - reserved - used

    assert gpu_memory(total=total, free=free, reserved=reserved).used_bytes == used
    assert gpu_memory(total=total, free=free, reserved=None).used_bytes == 912 * 10**6


@given(
    total=st.integers(1, 2**40),
    free=st.integers(0, 2**40),
    reserved=st.integers(0, 2**40) | st.none(),
)
def test_memory_adds_up_or_is_unknown(total: int, free: int, reserved: int | None) -> None:
    """Total = reserved + used + free, all of them at least 0, whenever use and free are told."""
    memory = gpu_memory(total=total, free=free, reserved=reserved)

    if free + (reserved or 0) > total:
        assert (memory.used_bytes, memory.free_bytes) == (None, None)
    else:
        assert memory.used_bytes is not None
        assert memory.used_bytes >= 0
        assert total == (reserved or 0) + memory.used_bytes + free


def test_a_device_without_memory_is_one_whose_memory_is_unknown() -> None:
    """No GPU has 0 bytes: a driver that says so has not told."""
    assert gpu_memory(total=0, free=0, reserved=0) == GpuMemory(reserved_bytes=0)


def test_an_unknown_reserve_counts_as_used() -> None:
    """All ones in the reserve leave it unknown, and its bytes cannot be told from use."""
    memory = gpu_memory(total=1000, free=900, reserved=NOT_AVAILABLE_U64)

    assert memory == GpuMemory(total_bytes=1000, used_bytes=100, free_bytes=900)


# --- processes ------------------------------------------------------------------------------


def test_known_bytes_win_over_unknown_ones_whatever_the_order() -> None:
    """One list that knows is enough; 0 is known."""
    listed = [(1, None), (1, 0), (2, 5), (2, NOT_AVAILABLE_U64), (3, None), (3, None)]

    expected = (GpuProcess(1, 0), GpuProcess(2, 5), GpuProcess(3, None))
    assert merge_processes(listed) == expected
    assert merge_processes(reversed(listed)) == expected


# --- MIG profiles ---------------------------------------------------------------------------


def test_a_name_without_a_profile_has_none() -> None:
    """A whole GPU's name, or no name, gives no profile."""
    assert mig_profile_in_name("NVIDIA H200") is None
    assert mig_profile_in_name(None) is None


@pytest.mark.parametrize(
    ("gpu_slices", "compute_slices", "memory_mib", "profile"),
    [
        (1, 1, 4864, "1g.5gb"),
        (2, 2, 9856, "2g.10gb"),
        (7, 7, 40192, "7g.40gb"),
        (2, 1, 9856, "1c.2g.10gb"),
    ],
)
def test_profiles_of_an_a100_follow_from_its_attributes(
    gpu_slices: int, compute_slices: int, memory_mib: int, profile: str
) -> None:
    """Slices and memory of an A100-SXM4-40GB as NVIDIA's MIG user guide lists its profiles."""
    spelled = mig_profile_of(
        gpu_slices=gpu_slices, compute_slices=compute_slices, memory_mib=memory_mib
    )

    assert spelled == profile


# --- the source without a driver ------------------------------------------------------------


def test_no_library_is_a_missing_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without NVML gives a reason, not a traceback, at every read."""

    def no_library(name: str) -> NoReturn:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", no_library)
    source = NvmlSource(deadline_seconds=5)
    for _ in range(2):
        with pytest.raises(SourceError) as caught:
            source.read()
        assert caught.value.reason == "driver_missing"
    source.close()


# --- a source that is closed or changed while it reads --------------------------------------


class FakeDriver:
    """A driver of one GPU; what a test wants to hang waits at the gate."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = threading.Event()
        self.reading = threading.Event()
        self.shut_down = threading.Event()
        self.gpu_hangs = self.shutdown_hangs = False
        monkeypatch.setattr(nvml, "_driver_facts", lambda *, initialize: ("590", 1))
        monkeypatch.setattr(nvml, "_read_gpu", self._read_gpu)
        monkeypatch.setattr(nvml, "_shut_down", self._shut_down)

    def _read_gpu(self, target: str) -> tuple[tuple[GpuReading, ...], tuple[()]]:
        self.reading.set()
        if self.gpu_hangs:
            self.gate.wait(10)
        return (GpuReading(gpu=target, uuid="U"),), ()

    def _shut_down(self) -> None:
        if self.shutdown_hangs:
            self.gate.wait(10)
        self.shut_down.set()


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    made = FakeDriver(monkeypatch)
    yield made
    made.gate.set()
    await_no_threads()


class Reading(threading.Thread):
    """One read in a thread of its own, begun and in the GPU's call once constructed."""

    def __init__(self, source: NvmlSource, driver: FakeDriver) -> None:
        super().__init__(daemon=True)
        self._source = source
        self.result: NvmlReading | None = None
        self.start()
        assert driver.reading.wait(5)

    def run(self) -> None:
        self.result = self._source.read()


def await_no_threads() -> None:
    ends = soon()
    while any(thread.name.startswith("nvml-") for thread in threading.enumerate()):
        assert time.monotonic() < ends
        time.sleep(0.002)


def seconds_to_close(source: NvmlSource) -> float:
    started = time.monotonic()
    source.close()
    return time.monotonic() - started


def test_a_close_during_a_read_does_not_wait_and_is_done_at_its_end(driver: FakeDriver) -> None:
    """The read delivers; then NVML is shut down and no thread of the source is left."""
    driver.gpu_hangs = True
    source = NvmlSource(deadline_seconds=10)
    reading = Reading(source, driver)

    seconds = seconds_to_close(source)
    shut_down_early = driver.shut_down.is_set()
    driver.gate.set()
    reading.join(5)

    assert seconds < 0.1
    assert not shut_down_early
    assert reading.result is not None
    assert [gpu.gpu for gpu in reading.result.gpus] == ["0"]
    assert driver.shut_down.wait(5)
    await_no_threads()


def test_a_close_does_not_wait_for_a_driver_that_hangs_in_its_shutdown(driver: FakeDriver) -> None:
    """0.1 s is what the caller waits at most, whatever the deadline of reads."""
    driver.shutdown_hangs = True
    source = NvmlSource(deadline_seconds=10)
    source.read()

    # Half a second is for the machine, were it busy.
    assert seconds_to_close(source) < 0.1 + 0.5
    assert not driver.shut_down.is_set()


def test_a_read_keeps_the_deadline_it_began_with(driver: FakeDriver) -> None:
    """A deadline set during a read is the next one's."""
    driver.gpu_hangs = True
    source = NvmlSource(deadline_seconds=0.3)
    reading = Reading(source, driver)

    source.deadline_seconds = 60.0
    reading.join(5)

    assert reading.result is not None
    assert [failure.reason for failure in reading.result.failures] == ["timeout"]
    source.close()


# --- lanes ----------------------------------------------------------------------------------


@pytest.fixture
def lanes() -> Iterator[Lanes]:
    made = Lanes("test")
    yield made
    made.close()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """A gate that hung calls wait at, opened at the end of the test."""
    made = threading.Event()
    yield made
    made.set()


def soon(seconds: float = 5.0) -> float:
    return time.monotonic() + seconds


def wait_until_idle(lanes: Lanes) -> None:
    ends = soon()
    while not lanes.idle():
        assert time.monotonic() < ends
        time.sleep(0.002)


def test_what_returns_late_is_thrown_away(lanes: Lanes, gate: threading.Event) -> None:
    """The result of a call that missed its deadline never shows up in a later gathering."""

    def hang() -> str:
        gate.wait(5)
        return "stale"

    first = lanes.gather({"a": hang, "b": lambda: "b"}, deadline_monotonic_seconds=soon(0.1))
    busy = lanes.gather({"a": lambda: "too early"}, deadline_monotonic_seconds=soon())
    gate.set()
    wait_until_idle(lanes)
    fresh = lanes.gather({"a": lambda: "fresh"}, deadline_monotonic_seconds=soon())

    assert (first, busy, fresh) == ({"b": "b"}, {}, {"a": "fresh"})


def test_a_lane_says_how_long_its_call_has_been_running(
    lanes: Lanes, gate: threading.Event
) -> None:
    """Seconds since the start while it runs; nothing before and after."""
    assert lanes.busy_seconds("a") is None

    lanes.gather({"a": partial(gate.wait, 5)}, deadline_monotonic_seconds=soon(0.06))
    busy_seconds = lanes.busy_seconds("a")
    gate.set()
    wait_until_idle(lanes)

    assert busy_seconds is not None
    assert 0 < busy_seconds < 5
    assert lanes.busy_seconds("a") is None


def test_nothing_is_done_alone_while_a_call_of_other_lanes_hangs(
    lanes: Lanes, gate: threading.Event
) -> None:
    """A call hung in lanes that were closed counts until it returns."""
    others, done = Lanes("others"), []

    def alone() -> bool:
        return if_alone(lambda: done.append(1))

    others.gather({"a": partial(gate.wait, 5)}, deadline_monotonic_seconds=soon(0.05))
    others.close()
    meanwhile = lanes.gather({"b": alone}, deadline_monotonic_seconds=soon())
    gate.set()
    wait_until_idle(others)
    afterwards = lanes.gather({"b": alone}, deadline_monotonic_seconds=soon())

    assert (meanwhile, afterwards) == ({"b": False}, {"b": True})
    assert done == [1]


def test_no_call_is_lost_to_a_close_from_another_thread() -> None:
    """Twenty targets at a time answer in full, however often the lanes are closed meanwhile."""
    lanes, over, closing = Lanes("closed"), threading.Event(), []

    def close_on_and_on() -> None:
        while not over.is_set():
            lanes.close()
        closing.append("to the end")

    closer = threading.Thread(target=close_on_and_on, daemon=True)
    closer.start()
    calls = {str(number): partial(int, number) for number in range(20)}
    answers = [lanes.gather(calls, deadline_monotonic_seconds=soon()) for _ in range(20)]
    over.set()
    closer.join(5)
    lanes.close()

    assert answers == [{str(number): number for number in range(20)}] * 20
    assert closing == ["to the end"]


def test_a_hung_thread_ends_once_its_call_returns_after_a_close(gate: threading.Event) -> None:
    """Until then its target is busy; afterwards it gets a new thread."""
    lanes, threads = Lanes("left"), []

    def hang() -> None:
        threads.append(threading.current_thread())
        gate.wait(5)

    lanes.gather({"a": hang}, deadline_monotonic_seconds=soon(0.05))
    lanes.close()
    busy = lanes.gather({"a": int}, deadline_monotonic_seconds=soon())
    gate.set()
    threads[0].join(5)
    answered = lanes.gather({"a": int}, deadline_monotonic_seconds=soon())
    lanes.close()

    assert not threads[0].is_alive()
    assert (busy, answered) == ({}, {"a": 0})


def test_a_call_that_raises_raises_in_the_callers_thread(lanes: Lanes) -> None:
    """The error is the caller's to handle, and the lane takes the next call."""

    def fail() -> NoReturn:
        raise LookupError("as told")

    with pytest.raises(LookupError, match="as told"):
        lanes.gather({"a": fail}, deadline_monotonic_seconds=soon())

    assert lanes.gather({"a": lambda: 1}, deadline_monotonic_seconds=soon()) == {"a": 1}


def test_threads_are_kept_between_gatherings_and_end_with_close() -> None:
    """Ten gatherings of two targets run on two daemon threads, none of which outlives close."""
    lanes = Lanes("kept")
    seen = set()
    for _ in range(10):
        answers = lanes.gather(
            {"a": threading.current_thread, "b": threading.current_thread},
            deadline_monotonic_seconds=soon(),
        )
        seen |= set(answers.values())
    lanes.close()
    for thread in seen:
        thread.join(5)

    assert {thread.name for thread in seen} == {"kept-a", "kept-b"}
    assert all(thread.daemon for thread in seen)
    assert not any(thread.is_alive() for thread in seen)
