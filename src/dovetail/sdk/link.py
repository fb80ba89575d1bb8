"""One node, as a client talks to it: a request in, its answer or its error out.

`Link` is the seam between the client and the node: over a connection (`NetworkLink`), or in one
process (`fake`). A request that changes something and whose answer was lost is `Uncertain`; the
client repeats only what is safe to repeat.
"""

import random
from typing import Final, Protocol, TypeVar

from dovetail.errors import DovetailError, InvalidInput, ProtocolViolation, Unavailable, Uncertain
from dovetail.timeline import frames
from dovetail.timeline.frame_codec import decode_answer, encode_request
from dovetail.wire.peer import Greeting, Peer, PeerSettings
from dovetail.wire.peer import Request as WireRequest

Answered = TypeVar("Answered", bound=frames.Answer)

#: From a command to its answer. A store needs milliseconds; a node that hangs is found after this.
COMMAND_MS_MAX: Final = 10_000
_PORT_DEFAULT: Final = 9092


class Link(Protocol):
    """A way to a node."""

    async def ask(
        self, message: frames.Request, kind: type[Answered], *, changes: bool = True
    ) -> Answered:
        """The answer. Raises the node's error, `Unavailable`, or `Uncertain` if it `changes`."""
        ...

    async def close(self) -> None: ...


class NetworkLink:
    """A connection of its own, made again when it breaks."""

    def __init__(self, address: str, *, client_id: str, call_ms_max: int = COMMAND_MS_MAX) -> None:
        """Does nothing yet. Call it inside the event loop. Raises `InvalidInput`."""
        host, port = split_address(address)
        self._address = address
        hello = WireRequest(
            frames.TimelineKey.HELLO,
            frames.VERSION,
            encode_request(frames.Hello(frames.VERSION)),
            Unavailable,
        )
        self._peer = Peer(
            host,
            port,
            greeting=Greeting(hello, self._judge),
            client_id=client_id,
            settings=PeerSettings(call_ms_max=call_ms_max),
            rng=random.SystemRandom(),
        )

    async def ask(
        self, message: frames.Request, kind: type[Answered], *, changes: bool = True
    ) -> Answered:
        lost = Uncertain if changes else Unavailable
        request = WireRequest(
            frames.KEYS[type(message)], frames.VERSION, encode_request(message), lost
        )
        return await self._peer.ask(request, lambda data: decode_answer(kind, data))

    async def close(self) -> None:
        await self._peer.close()

    def _judge(self, data: memoryview) -> DovetailError | None:
        try:
            welcome = decode_answer(frames.Welcome, data)
        except ProtocolViolation as violation:
            return Unavailable(f"{self._address} serves no timelines: {violation}")
        if isinstance(welcome, DovetailError):
            return welcome
        if welcome.version != frames.VERSION:
            return Unavailable(
                f"{self._address} speaks version {welcome.version} of the timeline requests, this "
                f"client {frames.VERSION}; use the same release on both sides"
            )
        return None


def split_address(address: str) -> tuple[str, int]:
    """Host and port. Raises `InvalidInput`."""
    host, colon, port = address.rpartition(":")
    if not colon:
        host, port = address, str(_PORT_DEFAULT)
    if not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise InvalidInput(f"{address!r} is no address; write it like 127.0.0.1:9092")
    return host.strip("[]"), int(port)
