"""A TCP proxy that loses the answer to a Produce request, or refuses one.

Between client and node it passes every frame on. When armed, it lets the next Produce request
reach the node, waits for the node's answer, and then cuts the connection instead of handing the
answer over. So the batch is stored and the client cannot know: it must send the same batch again.

Told to refuse, it holds the next Produce request back until the client has sent another one behind
it, answers the first with "not the leader", and passes the second on: what a client sees whose
first batch came a moment before the node served, and its second one a moment after.

To pass on, it knows no more of the protocol than the head of a frame: length, then for a request
the api key, the version and the correlation id, and for an answer the correlation id.
"""

import asyncio
import struct
from collections.abc import Callable

from tests.compat.loop_thread import LoopThread, stop_accepting

from dovetail.kafka.codec.error_codes import ErrorCode
from dovetail.kafka.codec.frames import decode_request, encode_response, produce_refused

API_KEY_PRODUCE = 0
#: The suite sends requests of 8 MiB at most; more is a mistake in the proxy's framing.
FRAME_BYTES_MAX = 64 * 1024 * 1024
#: Longest wait for an order to the proxy's own loop.
ORDER_SECONDS_MAX = 10


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """One frame with its length in front."""
    head = await reader.readexactly(4)
    (length,) = struct.unpack(">i", head)
    if not 4 <= length <= FRAME_BYTES_MAX:
        raise ConnectionError(f"frame of {length} bytes")
    return head + await reader.readexactly(length)


def not_the_leader(frame: bytes) -> bytes:
    """The answer to a Produce request of who does not serve any of its partitions."""
    request = decode_request(memoryview(frame)[4:])
    answer = produce_refused(request.body, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return b"".join(encode_response(request.header, answer))


class Proxy:
    """Listens on loopback on a thread of its own; `address` is where clients connect."""

    def __init__(self, port: int = 0) -> None:
        self._upstream: tuple[str, int] | None = None
        self._answers_to_lose = 0
        self._on_lost: Callable[[], None] | None = None
        self._refuse_next = False
        self.refused = 0
        self.answers_lost = 0
        self.produce_requests = 0
        self._loop = LoopThread()
        listening = asyncio.start_server(self._serve, "127.0.0.1", port)
        self._server = self._loop.run(listening, ORDER_SECONDS_MAX)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"

    def forward_to(self, address: str) -> None:
        """Where new connections go from now on."""
        host, port = address.rsplit(":", 1)
        self._upstream = (host, int(port))

    def lose_answers(self, count: int, on_lost: Callable[[], None] | None = None) -> None:
        """Lose the answers to the next `count` Produce requests.

        `on_lost` runs after each loss, before the client hears that its connection is gone; it may
        block, for example to restart the node.
        """
        self._answers_to_lose = count
        self._on_lost = on_lost

    def refuse_next(self) -> None:
        """Refuse the next Produce request, but not the one behind it."""
        self._refuse_next = True

    def close(self) -> None:
        self._loop.run(stop_accepting(self._server), ORDER_SECONDS_MAX)
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            assert self._upstream is not None, "forward_to comes first"
            up_reader, up_writer = await asyncio.open_connection(*self._upstream)
        except OSError:
            writer.transport.abort()
            return
        waiting: dict[int, int] = {}
        ways = [
            asyncio.create_task(self._requests(reader, writer, up_writer, waiting)),
            asyncio.create_task(self._answers(up_reader, writer, waiting)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            writer.transport.abort()
            up_writer.transport.abort()

    async def _requests(
        self,
        reader: asyncio.StreamReader,
        back: asyncio.StreamWriter,
        writer: asyncio.StreamWriter,
        waiting: dict[int, int],
    ) -> None:
        held: bytes | None = None
        while True:
            frame = await read_frame(reader)
            api_key, _, correlation = struct.unpack_from(">hhi", frame, 4)
            if api_key == API_KEY_PRODUCE:
                self.produce_requests += 1
                if self._refuse_next:
                    self._refuse_next, held = False, frame
                    continue
                if held is not None:
                    back.write(not_the_leader(held))
                    self.refused, held = self.refused + 1, None
            waiting[correlation] = api_key
            writer.write(frame)
            await writer.drain()

    async def _answers(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        waiting: dict[int, int],
    ) -> None:
        while True:
            frame = await read_frame(reader)
            (correlation,) = struct.unpack_from(">i", frame, 4)
            if waiting.pop(correlation) == API_KEY_PRODUCE and self._answers_to_lose > 0:
                self._answers_to_lose -= 1
                self.answers_lost += 1
                if self._on_lost is not None:
                    await asyncio.to_thread(self._on_lost)
                return
            writer.write(frame)
            await writer.drain()
