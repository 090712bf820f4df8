import gzip
import os
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from tests.unit.startup_logs import CARRIERS, server_log

from kvheadroom.errors import ConfigError
from kvheadroom.node.log_follow import FollowedBoots, LogFollower, open_log
from kvheadroom.units import MIB

# Real servers with a pool of 20,480 and of 5,120 tokens.
OLD, NEW = server_log("0.10.2"), server_log("0.32.0-lora")
ACCESS = b'(APIServer pid=1) INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 200 OK\n'


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "vllm.log"


@pytest.fixture
def follower(log: Path) -> Iterator[LogFollower]:
    found = LogFollower(open_log(str(log)))
    yield found
    found.close()


def append(log: Path, data: bytes) -> None:
    with log.open("ab") as file:
        file.write(data)


def said(boots: FollowedBoots) -> tuple[str | None, int | None]:
    """Return version and tokens of the last start."""
    if boots.latest is None:
        return None, None
    tokens = [one.kv_tokens for one in boots.latest.processes if one.kv_tokens is not None]
    return boots.latest.version, tokens[-1] if tokens else None


def test_the_last_start_of_a_file_and_the_one_before_it_are_read(
    log: Path, follower: LogFollower
) -> None:
    """An upgrade from 0.10.2 to 0.32.0 in one log."""
    append(log, OLD + NEW)

    boots = follower.read()

    assert said(boots) == ("0.32.0", 5_120)
    assert boots.previous is not None
    assert boots.previous.version == "0.10.2"
    assert boots.problem is None


def test_a_start_is_followed_as_it_is_written(log: Path, follower: LogFollower) -> None:
    """In pieces of 997 bytes, which end within lines and within characters."""
    append(log, OLD)
    assert said(follower.read()) == ("0.10.2", 20_480)

    for at in range(0, len(NEW), 997):
        append(log, NEW[at : at + 997])
        boots = follower.read()

    assert said(boots) == ("0.32.0", 5_120)
    assert boots.previous is not None


@pytest.mark.parametrize("carrier", sorted(CARRIERS))
def test_every_carrier_is_followed_in_pieces(
    log: Path, follower: LogFollower, carrier: str
) -> None:
    """Docker's json-file, CRI with lines in pieces, journald exports and the like."""
    carried = CARRIERS[carrier](NEW)
    for at in range(0, len(carried), 50_001):
        append(log, carried[at : at + 50_001])
        boots = follower.read()

    assert said(boots) == ("0.32.0", 5_120)


def test_a_file_that_is_missing_is_waited_for(log: Path, follower: LogFollower) -> None:
    """Its absence is said, and forgotten once it is there."""
    missing = follower.read()
    append(log, NEW)

    assert missing.latest is None
    assert missing.problem is not None
    assert "No such file" in missing.problem
    assert follower.read().problem is None
    assert said(follower.read()) == ("0.32.0", 5_120)


def test_a_file_renamed_away_is_read_to_its_end(log: Path, follower: LogFollower) -> None:
    """Logrotate's ``create``: the rest of a start stands in the old file, or in both."""
    middle = NEW.index(b"Initializing a V1 LLM engine")
    append(log, NEW[: middle - 100])
    follower.read()

    append(log, NEW[middle - 100 : middle + 5_000])
    log.rename(log.with_suffix(".log.1"))
    while_missing = follower.read()
    append(log, NEW[middle + 5_000 :])

    assert while_missing.problem is None
    assert said(follower.read()) == ("0.32.0", 5_120)


@pytest.mark.parametrize("longer", [False, True])
def test_a_file_cut_and_written_anew_is_read_from_its_beginning(
    log: Path, follower: LogFollower, longer: bool
) -> None:
    """Logrotate's ``copytruncate``, also where the new text is longer than what was read."""
    append(log, OLD)
    follower.read()

    log.write_bytes(NEW + ACCESS * 100 if longer else NEW[: len(NEW) // 2] + NEW[len(NEW) // 2 :])
    follower.read()

    assert said(follower.read()) == ("0.32.0", 5_120)


def test_a_writer_that_goes_on_behind_a_hole_is_followed(log: Path, follower: LogFollower) -> None:
    """Cut under a writer that does not append, a file begins with nothing: 2 GiB of it here."""
    append(log, OLD)
    follower.read()

    os.truncate(log, 0)
    with log.open("r+b") as file:
        file.seek(2048 * MIB)
        file.write(NEW)

    assert said(follower.read()) == ("0.32.0", 5_120)


@pytest.mark.parametrize("seed", range(20))
def test_rotation_at_any_moment_loses_nothing(tmp_path: Path, seed: int) -> None:
    """Pieces of any length, read at times, the file renamed or cut between lines or within."""
    random = Random(seed)
    log, text, rotations = tmp_path / "vllm.log", OLD + NEW, 0
    follower = LogFollower(open_log(str(log)))
    at = 0
    while at < len(text):
        size = random.choice((1, 80, 700, 5_000))
        append(log, text[at : at + size])
        at += size
        if random.random() < 0.3:
            follower.read()
        if random.random() < 0.1:
            follower.read()
            rotations += 1
            if random.random() < 0.5:
                log.rename(tmp_path / f"vllm.log.{rotations}")
            else:
                os.truncate(log, 0)

    # A rotated file that was never followed by a new one is read at the next call.
    boots = follower.read()

    assert said(boots) == ("0.32.0", 5_120)
    assert boots.previous is not None
    assert said(FollowedBoots(boots.previous)) == ("0.10.2", 20_480)


def test_a_start_in_the_file_before_is_found(log: Path) -> None:
    """We may start after a rotation; compressed files are left alone."""
    append(log, ACCESS * 10)
    log.with_suffix(".log.1").write_bytes(NEW)
    with gzip.open(log.with_suffix(".log.2.gz"), "wb") as file:
        file.write(OLD)

    follower = LogFollower(open_log(str(log)))

    assert said(follower.read()) == ("0.32.0", 5_120)


def test_the_newest_log_of_a_containers_folder_is_followed(tmp_path: Path) -> None:
    """Kubernetes counts a container's restarts: ``0.log``, ``1.log``; ``10.log`` is the newest."""
    folder = tmp_path / "server"
    folder.mkdir()
    (folder / "9.log").write_bytes(CARRIERS["containerd"](OLD))
    follower = LogFollower(open_log(str(folder)))
    assert said(follower.read()) == ("0.10.2", 20_480)

    (folder / "10.log").write_bytes(CARRIERS["containerd"](NEW))
    boots = follower.read()

    assert said(boots) == ("0.32.0", 5_120)
    assert boots.previous is not None


def test_a_folder_without_logs_is_said(tmp_path: Path) -> None:
    """Until one appears."""
    problem = LogFollower(open_log(str(tmp_path))).read().problem

    assert problem is not None
    assert "N.log" in problem


def test_a_link_that_moves_is_followed(tmp_path: Path) -> None:
    """``/var/log/containers`` holds links to the log of the container that runs now."""
    (tmp_path / "0.log").write_bytes(OLD)
    (tmp_path / "1.log").write_bytes(NEW)
    link = tmp_path / "pod.log"
    link.symlink_to("0.log")
    follower = LogFollower(open_log(str(link)))
    follower.read()

    link.unlink()
    link.symlink_to("1.log")

    assert said(follower.read()) == ("0.32.0", 5_120)


def test_a_long_log_is_read_near_its_end_in_bounded_memory(
    log: Path, follower: LogFollower
) -> None:
    """160 MiB: an old start, traffic, a start 50 MiB before the end, traffic."""
    traffic = ACCESS * (10 * MIB // len(ACCESS))
    for part in (OLD, *[traffic] * 11, NEW, *[traffic] * 5):
        append(log, part)

    tracemalloc.start()
    began = time.process_time()
    boots = follower.read()
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert said(boots) == ("0.32.0", 5_120)
    assert boots.previous is None
    assert peak_bytes < 16 * MIB
    assert time.process_time() - began < 30


def test_a_start_that_fails_again_and_again_is_the_last_one(
    log: Path, follower: LogFollower
) -> None:
    """Without a KV cache it is no budget to compare with: the one before it stays."""
    refused = server_log("0.32.0-toolong")
    append(log, OLD + refused + refused + refused)

    boots = follower.read()

    assert boots.latest is not None
    assert boots.latest.failure == "request_too_long"
    assert boots.previous is not None
    assert boots.previous.version == "0.10.2"


def test_a_log_without_a_start_says_nothing(log: Path, follower: LogFollower) -> None:
    """Traffic alone, and the rest of a line that was cut."""
    append(log, b"\xff\xfe\x00garbage\n" + ACCESS * 1_000)

    assert follower.read() == FollowedBoots()


def test_one_of_several_services_is_picked(log: Path) -> None:
    """Docker compose writes all of them into one stream."""
    both = [
        b"".join(name + line + b"\n" for line in text.splitlines())
        for name, text in ((b"llm-1  | ", OLD), (b"embed-1  | ", NEW))
    ]
    append(log, b"".join(both))

    assert said(LogFollower(open_log(str(log)), service="llm-1").read()) == ("0.10.2", 20_480)
    assert said(LogFollower(open_log(str(log))).read()) == ("0.32.0", 5_120)


def test_what_is_no_file_does_not_hang(tmp_path: Path) -> None:
    """A pipe without a writer would wait for ever."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    problem = LogFollower(open_log(str(pipe))).read().problem

    assert problem is not None
    assert "not a regular file" in problem


def test_a_line_without_end_does_not_pile_up(log: Path, follower: LogFollower) -> None:
    """After 20 MiB on one line, a start is still found."""
    follower.read()
    for _ in range(5):
        append(log, b"x" * 4 * MIB)
        follower.read()

    append(log, b"\n" + NEW)
    follower.read()

    assert said(follower.read()) == ("0.32.0", 5_120)


@pytest.mark.parametrize("place", ["", "  ", "journald:", "journald:-x", "journal:a b", "a\0b"])
def test_what_names_no_log_is_refused(place: str) -> None:
    """One line, before anything is started."""
    with pytest.raises(ConfigError):
        open_log(place)


# --- journald ---------------------------------------------------------------------------------


@pytest.fixture
def journalctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file a stand-in for journalctl prints and follows; its arguments stand beside."""
    journal = tmp_path / "journal"
    program = tmp_path / "journalctl"
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/arguments\nexec tail -c +1 -f {journal}\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return journal


def read_until(follower: LogFollower, version: str) -> FollowedBoots:
    boots = FollowedBoots()
    for _ in range(100):
        boots = follower.read()
        if said(boots)[0] == version and said(boots)[1] is not None:
            break
        time.sleep(0.05)
    return boots


def test_a_unit_is_followed_through_journalctl(journalctl: Path) -> None:
    """Its last lines first, then what is new."""
    journalctl.write_bytes(OLD)
    follower = LogFollower(open_log("journald:vllm@1.service"))
    try:
        first = read_until(follower, "0.10.2")
        append(journalctl, NEW)
        second = read_until(follower, "0.32.0")
    finally:
        follower.close()

    assert said(first) == ("0.10.2", 20_480)
    assert said(second) == ("0.32.0", 5_120)
    [arguments] = (journalctl.parent / "arguments").read_text().splitlines()
    assert {"--unit=vllm@1.service", "--follow", "--output=cat"} <= set(arguments.split())


def test_without_journalctl_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container seldom has one."""
    monkeypatch.setenv("PATH", str(tmp_path))

    problem = LogFollower(open_log("journald:vllm")).read().problem

    assert problem is not None
    assert "no journalctl" in problem


def test_a_journalctl_that_ends_is_said_and_started_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at every poll: one that cannot read the journal ends at once."""
    program = tmp_path / "journalctl"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/arguments\nexit 3\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    follower = LogFollower(open_log("journald:vllm"))

    for _ in range(60):
        problem = follower.read().problem
        if problem is not None:
            break
        time.sleep(0.05)
    follower.read()
    follower.close()

    assert problem is not None
    assert "code 3" in problem
    assert len((tmp_path / "arguments").read_text().splitlines()) == 1
