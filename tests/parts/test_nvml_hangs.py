import time
from pathlib import Path
from typing import Any

import pytest
from tests.parts.fake_nvml import FakeNvml, Reader, gpu

pytestmark = pytest.mark.parts

DEADLINE_SECONDS = 0.4
# What a read may take beyond the deadline on a busy machine of two cores.
SLACK_SECONDS = 1.0


def uuids(reading: dict[str, Any]) -> list[str]:
    return [device["uuid"] for device in reading["gpus"]]


def failures(reading: dict[str, Any]) -> list[tuple[str, str]]:
    return [(failure["target"], failure["reason"]) for failure in reading["failures"]]


def sources_threads(reader: Reader) -> list[str]:
    names: list[str] = reader.ask("threads")["names"]
    return [name for name in names if name.startswith("nvml-")]


def threads_for_gpus(reader: Reader) -> list[str]:
    return [name for name in sources_threads(reader) if name != "nvml-driver"]


def read_until_whole(reader: Reader) -> dict[str, Any]:
    """Read until the hung call has had the time to return; give up after two seconds."""
    ends = time.monotonic() + 2.0
    while "error" in (reading := reader.read()) or reading["failures"]:
        assert time.monotonic() < ends, f"still not whole: {reading}"
        time.sleep(0.01)
    return reading


def await_threads(reader: Reader, expected: list[str]) -> None:
    """Wait until the threads of all sources are the expected ones; give up after two seconds."""
    ends = time.monotonic() + 2.0
    while (names := sources_threads(reader)) != expected:
        assert time.monotonic() < ends, f"still running: {names}"
        time.sleep(0.01)


def test_a_hung_gpu_costs_no_other_and_comes_back_by_itself(node: FakeNvml) -> None:
    """The others are delivered at the deadline; once the call returns all is as before."""
    with node.reader(deadline_seconds=DEADLINE_SECONDS) as reader:
        node.write(gpu(0), gpu(1, hang_any=1), gpu(2), devices=3)
        hung = reader.read()
        node.write(gpu(0), gpu(1, name="after"), gpu(2), devices=3)
        whole = read_until_whole(reader)

    assert uuids(hung) == ["GPU-00000000", "GPU-00000002"]
    assert failures(hung) == [("1", "timeout")]
    assert hung["seconds"] < DEADLINE_SECONDS + SLACK_SECONDS
    assert [device["name"] for device in whole["gpus"]] == ["NVIDIA H200", "after", "NVIDIA H200"]


def test_a_call_that_still_hangs_is_neither_doubled_nor_waited_for(node: FakeNvml) -> None:
    """Later reads have one thread for the GPU and do not spend the deadline on it again."""
    with node.reader(deadline_seconds=DEADLINE_SECONDS) as reader:
        node.write(gpu(0), gpu(1, hang_nvmlDeviceGetPowerUsage=1), devices=2)
        reader.read()
        later = [reader.read() for _ in range(3)]
        threads = threads_for_gpus(reader)
        node.write(devices=0)

    assert [failures(reading) for reading in later] == [[("1", "timeout")]] * 3
    assert [uuids(reading) for reading in later] == [["GPU-00000000"]] * 3
    assert max(reading["seconds"] for reading in later) < DEADLINE_SECONDS
    assert threads == ["nvml-0", "nvml-1"]


@pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2"])
def test_a_hung_driver_is_a_timeout_and_comes_back_by_itself(node: FakeNvml, function: str) -> None:
    """Where not even the GPUs can be counted the read fails as a whole, on time."""
    with node.reader(deadline_seconds=DEADLINE_SECONDS) as reader:
        node.write(gpu(0), devices=1, **{f"hang.{function}": 1})
        hung = [reader.read(), reader.read()]
        node.write(gpu(0), devices=1)
        whole = read_until_whole(reader)

    assert [reading["error"] for reading in hung] == ["timeout", "timeout"]
    assert hung[0]["seconds"] < DEADLINE_SECONDS + SLACK_SECONDS
    assert uuids(whole) == ["GPU-00000000"]


def test_a_driver_lost_while_a_call_hangs_is_initialized_again(
    node: FakeNvml, old_nvml_library: Path
) -> None:
    """The library stays loaded under the hung call, which would else return into nothing.

    Reserved bytes show which library answers: the one put in its place cannot tell them.
    """
    with node.reader(deadline_seconds=DEADLINE_SECONDS) as reader:
        node.write(gpu(0), gpu(1, hang_any=1), devices=2)
        reader.read()
        hanging = {"1.hang.*": 1}
        node.write(gpu(0), gpu(1), devices=2, **hanging, **{"fail.nvmlDeviceGetCount_v2": 1})
        lost = reader.read()
        node.install(old_nvml_library)
        node.write(gpu(0), gpu(1), devices=2, **hanging)
        found = reader.read()
        node.write(gpu(0), gpu(1), devices=2)
        whole = read_until_whole(reader)

    assert lost["error"] == "driver_error"
    assert failures(found) == [("1", "timeout")]
    assert found["gpus"][0]["reserved_bytes"] is not None
    assert uuids(whole) == ["GPU-00000000", "GPU-00000001"]


@pytest.mark.parametrize("hang", ["0.hang.*", "hang.nvmlDeviceGetCount_v2"])
def test_a_process_can_close_and_exit_while_a_call_hangs(node: FakeNvml, hang: str) -> None:
    """Neither close nor the interpreter's end waits for a call that never returns."""
    with node.reader(deadline_seconds=DEADLINE_SECONDS) as reader:
        node.write(gpu(0), devices=1, **{hang: 1})
        reader.read()
        started = time.monotonic()
        reader.ask("close")
        status = reader.end()
        seconds = time.monotonic() - started

    assert status == 0
    assert seconds < DEADLINE_SECONDS + SLACK_SECONDS


def test_a_source_closed_under_a_hung_call_reads_again_without_a_second_thread(
    node: FakeNvml,
) -> None:
    """Close leaves the hung thread behind, and what is read afterwards knows of it."""
    with node.reader(deadline_seconds=DEADLINE_SECONDS) as reader:
        node.write(gpu(0), gpu(1, hang_any=1), devices=2)
        reader.read()
        reader.ask("close")
        again = reader.read()
        threads = threads_for_gpus(reader)
        node.write(gpu(0), gpu(1), devices=2)
        whole = read_until_whole(reader)

    assert failures(again) == [("1", "timeout")]
    assert threads.count("nvml-1") == 1
    assert uuids(whole) == ["GPU-00000000", "GPU-00000001"]


def test_a_new_source_leaves_the_library_under_a_call_that_hangs_for_an_old_one(
    node: FakeNvml, old_nvml_library: Path
) -> None:
    """NVML switched off and on again: the old call returns into a library that is still there.

    Reserved bytes show which library answers: the one put in its place cannot tell them.
    """
    with node.reader(deadline_seconds=DEADLINE_SECONDS) as reader:
        node.write(gpu(0), gpu(1, hang_any=1), devices=2)
        reader.read()
        reader.ask("close")
        node.install(old_nvml_library)
        reader.ask("open")
        node.write(gpu(0), devices=1, **{"1.hang.*": 1})
        meanwhile = reader.read()
        node.write(gpu(0), gpu(1), devices=2)
        await_threads(reader, ["nvml-0", "nvml-driver"])
        whole = reader.read()

    assert meanwhile["gpus"][0]["reserved_bytes"] is not None
    assert uuids(whole) == ["GPU-00000000", "GPU-00000001"]


def test_a_new_source_looks_for_the_library_anew_where_nothing_hangs(
    node: FakeNvml, old_nvml_library: Path
) -> None:
    """NVML switched off and on again after a change of driver: the driver on disk answers."""
    with node.reader() as reader:
        node.write(gpu(0), devices=1)
        before = reader.read()
        reader.ask("close")
        node.install(old_nvml_library)
        reader.ask("open")
        after = reader.read()

    assert before["gpus"][0]["reserved_bytes"] is not None
    assert after["gpus"][0]["reserved_bytes"] is None


def test_the_deadline_can_be_changed_between_reads(node: FakeNvml) -> None:
    """A GPU too slow for the first deadline is in time for the second."""
    slow = gpu(0, **{"delay_ms.nvmlDeviceGetUUID": 150})
    with node.reader(deadline_seconds=0.05) as reader:
        node.write(slow, devices=1)
        late = reader.read()
        reader.ask("deadline 5")
        in_time = read_until_whole(reader)

    assert failures(late) == [("0", "timeout")]
    assert uuids(in_time) == ["GPU-00000000"]


def test_slow_gpus_are_read_side_by_side(node: FakeNvml) -> None:
    """Eight GPUs of 100 ms each take far less than the 800 ms of one after the other."""
    slow = [gpu(index, **{"delay_ms.nvmlDeviceGetUUID": 100}) for index in range(8)]
    node.write(*slow, devices=8)
    with node.reader(deadline_seconds=5) as reader:
        reading = reader.read()

    assert len(reading["gpus"]) == 8
    assert reading["seconds"] < 0.6
