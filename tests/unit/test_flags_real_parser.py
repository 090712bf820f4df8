import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from kvheadroom.engine.flags import parse_serve_command
from kvheadroom.errors import ConfigError

EVIDENCE = Path(__file__).parent.parent / "evidence" / "flags" / "parsed.jsonl.gz"


def recorded(*, refused: bool) -> list[dict[str, Any]]:
    lines = gzip.decompress(EVIDENCE.read_bytes()).splitlines()
    records: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return [record for record in records if record.get("refused", False) is refused]


def test_accepted_lines_mean_what_vllm_took_them_to_mean() -> None:
    """Model and values are those vLLM 0.32's own parser stored, for 600 recorded lines."""
    records = recorded(refused=False)

    for record in records:
        command = parse_serve_command(record["args"])
        values: dict[str, Any] = {**command.options, "port": command.port}
        if command.served_names:
            values["served-model-name"] = list(command.served_names)
        differing = {
            name: (values.get(name), value)
            for name, value in record["values"].items()
            if str(values.get(name)) != str(value)
        }
        assert not differing, record["args"]
        assert command.model in (record["model"], None)
        assert not command.unknown
    assert len(records) == 600


def test_refused_lines_are_refused_or_reported() -> None:
    """A line that vLLM 0.32's own parser refuses is not read as if it were fine."""
    records = recorded(refused=True)

    for record in records:
        try:
            told = parse_serve_command(record["args"]).unknown
        except ConfigError as error:
            told = (str(error),)
        assert told, record["args"]
    assert len(records) == 150


def test_values_left_at_their_default_are_not_invented() -> None:
    """A line without options gives no options."""
    assert dict(parse_serve_command("vllm serve org/model").options) == {}


@pytest.mark.parametrize("words", [["serve", "m", "-tp", "2"], ["m", "-tp=2"]])
def test_short_forms_take_a_word_or_an_equals_sign(words: list[str]) -> None:
    """``-tp 2`` and ``-tp=2`` are the same."""
    assert parse_serve_command(words).options["tensor-parallel-size"] == 2
