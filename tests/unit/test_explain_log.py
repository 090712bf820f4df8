import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.startup_logs import CAUSES, GOLD, SERVERS, boots, only_boot, server_log

from kvheadroom.cli import main, run
from kvheadroom.plan.explain_log import Explanation, as_json, as_text
from kvheadroom.plan.log_balance import balance
from kvheadroom.plan.log_findings import changes, red_flags
from kvheadroom.plan.log_verdict import judge
from kvheadroom.units import GIB

HEAD = "(EngineCore_DP0 pid=7) ERROR 11-30 09:49:47 [core.py:1510] "
INFO = "(EngineCore_DP0 pid=7) INFO 11-30 09:49:40 [core.py:10] "
FRONT = "(APIServer pid=1) INFO 11-30 09:49:20 [utils.py:1] "


def start(arguments: dict[str, object], *messages: str, version: str = "0.18.1") -> str:
    """Return the log of a start with *arguments* that goes on with *messages*."""
    lines = [
        f"{FRONT}vLLM API server version {version}",
        f"{FRONT}non-default args: {arguments!r}",
        *(f"{INFO}{message}" for message in messages),
    ]
    return "\n".join(lines) + "\n"


def worded(part: str) -> str:
    """Return the recorded wording of a failure that has *part* in it."""
    return str(next(cause["message"] for cause in CAUSES if part in cause["message"]))


def explain(tmp_path: Path, log: bytes | str, *flags: str) -> Result:
    file = tmp_path / "server.log"
    file.write_bytes(log.encode() if isinstance(log, str) else log)
    return CliRunner().invoke(main, ["explain-log", str(file), *flags])


def advice(log: str) -> str:
    return "\n".join(judge(only_boot(log)).actions)


# --- the verdict --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "state"),
    [
        # times.txt of each recorded server tells how it ended.
        ("0.10.2", "died"),
        ("0.11.0", "died"),
        ("0.11.0-dp2", "failed"),
        ("0.18.1", "stopped"),
        ("0.28.0", "stopped"),
        ("0.28.0-dp2", "stopped"),
        ("0.32.0-embed-bert", "stopped"),
        ("0.32.0-lora", "stopped"),
        ("0.32.0-module", "stopped"),
        ("0.32.0-toolong", "failed"),
    ],
)
def test_the_fate_of_a_real_server(name: str, state: str) -> None:
    """Each recorded server is judged as it ended."""
    assert judge(only_boot(server_log(name))).state == state


def test_a_log_that_breaks_off_is_unfinished() -> None:
    """Without an end and without an error nothing is claimed."""
    assert judge(only_boot(start({"model": "m"}))).state == "unfinished"


@pytest.mark.parametrize(
    "cause", CAUSES, ids=[f"{number}-{cause['kind']}" for number, cause in enumerate(CAUSES)]
)
def test_each_failed_start_comes_with_a_remedy(cause: dict[str, Any]) -> None:
    """Every way to fail has a verdict that names it and something to do."""
    verdict = judge(only_boot(start({"model": "m"}) + HEAD + cause["message"]))

    assert verdict.state == "failed"
    assert verdict.cause is not None
    assert verdict.cause.kind == cause["kind"]
    assert verdict.actions


def test_too_little_free_memory_names_the_share_that_would_start() -> None:
    """21.99 GiB free of 39.49 GiB is 55.7 %: 0.55 is the highest two-place share below it."""
    log = start({"model": "m"}) + HEAD + worded("21.99/39.49")

    assert "--gpu-memory-utilization 0.55" in advice(log)
    assert "13.55 GiB" in advice(log)


def test_a_request_that_does_not_fit_names_the_length_that_does() -> None:
    """vLLM's own estimate is passed on, and the share that would hold the length asked for.

    7.04 GiB are there, 8.18 needed: 1.14 of 44.40 GiB is a share of 0.026 more than 0.86.
    """
    budget = (
        "Free memory on device (43.9/44.40 GiB) on startup. Desired GPU memory utilization is "
        "(0.86, 38.18 GiB)."
    )
    log = start({"gpu_memory_utilization": 0.86}, budget) + HEAD + worded("112896")

    assert "--max-model-len 112896" in advice(log)
    assert "--gpu-memory-utilization 0.89" in advice(log)
    assert "--kv-cache-dtype fp8" in advice(log)


def test_a_pool_capped_by_hand_is_the_first_thing_to_change() -> None:
    """The recorded refusal had room for 8,192 blocks and was told to take 8."""
    first = judge(only_boot(server_log("0.32.0-toolong"))).actions[0]

    assert "--num-gpu-blocks-override 8" in first
    assert "8,192" in first


OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of 80.00 GiB of which 0.25 GiB is free."
)


def test_out_of_memory_before_the_weights_is_about_the_weights() -> None:
    """At start, before anything is loaded, no memory knob helps."""
    assert "quantized" in advice(start({"model": "m"}) + HEAD + OOM)
    assert "--gpu-memory-utilization" not in advice(start({"model": "m"}) + HEAD + OOM)


def test_out_of_memory_after_the_pool_lowers_the_share() -> None:
    """2 GiB less 0.25 free, and 0.25 spare, are 2.5 % of 80 GiB: 0.92 becomes 0.89."""
    log = start(
        {"gpu_memory_utilization": 0.92},
        "Model loading took 30.0 GiB memory and 5.0 seconds",
        "Available KV cache memory: 40.0 GiB",
        "GPU KV cache size: 100,000 tokens",
    )

    assert "--gpu-memory-utilization 0.89" in advice(log + HEAD + OOM)


def test_out_of_memory_under_load_begins_with_the_length() -> None:
    """Memory that runs out later is growth: length, then share, then concurrency."""
    ready = "INFO:     Application startup complete.\n"
    log = start({"max_model_len": 32768, "max_num_seqs": 256}) + ready + HEAD + OOM
    verdict = judge(only_boot(log))

    assert verdict.state == "died"
    assert [action.split()[1] for action in verdict.actions[:1]] == ["--max-model-len"]
    assert "16384" in verdict.actions[0]
    assert "128" in advice(log)


def test_a_server_that_vanished_was_killed_from_outside() -> None:
    """A start that follows a serving one without a word in between tells of a kill."""
    ready = "INFO:     Application startup complete.\n"
    first, last = boots(start({"model": "m"}) + ready + start({"model": "m"}) + ready)

    assert judge(first).state == "died"
    assert "OOM killer" in "\n".join(judge(first).actions)
    assert judge(last).state == "started"


def test_a_server_stopped_before_it_served_hints_at_the_probe() -> None:
    """Kubernetes ends a server whose startup probe is too short with SIGTERM."""
    log = start({"model": "m"}, "[shutdown] EngineCore: trigger received signal=SIGTERM")

    assert judge(only_boot(log)).state == "stopped"
    assert "probe" in advice(log)


@pytest.mark.parametrize("line", ["Killed", "/start.sh: line 9:    12 Killed   vllm serve m"])
def test_the_shells_word_for_a_kill_is_understood(line: str) -> None:
    """bash reports a child that the kernel killed."""
    verdict = judge(only_boot(start({"model": "m"}) + line))

    assert verdict.cause is not None
    assert verdict.cause.kind == "killed"


# --- the budget ---------------------------------------------------------------------------------

BALANCED = [case for case in GOLD if balance(only_boot("\n".join(case["raw"]))) is not None]


@pytest.mark.parametrize("case", BALANCED, ids=[case["id"] for case in BALANCED])
def test_a_posted_budget_adds_up(case: dict[str, Any]) -> None:
    """The parts vLLM prints leave nothing of what it manages, but for the rounding of five."""
    sums = balance(only_boot("\n".join(case["raw"])))

    assert sums is not None
    assert abs(sums.rest_bytes) <= 0.025 * GIB


def test_a_budget_is_not_invented() -> None:
    """Where a part is not printed there is no sum."""
    assert len(BALANCED) >= 10
    assert balance(only_boot(server_log("0.32.0-module"))) is None


# --- red flags ----------------------------------------------------------------------------------

BUDGET = (
    "Free memory on device (78.5/79.19 GiB) on startup. Desired GPU memory utilization is "
    "(0.9, 71.27 GiB)."
)
HEALTHY = (
    BUDGET,
    "Available KV cache memory: 40.0 GiB",
    "GPU KV cache size: 393,216 tokens, Maximum concurrency for 8,192 tokens per request: 48.00x",
)


def test_a_healthy_start_has_no_red_flag() -> None:
    """A share of 0.9, half the card for the cache and 48 requests need no warning."""
    assert red_flags(only_boot(start({"max_model_len": 8192}, *HEALTHY))) == ()


@pytest.mark.parametrize(
    ("arguments", "messages", "said"),
    [
        ({"gpu_memory_utilization": 0.98, "max_model_len": 1}, (), "0.98"),
        ({"model": "m"}, ("Maximum concurrency for 131,072 tokens per request: 3.00x",), "not set"),
        (
            {"max_model_len": 131072},
            ("Maximum concurrency for 131,072 tokens per request: 1.08x",),
            "1.08",
        ),
        (
            {"max_model_len": -1},
            ("Auto-fit max_model_len: reduced from 40960 to 7264 to fit in available memory",),
            "7,264",
        ),
        (
            {"max_model_len": 1},
            (BUDGET, "Available KV cache memory: 0.71 GiB"),
            "1% of the card",
        ),
        (
            {"max_model_len": 1},
            ("CUDA graph pool memory: 8.57 GiB (actual), 33.06 GiB (estimated), difference: x",),
            "33.06",
        ),
        (
            {"max_model_len": 1},
            ("CUDA graph memory profiling is disabled (VLLM_MEMORY_PROFILER_ESTIMATE_X=0)",),
            "on top",
        ),
    ],
)  # fmt: skip
def test_a_red_flag_is_raised(
    arguments: dict[str, object], messages: tuple[str, ...], said: str
) -> None:
    """Each thing that will bite later is said, with its figure."""
    flags = red_flags(only_boot(start(arguments, *messages)))

    assert any(said in flag for flag in flags)


def test_unequal_ranks_are_flagged_with_the_one_that_binds() -> None:
    """One rank with 2 GiB less holds back the others."""
    log = start({"max_model_len": 1}) + "\n".join(
        f"(Worker_TP{rank} pid={rank + 9}) INFO 11-30 09:49:40 [w.py:1] "
        f"Available KV cache memory: {gib} GiB"
        for rank, gib in enumerate((19.27, 17.14))
    )

    assert any("Worker_TP1 has 17.14 GiB" in flag for flag in red_flags(only_boot(log)))


def test_a_full_cache_with_a_queue_is_flagged() -> None:
    """The recorded server ran with its cache full while requests waited."""
    flags = red_flags(only_boot(server_log("0.32.0-gemma3")))

    assert any("57 requests waited" in flag for flag in flags)


# --- several starts -----------------------------------------------------------------------------


def test_two_starts_are_compared() -> None:
    """Capacity, version and the arguments that explain the change are named."""
    size = "GPU KV cache size: {} tokens"
    log = start({"max_model_len": 4096}, size.format("100,000"), version="0.18.1") + start(
        {"max_model_len": 8192}, size.format("75,000"), version="0.20.0"
    )
    before, after = boots(log)

    found = "\n".join(changes(before, after))

    assert "-25.0%" in found
    assert "0.18.1 → 0.20.0" in found
    assert "max_model_len: 4096 → 8192" in found


# --- the command --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SERVERS)
def test_every_real_log_is_explained(tmp_path: Path, name: str) -> None:
    """The command succeeds on every recorded log and begins with model and verdict."""
    result = explain(tmp_path, server_log(name))
    verdict = judge(only_boot(server_log(name)))

    assert result.exit_code == 0
    assert result.output.split("\n\n")[1].startswith(verdict.headline)


def test_json_has_numbers_in_bytes_and_tokens(tmp_path: Path) -> None:
    """--json gives figures with value, unit and line."""
    log = start({"max_model_len": 8192}, *HEALTHY)
    result = explain(tmp_path, log, "--json")

    (boot,) = json.loads(result.output)["boots"]
    figures = {figure["name"]: figure for figure in boot["figures"]}

    assert boot["state"] == "started"
    assert figures["available_kv_bytes"]["value"] == 40 * 2**30
    assert figures["kv_tokens"]["unit"] == "tokens"
    assert figures["kv_tokens"]["line"] == 5


def test_a_packed_log_is_unpacked(tmp_path: Path) -> None:
    """A log that rotation has packed is read as it is."""
    assert explain(tmp_path, gzip.compress(server_log("0.28.0"))).exit_code == 0


def test_standard_input_is_read() -> None:
    """`-` reads what is piped in."""
    result = CliRunner().invoke(main, ["explain-log", "-"], input=server_log("0.28.0"))

    assert result.exit_code == 0
    assert "5,120 tokens" in result.output


@pytest.mark.parametrize(
    "content", [None, b"", b"\x00\x01\xff" * 99, b"no server here\n", b"\x1f\x8b"]
)
def test_what_cannot_be_explained_is_one_line_and_status_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    content: bytes | None,
) -> None:
    """A missing file, binary garbage and another program's log end with status 2."""
    file = tmp_path / "some.log"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setattr(sys, "argv", ["kvheadroom", "explain-log", str(file)])

    status = run()

    assert status == 2
    assert capfd.readouterr().err.count("\n") == 1


def test_no_secret_is_printed(tmp_path: Path) -> None:
    """An API key in the arguments is in neither text nor JSON."""
    log = start({"model": "m", "api_key": ["s3cretkey"]}) + HEAD + "ValueError: token=s3cretkey\n"

    assert "s3cretkey" not in explain(tmp_path, log).output
    assert "s3cretkey" not in explain(tmp_path, log, "--json").output


_LINES = st.sampled_from(
    [line for case in GOLD for line in case["raw"]]
    + [cause["message"] for cause in CAUSES]
    + ["INFO:     Application startup complete.", f"{FRONT}vLLM API server version 0.9.1"]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(_LINES, min_size=1, max_size=25))
def test_any_mix_of_lines_is_explained(lines: list[str]) -> None:
    """Whatever lines a log combines, the explanation is printed and is JSON."""
    records = tuple(boots(f"vllm {io.StringIO().read()}\n" + "\n".join(lines)))
    if not records:
        return
    explanation = Explanation(records, len(records))

    assert as_text(explanation)
    assert json.loads(as_json(explanation))["starts"] == len(records)
