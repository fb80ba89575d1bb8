"""A proxy that loses the answer to a Produce request, or refuses one.

When armed, it lets the next Produce request reach the node, waits for the node's answer, and then
cuts the connection instead of handing the answer over. So the batch is stored and the client
cannot know: it must send the same batch again.

Told to refuse, it holds the next Produce request back until the client has sent another one behind
it, answers the first with "not the leader", and passes the second on: what a client sees whose
first batch came a moment before the node served, and its second one a moment after.

To pass on, it knows no more of the protocol than the head of a frame: length, then for a request
the api key, the version and the correlation id, and for an answer the correlation id.
"""

import asyncio
import struct
from collections.abc import Callable

from tests.tcp_proxy import HOST, Cut, Passage, Proxies, read_frame

from dovetail.kafka.codec.error_codes import ErrorCode
from dovetail.kafka.codec.frames import decode_request, encode_response, produce_refused

API_KEY_PRODUCE = 0


def not_the_leader(frame: bytes) -> bytes:
    """The answer to a Produce request of who does not serve any of its partitions."""
    request = decode_request(memoryview(frame)[4:])
    answer = produce_refused(request.body, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return b"".join(encode_response(request.header, answer))


class Proxy:
    """Listens on loopback; `address` is where clients connect."""

    def __init__(self, port: int = 0) -> None:
        self.upstream = ""
        self.answers_to_lose = 0
        self.on_lost: Callable[[], None] | None = None
        self.refuses_next = False
        self.refused = 0
        self.answers_lost = 0
        self.produce_requests = 0
        self._proxies = Proxies()
        self.port = self._proxies.listen(lambda _: _Produce(self), port)
        self.address = f"{HOST}:{self.port}"

    def forward_to(self, address: str) -> None:
        """Where new connections go from now on."""
        self.upstream = address

    def lose_answers(self, count: int, on_lost: Callable[[], None] | None = None) -> None:
        """Lose the answers to the next `count` Produce requests.

        `on_lost` runs after each loss, before the client hears that its connection is gone; it may
        block, for example to restart the node.
        """
        self.answers_to_lose = count
        self.on_lost = on_lost

    def refuse_next(self) -> None:
        """Refuse the next Produce request, but not the one behind it."""
        self.refuses_next = True

    def close(self) -> None:
        self._proxies.close()


class _Produce(Passage):
    """One connection, by frames."""

    def __init__(self, proxy: Proxy) -> None:
        assert proxy.upstream, "forward_to comes first"
        super().__init__(proxy.upstream)
        self._proxy = proxy
        self._waiting: dict[int, int] = {}
        self._held: bytes | None = None

    async def read(self, reader: asyncio.StreamReader) -> bytes:
        return await read_frame(reader)

    async def request(self, piece: bytes, back: asyncio.StreamWriter) -> bytes:
        proxy = self._proxy
        api_key, _, correlation = struct.unpack_from(">hhi", piece, 4)
        if api_key == API_KEY_PRODUCE:
            proxy.produce_requests += 1
            if proxy.refuses_next:
                proxy.refuses_next, self._held = False, piece
                return b""
            if self._held is not None:
                back.write(not_the_leader(self._held))
                proxy.refused, self._held = proxy.refused + 1, None

        self._waiting[correlation] = api_key
        return piece

    async def answer(self, piece: bytes) -> bytes:
        proxy = self._proxy
        (correlation,) = struct.unpack_from(">i", piece, 4)
        if self._waiting.pop(correlation) == API_KEY_PRODUCE and proxy.answers_to_lose > 0:
            proxy.answers_to_lose -= 1
            proxy.answers_lost += 1
            if proxy.on_lost is not None:
                await asyncio.to_thread(proxy.on_lost)
            raise Cut
        return piece
