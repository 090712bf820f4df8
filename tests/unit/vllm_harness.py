"""A VllmSource against a server that answers as vLLM does, or as a test says."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from tests.unit.evidence import endpoint_body, page
from tests.unit.hostile_server import Behave, Peer, each_request, hostile_server

from kvheadroom.errors import SourceError
from kvheadroom.node.vllm import EngineTarget, VllmSource
from kvheadroom.readings import ServerReading

PAGE = page("pages/made-modern-97pct")
VERSION = endpoint_body("0.32.0-lora", "/version")
MODELS = endpoint_body("0.32.0-lora", "/v1/models")
# Measured 0.01 on an idle machine; the rest is for one that runs other tests at the same time.
GRACE_SECONDS = 0.6

Respond = Callable[[Peer, str], None]


@contextmanager
def source_of(
    url: str,
    *,
    deadline_seconds: float = 2.0,
    api_key: str | None = None,
    ca_file: str | None = None,
) -> Iterator[VllmSource]:
    source = VllmSource(EngineTarget(url, api_key, ca_file), deadline_seconds=deadline_seconds)
    try:
        yield source
    finally:
        source.close()


def read(behave: Behave, *, deadline_seconds: float = 2.0) -> ServerReading:
    with (
        hostile_server(behave) as server,
        source_of(server.url, deadline_seconds=deadline_seconds) as source,
    ):
        return source.read()


def failure(source: VllmSource) -> SourceError:
    with pytest.raises(SourceError) as failed:
        source.read()
    return failed.value


def serve(*, metrics: bytes = PAGE, version: bytes = VERSION, models: bytes = MODELS) -> Respond:
    bodies = {"/metrics": metrics, "/version": version, "/v1/models": models}
    bodies |= {"/health": b"", "/is_paused": b'{"is_paused": false}'}

    def respond(peer: Peer, path: str) -> None:
        if path in bodies:
            peer.answer(bodies[path])
        else:
            peer.answer(b"", status="404 Not Found")

    return respond


def answered(respond: Respond) -> ServerReading:
    return read(each_request(respond))
