"""Listening: the number of connections, and those that are too slow or too idle.

A connection is idle while it is the client's turn and nothing comes or goes. One that waits for
our answer is not, however long that takes; one that does not read its answers is.
"""

import asyncio
import resource
import ssl
import sys

from dovetail.background import Alarm
from dovetail.errors import ProtocolViolation
from dovetail.wire.budget import ByteBudget
from dovetail.wire.connection import SCRATCH_BYTES, Connection, Dispatch, Limits, Observer

#: How often slow and idle connections are looked for; one timer serves all of them.
SWEEP_MS = 1000

#: How long a stop waits for answers that are on their way.
STOP_MS_MAX = 2000

#: Connections that wait to be accepted while the node is busy.
BACKLOG = 1024

#: How long a client may take to agree on TLS.
HANDSHAKE_S_MAX = 10.0

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
        self._empty = asyncio.Event()
        self._empty.set()
        self._stopping = False
        self._server: asyncio.Server | None = None
        self._sweeper = Alarm(self._sweep, name="wire/sweep")

    async def start(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> int:
        """Listens; returns the port, which differs from `port` if that is 0."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._accept,
            host,
            port,
            backlog=BACKLOG,
            reuse_address=True,
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else HANDSHAKE_S_MAX,
        )
        self._sweep()
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Listens no more; answers what is on its way to the disk, for a moment; then closes."""
        self._sweeper.cancel()
        self._stopping = True
        if self._server is None:
            return

        self._server.close()
        for connection in tuple(self._connections):
            connection.finish()
        try:
            async with asyncio.timeout(STOP_MS_MAX / 1000):
                await self._empty.wait()
        except TimeoutError:
            for connection in tuple(self._connections):
                connection.close()
            await self._empty.wait()

        await self._server.wait_closed()

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def welcome(self, connection: Connection) -> None:
        """Counts a new connection in, and closes it if it is one too many."""
        self._connections.add(connection)
        self._empty.clear()
        if self._stopping:  # Accepted by the system before the socket was closed.
            connection.close()
            return
        connections_max = min(self._limits.connections_max, _files_max())
        if len(self._connections) > connections_max:
            connection.violate(
                ProtocolViolation(f"more than {connections_max} connections at once")
            )

    def part(self, connection: Connection) -> None:
        """Counts a connection out."""
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()

    def _accept(self) -> asyncio.BufferedProtocol:
        return _Counted(self)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now_ms = loop.time() * 1000
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

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.welcome(self)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._server.part(self)


def _files_max() -> int:
    """How many connections the system's limit on open files leaves room for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(soft - FILES_RESERVED, soft // 2)
