"""Private calls by which brokers report the ends of their partitions. Codec: `wire/calls.py`."""

from typing import Annotated, Final, Protocol

from msgspec import Meta

from dovetail.errors import Unavailable
from dovetail.log.broker_peers import BrokerPeers
from dovetail.log.ends.held import HeldEnds
from dovetail.wire.calls import ENDS_KEYS, Answer, CallTable, Request, decode_answer
from dovetail.wire.service import CallService

_Life = Annotated[str, Meta(max_length=64)]
_Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class LookEnds(Request, frozen=True):
    """What has changed in your partitions behind this number of this life of yours?"""

    life: _Life
    number: _Number


class EndsChanged(Answer, frozen=True):
    """For each partition that has changed: topic id, number, first offset, end, bytes."""

    life: _Life
    number: _Number
    partitions: list[tuple[str, int, int, int, int]]


CALLS: Final = CallTable("ends", ENDS_KEYS, {ENDS_KEYS[0]: LookEnds}, body_bytes_max=1024)


def changed(held: HeldEnds, request: LookEnds) -> EndsChanged:
    """What a broker answers."""
    number, found = held.since(request.life, request.number)
    return EndsChanged(held.life, number, [(*place, *ends) for place, ends in found])


class EndsService(CallService):
    """Answers what the other brokers ask."""

    def __init__(self, held: HeldEnds) -> None:
        super().__init__(CALLS)
        self._held = held

    async def _handle(self, message: Request) -> Answer:
        assert isinstance(message, LookEnds)
        return changed(self._held, message)


class EndsBrokers(Protocol):
    """The other brokers."""

    async def look(self, node: int, request: LookEnds) -> EndsChanged:
        """Raises `Unavailable` if it does not answer."""
        ...

    async def close(self) -> None:
        """Ends all connections."""
        ...


class NoEndsBrokers:
    """The others of a broker that is alone."""

    async def look(self, node: int, request: LookEnds) -> EndsChanged:
        raise Unavailable(f"broker {node} is not registered")

    async def close(self) -> None:
        """There is nobody."""


class RemoteEndsBrokers:
    """`EndsBrokers` over the wire."""

    def __init__(self, peers: BrokerPeers) -> None:
        self._peers = peers

    async def look(self, node: int, request: LookEnds) -> EndsChanged:
        call = CALLS.request(request, lost=Unavailable)
        return await self._peers.to(node).ask(call, lambda data: decode_answer(EndsChanged, data))

    async def close(self) -> None:
        await self._peers.close()
