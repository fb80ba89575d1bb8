"""The web application of a node: probes, metrics, the API, the console's pages.

`/livez` is 200 while the process can still do its work and 503 when only a restart helps.
`/readyz` is 200 when clients should be sent here, else 503 with the reasons; `unwell` names what is
not served either way, such as a timeline whose file is broken. Both answer JSON.
The server shares the node's loop, so a loop that hangs fails its probes, which is what probes are
for. It starts before the rest of the node, so an early request learns what is still missing.

R4: without a token the server listens on this machine only.

Not here: what live and ready mean (see `node`), and signals, which belong to the process.
"""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dovetail.clock import Clock, SystemClock
from dovetail.console.desk import Desk, ServedNode
from dovetail.console.live import Live
from dovetail.console.nouns import (
    access,
    clients,
    dead,
    decoded,
    groups,
    history,
    messages,
    outbox,
    overview,
    pipelines,
    receiving,
    streams,
    timeline_messages,
    timelines,
    topics,
)
from dovetail.console.web import docs_page, session
from dovetail.console.web.dispatch import defect_response, dispatch, problem_response
from dovetail.console.web.download import Download, begin_backup
from dovetail.console.web.endpoint import Endpoint
from dovetail.console.web.errors import HttpRefusal
from dovetail.console.web.event_stream import EventStream
from dovetail.console.web.guard import AsgiApp, Guard, Receive, Scope, Send
from dovetail.console.web.openapi import document
from dovetail.console.web.pages import Pages
from dovetail.console.web.signing_in import SignIn
from dovetail.errors import DovetailError, InvalidInput, InvalidSetting
from dovetail.exposition import render
from dovetail.settings import HttpSettings, Settings
from dovetail.web import WebServer, serve_web

#: Connections at once: fifty live pages with some requests beside.
CONNECTIONS_MAX = 256

#: How long `stop` waits for answers under way. They take milliseconds; then they are cut off.
STOP_GRACE_S = 2

ENDPOINTS: tuple[Endpoint, ...] = (
    *overview.ENDPOINTS,
    *clients.ENDPOINTS,
    *access.ENDPOINTS,
    *topics.ENDPOINTS,
    *messages.ENDPOINTS,
    *decoded.ENDPOINTS,
    *groups.ENDPOINTS,
    *history.ENDPOINTS,
    *timelines.ENDPOINTS,
    *timeline_messages.ENDPOINTS,
    *receiving.ENDPOINTS,
    *dead.ENDPOINTS,
    *streams.ENDPOINTS,
    *pipelines.ENDPOINTS,
    *outbox.ENDPOINTS,
    *session.ENDPOINTS,
)
#: Names in paths that may have a slash.
_WITH_SLASHES = ("group", "name", "log")

RequestHandler = Callable[[Request], Awaitable[Response]]


class Console:
    """Everything that is served over HTTP for one node; an ASGI application."""

    def __init__(self, node: ServedNode, settings: Settings, clock: Clock | None = None) -> None:
        """Raises `InvalidSetting` for a token file that cannot be read."""
        clock = clock or SystemClock()
        sign_in = SignIn(settings.http.secret())
        self.desk = Desk(node, settings, clock, sign_in)
        self.live = Live(self.desk)
        self._document: bytes | None = None
        self._page: str | None = None
        starlette = Starlette(
            routes=self._routes(),
            exception_handlers={HTTPException: _http_problem, Exception: _defect},
        )
        self.app: AsgiApp = Guard(starlette, settings.http, sign_in, clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)

    async def close(self) -> None:
        """Ends all clients; readers of live documents were sent away before."""
        await self.desk.close()

    def _routes(self) -> list[Route]:
        pages = Pages()
        by_path: dict[str, list[Endpoint]] = {}
        for endpoint in ENDPOINTS:
            by_path.setdefault(endpoint.path, []).append(endpoint)
        # The longest first: a name that may have slashes must not take what stands behind it.
        paths = sorted(by_path, key=lambda path: -path.count("/"))
        return [
            Route("/livez", self._livez),
            Route("/readyz", self._readyz),
            Route("/metrics", self._metrics),
            Route("/docs", self._docs),
            Route("/docs/style.css", _docs_style),
            Route("/v1/openapi.json", self._openapi),
            Route("/v1/live", self._watch),
            Route("/v1/backup", self._backup, methods=["POST"]),
            *(self._route(path, by_path[path]) for path in paths),
            Route("/static/{path:path}", pages.static),
            Route("/{path:path}", pages.page),
        ]

    def _route(self, path: str, endpoints: list[Endpoint]) -> Route:
        by_method = {endpoint.method: endpoint for endpoint in endpoints}

        async def answer(request: Request) -> Response:
            method = "GET" if request.method == "HEAD" else request.method
            return await dispatch(self.desk, by_method[method], request)

        for name in _WITH_SLASHES:
            path = path.replace(f"{{{name}}}", f"{{{name}:path}}")
        return Route(path, answer, methods=list(by_method))

    async def _livez(self, _: Request) -> Response:
        live = self.desk.node.live()
        return JSONResponse({"live": live}, status_code=200 if live else 503)

    async def _readyz(self, _: Request) -> Response:
        ready, reasons = self.desk.node.ready()
        answer = {"ready": ready, "reasons": reasons, "unwell": self.desk.node.unwell()}
        return JSONResponse(answer, status_code=200 if ready else 503)

    async def _metrics(self, request: Request) -> Response:
        page, content_type = render(self.desk.node.registry, request.headers.get("accept", ""))
        return Response(page, headers={"content-type": content_type})

    async def _openapi(self, _: Request) -> Response:
        if self._document is None:
            self._document = msgspec.json.encode(document(ENDPOINTS))
        return Response(self._document, media_type="application/json")

    async def _docs(self, _: Request) -> Response:
        if self._page is None:
            self._page = docs_page.page(document(ENDPOINTS))
        return Response(self._page, media_type="text/html; charset=utf-8")

    async def _watch(self, request: Request) -> Response | EventStream:
        try:
            unknown = set(request.query_params) - {"watch"}
            if unknown:
                raise InvalidInput(f"unknown parameter {min(unknown)[:50]!r}; give `watch`")
            watcher = self.live.join(tuple(request.query_params.getlist("watch")))
        except DovetailError as error:
            return problem_response(error)
        return EventStream(self.live, watcher)

    async def _backup(self, request: Request) -> Response | Download:
        try:
            return await begin_backup(self.desk, request.scope["dovetail.pass"].caller)
        except DovetailError as error:
            return problem_response(error)


async def _docs_style(_: Request) -> Response:
    return Response(docs_page.STYLE, media_type="text/css; charset=utf-8")


async def _http_problem(request: Request, error: Exception) -> Response:
    """What the router itself refuses: an unknown method; unknown paths are pages or not there."""
    assert isinstance(error, HTTPException)
    text = f"{error.detail}: {request.method} {request.url.path[:200]}; /docs lists the API"
    headers = dict(error.headers or {})
    return problem_response(HttpRefusal(HTTPStatus(error.status_code), text, headers=headers))


async def _defect(_: Request, __: Exception) -> Response:
    return defect_response()


def check_address(settings: HttpSettings) -> None:
    """Raises `InvalidSetting` if other machines could reach a console without a token."""
    if settings.is_loopback or settings.secret():
        return
    raise InvalidSetting(
        f"http.host = {settings.host!r} can be reached from other machines, and there is no token: "
        "everybody who finds the port could read and delete everything. Set http.token (or "
        "http.token_file) to at least 16 random characters, or listen on this machine only "
        "(http.host = 127.0.0.1), or serve no HTTP (http.enabled = false)"
    )


async def serve_http(app: AsgiApp, settings: HttpSettings) -> WebServer:
    """Serves `app` in the current loop; returns once it listens. Port 0 takes any free one.

    Raises `Unavailable` if the address cannot be taken, `InvalidSetting` if it is not safe.
    """
    check_address(settings)
    return await serve_web(
        app,
        settings.host,
        settings.port,
        connections_max=CONNECTIONS_MAX,
        stop_grace_s=STOP_GRACE_S,
        hint="choose another address with http.host and http.port, or http.enabled = false",
        certificate=settings.tls_certificate,
        key=settings.tls_key,
    )


@contextlib.asynccontextmanager
async def http_of(node: ServedNode, settings: Settings) -> AsyncIterator[str]:
    """Serves a node over HTTP; gives the URL. Raises `Unavailable`, `InvalidSetting`."""
    console = Console(node, settings)
    server = await serve_http(console, settings.http)
    try:
        yield server.url
    finally:
        console.live.stop()
        await server.stop()
        await console.close()
