"""The live brokers and leases, as the log needs them."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from dovetail.coordination.membership import LiveBrokers
from dovetail.coordination.protocol import Unchanged


class Peers(Protocol):
    """The other brokers, and whether this node may still answer for what it owns."""

    #: Called whenever somebody came, went, or is about to leave.
    on_change: list[Callable[[], None]]
    #: Awaited when this node is registered under a new lease, before `holds_lease` says so: what it
    #: owned under the one before may be another's by now.
    before_lease: list[Callable[[], Awaitable[None]]]

    def brokers(self) -> LiveBrokers:
        """The brokers that hold their lease, this one among them."""
        ...

    def holds_lease(self) -> bool:
        """Whether this node is certainly registered, so that no other claims what it owns."""
        ...

    def absence_of(self, number: int) -> Sequence[Unchanged]:
        """The condition that a node is not registered at the moment of a transaction."""
        ...

    def decline(self) -> None:
        """This broker could not serve what it had: it wants nothing new for a while."""
        ...


class Alone:
    """The peers of a broker that has none: what `dovetail up` has."""

    def __init__(self, node_id: int) -> None:
        self.on_change: list[Callable[[], None]] = []
        self.before_lease: list[Callable[[], Awaitable[None]]] = []
        self._brokers = LiveBrokers(frozenset({node_id}), frozenset({node_id}))

    def brokers(self) -> LiveBrokers:
        return self._brokers

    def holds_lease(self) -> bool:
        return True

    def absence_of(self, number: int) -> Sequence[Unchanged]:
        return ()

    def decline(self) -> None:
        """There is nobody else who could."""
