"""A small web server inside the replica's own event loop: the endpoint, health and metrics.

It takes no signals and no lifespan: the replica starts and ends it. Behind it is uvicorn.
"""

import asyncio
import contextlib
import socket
from collections.abc import Generator

import uvicorn
from starlette.applications import Starlette

from dovetail.errors import Unavailable

#: Requests served at once: a hundred members that ping, and a scrape.
REQUESTS_CONCURRENT_MAX = 200
#: How long answers under way are waited for at the end.
STOP_GRACE_S = 1
#: Largest header block; members send under 1 KiB.
HEADER_BYTES_MAX = 16 * 1024


class _Guest(uvicorn.Server):
    """uvicorn without signals, that says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()


class Endpoint:
    """A running web server."""

    def __init__(self, server: _Guest, task: asyncio.Task[None], port: int) -> None:
        self._server = server
        self._task = task
        self.port = port

    async def stop(self) -> None:
        """Ends it after the answers under way; safe to call again."""
        self._server.should_exit = True
        await asyncio.wait({self._task})


async def serve(
    app: Starlette,
    host: str,
    port: int,
    *,
    certificate: str = "",
    key: str = "",
) -> Endpoint:
    """Serves `app`; returns once it listens. Raises `Unavailable` if the address is taken."""
    listener = _listen(host, port)
    server = _Guest(
        uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            http="h11",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=REQUESTS_CONCURRENT_MAX,
            timeout_graceful_shutdown=STOP_GRACE_S,
            h11_max_incomplete_event_size=HEADER_BYTES_MAX,
            ssl_certfile=certificate or None,
            ssl_keyfile=key or None,
        )
    )
    task = asyncio.create_task(server.serve(sockets=[listener]), name="stream-endpoint")
    listening = asyncio.create_task(server.listening.wait())
    await asyncio.wait({task, listening}, return_when=asyncio.FIRST_COMPLETED)
    listening.cancel()
    if task.done():
        task.result()
        raise Unavailable(f"the endpoint on {host}:{port} ended as soon as it began")
    return Endpoint(server, task, listener.getsockname()[1])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another address "
            "with endpoint_host_and_port, or listen_host and listen_port behind a proxy"
        ) from error
    return listener
