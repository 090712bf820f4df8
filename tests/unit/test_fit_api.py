import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.engine_views import engine, facts, options
from tests.unit.web_harness import ask, serving

from kvheadroom.faces.fit import FIT_PATH, answer_fit
from kvheadroom.live.snapshot import Snapshot

FIRST = engine(target="127.0.0.1:8000", used_ratio=0.5, running=9)
SECOND = engine(target="127.0.0.1:8001", known=facts(settings=options(max_num_seqs=4)), running=2)
NODE = Snapshot(engines=(FIRST, SECOND))


def answer(**query: str) -> Mapping[str, Any]:
    found = answer_fit(query, NODE)
    assert (found.status, found.media_type) == (200, "application/json"), found.body
    document: dict[str, Any] = json.loads(found.body)
    return document


def test_every_engine_answers_where_none_is_named() -> None:
    """Free are half of 9,101 blocks of 512 a request, and 2 of 4 places."""
    found = answer(context_tokens="8K", requests="3")

    assert (found["context_tokens"], found["requests"]) == (8_192, 3)
    assert {one["engine"]: (one["fits"], one["possible"]) for one in found["engines"]} == {
        "127.0.0.1:8000/0": (True, 8),
        "127.0.0.1:8001/0": (False, 2),
    }


def test_one_engine_answers_where_it_is_named() -> None:
    """Its id is the engine label of the metrics."""
    found = answer(engine="127.0.0.1:8001/0", context_tokens="8192")

    assert [one["engine"] for one in found["engines"]] == ["127.0.0.1:8001/0"]
    assert found["requests"] == 1


def test_the_answer_says_what_a_restart_would_give() -> None:
    """vLLM plans the same bytes as 291,264 tokens with an fp8 cache."""
    found = answer(engine="127.0.0.1:8000/0", context_tokens="8192")["engines"][0]

    fp8 = next(one for one in found["restarts"] if one["change"] == "--kv-cache-dtype fp8")
    assert (fp8["tokens_now"], fp8["tokens"]) == (145_632, 291_264)


def test_what_is_not_known_is_left_out() -> None:
    """Neither null nor a guess, as in the metrics."""
    unknown = replace(FIRST, headroom=None)

    body = answer_fit({"context_tokens": "8192"}, Snapshot(engines=(unknown,))).body
    found = json.loads(body)["engines"][0]

    assert not {"fits", "possible", "limit"} & found.keys()
    assert found["reason"]


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"requests": "10"},
        {"context_tokens": ""},
        {"context_tokens": "8Q"},
        {"context_tokens": "-1"},
        {"context_tokens": "0"},
        {"context_tokens": "999999999999M"},
        {"context_tokens": "8K", "requests": "0"},
        {"context_tokens": "8K", "requests": "-3"},
        {"context_tokens": "8K", "requests": "1.5"},
        {"context_tokens": "8K", "requests": "ten"},
        {"context_tokens": "8K", "requests": "9" * 5000},
        {"context_tokens": "8K", "requests": "²"},
        {"context_tokens": "8K", "request": "3"},
    ],
)
def test_a_wrong_question_is_one_line_with_status_400(query: dict[str, str]) -> None:
    """Whoever asked reads what to write instead."""
    found = answer_fit(query, NODE)

    assert found.status == 400
    assert found.body.count(b"\n") == 1
    assert len(found.body) < 200


def test_an_engine_that_is_not_there_is_named_with_those_that_are() -> None:
    """A name with a typo must not read as an engine without room."""
    found = answer_fit({"engine": "chat", "context_tokens": "8K"}, NODE)

    assert found.status == 404
    assert b"127.0.0.1:8000/0" in found.body


def test_a_node_without_engines_answers_with_none() -> None:
    """There is nothing wrong with the question."""
    found = answer_fit({"context_tokens": "8K"}, Snapshot())

    assert found.status == 200
    assert "engines" not in json.loads(found.body)


def test_it_is_served_to_this_machine_only_unless_clients_are_known() -> None:
    """It names engines and their load, like the page."""
    with serving(api={FIT_PATH: lambda query: answer_fit(query, NODE)}) as server:
        path = f"{FIT_PATH}?context_tokens=8K&requests=3"

        assert ask(server, path).status == 200
        assert ask(server, path, headers={"X-Forwarded-For": "192.0.2.7"}).status == 403
        assert ask(server, f"{FIT_PATH}?context_tokens=x").status == 400
