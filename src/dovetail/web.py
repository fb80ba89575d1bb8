"""A web server as a guest in somebody's event loop: no signals, no lifespan, says when it listens.

Behind it is uvicorn. Who starts it ends it. What it serves, and at which address, is the caller's.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Generator, MutableMapping
from typing import Any

import uvicorn

from dovetail.errors import InvalidSetting, Unavailable

_Message = MutableMapping[str, Any]
#: A web application: Starlette, or what wraps one.
Asgi = Callable[
    [_Message, Callable[[], Awaitable[_Message]], Callable[[_Message], Awaitable[None]]],
    Awaitable[None],
]

#: Largest header block. Scrapes and members of a stream send under 1 KiB.
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


class WebServer:
    """A running web server."""

    def __init__(
        self, server: _Guest, task: asyncio.Task[None], *, scheme: str, host: str, port: int
    ) -> None:
        self._server = server
        self._scheme = scheme
        self._task = task
        self.host = host
        self.port = port

    @property
    def url(self) -> str:
        """Where it is reached from this machine, without a slash at the end."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self._scheme}://{host}:{self.port}"

    async def stop(self) -> None:
        """Ends it after the answers under way; safe to call again."""
        self._server.should_exit = True
        await asyncio.wait({self._task})


async def serve_web(
    app: Asgi,
    host: str,
    port: int,
    *,
    requests_concurrent_max: int,
    stop_grace_s: int,
    hint: str,
    certificate: str = "",
    key: str = "",
) -> WebServer:
    """Serves `app` in the current loop; returns once it listens. Port 0 takes any free one.

    Raises `Unavailable`, with the `hint` what to do, if the address cannot be taken, and
    `InvalidSetting` if the certificate cannot be used.
    """
    _check_certificate(certificate, key)
    listener = _listen(host, port, hint)
    port_bound: int = listener.getsockname()[1]
    server = _Guest(
        uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            http="h11",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=requests_concurrent_max,
            timeout_graceful_shutdown=stop_grace_s,
            h11_max_incomplete_event_size=HEADER_BYTES_MAX,
            ssl_certfile=certificate or None,
            ssl_keyfile=key or None,
        )
    )
    task = asyncio.create_task(server.serve(sockets=[listener]), name="web")
    listening = asyncio.create_task(server.listening.wait())
    try:
        await asyncio.wait({task, listening}, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        task.cancel()
        raise
    finally:
        listening.cancel()
    if task.done():
        task.result()
        raise Unavailable(f"the web server on {host}:{port_bound} ended as soon as it began")
    scheme = "https" if certificate else "http"
    return WebServer(server, task, scheme=scheme, host=host, port=port_bound)


def _check_certificate(certificate: str, key: str) -> None:
    """Raises `InvalidSetting` here; the server would end the process."""
    if not certificate:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OSError as error:
        raise InvalidSetting(f"no usable certificate in {certificate}, {key}: {error}") from error


def _listen(host: str, port: int, hint: str) -> socket.socket:
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
            f"cannot serve HTTP on {host}:{port}: {error.strerror or error}; {hint}"
        ) from error
    return listener
