"""Private calls between brokers: connections to the others.

A broker is reached at the address that it registered last.
"""

import random
from collections.abc import Callable

from dovetail.addresses import Address
from dovetail.background import Tasks
from dovetail.errors import Unavailable
from dovetail.wire.calls import greeting
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
