from itertools import zip_longest

import pytest
from tests.unit.startup_logs import boots, essence, only_boot, server_log, values

from kvheadroom.units import GIB

# --- several services in one log ----------------------------------------------------------------


def test_services_that_share_a_log_are_told_apart() -> None:
    """`docker compose logs` of three servers, line by line in turn, is three starts."""
    names = ("0.18.1", "0.32.0-embed-bert", "0.32.0-toolong")
    columns = [
        [b"vllm-%d  | %s" % (number, line) for line in server_log(name).split(b"\n")]
        for number, name in enumerate(names)
    ]
    rows = zip_longest(*columns, fillvalue=b"")

    records = boots(b"\n".join(line for row in rows for line in row))

    assert [record.source for record in records] == ["vllm-0", "vllm-1", "vllm-2"]
    for record, name in zip(records, names, strict=True):
        assert essence(record) == essence(only_boot(server_log(name)))
        assert record.is_latest


def test_a_service_that_restarts_beside_another_keeps_its_order() -> None:
    """Only the last start of each service is the latest."""
    one, other = server_log("0.32.0-toolong"), server_log("0.18.1")
    log = b"\n".join(
        b"%s  | %s" % (service, line)
        for service, text in ((b"a", one), (b"b", other), (b"a", one))
        for line in text.split(b"\n")
    )

    records = boots(log)

    assert [record.is_latest for record in records if record.source == "a"] == [False, True]
    assert [record.is_latest for record in records if record.source == "b"] == [True]


# --- wordings that few versions had -------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        # V1 of 0.7.3, as a pull request of that time shows it.
        ("INFO 01-30 03:19:14 kv_cache_utils.py:395] # GPU blocks: 1381", "gpu_blocks", 1381),
        # The table of 0.6.5's development, from its pull request.
        (
            "INFO 12-13 19:54:18 worker.py:243] available_kv_cache_memory\t53.29GiB",
            "available_kv_bytes",
            round(53.29 * GIB),
        ),
        (
            "Initial free memory: 43.82 GiB; Requested memory: 0.900000 (util), 39.88 GiB",
            "requested_bytes",
            round(39.88 * GIB),
        ),
        (
            "(RayWorkerWrapper pid=22, ip=10.0.0.1) Available KV cache memory: -0.3 GiB",
            "available_kv_bytes",
            round(-0.3 * GIB),
        ),
    ],
    ids=["bare-blocks", "table", "debug", "ray"],
)
def test_a_rare_wording_is_read(line: str, name: str, value: int) -> None:
    """A figure is read in the words of versions that few run."""
    assert values(only_boot(line))[name] == value


def test_preemptions_of_v0_are_counted_while_it_serves() -> None:
    """V0 warns of each preemption with the count so far, without naming a process."""
    log = (
        "INFO:     Application startup complete.\n"
        "WARNING 01-02 03:04:05 scheduler.py:1754] Sequence group 7 is preempted by "
        "PreemptionMode.RECOMPUTE mode because there is not enough KV cache space. "
        "total_num_cumulative_preemption=51\n"
    )

    assert values(only_boot(log))["preemptions"] == 51
