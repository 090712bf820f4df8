from typing import Any

import pytest
from tests.unit.startup_logs import CAUSES, only_boot, server_log

from kvheadroom.units import GIB, MIB

HEAD = "(EngineCore_DP0 pid=7) ERROR 11-30 09:49:47 [core.py:1510] "
START = (
    "(APIServer pid=1) INFO 11-30 09:49:20 [api_server.py:1] vLLM API server version 0.18.1\n"
    "(APIServer pid=1) INFO 11-30 09:49:20 [utils.py:1] non-default args: {'model': 'm'}\n"
)
READY = "INFO:     Application startup complete.\n"


@pytest.mark.parametrize(
    "cause", CAUSES, ids=[f"{number}-{cause['kind']}" for number, cause in enumerate(CAUSES)]
)
def test_a_failed_start_has_its_cause(cause: dict[str, Any]) -> None:
    """Each way to fail is recognized, with the figures that its message holds."""
    record = only_boot(START + HEAD + cause["message"])

    (failure,) = record.failures

    assert (failure.kind, failure.serving, failure.line) == (cause["kind"], False, 3)
    for name, value in cause["numbers"].items():
        unit = {"gib": GIB, "mib": MIB}.get(name.rpartition("_")[2])
        read = failure.numbers[f"{name[:-4]}_bytes"] / unit if unit else failure.numbers[name]
        assert read == pytest.approx(value)


def test_an_argument_that_is_not_understood() -> None:
    """argparse's own message, which no logger formats, is recognized."""
    log = (
        "usage: vllm serve [model_tag] [options]\nvllm serve: error: unrecognized arguments: --foo"
    )

    (failure,) = only_boot(log).failures

    assert failure.kind == "bad_argument"


def test_the_exception_of_an_engine_that_did_not_start_is_kept() -> None:
    """Where no known cause fits, the text is the exception of the engine's traceback.

    Source: line 88 of the recorded log.
    """
    (failure,) = only_boot(server_log("0.11.0-dp2")).failures

    assert failure.kind == "engine_start"
    assert failure.text == ("AssertionError: VLLM_CPU_NUM_OF_RESERVED_CPU (1) should less than 0.")


@pytest.mark.parametrize("name", ["0.10.2", "0.11.0"])
def test_an_engine_that_died_under_load_is_told(name: str) -> None:
    """Two recorded servers lost their engine while they served."""
    (failure,) = only_boot(server_log(name)).failures

    assert failure.kind == "engine_dead"
    assert failure.serving


@pytest.mark.parametrize("name", ["0.18.1", "0.28.0", "0.32.0-lora", "0.32.0-embed-bert"])
def test_stopping_a_server_is_no_failure(name: str) -> None:
    """What breaks while a server is being stopped is not held against it."""
    record = only_boot(server_log(name))

    assert record.failures == ()
    assert record.shutdown_line is not None


def test_out_of_memory_while_serving_is_under_load() -> None:
    """After the server said that it is ready, the same error is one of load."""
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."

    (failure,) = only_boot(START + READY + HEAD + oom).failures

    assert failure.serving


@pytest.mark.parametrize(
    "line",
    [
        "INFO 11-30 09:49:20 [logger.py:1] Received request a: prompt: 'CUDA out of memory. '",
        "INFO 11-30 09:49:20 [logger.py:1] Received request a: prompt: 'vLLM API server version 1'",
        "INFO 11-30 09:49:20 [logger.py:1] Received request: 'Available KV cache memory: 1.0 GiB'",
        "ERROR 11-30 09:49:20 [serving.py:1] OSError: [Errno 28] No space left on device",
    ],
)
def test_what_a_request_says_is_not_the_servers_fate(line: str) -> None:
    """A prompt that quotes an error, and a request that fails, are neither failure nor figure."""
    record = only_boot(f"{START}{READY}(APIServer pid=1) {line}")

    assert record.failures == ()
    assert record.last("available_kv_bytes") is None


@pytest.mark.parametrize(
    "text",
    [
        "non-default args: {'model': 'm', 'api_key': ['s3cretkey'], 'hf_token': 's3cretkey'}",
        "args: Namespace(model='m', api_key='s3cretkey', otlp='http://u:s3cretkey@host/x?k=s3cretkey')",
        "non-default args: {'model': 's3://b/m?X-Amz-Signature=s3cretkey'}",
        "non-default args: {'kv_transfer_config': {'url': 'redis://:s3cretkey@h'}}",
        "non-default args: {'kv_transfer_config': {'password': 's3cretkey'}}",
        "non-default args: {'extra': Config(token='s3cretkey', auth=Bearer s3cretkey)}",
        "non-default args: {'extra': '{\"api_key\": \"s3cretkey\"}'}",
    ],
)
def test_no_secret_is_kept(text: str) -> None:
    """Keys, tokens, passwords and query strings never get into a record."""
    record = only_boot(f"{START.splitlines()[0]}\n{text}\n{HEAD}ValueError: --api-key s3cretkey\n")

    assert "s3cretkey" not in repr(record)
    assert record.arguments_line == 2
