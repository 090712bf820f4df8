"""Answer requests below any route: refusals, and headers that every response carries."""

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

# An ASGI application; uvicorn and Starlette spell its type in ways that do not match.
Application = Any
EncodedHeaders = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Served:
    """What answers requests, in one reference, so that its parts change together.

    Attributes:
        app: The application.
        headers: Added to every response.
    """

    app: Application
    headers: EncodedHeaders


def serve_with(app: Application, headers: Mapping[str, str]) -> Served:
    """Return *app* with the operator's *headers*, and ours where the operator has none."""
    nosniff = {"x-content-type-options": "nosniff"}
    lowered = nosniff | {name.lower(): text for name, text in headers.items()}
    return Served(app, tuple((name.encode(), text.encode()) for name, text in lowered.items()))


def with_headers(app: Application, headers: EncodedHeaders) -> Application:
    """Return *app* with *headers* added to its response."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401 (ASGI)
        async def send_with_headers(message: Any) -> None:  # noqa: ANN401 (ASGI)
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *headers]}
            await send(message)

        await app(scope, receive, send_with_headers)

    return answer


def refuse(status: int, text: str) -> Application:
    """Return an application that answers every request with *status* and *text*, and hangs up."""
    body = text.encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers.append((b"retry-after", b"1"))

    async def answer(_scope: Any, _receive: Any, send: Any) -> None:  # noqa: ANN401 (ASGI)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return answer
