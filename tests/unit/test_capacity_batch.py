import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.oracle import Case, cases, config_at

from kvheadroom.cli import run
from kvheadroom.plan.batch import answer, answer_lines

EVIDENCE = Path(__file__).parent.parent / "evidence" / "oracle"
FIGURES = ("block_size", "bytes_per_block", "groups", "num_blocks", "tokens", "max_concurrency")
VLLM_REFUSALS = ("no_cache_memory", "request_does_not_fit", "auto_fit_impossible", "unsupported")
LLAMA = {
    "id": 7,
    "config": dict(config_at("configs/llama-3.1-8b.json")),
    "args": ["--max-model-len", "8192"],
    "available_bytes": 2 * 2**30,
    "gpu": {"total_bytes": 85_029_158_912, "compute_capability": "9.0"},
}


def question(case: Case) -> str:
    record = {
        "id": case["id"],
        "config": config_at(f"configs/{case['model']}.json"),
        "args": case["flags"],
        "available_bytes": case["avail_bytes"],
        "vllm_version": case["vllm_version"],
        "gpu": {
            "total_bytes": case["gpu_total_bytes"],
            "compute_capability": case["capability"],
        },
    }
    return json.dumps(record)


def ask(**changed: Any) -> dict[str, Any]:  # noqa: ANN401  (JSON values)
    return answer(json.dumps({**LLAMA, **changed}))


def test_every_recorded_question_gets_vllms_answer() -> None:
    """From flags and config alone all figures and refusals are those of vLLM's allocator."""
    answers = [
        json.loads(line) for line in answer_lines(map(question, cases()), folders=(EVIDENCE,))
    ]

    for case, found in zip(cases(), answers, strict=True):
        assert found["id"] == case["id"]
        if case["error"] is None:
            assert found["error"] is None, case["id"]
            assert {name: found[name] for name in FIGURES} == {n: case[n] for n in FIGURES}
            continue
        assert found["error"]["kind"] in VLLM_REFUSALS, case["id"]
        assert found["error"]["estimated_max_model_len"] == case.get("estimated_max_model_len")
        if case.get("needed_gib") is not None:
            assert round(found["error"]["needed_bytes"] / 2**30, 2) == case["needed_gib"]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "7",
        '{"id": 1}',
        '{"id": 1, "config": {}}',
        '{"id": 1, "path": "/nowhere/config.json"}',
        "\N{SNOWMAN}",
        "[" * 100_000,
    ],
)
def test_a_bad_line_is_answered_and_the_rest_go_on(line: str) -> None:
    """A line that cannot be answered gets an error object in its place."""
    answers = [json.loads(text) for text in answer_lines([line, json.dumps(LLAMA)])]

    assert answers[0]["error"]["message"]
    assert "\n" not in answers[0]["error"]["message"]
    assert answers[0]["num_blocks"] is None
    assert answers[1]["error"] is None


def test_a_refusal_carries_vllms_figures() -> None:
    """A request that does not fit names what it needs, what there is and what would fit.

    Source: 131,072 tokens x 131,072 bytes (2 x 32 layers x 8 heads x 128 x 2) = 16 GiB; one block
    of 2 MiB is held back from the 2 GiB.
    """
    refused = ask(args="--max-model-len 131072")["error"]

    assert refused["kind"] == "request_does_not_fit"
    assert refused["needed_bytes"] == 16 * 2**30
    assert refused["available_bytes"] == 2 * 2**30 - 2 * 2**20
    assert refused["estimated_max_model_len"] == 16384 - 16


def test_arguments_may_be_a_line_or_words() -> None:
    """``args`` is what people type, or a list of its words, and both mean the same."""
    typed = ask(args="vllm serve meta/llama --max-model-len 8K --api-key sk-1")
    listed = ask(args=["--max-model-len", 8192])

    assert typed == listed == ask()


def test_memory_may_differ_by_rank() -> None:
    """The rank with the least memory decides."""
    alike = ask(args="--max-model-len 8192 -tp 2", available_bytes=2**30)
    least = ask(args="--max-model-len 8192 -tp 2", available_bytes=[2**31, 2**30])

    assert alike["num_blocks"] == least["num_blocks"]


def test_a_draft_that_is_not_at_hand_is_an_error() -> None:
    """A draft model adds layers, so its absence is not passed over."""
    speculation = '{"method": "eagle", "model": "no/such", "num_speculative_tokens": 2}'

    found = ask(args=["--max-model-len", "8192", "--speculative-config", speculation])

    assert found["error"]["kind"] == "config"


def test_steady_requests_are_counted() -> None:
    """1024 blocks, one of them null, hold one decoding request of 8192 tokens (512 blocks)."""
    assert ask()["num_blocks"] == 1024
    assert ask()["steady_requests"] == 1


@given(
    st.dictionaries(
        st.sampled_from(["config", "args", "available_bytes", "vllm_version", "gpu", "path"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
            lambda inner: (
                st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
            ),
            max_leaves=6,
        ),
    )
)
def test_any_record_gets_an_answer(record: dict[str, Any]) -> None:
    """Whatever a line holds, its answer is an object with the same keys."""
    found = answer(json.dumps({**LLAMA, **record}))

    assert set(found) == set(ask())


def test_the_command_reads_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``kvheadroom capacity --batch FILE`` answers line by line; a path is found beside FILE."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA["config"]))
    lines = [{**LLAMA, "config": None, "path": "config.json"}, {"id": "bad"}]
    batch = tmp_path / "questions.jsonl"
    batch.write_text("\n\n".join(json.dumps(line) for line in lines) + "\n")
    monkeypatch.setattr("sys.argv", ["kvheadroom", "capacity", "--batch", str(batch)])

    status = run()

    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert status == 0
    assert [found["id"] for found in answers] == [7, "bad"]
    assert answers[0]["num_blocks"] == 1024


def test_a_missing_file_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that cannot be read gives one line and exit status 2."""
    monkeypatch.setattr("sys.argv", ["kvheadroom", "capacity", "--batch", "/no/such/file"])

    assert run() == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
