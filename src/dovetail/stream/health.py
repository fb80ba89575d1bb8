"""`/health` and `/metrics` of a replica, as routes that any Starlette application can serve."""

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

#: Whether the replica does its part, and what there is to say about it.
Health = Callable[[], tuple[bool, dict[str, Any]]]


def health_routes(health: Health, registry: CollectorRegistry) -> list[BaseRoute]:
    """200 while the replica does its part, else 503; the same facts in both cases."""

    async def show_health(_: Request) -> Response:
        healthy, facts = health()
        return JSONResponse(facts, status_code=200 if healthy else 503)

    async def show_metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"content-type": content_type})

    return [Route("/health", show_health), Route("/metrics", show_metrics)]
