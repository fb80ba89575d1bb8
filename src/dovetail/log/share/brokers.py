"""The other brokers, as share groups need them: private calls.

A call that is lost is `Unavailable`. Every call can be repeated; a repeated dead letter is then
stored twice.
"""

from typing import Protocol

from dovetail.errors import Unavailable
from dovetail.log.broker_peers import BrokerPeers
from dovetail.log.share.calls import (
    CALLS,
    BuryShare,
    Claimed,
    ClaimShare,
    Looked,
    LookShare,
    Stored,
    WriteShare,
)
from dovetail.wire.calls import Answer, Request, decode_answer
from dovetail.wire.service import CallService


class ShareBroker(Protocol):
    """What a broker answers to the others, and to itself; each raises what went wrong."""

    async def claim(self, request: ClaimShare) -> Claimed: ...

    async def write(self, request: WriteShare) -> Stored: ...

    async def look(self, request: LookShare) -> Looked: ...

    async def bury(self, request: BuryShare) -> Stored: ...


class ShareBrokers(Protocol):
    """All other brokers, by their numbers."""

    def to(self, node: int) -> ShareBroker:
        """Raises `Unavailable` if it is not there."""
        ...

    async def close(self) -> None:
        """Ends all connections."""
        ...


class NoShareBrokers:
    """The others of a broker that is alone."""

    def to(self, node: int) -> ShareBroker:
        raise Unavailable(f"broker {node} is not registered")

    async def close(self) -> None:
        """There is nobody."""


class RemoteShareBrokers:
    """`ShareBrokers` over the wire."""

    def __init__(self, peers: BrokerPeers) -> None:
        self._peers = peers

    def to(self, node: int) -> ShareBroker:
        self._peers.to(node)
        return _Remote(self._peers, node)

    async def close(self) -> None:
        await self._peers.close()


class _Remote:
    """One other broker."""

    def __init__(self, peers: BrokerPeers, node: int) -> None:
        self._peers = peers
        self._node = node

    async def claim(self, request: ClaimShare) -> Claimed:
        call = CALLS.request(request, lost=Unavailable)
        peer = self._peers.to(self._node)
        return await peer.ask(call, lambda data: decode_answer(Claimed, data))

    async def write(self, request: WriteShare) -> Stored:
        call = CALLS.request(request, lost=Unavailable)
        peer = self._peers.to(self._node)
        return await peer.ask(call, lambda data: decode_answer(Stored, data))

    async def look(self, request: LookShare) -> Looked:
        call = CALLS.request(request, lost=Unavailable)
        peer = self._peers.to(self._node)
        found = await peer.ask(call, lambda data: decode_answer(Looked, data))
        if not len(found.ends) == len(found.views) == len(request.partitions):
            raise Unavailable(
                f"broker {self._node} answered for {len(found.ends)} partitions, not for those "
                "asked"
            )
        return found

    async def bury(self, request: BuryShare) -> Stored:
        call = CALLS.request(request, lost=Unavailable)
        peer = self._peers.to(self._node)
        return await peer.ask(call, lambda data: decode_answer(Stored, data))


class ShareService(CallService):
    """Answers what the other brokers ask."""

    def __init__(self, here: ShareBroker) -> None:
        super().__init__(CALLS)
        self._here = here

    async def _handle(self, message: Request) -> Answer:
        if isinstance(message, ClaimShare):
            return await self._here.claim(message)
        if isinstance(message, WriteShare):
            return await self._here.write(message)
        if isinstance(message, LookShare):
            return await self._here.look(message)
        assert isinstance(message, BuryShare)
        return await self._here.bury(message)
