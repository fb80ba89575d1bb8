"""Proxies that cut: between a replica and a Kafka node, and between members.

Both fall silent rather than close: a connection through a shut gate stays open and nothing comes,
as with a cable that was pulled. What was under way when it opens again goes on.
"""

import asyncio
import struct
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

import msgspec
from tests.compat.loop_thread import LoopThread, stop_accepting

from dovetail.election.signature import Envelope
from dovetail.kafka.codec.frames import decode_response, encode_response
from dovetail.kafka.codec.headers import RequestHeader

_METADATA, _FIND_COORDINATOR = 3, 10
#: Answers that tell a client where to connect.
_NAMING = (_METADATA, _FIND_COORDINATOR)
FRAME_BYTES_MAX = 64 * 1024 * 1024
ORDER_S_MAX = 10


class Gates:
    """All gates of a test, on one loop of their own."""

    def __init__(self) -> None:
        self._loop = LoopThread()
        self._servers: list[asyncio.Server] = []
        self._serving: set[asyncio.Task[None]] = set()
        #: (from, to): members by name, "stream" and "log"; what goes that way is held.
        self.cut: set[tuple[str, str]] = set()

    def close(self) -> None:
        self._loop.run(self._end(), ORDER_S_MAX)
        self._loop.close()

    async def _end(self) -> None:
        for server in self._servers:
            await stop_accepting(server)
        while self._serving:
            for task in tuple(self._serving):
                task.cancel()
            await asyncio.wait(self._serving)

    def kafka(self, member: str, service: str, upstream: str) -> str:
        """A gate before a node for one member; the address that the member is given."""
        gate = _KafkaGate(self, member, service, upstream)
        return self._listen(gate.serve, 0, gate)

    def plain(self, member: str, service: str, upstream: str) -> str:
        """A gate before any other service for one member."""
        gate = _PlainGate(self, member, service, upstream)
        return self._listen(gate.serve, 0, None)

    def member(self, name: str, port: int, upstream: str) -> None:
        """A gate before the endpoint of a member, at the port that it announces."""
        gate = _MemberGate(self, name, upstream)
        self._listen(gate.serve, port, None)

    def _listen(
        self,
        serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]],
        port: int,
        gate: "_KafkaGate | None",
    ) -> str:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.get_running_loop().create_task(serve(reader, writer))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
            # Not within the task: one that is cancelled before its first step does nothing at all.
            task.add_done_callback(lambda _: writer.transport.abort())

        server = self._loop.run(asyncio.start_server(accept, "127.0.0.1", port), ORDER_S_MAX)
        self._servers.append(server)
        bound = server.sockets[0].getsockname()[1]
        if gate is not None:
            gate.port = bound
        return f"127.0.0.1:{bound}"

    async def passes(self, source: str, target: str) -> None:
        """Returns when this way is open."""
        while (source, target) in self.cut:
            await asyncio.sleep(0.01)


class _PlainGate:
    """Passes bytes on."""

    def __init__(self, gates: Gates, member: str, service: str, upstream: str) -> None:
        self._gates, self._member, self._service = gates, member, service
        host, _, port = upstream.rpartition(":")
        self._upstream = (host, int(port))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._gates.passes(self._member, self._service)
            up_reader, up_writer = await asyncio.open_connection(*self._upstream)
        except OSError:
            writer.transport.abort()
            return
        await _both(
            self._pass(reader, up_writer, self._member, self._service),
            self._pass(up_reader, writer, self._service, self._member),
            (writer, up_writer),
        )

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, source: str, target: str
    ) -> None:
        while data := await reader.read(64 * 1024):
            await self._gates.passes(source, target)
            writer.write(data)
            await writer.drain()


class _KafkaGate:
    """Passes frames on; answers that name the node name this gate instead."""

    def __init__(self, gates: Gates, member: str, service: str, upstream: str) -> None:
        self._gates, self._member, self._service = gates, member, service
        host, _, port = upstream.rpartition(":")
        self._upstream = (host, int(port))
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._gates.passes(self._member, self._service)
            up_reader, up_writer = await asyncio.open_connection(*self._upstream)
        except OSError:
            writer.transport.abort()
            return
        asked: dict[int, RequestHeader] = {}
        await _both(
            self._requests(reader, up_writer, asked),
            self._answers(up_reader, writer, asked),
            (writer, up_writer),
        )

    async def _requests(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        asked: dict[int, RequestHeader],
    ) -> None:
        while True:
            frame = await _frame(reader)
            key, version, correlation = struct.unpack_from(">hhi", frame, 4)
            if key in _NAMING:
                asked[correlation] = RequestHeader(key, version, correlation)
            await self._gates.passes(self._member, self._service)
            writer.write(frame)
            await writer.drain()

    async def _answers(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        asked: dict[int, RequestHeader],
    ) -> None:
        while True:
            frame = await _frame(reader)
            (correlation,) = struct.unpack_from(">i", frame, 4)
            header = asked.pop(correlation, None)
            if header is not None:
                frame = self._through_here(header, frame)
            await self._gates.passes(self._service, self._member)
            writer.write(frame)
            await writer.drain()

    def _through_here(self, header: RequestHeader, frame: bytes) -> bytes:
        body = decode_response(header, memoryview(frame)[4:])
        here = {"host": "127.0.0.1", "port": self.port}
        if header.api_key == _METADATA:
            body = replace(body, brokers=tuple(replace(b, **here) for b in body.brokers))
        else:
            found = tuple(replace(c, **here) for c in body.coordinators)
            body = replace(body, coordinators=found, **here)
        return b"".join(encode_response(header, body))


class _MemberGate:
    """Passes HTTP messages on; who sends is read from the envelope."""

    def __init__(self, gates: Gates, name: str, upstream: str) -> None:
        self._gates, self._name = gates, name
        host, _, port = upstream.rpartition(":")
        self._upstream = (host, int(port))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection(*self._upstream)
        except OSError:
            writer.transport.abort()
            return
        await _both(self._exchange(reader, writer, up_reader, up_writer), None, (writer, up_writer))

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up_reader: asyncio.StreamReader,
        up_writer: asyncio.StreamWriter,
    ) -> None:
        while True:
            head, body = await _http(reader)
            sender = self._sender(body)
            await self._gates.passes(sender, self._name)
            up_writer.write(head + body)
            await up_writer.drain()
            head, body = await _http(up_reader)
            await self._gates.passes(self._name, sender)
            writer.write(head + body)
            await writer.drain()

    @staticmethod
    def _sender(body: bytes) -> str:
        try:
            return msgspec.msgpack.decode(body, type=Envelope).sender
        except msgspec.DecodeError:
            return "somebody"


async def _frame(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(4)
    (length,) = struct.unpack(">i", head)
    if not 4 <= length <= FRAME_BYTES_MAX:
        raise ConnectionError(f"frame of {length} bytes")
    return head + await reader.readexactly(length)


async def _http(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    return head, await reader.readexactly(length)


async def _both(
    one: Awaitable[None],
    other: Awaitable[None] | None,
    writers: tuple[asyncio.StreamWriter, ...],
) -> None:
    ways = [asyncio.ensure_future(way) for way in (one, other) if way is not None]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        for writer in writers:
            writer.transport.abort()
        await asyncio.gather(*ways, return_exceptions=True)
