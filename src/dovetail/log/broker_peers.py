"""Private calls between brokers: connections to the others, and answers to their calls.

A broker is reached at the address that it registered last.
"""

import random
from collections.abc import Callable

from dovetail.addresses import Address
from dovetail.background import Tasks
from dovetail.buffers import Buffer
from dovetail.errors import DovetailError, ProtocolViolation, Unavailable
from dovetail.wire import Connection, PipelinedReply, Reply
from dovetail.wire.calls import (
    Answer,
    CallTable,
    Failure,
    Request,
    encode_answer,
    failure_of,
    greeting,
)
from dovetail.wire.peer import Peer, PeerSettings


class BrokerPeers:
    """One connection to each broker that was asked; call it inside the event loop."""

    def __init__(
        self,
        address_of: Callable[[int], Address | None],
        service: str,
        *,
        client_id: str,
        settings: PeerSettings,
        rng: random.Random | None = None,
    ) -> None:
        self._address_of = address_of
        self._service = service
        self._client_id = client_id
        self._settings = settings
        self._rng = rng or random.SystemRandom()
        self._peers: dict[int, tuple[Address, Peer]] = {}
        self._closing = Tasks()

    def to(self, node: int) -> Peer:
        """The connection to a broker. Raises `Unavailable` if it is not there."""
        address = self._address_of(node)
        if address is None:
            raise Unavailable(f"broker {node} is not registered")
        known = self._peers.get(node)
        if known is not None and known[0] != address:
            self._closing.start(known[1].close(), name="log/brokers/leave")
            known = None
        if known is None:
            peer = Peer(
                *address,
                greeting=greeting(str(address), self._service),
                client_id=self._client_id,
                settings=self._settings,
                rng=self._rng,
            )
            known = self._peers[node] = (address, peer)
        return known[1]

    async def close(self) -> None:
        """Ends all connections."""
        for _, peer in self._peers.values():
            await peer.close()
        await self._closing.finish()


class BrokerService:
    """A `Dispatch` for what the other brokers ask; a service says how each call is answered."""

    def __init__(self, calls: CallTable) -> None:
        self._calls = calls

    def __call__(self, connection: Connection, frame: memoryview) -> Reply:
        correlation_id, _, message, payloads = self._calls.decode(frame)
        if payloads:
            raise ProtocolViolation(
                f"{len(payloads)} unexpected bytes after a {type(message).__name__}"
            )
        return PipelinedReply.of(self._answered(correlation_id, message))

    async def _answered(self, correlation_id: int, message: Request) -> list[Buffer]:
        answer: Answer | Failure
        try:
            answer = await self._handle(message)
        except DovetailError as error:
            answer = failure_of(error)
        return encode_answer(correlation_id, answer)

    async def _handle(self, message: Request) -> Answer:
        raise NotImplementedError
