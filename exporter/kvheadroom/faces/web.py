"""The HTTP routes: metrics, health, the landing page and the API, and who may see which."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from types import MappingProxyType
from typing import Final

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from kvheadroom.faces.basic_auth import PasswordCheck
from kvheadroom.faces.landing import CONTENT_SECURITY_POLICY
from kvheadroom.faces.negotiation import RenderedPage, choose
from kvheadroom.faces.web_options import WebOptions, check_web_options

# What a client that does not read can make us hold for it.
_CHUNK_BYTES: Final = 128 * 1024

_CHALLENGE: Final = {"WWW-Authenticate": 'Basic realm="kvheadroom", charset="UTF-8"'}
_NOT_LOCAL: Final = (
    "This page is served to this machine only. To open it to others, set basic_auth_users or "
    "client_auth_type RequireAndVerifyClientCert in --web.config.file.\n"
)
_LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_FORWARDING_HEADERS: Final = ("forwarded", "x-forwarded-for", "x-real-ip")


@dataclass(frozen=True, slots=True)
class Answer:
    """What an API route answers.

    Attributes:
        status: HTTP status.
        media_type: Content type, with its charset where it is text.
        body: The bytes.
    """

    status: int
    media_type: str
    body: bytes


Handler = Callable[[Mapping[str, str]], Answer]
_Endpoint = Callable[[Request], Awaitable[Response]]
_NO_HANDLERS: Final[Mapping[str, Handler]] = MappingProxyType({})


def make_app(
    *,
    latest: Callable[[], RenderedPage],
    landing: Callable[[], str],
    ready: Callable[[], bool],
    options: WebOptions,
    api: Mapping[str, Handler] = _NO_HANDLERS,
) -> ASGIApp:
    """Return the application.

    Args:
        latest: The page of the latest poll.
        landing: The landing page as HTML.
        ready: Whether a first poll of every source has finished.
        options: Who may see what, and where.
        api: Path → handler of the query's parameters. Handlers run on the event loop, so they
            only render what is known already. Served like the landing page: to clients that
            have proven who they are, or to this machine.

    Raises:
        ConfigError: The options cannot be honored, or passwords not be checked.
    """
    check_web_options(options)

    def page(_query: Mapping[str, str]) -> Answer:
        return Answer(200, "text/html; charset=utf-8", landing().encode())

    everyone = options.clients_are_known
    policy = _landing_policy(options)
    routes = [
        Route(options.telemetry_path, _Metrics(latest), methods=["GET"]),
        Route("/-/healthy", _say(lambda: True, "kvheadroom is healthy.\n"), methods=["GET"]),
        Route("/-/ready", _say(ready, "kvheadroom is ready.\n"), methods=["GET"]),
        Route("/", _private(page, everyone=everyone, headers=policy), methods=["GET"]),
        *(
            Route(path, _private(handler, everyone=everyone, headers={}), methods=["GET"])
            for path, handler in api.items()
        ),
    ]
    guards = []
    if options.basic_auth_users:
        guards = [Middleware(_RequirePassword, check=PasswordCheck(options.basic_auth_users))]
    app = Starlette(routes=routes, middleware=guards)
    app.router.redirect_slashes = False
    return app


def is_local(scope: Scope) -> bool:
    """Return whether a request comes from this machine itself.

    A loopback address alone does not say so: a proxy on this machine forwards for others, and a
    web page elsewhere can point a name of its own at 127.0.0.1 (DNS rebinding). The first gives
    itself away by its headers, the second by its ``Host``.
    """
    headers = Headers(scope=scope)
    client = scope.get("client")
    if client is None or any(name in headers for name in _FORWARDING_HEADERS):
        return False
    host = headers.get("host", "").lower()
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return name in _LOCAL_NAMES and _is_loopback(client[0])


class _Metrics:
    """Sends the latest page in pieces, each when the client has taken the one before."""

    def __init__(self, latest: Callable[[], RenderedPage]) -> None:
        self._latest = latest

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        accept = ",".join(headers.getlist("accept"))
        body, described = choose(self._latest(), accept, headers.get("accept-encoding"))
        await send({"type": "http.response.start", "status": 200, "headers": list(described)})
        view = memoryview(body)
        for start in range(0, len(body), _CHUNK_BYTES):
            piece = view[start : start + _CHUNK_BYTES]
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        # Goes out only after the last piece has: until then the request counts as in flight.
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _RequirePassword:
    """Lets only requests with a known user's password through."""

    def __init__(self, app: ASGIApp, check: PasswordCheck) -> None:
        self._app = app
        self._check = check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app: ASGIApp = self._app
        if scope["type"] == "http":
            verdict = await self._check.verdict(Headers(scope=scope).get("authorization"))
            if verdict == "denied":
                app = PlainTextResponse("Unauthorized\n", 401, _CHALLENGE)
            elif verdict == "busy":
                app = PlainTextResponse("Too many passwords to check\n", 503, {"Retry-After": "1"})
        await app(scope, receive, send)


def _say(is_so: Callable[[], bool], sentence: str) -> _Endpoint:
    async def endpoint(_request: Request) -> Response:
        if is_so():
            return PlainTextResponse(sentence)
        return PlainTextResponse("Not every source has finished its first poll yet.\n", 503)

    return endpoint


def _private(handler: Handler, *, everyone: bool, headers: Mapping[str, str]) -> _Endpoint:
    async def endpoint(request: Request) -> Response:
        if not everyone and not is_local(request.scope):
            return PlainTextResponse(_NOT_LOCAL, 403)
        answer = handler(request.query_params)
        return Response(
            answer.body,
            answer.status,
            {**headers, "Cache-Control": "no-store"},
            media_type=answer.media_type,
        )

    return endpoint


def _landing_policy(options: WebOptions) -> Mapping[str, str]:
    name = "Content-Security-Policy"
    is_set = any(header.lower() == name.lower() for header in options.headers)
    return {} if is_set else {name: CONTENT_SECURITY_POLICY}


def _is_loopback(address: str) -> bool:
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return (mapped or parsed).is_loopback
