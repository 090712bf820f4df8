"""Which of the servers found now is which of those found before."""

from kvheadroom.live.found_servers import (
    FoundServer,
    ServersPast,
    fingerprint,
    match_servers,
)
from kvheadroom.live.server_address import ServerAddress

WORDS = ("python", "/bin/vllm", "serve", "m", "--max-num-seqs", "8")


def server(pid: int, port: int, *flags: str, devices: str = "0", pod: str = "") -> FoundServer:
    name = f"127.0.0.1:{port}"
    return FoundServer(
        pid=pid,
        started_ticks=pid * 7,
        address=ServerAddress(name, f"http://{name}"),
        fingerprint=fingerprint(
            (*WORDS, "--port", str(port), *flags), working_directory="/srv", devices=devices
        ),
        pod_uid=pod or None,
    )


def pids(past: ServersPast) -> dict[str, int]:
    return {server_id: one.pid for server_id, one in past.living.items()}


def follow(*polls: list[FoundServer]) -> ServersPast:
    past = ServersPast()
    for found in polls:
        past = match_servers(past, found)
    return past


def test_a_server_is_called_by_its_address() -> None:
    """Its first id is host and port."""
    assert pids(follow([server(1, 8000), server(2, 8001, "--x")])) == {
        "127.0.0.1:8000": 1,
        "127.0.0.1:8001": 2,
    }


def test_a_server_that_stopped_is_gone_at_once() -> None:
    """What is not there is not among the living."""
    assert pids(follow([server(1, 8000)], [])) == {}


def test_a_restart_keeps_the_id_after_any_time() -> None:
    """However many polls it was away, the same words in the same place are the same server."""
    assert pids(follow([server(1, 8000)], [], [], [], [server(5, 8000)])) == {"127.0.0.1:8000": 5}


def test_a_moved_port_keeps_the_id() -> None:
    """The id was given at first sight and stays, whatever the port now."""
    assert pids(follow([server(1, 8000)], [server(5, 8001)])) == {"127.0.0.1:8000": 5}


def test_a_changed_key_keeps_the_id() -> None:
    """A rotated key makes no other server."""
    polls = [server(1, 8000, "--api-key", "a")], [server(5, 8001, "--api-key", "b")]

    assert pids(follow(*polls)) == {"127.0.0.1:8000": 5}


def test_other_words_are_another_server() -> None:
    """Another model on another port is not the one that went."""
    found = follow([server(1, 8000)], [server(5, 8001, "--max-model-len", "9")])

    assert pids(found) == {"127.0.0.1:8001": 5}


def test_other_devices_are_another_server() -> None:
    """The same words on another GPU are a replica."""
    found = follow([server(1, 8000, devices="0")], [server(5, 8001, devices="1")])

    assert pids(found) == {"127.0.0.1:8001": 5}


def test_a_second_replica_is_not_the_first() -> None:
    """While the old process lives nobody takes its id."""
    assert pids(follow([server(1, 8000)], [server(1, 8000), server(2, 8001)])) == {
        "127.0.0.1:8000": 1,
        "127.0.0.1:8001": 2,
    }


def test_two_alike_that_restart_together_keep_their_ports() -> None:
    """Of several that may be it, the one with the same address is."""
    before = [server(1, 8000), server(2, 8001)]

    assert pids(follow(before, [], [server(6, 8001), server(5, 8000)])) == {
        "127.0.0.1:8000": 5,
        "127.0.0.1:8001": 6,
    }
    # One of them on a third port takes what the other leaves.
    assert pids(follow(before, [server(5, 9000), server(6, 8001)])) == {
        "127.0.0.1:8000": 5,
        "127.0.0.1:8001": 6,
    }


def test_two_alike_in_pods_are_told_by_their_pods() -> None:
    """A container that is restarted in its pod is the one that was there."""
    before = [server(1, 8000, pod="a"), server(2, 8001, pod="b")]

    found = follow(before, [server(6, 9001, pod="b"), server(5, 9000, pod="a")])

    assert pids(found) == {"127.0.0.1:8000": 5, "127.0.0.1:8001": 6}


def test_a_new_server_where_another_moved_away_from_has_an_id_of_its_own() -> None:
    """No two servers are ever called the same."""
    moved = follow([server(1, 8000)], [server(5, 8001)])

    found = match_servers(moved, [server(5, 8001), server(9, 8000, "--other")])

    assert pids(found) == {"127.0.0.1:8000": 5, "127.0.0.1:8000#2": 9}


def test_a_new_server_takes_the_name_of_one_that_has_gone() -> None:
    """An upgrade with other flags on the same port is called as before."""
    found = follow([server(1, 8000)], [server(5, 8000, "--max-model-len", "9")])

    assert pids(found) == {"127.0.0.1:8000": 5}


def test_what_is_remembered_is_bounded() -> None:
    """A crash loop with ever new words does not grow the memory."""
    past = ServersPast()
    for number in range(400):
        past = match_servers(past, [server(number + 1, 8000 + number, "--seed", str(number))])

    assert len(past.departed) == 256
