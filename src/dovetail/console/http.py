"""Health and metrics over HTTP, inside the node's own event loop.

`/livez` is 200 while the process can still do its work and 503 when only a restart helps.
`/readyz` is 200 when clients should be sent here, else 503 with the reasons. Both answer JSON.
`/v1/cluster` is the whole cluster as the overseer sees it, on nodes that have that role.
The server shares the loop, so a loop that hangs fails its probes, which is what probes are for.

Not here: what live and ready mean (see `broker`), and signals, which belong to the process.
"""

import contextlib
from collections.abc import AsyncIterator
from typing import Protocol

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from dovetail.settings import HttpSettings
from dovetail.web import WebServer, serve_web

#: Requests served at once. Probes and scrapes are a handful; a flood gets 503 and costs little.
REQUESTS_CONCURRENT_MAX = 100

#: How long `stop` waits for answers under way. They take milliseconds; then they are cut off.
STOP_GRACE_S = 2

_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>Dovetail</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:40em;margin:3em auto;padding:0 1em}
td{padding:.2em 1.5em .2em 0}</style></head>
<body>
<h1>Dovetail</h1>
<p>This node serves:</p>
<table>
<tr><td><a href="/livez">/livez</a></td><td>whether the process works, or needs a restart</td></tr>
<tr><td><a href="/readyz">/readyz</a></td><td>whether clients should be sent here</td></tr>
<tr><td><a href="/metrics">/metrics</a></td><td>measurements, for Prometheus</td></tr>
<tr><td><a href="/v1/cluster">/v1/cluster</a></td><td>nodes, topics and owners, as JSON</td></tr>
</table>
</body>
</html>
"""


class NodeStatus(Protocol):
    """What the probes ask of a node; both answer at once, without waiting."""

    def live(self) -> bool:
        """Whether the process can still do its work; False asks for a restart."""
        ...

    def ready(self) -> tuple[bool, list[str]]:
        """Whether clients should be sent here, and if not, why."""
        ...

    def cluster(self) -> object | None:
        """The cluster as an overseer sees it; None on a node that is none."""
        ...


class ServedNode(NodeStatus, Protocol):
    """A node with its measurements."""

    @property
    def registry(self) -> CollectorRegistry: ...


def create_app(status: NodeStatus, registry: CollectorRegistry) -> Starlette:
    """The web application of one node."""

    async def livez(_: Request) -> Response:
        live = status.live()
        return JSONResponse({"live": live}, status_code=200 if live else 503)

    async def readyz(_: Request) -> Response:
        ready, reasons = status.ready()
        return JSONResponse({"ready": ready, "reasons": reasons}, status_code=200 if ready else 503)

    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"content-type": content_type})

    async def cluster(_: Request) -> Response:
        report = status.cluster()
        if report is None:
            text = "this node is no overseer; ask one that has the role, or add it to node.roles"
            return JSONResponse({"error": text}, status_code=404)
        return Response(msgspec.json.encode(report), media_type="application/json")

    async def page(_: Request) -> Response:
        return HTMLResponse(_PAGE)

    return Starlette(
        routes=[
            Route("/", page),
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
            Route("/v1/cluster", cluster),
        ]
    )


async def serve_http(app: Starlette, host: str, port: int) -> WebServer:
    """Serves `app` in the current loop; returns once it listens. Port 0 takes any free one.

    Raises `Unavailable` if the address cannot be taken.
    """
    return await serve_web(
        app,
        host,
        port,
        requests_concurrent_max=REQUESTS_CONCURRENT_MAX,
        stop_grace_s=STOP_GRACE_S,
        hint="choose another address with http.host and http.port, or http.enabled = false",
    )


@contextlib.asynccontextmanager
async def http_of(node: ServedNode, settings: HttpSettings) -> AsyncIterator[str]:
    """Serves a node's status and measurements; gives the URL. Raises `Unavailable`."""
    server = await serve_http(create_app(node, node.registry), settings.host, settings.port)
    try:
        yield server.url
    finally:
        await server.stop()
