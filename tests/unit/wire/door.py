"""A door with a small dispatcher behind it, for tests of the wire room.

The first byte of a frame says what to do with it; the rest is echoed. A frame that waits does so
under its whole content, in `Door.waiting`, until the test completes it.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import uvloop

from dovetail.buffers import Buffer
from dovetail.errors import ProtocolViolation
from dovetail.wire import (
    ByteBudget,
    Connection,
    Limits,
    OrderedReply,
    PipelinedReply,
    Reply,
    WireServer,
)

#: Whatever a test waits for comes within this, or never.
DEADLINE_S = 60.0

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}

NOW, PIPELINED, HELD, LATER, SILENT, LARGE, WRONG, DEFECT, CHANGE = (
    b"n",  # answered at once
    b"p",  # pipelined
    b"h",  # pipelined, and the bytes are held until `Door.released` says so
    b"l",  # a coroutine
    b"s",  # no answer
    b"L",  # answered at once with `LARGE_BYTES`
    b"w",  # a violation
    b"d",  # a defect
    b"c",  # a coroutine whose bytes are held until `Door.released` says so
)
LARGE_BYTES = 256 * 1024


def run(loop: str, main: Callable[[], Awaitable[None]]) -> None:
    """Runs a test on one of the loops; what the loop reports as unhandled fails it."""
    reports: list[dict[str, Any]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))
        async with asyncio.timeout(DEADLINE_S * 3):
            await main()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(watched())
    assert not reports


async def until(reached: Callable[[], bool]) -> None:
    """Lets the loop turn until `reached`."""
    async with asyncio.timeout(DEADLINE_S):
        while not reached():
            await asyncio.sleep(0.0005)


async def turns(count: int = 20) -> None:
    """Lets the loop turn so often that what could happen at once has happened."""
    for _ in range(count):
        await asyncio.sleep(0.001)


def framed(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


class Door:
    """A server, its dispatcher, its observer and everything they saw."""

    def __init__(self, **limits: int) -> None:
        bytes_max = limits.pop("bytes_max", 1 << 30)
        chosen = {
            "frame_bytes_max": 8 << 20,
            "frame_read_ms": 60_000,
            "idle_ms": 60_000,
            "connections_max": 1000,
        }
        self.budget = ByteBudget(bytes_max)
        self.server = WireServer(self._dispatch, Limits(**(chosen | limits)), self.budget, self)
        self.port = 0
        self.begun: list[bytes] = []
        self.waiting: dict[bytes, asyncio.Future[list[Buffer] | None]] = {}
        self.released: dict[bytes, asyncio.Future[None]] = {}
        #: What a coroutine raises when it is cancelled, in place of ending.
        self.clean_up: Exception | None = None
        self.bytes_in = 0
        self.open = 0
        #: Whether clients have to log in.
        self.guarded = False
        self.violations: list[str] = []
        self.failures: list[Exception] = []

    def _dispatch(self, connection: Connection, frame: memoryview) -> Reply:
        content = bytes(frame)
        self.begun.append(content)
        kind = content[:1]
        if kind == WRONG:
            raise ProtocolViolation("as asked")
        if kind == DEFECT:
            raise ValueError("as asked")
        if kind == SILENT:
            return None
        if kind == LARGE:
            return [(LARGE_BYTES).to_bytes(4, "big"), bytes(LARGE_BYTES)]
        if kind == NOW:
            return [framed(content)]
        future = self.waiting[content] = asyncio.get_running_loop().create_future()
        if kind == LATER:
            return self._later(future)
        if kind in (HELD, CHANGE):
            self.released[content] = asyncio.get_running_loop().create_future()
            if kind == CHANGE:
                return OrderedReply(self._later(future), self.released[content])
            return PipelinedReply(future, self.released[content])
        return PipelinedReply(future)

    async def _later(self, future: "asyncio.Future[list[Buffer] | None]") -> list[Buffer] | None:
        try:
            return await future
        except asyncio.CancelledError:
            if self.clean_up is not None:
                raise self.clean_up from None
            raise

    def complete(self, content: bytes) -> None:
        """Answers a request that waits."""
        self.waiting.pop(content).set_result([framed(content)])

    # The observer

    def opened(self, connection: Connection) -> None:
        self.open += 1
        connection.stranger = self.guarded

    def closed(self, connection: Connection) -> None:
        self.open -= 1

    def violation(self, connection: Connection, error: ProtocolViolation) -> None:
        self.violations.append(str(error))

    def failed(self, connection: Connection, error: Exception) -> None:
        self.failures.append(error)

    def moved(self, bytes_in: int, bytes_out: int) -> None:
        self.bytes_in += bytes_in

    # Clients

    async def connect(self, *, receive_bytes: int | None = None) -> "Client":
        """A client whose connection the server knows of."""
        before = self.open
        made = socket.socket()
        made.setblocking(False)
        if receive_bytes is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", self.port))
        await until(lambda: self.open > before or bool(self.violations))
        return Client(made)

    async def gone(self) -> None:
        """Waits until every connection is gone, and what it had begun has ended."""
        await until(lambda: self.open == 0)
        await turns(3)


class Client:
    """A plain socket; nothing is read or written but by the test."""

    def __init__(self, made: socket.socket) -> None:
        self._socket = made

    @property
    def address(self) -> str:
        """As the server names it."""
        host, port = self._socket.getsockname()
        return f"{host}:{port}"

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def read(self, count: int) -> bytes:
        """Exactly so many bytes, or fewer if the connection ends."""
        parts = bytearray()
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(DEADLINE_S):
            while len(parts) < count:
                with contextlib.suppress(ConnectionResetError):
                    if part := await loop.sock_recv(self._socket, min(count - len(parts), 1 << 20)):
                        parts += part
                        continue
                break
        return bytes(parts)

    async def answer(self) -> bytes | None:
        """The next answer without its length, or None at the end."""
        length = await self.read(4)
        return await self.read(int.from_bytes(length, "big")) if length else None

    def close(self) -> None:
        self._socket.close()

    def reset(self) -> None:
        """Closes without a word to the other side but a reset."""
        linger_now = b"\1\0\0\0\0\0\0\0"
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_now)
        self._socket.close()


@asynccontextmanager
async def opened_door(tls: ssl.SSLContext | None = None, **limits: int) -> AsyncIterator[Door]:
    """A door that listens; it stops at the end, and must hold nothing then."""
    door = Door(**limits)
    door.port = await door.server.start("127.0.0.1", 0, tls=tls)
    try:
        yield door
    finally:
        await door.server.stop()
    await door.gone()
    for released in door.released.values():
        if not released.done():
            released.set_result(None)
    await turns(2)
    assert door.budget.bytes_taken == 0


@contextlib.contextmanager
def clients(*made: Client) -> Iterator[None]:
    """Closes clients at the end."""
    try:
        yield
    finally:
        for client in made:
            client.close()
