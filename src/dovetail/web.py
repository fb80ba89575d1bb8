"""A web server (uvicorn) in a running event loop: it takes no signals, and reports when it listens.

Its starter also ends it, and decides what it serves and at which address.

A connection counts from the moment the system has accepted it. It is the client's *turn* until its
request with its body has arrived, and while it does not read its answer. A turn has a time limit,
and one connection too many closes the one with the longest turn. So a client that sends nothing, or
half of something, keeps nobody out: probes are answered, and file handles stay free for the rest.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Generator, MutableMapping
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from dovetail.accepting import Acceptor
from dovetail.addresses import Address
from dovetail.background import Alarm, first_of, start_task
from dovetail.errors import InvalidSetting, Unavailable
from dovetail.tls_files import TlsFiles, load_certificate

_Message = MutableMapping[str, Any]
#: A web application: Starlette, or what wraps one.
Asgi = Callable[
    [_Message, Callable[[], Awaitable[_Message]], Callable[[_Message], Awaitable[None]]],
    Awaitable[None],
]

#: Largest header block. Scrapes and members of a stream send under 1 KiB.
HEADER_BYTES_MAX = 16 * 1024

#: How long a client's turn may take: a request of 1 MiB, or reading 64 KiB of an answer.
TURN_S_MAX = 15.0

#: How long a client may take to agree on TLS.
HANDSHAKE_S_MAX = 10.0

#: How often turns that take too long are looked for.
_SWEEP_S = 1.0


class _Seat(H11Protocol):
    """One connection, from the moment it was accepted."""

    def __init__(self, house: "_Server") -> None:
        super().__init__(house.config, house.server_state, house.lifespan.state)
        self._house = house
        #: When the client's turn began, if it is its turn.
        self.turn_s = self.loop.time()
        #: Until TLS is agreed on.
        self.meeting: asyncio.Task[None] | None = None
        self.met = False

    @property
    def awaits_client(self) -> bool:
        """Whether it is the client's turn."""
        cycle: Any = self.cycle
        if cycle is None or cycle.response_complete:
            return True
        return bool(cycle.more_body or self.flow.write_paused)

    def close(self) -> None:
        """Closes at once. It counts no more: its transport is gone in the next turn of the loop."""
        self._house.part(self)
        if self.met:
            self.transport.abort()
        elif self.meeting is not None:
            self.meeting.cancel()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.met = True
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._house.part(self)

    def on_response_complete(self) -> None:
        self.turn_s = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        self.turn_s = self.loop.time()
        super().pause_writing()


class _Server(uvicorn.Server):
    """uvicorn without signals, with seats, which reports when it listens."""

    def __init__(
        self,
        config: uvicorn.Config,
        listener: socket.socket,
        *,
        seats_max: int,
        files: TlsFiles | None,
    ) -> None:
        super().__init__(config)
        self._files = files
        self.listening = asyncio.Event()
        self._listener = listener
        self._seats_max = seats_max
        self._seats: set[_Seat] = set()
        self._acceptor = Acceptor(self._on_accepted)
        self._sweeper = Alarm(self._sweep, name="web/sweep")

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().serve(sockets)
        finally:
            await self._stop_accepting()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.servers = []
        self._acceptor.adopt(self._listener)
        if self._files is not None:
            self._files.keep([self.config.ssl])
        self._sweep()
        self.started = True
        self.listening.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._stop_accepting()
        await super().shutdown(sockets)

    async def _stop_accepting(self) -> None:
        self._sweeper.cancel()
        await self._acceptor.close()
        for seat in tuple(self._seats):
            if not seat.met:
                seat.close()

    def part(self, seat: _Seat) -> None:
        """Counts a connection out."""
        self._seats.discard(seat)

    def _on_accepted(self, accepted: socket.socket) -> None:
        seat = _Seat(self)
        self._seats.add(seat)

        def end(_: object) -> None:
            # Also if it was cancelled before it began.
            if not seat.met:
                accepted.close()
                self.part(seat)

        seat.meeting = start_task(self._meet(seat, accepted), name="web/meet")
        seat.meeting.add_done_callback(end)
        if len(self._seats) > self._seats_max:
            waiting = (one for one in self._seats if one.awaits_client)
            min(waiting, key=lambda one: one.turn_s).close()

    async def _meet(self, seat: _Seat, accepted: socket.socket) -> None:
        """Agrees on TLS, if that is to be, and hands the socket over."""
        tls = self.config.ssl
        with contextlib.suppress(OSError):  # It speaks no TLS, or is gone again.
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: seat,
                accepted,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else HANDSHAKE_S_MAX,
            )

    def _sweep(self) -> None:
        if self._files is not None:
            self._files.look()
        since_s = asyncio.get_running_loop().time() - TURN_S_MAX
        for seat in tuple(self._seats):
            if seat.awaits_client and seat.turn_s < since_s:
                seat.close()
        self._sweeper.set(_SWEEP_S)


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
    connections_max: int,
    stop_grace_s: int,
    hint: str,
    certificate: str = "",
    key: str = "",
) -> WebServer:
    """Serves `app` in the current loop; returns once it listens. Port 0 takes any free one.

    Raises `Unavailable`, with the `hint` what to do, if the address cannot be taken, and
    `InvalidSetting` if the certificate cannot be used.
    """
    files = TlsFiles(certificate, key) if certificate else None
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
            timeout_graceful_shutdown=stop_grace_s,
            h11_max_incomplete_event_size=HEADER_BYTES_MAX,
            ssl_certfile=certificate or None,
            ssl_keyfile=key or None,
        ),
        listener,
        seats_max=connections_max,
        files=files,
    )

    serving, of = server.serve(), f"port {port_bound}"
    task = start_task(serving, name="web/server", of=of, vital=True)
    try:
        ended, _ = await first_of(asyncio.shield(task), server.listening.wait())
    except asyncio.CancelledError:
        task.cancel()
        raise
    if ended:
        raise Unavailable(f"the web server on {host}:{port_bound} ended right after its start")
    scheme = "https" if certificate else "http"
    return WebServer(server, task, scheme=scheme, host=host, port=port_bound)


def _check_certificate(certificate: str, key: str) -> None:
    """Raises `InvalidSetting` here; the server would end the process."""
    if not certificate:
        return
    try:
        load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate, key)
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
