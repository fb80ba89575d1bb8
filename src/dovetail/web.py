"""A web server inside somebody else's event loop: it takes no signals, and reports when it listens.

It is uvicorn. Whoever starts it ends it, and decides what it serves and at which address.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Generator, MutableMapping
from typing import Any

import uvicorn

from dovetail.addresses import Address
from dovetail.background import first_of, start_task
from dovetail.errors import InvalidSetting, Unavailable

_Message = MutableMapping[str, Any]
#: A web application: Starlette, or what wraps one.
Asgi = Callable[
    [_Message, Callable[[], Awaitable[_Message]], Callable[[_Message], Awaitable[None]]],
    Awaitable[None],
]

#: Largest header block. Scrapes and members of a stream send under 1 KiB.
HEADER_BYTES_MAX = 16 * 1024


class _Server(uvicorn.Server):
    """uvicorn without signals, which reports when it listens."""

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
        self, server: _Server, task: asyncio.Task[None], *, scheme: str, host: str, port: int
    ) -> None:
        self._server = server
        self._scheme = scheme
        self._task = task
        self.host = host
        self.port = port

    @property
    def url(self) -> str:
        """Where it is reached from this machine, without a slash at the end."""
        return f"{self._scheme}://{Address(self.host, self.port)}"

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
    server = _Server(
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

    serving, of = server.serve(sockets=[listener]), f"port {port_bound}"
    task = start_task(serving, name="web/server", of=of, vital=True)
    try:
        ended, _ = await first_of(asyncio.shield(task), server.listening.wait())
    except asyncio.CancelledError:
        task.cancel()
        raise
    if ended:
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
