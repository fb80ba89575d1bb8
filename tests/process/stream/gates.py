"""Proxies that cut: between a replica and a Kafka node, and between members.

Both fall silent rather than close: a connection through a shut gate stays open and nothing comes,
as with a cable that was pulled. What was under way when it opens again goes on.
"""

import asyncio
import struct
from dataclasses import replace

import msgspec
from tests.tcp_proxy import HOST, Link, Passage, Proxies, read_frame, read_http

from dovetail.election.signature import Envelope
from dovetail.kafka.codec.frames import decode_response, encode_response
from dovetail.kafka.codec.headers import RequestHeader

_METADATA, _FIND_COORDINATOR = 3, 10
#: Answers that tell a client where to connect.
_NAMING = (_METADATA, _FIND_COORDINATOR)


class Gates:
    """All gates of a test. Ends are members by name, "stream", "log" and "etcd"."""

    def __init__(self) -> None:
        self._proxies = Proxies()
        self._cut: set[Link] = set()

    def close(self) -> None:
        self._proxies.close()

    def cut(self, *ways: Link) -> None:
        """Holds what goes these ways, in both directions."""
        self._cut |= {*ways, *((b, a) for a, b in ways)}
        self._proxies.hold(self._cut)

    def heal(self) -> None:
        """Opens all gates."""
        self._cut.clear()
        self._proxies.hold(())

    def kafka(self, member: str, service: str, upstream: str) -> str:
        """A gate before a node for one member; the address that the member is given."""
        port = self._proxies.listen(
            lambda writer: _KafkaGate(
                upstream, member, service, writer.get_extra_info("sockname")[1]
            )
        )
        return f"{HOST}:{port}"

    def plain(self, member: str, service: str, upstream: str) -> str:
        """A gate before any other service for one member."""
        port = self._proxies.listen(lambda _: Passage(upstream, client=member, server=service))
        return f"{HOST}:{port}"

    def member(self, name: str, port: int, upstream: str) -> None:
        """A gate before the endpoint of a member, at the port that it announces."""
        self._proxies.listen(lambda _: _MemberGate(upstream, name), port)


class _KafkaGate(Passage):
    """Passes frames on; answers that name the node name this gate instead."""

    def __init__(self, upstream: str, member: str, service: str, port: int) -> None:
        super().__init__(upstream, client=member, server=service)
        self._here = {"host": HOST, "port": port}
        self._asked: dict[int, RequestHeader] = {}

    async def read(self, reader: asyncio.StreamReader) -> bytes:
        return await read_frame(reader)

    async def request(self, piece: bytes, back: asyncio.StreamWriter) -> bytes:
        key, version, correlation = struct.unpack_from(">hhi", piece, 4)
        if key in _NAMING:
            self._asked[correlation] = RequestHeader(key, version, correlation)
        return piece

    async def answer(self, piece: bytes) -> bytes:
        (correlation,) = struct.unpack_from(">i", piece, 4)
        header = self._asked.pop(correlation, None)
        return piece if header is None else self._through_here(header, piece)

    def _through_here(self, header: RequestHeader, frame: bytes) -> bytes:
        body = decode_response(header, memoryview(frame)[4:])
        if header.api_key == _METADATA:
            body = replace(body, brokers=tuple(replace(b, **self._here) for b in body.brokers))
        else:
            found = tuple(replace(c, **self._here) for c in body.coordinators)
            body = replace(body, coordinators=found, **self._here)
        return b"".join(encode_response(header, body))


class _MemberGate(Passage):
    """Passes HTTP messages on; who sends is read from the envelope."""

    def __init__(self, upstream: str, name: str) -> None:
        super().__init__(upstream, client="somebody", server=name)

    async def read(self, reader: asyncio.StreamReader) -> bytes:
        return await read_http(reader)

    async def request(self, piece: bytes, back: asyncio.StreamWriter) -> bytes:
        body = piece.partition(b"\r\n\r\n")[2]
        try:
            self.client = msgspec.msgpack.decode(body, type=Envelope).sender
        except msgspec.DecodeError:
            self.client = "somebody"
        return piece
