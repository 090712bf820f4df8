import json

import pytest
from tests.unit.demo_snapshot import demo_snapshot

from kvheadroom.errors import ConfigError
from kvheadroom.faces.document import NodeDocument, decode_node, encode
from kvheadroom.faces.node_document import node_document
from kvheadroom.faces.series import snapshot_series
from kvheadroom.live.snapshot import Snapshot


@pytest.fixture(scope="module")
def snapshot() -> Snapshot:
    return demo_snapshot("card")


@pytest.fixture(scope="module")
def document(snapshot: Snapshot) -> NodeDocument:
    return node_document("1.2.3", snapshot)


def of_family(snapshot: Snapshot, name: str) -> dict[tuple[str, ...], float]:
    """Return the series of one family, label values → value."""
    return {
        labels: value
        for spec, labels, value in snapshot_series(snapshot)
        if spec.name == f"kvheadroom_{name}"
    }


@pytest.mark.parametrize(
    ("family", "field"),
    [
        ("headroom_blocks", "free_blocks"),
        ("headroom_bytes", "free_bytes"),
        ("kv_used_bytes", "used_bytes"),
        ("kv_capacity_bytes", "bytes"),
        ("kv_used_ratio", "used_ratio"),
    ],
)
def test_json_and_metrics_say_the_same_of_a_pool(
    snapshot: Snapshot, document: NodeDocument, family: str, field: str
) -> None:
    """The same snapshot gives the same numbers on every face."""
    said = {
        (engine.engine,): getattr(engine.cache, field)
        for engine in document.engines
        if getattr(engine.cache, field) is not None
    }

    assert said == of_family(snapshot, family)
    assert len(said) == 2, "the card's LLM and its embedder; the reranker has no pool"


def test_json_and_metrics_say_the_same_of_headroom(
    snapshot: Snapshot, document: NodeDocument
) -> None:
    """Requests of every length that headroom is stated for."""
    said = {
        (engine.engine, fit.context): fit.requests
        for engine in document.engines
        for fit in engine.headroom
    }

    assert said == of_family(snapshot, "headroom_requests")


def test_the_ledger_adds_up_to_the_card(snapshot: Snapshot, document: NodeDocument) -> None:
    """To the byte, in the JSON and in the metrics."""
    (gpu,) = document.gpus

    assert sum(share.bytes for share in gpu.ledger) == gpu.total_bytes
    assert sum(of_family(snapshot, "gpu_ledger_bytes").values()) == gpu.total_bytes


def test_an_engines_budget_adds_up_to_its_share(snapshot: Snapshot) -> None:
    """Parts and margin come to what it manages: 60, 16 and 14 % of what CUDA sees of 12 GiB.

    The context lies outside the share. Source: the demo's card, 256 MiB of it the driver's.
    """
    sums: dict[str, float] = {}
    for (_, _, engine, component, _), count in of_family(snapshot, "budget_bytes").items():
        if component != "context":
            sums[engine] = sums.get(engine, 0) + count

    seen_bytes = (12 * 1024 - 256) * 1024**2
    shares = {engine: round(count / seen_bytes, 6) for engine, count in sums.items()}
    assert shares == {"chat": 0.6, "embed": 0.16, "rerank": 0.14}


def test_what_is_unknown_is_left_out(document: NodeDocument) -> None:
    """No null, no zero in its place."""
    body = json.loads(encode(document))
    reranker = next(one for one in body["engines"] if one["engine"] == "rerank")

    assert "used_ratio" not in reranker["cache"]
    assert "headroom" not in reranker
    assert b"null" not in encode(document)


def test_it_reads_back(document: NodeDocument) -> None:
    """What the API wrote, `top --url` reads."""
    assert decode_node(encode(document)) == document


def test_fields_of_a_newer_kvheadroom_are_passed_over(document: NodeDocument) -> None:
    """A terminal on a laptop may be older than the exporter on the node."""
    body = json.loads(encode(document)) | {"from_the_future": 1}

    assert decode_node(json.dumps(body).encode()) == document


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"version": 1}', b"\xff"])
def test_another_page_is_said_to_be_one(body: bytes) -> None:
    """A wrong URL gives one line."""
    with pytest.raises(ConfigError, match="api/v1/snapshot"):
        decode_node(body)
