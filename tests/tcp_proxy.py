"""TCP proxies between the processes of a test, which do to a connection what the test wants.

All proxies of a test share one thread with one event loop. Each connection has a `Passage`, which
names its two ends and may change, drop, delay or count what passes:

    proxies = Proxies()
    port = proxies.listen(lambda _: Passage("127.0.0.1:9092", client="a", server="node"))
    proxies.hold({("node", "a")})        answers wait, nobody is told, requests pass
    proxies.hold(())                     what waited goes on
    proxies.shut()                       all connections break, and new ones as they come
    proxies.reopen()
    proxies.close()

A way that is held moves no byte and passes no end of a connection on, as with a cable that was
pulled. A new connection is taken by the kernel, which cannot be helped, and then held in silence.

    tests/compat/proxy.py              loses and refuses answers to Produce requests
    tests/process/stream/gates.py      between a replica and its services
    tests/network_proxies.py           between all processes of a cluster
"""

import asyncio
import contextlib
import struct
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any

from tests.loop_thread import LoopThread, stop_accepting

HOST = "127.0.0.1"
#: The suite sends requests of 8 MiB at most; more is a mistake in the framing.
FRAME_BYTES_MAX = 64 * 1024 * 1024
_CHUNK_BYTES = 64 * 1024
#: Longest wait for an order to the loop.
_ORDER_SECONDS_MAX = 60

#: A way from one end to another, by their names.
Link = tuple[str, str]


class Cut(Exception):
    """Raised by a passage: the connection breaks here, at both ends."""


async def read_chunk(reader: asyncio.StreamReader) -> bytes:
    """What has come; nothing at the end."""
    return await reader.read(_CHUNK_BYTES)


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """One frame with its length in front, as Kafka has them."""
    head = await reader.readexactly(4)
    (length,) = struct.unpack(">i", head)
    if not 4 <= length <= FRAME_BYTES_MAX:
        raise ConnectionError(f"frame of {length} bytes")
    return head + await reader.readexactly(length)


async def read_http(reader: asyncio.StreamReader) -> bytes:
    """One HTTP message with a length, head and body."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    lengths = [line.partition(b":")[2] for line in lines if line.startswith(b"content-length:")]
    return head + await reader.readexactly(int(lengths[0]) if lengths else 0)


class Passage:
    """One connection through a proxy; here everything passes as it comes."""

    def __init__(self, upstream: str, *, client: str = "client", server: str = "server") -> None:
        host, _, port = upstream.rpartition(":")
        self.upstream = (host, int(port))
        self.client = client
        self.server = server

    async def read(self, reader: asyncio.StreamReader) -> bytes:
        """One piece to pass on: what has come, or a whole message; nothing at the end."""
        return await read_chunk(reader)

    async def request(self, piece: bytes, back: asyncio.StreamWriter) -> bytes:
        """What the server gets for this piece of the client; `back` answers in its place.

        Raises:
            Cut: neither end gets anything any more.
        """
        return piece

    async def answer(self, piece: bytes) -> bytes:
        """What the client gets for this piece of the server; may raise `Cut` as well."""
        return piece


class Proxies:
    """All proxies of a test."""

    def __init__(self) -> None:
        self._loop = LoopThread()
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._held: frozenset[Link] = frozenset()
        self._changed = asyncio.Event()
        self._open = True

    def listen(self, passage: Callable[[asyncio.StreamWriter], Passage], port: int = 0) -> int:
        """A proxy at this port or a free one; `passage` is called for each connection of a client.

        Returns the port.
        """
        return self._order(self._listen(passage, port))

    def hold(self, links: Collection[Link]) -> None:
        """From now on nothing goes these ways; all others are open."""
        self._order(self._hold(frozenset(links)))

    def shut(self) -> None:
        """Breaks all connections, and each new one as it comes."""
        self._order(self._shut())

    def reopen(self) -> None:
        """Lets new connections through."""
        self._open = True

    def close(self) -> None:
        """Ends all connections and the thread."""
        self._order(self._end())
        self._loop.close()

    def _order(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run(work, _ORDER_SECONDS_MAX)

    async def _listen(self, passage: Callable[[asyncio.StreamWriter], Passage], port: int) -> int:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.get_running_loop().create_task(self._serve(passage, reader, writer))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
            # Not within the task: one that is cancelled before its first step does nothing at all.
            task.add_done_callback(lambda _: writer.transport.abort())

        server = await asyncio.start_server(accept, HOST, port)
        self._servers.append(server)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    async def _hold(self, links: frozenset[Link]) -> None:
        self._held = links
        self._changed.set()
        self._changed = asyncio.Event()

    async def _shut(self) -> None:
        self._open = False
        await self._break_all()

    async def _end(self) -> None:
        for server in self._servers:
            await stop_accepting(server)
        await self._break_all()

    async def _break_all(self) -> None:
        while self._connections:
            for task in tuple(self._connections):
                task.cancel()
            await asyncio.wait(self._connections)

    async def _serve(
        self,
        make: Callable[[asyncio.StreamWriter], Passage],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        if not self._open:
            return
        passage = make(writer)
        # Neither the question for a connection nor its answer passes a way that is held.
        await self._passes(passage.client, passage.server)
        await self._passes(passage.server, passage.client)
        try:
            up_reader, up_writer = await asyncio.open_connection(*passage.upstream)
        except OSError:
            return

        async def request(piece: bytes) -> None:
            changed = await passage.request(piece, writer) if piece else b""
            await self._passes(passage.client, passage.server)
            await _hand_over(changed, up_writer, last=not piece)

        async def answer(piece: bytes) -> None:
            changed = await passage.answer(piece) if piece else b""
            await self._passes(passage.server, passage.client)
            await _hand_over(changed, writer, last=not piece)

        ways = [
            asyncio.ensure_future(_pass_on(passage, reader, request)),
            asyncio.ensure_future(_pass_on(passage, up_reader, answer)),
        ]
        try:
            await asyncio.gather(*ways)
        except Cut:
            pass
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            up_writer.transport.abort()

    async def _passes(self, source: str, target: str) -> None:
        """Returns when this way is open."""
        while (source, target) in self._held:
            await self._changed.wait()


async def _pass_on(
    passage: Passage,
    reader: asyncio.StreamReader,
    hand_over: Callable[[bytes], Awaitable[None]],
) -> None:
    """One direction, until its end has been passed on."""
    piece = b"."
    while piece:
        try:
            piece = await passage.read(reader)
        except (ConnectionError, asyncio.IncompleteReadError):
            piece = b""
        await hand_over(piece)


async def _hand_over(piece: bytes, writer: asyncio.StreamWriter, *, last: bool) -> None:
    with contextlib.suppress(ConnectionError):
        writer.write(piece)
        await writer.drain()
    if last:
        writer.close()
