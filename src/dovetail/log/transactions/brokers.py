"""The other brokers, as transactions need them: asked over private calls.

A broker is reached at the address that it registered last. A call that is lost is `Unavailable`:
both calls can be repeated, and are.
"""

import random
from collections.abc import Callable, Collection
from typing import Protocol

from dovetail.addresses import Address
from dovetail.background import Tasks
from dovetail.buffers import Buffer
from dovetail.errors import DovetailError, ProtocolViolation, Unavailable
from dovetail.log.transactions.calls import CALLS, Admit, Admitted, EndedHere, EndHere
from dovetail.log.transactions.types import Place
from dovetail.record_batch import Marker
from dovetail.wire import Connection, PipelinedReply, Reply
from dovetail.wire.calls import (
    Answer,
    Failure,
    Request,
    decode_answer,
    encode_answer,
    error_of,
    failure_of,
    greeting,
)
from dovetail.wire.peer import Peer, PeerSettings

Outcomes = list[DovetailError | None]


class Here(Protocol):
    """What a broker answers to the others, and to itself."""

    async def admit(self, request: Admit) -> int:
        """The number of the transaction. Raises what the coordinator decides."""
        ...

    async def end_here(self, marker: Marker, partitions: Collection[Place]) -> Outcomes:
        """Stores a marker in partitions that this broker owns."""
        ...


class Brokers(Protocol):
    """The other brokers, by their numbers."""

    async def admit(self, node: int, request: Admit) -> int:
        """As `Here`, on another node. Raises `Unavailable` if it does not answer."""
        ...

    async def end_there(self, node: int, marker: Marker, places: Collection[Place]) -> Outcomes:
        """As `Here`, on another node. Raises `Unavailable` if it does not answer."""
        ...

    async def close(self) -> None:
        """Asks nobody any more."""
        ...


class NoOthers:
    """The others of a broker that is alone."""

    async def admit(self, node: int, request: Admit) -> int:
        raise Unavailable(f"broker {node} is not there")

    async def end_there(self, node: int, marker: Marker, places: Collection[Place]) -> Outcomes:
        raise Unavailable(f"broker {node} is not there")

    async def close(self) -> None:
        """There is nobody."""


class RemoteBrokers:
    """`Brokers` over the wire; call it inside the event loop."""

    def __init__(
        self,
        address_of: Callable[[int], Address | None],
        *,
        client_id: str,
        settings: PeerSettings,
        rng: random.Random | None = None,
    ) -> None:
        self._address_of = address_of
        self._client_id = client_id
        self._settings = settings
        self._rng = rng or random.SystemRandom()
        self._peers: dict[int, tuple[Address, Peer]] = {}
        self._closing = Tasks()

    async def admit(self, node: int, request: Admit) -> int:
        call = CALLS.request(request, lost=Unavailable)
        answer = await self._peer(node).ask(call, lambda data: decode_answer(Admitted, data))
        return answer.number

    async def end_there(self, node: int, marker: Marker, places: Collection[Place]) -> Outcomes:
        call = CALLS.request(
            EndHere(*marker, [(place.topic, place.number) for place in places]), lost=Unavailable
        )
        answer = await self._peer(node).ask(call, lambda data: decode_answer(EndedHere, data))
        if len(answer.outcomes) != len(places):
            raise Unavailable(f"broker {node} answers for {len(answer.outcomes)} partitions")
        return [None if outcome is None else error_of(outcome) for outcome in answer.outcomes]

    def _peer(self, node: int) -> Peer:
        address = self._address_of(node)
        if address is None:
            raise Unavailable(f"broker {node} is not there")
        known = self._peers.get(node)
        if known is not None and known[0] != address:
            self._closing.start(known[1].close(), name="log/transactions/leave")
            known = None
        if known is None:
            peer = Peer(
                *address,
                greeting=greeting(str(address), CALLS.service),
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


class TransactionService:
    """A `Dispatch` for what the other brokers ask."""

    def __init__(self, here: Here) -> None:
        self._here = here

    def __call__(self, connection: Connection, frame: memoryview) -> Reply:
        correlation_id, _, message, payloads = CALLS.decode(frame)
        if payloads:
            raise ProtocolViolation(f"{len(payloads)} bytes behind a {type(message).__name__}")
        return PipelinedReply.of(self._answered(correlation_id, message))

    async def _answered(self, correlation_id: int, message: Request) -> list[Buffer]:
        answer: Answer | Failure
        try:
            answer = await self._handle(message)
        except DovetailError as error:
            answer = failure_of(error)
        return encode_answer(correlation_id, answer)

    async def _handle(self, message: Request) -> Answer:
        if isinstance(message, Admit):
            return Admitted(await self._here.admit(message))
        assert isinstance(message, EndHere)
        marker = Marker(
            message.producer_id,
            message.epoch,
            message.commit,
            message.coordinator_epoch,
            message.number,
        )
        places = [Place(*place) for place in message.partitions]
        outcomes = await self._here.end_here(marker, places)
        return EndedHere([None if error is None else failure_of(error) for error in outcomes])
