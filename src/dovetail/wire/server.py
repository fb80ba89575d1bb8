"""Connections: limits their number, strangers, and slow or idle clients.

A connection counts from the moment the system has accepted it. Until it has completed TLS, and the
login where one is required, it is a *stranger*. Strangers have a share of all connections. When
they exceed it, or the node its maximum, one stranger is closed: one that had time to log in and did
not or, if all of them are new, the newest one of the host that has most of them. So strangers
cannot keep clients out, one host cannot keep others out, and clients that all reconnect at once do
not evict each other.

A connection is idle while it is the client's turn and nothing is sent or received. A connection
that waits for our answer is not idle, however long that takes; one that does not read its answers
is.
"""

import asyncio
import resource
import socket
import ssl
import sys
from collections.abc import Callable

from dovetail.accepting import Acceptor
from dovetail.addresses import Address
from dovetail.background import Alarm, start_task
from dovetail.errors import ProtocolViolation
from dovetail.wire.budget import ByteBudget
from dovetail.wire.connection import SCRATCH_BYTES, Connection, Dispatch, Limits, Observer

#: How often slow and idle connections are looked for; one timer serves all of them.
SWEEP_MS = 1000

#: How long a stop waits for answers that are on their way.
STOP_MS_MAX = 2000

#: How long a client may take to agree on TLS.
HANDSHAKE_S_MAX = 10.0

#: How long a client may take to log in; ours and Kafka's begin with it at once.
LOGIN_MS_MAX = 60_000

#: A stranger that is younger than this may be about to log in.
STRANGER_MS_MIN = 5_000

#: The part of all connections that strangers may have, one in so many, and at least so many.
STRANGERS_SHARE = 4
STRANGERS_MIN = 100

#: File handles that connections never take: segments, the coordination store, HTTP. A node that
#: ran out of them could still talk, but not store.
FILES_RESERVED = 256


class WireServer:
    """A listening socket and its connections."""

    def __init__(
        self, dispatch: Dispatch, limits: Limits, budget: ByteBudget, observer: Observer
    ) -> None:
        self._dispatch = dispatch
        self._limits = limits
        self._budget = budget
        self._observer = observer
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._connections: set[Connection] = set()
        #: Since when each stranger is here, in order of arrival.
        self._strangers: dict[Connection, float] = {}
        #: The strangers of each host, in order of arrival.
        self._by_host: dict[str, dict[Connection, None]] = {}
        self._empty = asyncio.Event()
        self._empty.set()
        self._stopping = False
        self._acceptor = Acceptor(self._on_accepted)
        self._tls: ssl.SSLContext | None = None
        self._on_sweep: Callable[[], None] = lambda: None
        self._sweeper = Alarm(self._sweep, name="wire/sweep")

    async def start(
        self,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        on_sweep: Callable[[], None] = lambda: None,
    ) -> int:
        """Listens; returns the port, which differs from `port` if that is 0.

        `on_sweep` is called about once a second.
        """
        self._tls = tls
        self._on_sweep = on_sweep
        port = await self._acceptor.open(host, port)
        self._sweep()
        return port

    async def stop(self) -> None:
        """Listens no more; answers what is on its way to the disk, for a moment; then closes."""
        self._sweeper.cancel()
        self._stopping = True
        await self._acceptor.close()
        for connection in tuple(self._connections):
            connection.finish()
        try:
            async with asyncio.timeout(STOP_MS_MAX / 1000):
                await self._empty.wait()
        except TimeoutError:
            for connection in tuple(self._connections):
                connection.close()
            await self._empty.wait()

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    @property
    def connections(self) -> list[Connection]:
        """Those that are open now."""
        return [*self._connections]

    def part(self, connection: Connection) -> None:
        """Counts a connection out."""
        self.know(connection)
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()

    def know(self, connection: Connection) -> None:
        """It is no stranger any more."""
        if self._strangers.pop(connection, None) is not None:
            of_host = self._by_host[connection.host]
            del of_host[connection]
            if not of_host:
                del self._by_host[connection.host]

    def _on_accepted(self, accepted: socket.socket) -> None:
        connection = _Counted(self)
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer = Address(*accepted.getpeername()[:2])
        except OSError:
            # It is gone again.
            accepted.close()
            return
        connection.host, connection.peer = peer.host, str(peer)
        self._connections.add(connection)
        self._strangers[connection] = _now_ms()
        self._by_host.setdefault(connection.host, {})[connection] = None
        self._empty.clear()

        def end(_: object) -> None:
            # Also if it was cancelled before it began.
            if not connection.met:
                accepted.close()
                self.part(connection)

        connection.meeting = start_task(self._meet(connection, accepted), name="wire/meet")
        connection.meeting.add_done_callback(end)
        self._turn_away()

    def _turn_away(self) -> None:
        """Closes one connection, which is a stranger's, if there is one too many."""
        connections_max = min(self._limits.connections_max, _files_max())
        strangers_max = max(STRANGERS_MIN, connections_max // STRANGERS_SHARE)
        if len(self._connections) > connections_max:
            why = f"more than {connections_max} connections at once"
        elif len(self._strangers) > strangers_max:
            why = f"more than {strangers_max} connections that have not logged in"
        else:
            return
        chosen, since_ms = next(iter(self._strangers.items()))
        if _now_ms() - since_ms < STRANGER_MS_MIN:
            most = max(self._by_host.values(), key=len)
            chosen = next(reversed(most))
        # Not to be chosen again: many can be accepted before the loop closes this one.
        self.know(chosen)
        chosen.violate(ProtocolViolation(why))

    async def _meet(self, connection: "_Counted", accepted: socket.socket) -> None:
        """Agrees on TLS, if that is to be, and hands the socket over."""
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else HANDSHAKE_S_MAX,
            )
        except OSError as error:
            connection.violate(ProtocolViolation(f"no TLS handshake: {error}"))

    def _sweep(self) -> None:
        self._on_sweep()
        now_ms = _now_ms()
        for stranger, since_ms in tuple(self._strangers.items()):
            if now_ms - since_ms <= LOGIN_MS_MAX:
                break
            stranger.violate(ProtocolViolation(f"no login within {LOGIN_MS_MAX} ms"))
        for connection in tuple(self._connections):
            begun = None if connection.reading_paused else connection.frame_begun_ms
            if begun is not None and now_ms - begun > self._limits.frame_read_ms:
                connection.violate(
                    ProtocolViolation(
                        f"a frame was not complete after {self._limits.frame_read_ms} ms"
                    )
                )
            elif connection.awaits_client and now_ms - connection.active_ms > self._limits.idle_ms:
                connection.close()
        self._sweeper.set(SWEEP_MS / 1000)


class _Counted(Connection):
    """A connection that its server knows of."""

    def __init__(self, server: WireServer) -> None:
        super().__init__(
            server._dispatch, server._limits, server._budget, server._observer, server._scratch
        )
        self._server = server
        #: Until the socket is handed over.
        self.meeting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self.stranger:
            self._server.know(self)

    def admit(self) -> None:
        super().admit()
        self._server.know(self)

    def close(self) -> None:
        super().close()
        if self.meeting is not None and not self.met:
            self.meeting.cancel()

    def finish(self) -> None:
        super().finish()
        if not self.met:
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        try:
            super().connection_lost(error)
        finally:
            self._server.part(self)


def _now_ms() -> float:
    return asyncio.get_running_loop().time() * 1000


def _files_max() -> int:
    """How many connections the system's limit on open files leaves room for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(soft - FILES_RESERVED, soft // 2)
