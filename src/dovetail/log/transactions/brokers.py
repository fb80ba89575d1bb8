"""The other brokers, as transactions need them: private calls.

A call that is lost is `Unavailable`. Both calls can be repeated, and are.
"""

from collections.abc import Collection
from typing import Protocol

from dovetail.errors import DovetailError, Unavailable
from dovetail.log.broker_peers import BrokerPeers
from dovetail.log.transactions.calls import CALLS, Admit, Admitted, EndedHere, EndHere
from dovetail.log.transactions.types import Place
from dovetail.record_batch import Marker
from dovetail.wire.calls import (
    Answer,
    Request,
    decode_answer,
    error_of,
    failure_of,
)
from dovetail.wire.service import CallService

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
        """Ends all connections."""
        ...


class NoOthers:
    """The others of a broker that is alone."""

    async def admit(self, node: int, request: Admit) -> int:
        raise Unavailable(f"broker {node} is not registered")

    async def end_there(self, node: int, marker: Marker, places: Collection[Place]) -> Outcomes:
        raise Unavailable(f"broker {node} is not registered")

    async def close(self) -> None:
        """There is nobody."""


class RemoteBrokers:
    """`Brokers` over the wire; call it inside the event loop."""

    def __init__(self, peers: BrokerPeers) -> None:
        self._peers = peers

    async def admit(self, node: int, request: Admit) -> int:
        call = CALLS.request(request, lost=Unavailable)
        answer = await self._peers.to(node).ask(call, lambda data: decode_answer(Admitted, data))
        return answer.number

    async def end_there(self, node: int, marker: Marker, places: Collection[Place]) -> Outcomes:
        call = CALLS.request(
            EndHere(*marker, [(place.topic, place.number) for place in places]), lost=Unavailable
        )
        answer = await self._peers.to(node).ask(call, lambda data: decode_answer(EndedHere, data))
        if len(answer.outcomes) != len(places):
            raise Unavailable(
                f"broker {node} answered for {len(answer.outcomes)} of {len(places)} partitions"
            )
        return [None if outcome is None else error_of(outcome) for outcome in answer.outcomes]

    async def close(self) -> None:
        """Ends all connections."""
        await self._peers.close()


class TransactionService(CallService):
    """Answers what the other brokers ask."""

    def __init__(self, here: Here) -> None:
        super().__init__(CALLS)
        self._here = here

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
