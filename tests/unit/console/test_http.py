"""Health and metrics, over a real port."""

import asyncio
import signal

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter

from dovetail.console import create_app, serve_http
from dovetail.errors import Unavailable
from dovetail.web import WebServer


class Status:
    def __init__(self) -> None:
        self.is_live = True
        self.reasons: list[str] = []

    def live(self) -> bool:
        return self.is_live

    def ready(self) -> tuple[bool, list[str]]:
        return not self.reasons, self.reasons


async def started(status: Status, registry: CollectorRegistry | None = None) -> WebServer:
    return await serve_http(create_app(status, registry or CollectorRegistry()), "127.0.0.1", 0)


async def test_probes_follow_the_node() -> None:
    """U6: `/livez` and `/readyz` are 200, or 503 with the reasons."""
    status = Status()
    server = await started(status)
    try:
        async with httpx.AsyncClient(base_url=server.url) as client:
            assert (await client.get("/livez")).json() == {"live": True}
            answer = await client.get("/readyz")
            assert answer.status_code == 200
            assert answer.json() == {"ready": True, "reasons": []}
            status.is_live, status.reasons = False, ["disk full: 3 MiB free"]
            assert (await client.get("/livez")).status_code == 503
            answer = await client.get("/readyz")
            assert answer.status_code == 503
            assert answer.json() == {"ready": False, "reasons": ["disk full: 3 MiB free"]}
    finally:
        await server.stop()


async def test_metrics_and_page() -> None:
    """U6: `/metrics` is what Prometheus reads; `/` names the endpoints."""
    registry = CollectorRegistry()
    Counter("dovetail_requests", "Requests.", registry=registry).inc(3)
    server = await started(Status(), registry)
    try:
        async with httpx.AsyncClient(base_url=server.url) as client:
            metrics = await client.get("/metrics")
            assert "dovetail_requests_total 3.0" in metrics.text
            assert metrics.headers["content-type"].startswith("text/plain")
            page = await client.get("/")
            for path in ("/livez", "/readyz", "/metrics"):
                assert path in page.text
            assert (await client.get("/nothing")).status_code == 404
            assert (await client.post("/livez")).status_code == 405
    finally:
        await server.stop()


async def test_a_port_in_use_is_an_error_that_says_so() -> None:
    """U7: the message names the address and the settings that change it."""
    server = await started(Status())
    try:
        with pytest.raises(Unavailable, match=rf"127\.0\.0\.1:{server.port}.*http\.port"):
            await serve_http(create_app(Status(), CollectorRegistry()), "127.0.0.1", server.port)
    finally:
        await server.stop()


async def test_stop_frees_the_port_and_leaves_signals_alone() -> None:
    """U2: the process keeps its own signal handlers, and a stopped server is gone."""
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    server = await started(Status())
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    await server.stop()
    await server.stop()
    with pytest.raises(OSError, match=r"refused|failed"):
        await asyncio.open_connection("127.0.0.1", server.port)
