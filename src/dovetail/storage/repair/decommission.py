"""Takes a storage node out of the cluster; its data is never missing meanwhile.

    /storage-state/<id>     StoredState, as JSON; no key: active

    ACTIVE ── drain ──► DRAINING ──► DRAINED ── remove ──► REMOVED
       ▲                   │ cancel    │ cancel
       └───────────────────┴───────────┘

DRAINING: no new ledgers are placed on the node, and the owners of partitions copy what it holds to
other nodes (repairer.py) while it still serves reads. A dead node can be drained too: that tells
owners not to wait for it. DRAINED is not stored: it *is* the fact that no chain names the node any
more, looked up each time. REMOVED is final: the number is not used again, and deletions no longer
wait for it.

Operators call `admin/storage.py`; the nodes obey what is stored here.

Survives: a crash of the caller at any step; each change is one compare-and-set. An owner with an
outdated view may still place a ledger on a draining node: the chain then names it, and repair moves
it. If that happens at the very moment of the removal, the ledger has a dead node, as after a crash,
and repair replaces it.
"""

from collections.abc import Callable, Collection, Sequence
from enum import Enum

import msgspec

from dovetail.coordination import Coordinator, KeyValue
from dovetail.coordination.membership import Membership
from dovetail.coordination.mirror import NumberedMirror
from dovetail.errors import InvalidInput
from dovetail.storage import StorageNode
from dovetail.storage.quorum.ensembles import Nodes

STATES = "/storage-state/"


class StorageState(Enum):
    """Where a storage node is in its life."""

    ACTIVE = "active"
    DRAINING = "draining"
    DRAINED = "drained"
    REMOVED = "removed"


class StoredState(msgspec.Struct, frozen=True):
    """What the coordination service holds of a node that is not simply active."""

    state: StorageState
    since_ms: int


async def check_may_start(coordinator: Coordinator, node_id: int) -> None:
    """Raises `InvalidInput` for a storage node that was removed from the cluster."""
    check_not_removed(node_id, decode_state(await coordinator.get(state_key(node_id))))


class StorageStates(NumberedMirror[StoredState]):
    """The nodes that are being drained or were removed, as last seen."""

    def __init__(self, coordinator: Coordinator, *, on_change: Callable[[], None]) -> None:
        decode = msgspec.json.Decoder(StoredState).decode
        super().__init__(coordinator, STATES, decode, settled=on_change)

    def given_up(self) -> frozenset[int]:
        """Nodes that are to hold nothing in the end: draining, or removed."""
        return frozenset(self.values)

    def removed(self) -> frozenset[int]:
        """Nodes that left for good."""
        return frozenset(n for n, s in self.values.items() if s.state is StorageState.REMOVED)


class SeenStorage:
    """Who repair can count on: `StorageView` of a cluster."""

    def __init__(self, membership: Membership, states: StorageStates) -> None:
        self._membership = membership
        self._states = states

    def present(self) -> dict[int, str]:
        """A node that has found damage is examined again, as after a start."""
        return {
            number: f"{member.incarnation}/{member.damage_found}"
            for number, member in self._membership.storage().items()
        }

    def given_up(self) -> frozenset[int]:
        return self._states.given_up()


class NodesThatStay:
    """`Nodes` that gives nothing new to those that are being drained."""

    def __init__(self, nodes: Nodes, states: StorageStates) -> None:
        self._nodes = nodes
        self._states = states

    def node(self, number: int) -> StorageNode:
        return self._nodes.node(number)

    def near(self, number: int) -> bool:
        return self._nodes.near(number)

    def choose(
        self,
        count: int,
        *,
        without: Sequence[int],
        beside: Sequence[int] = (),
        among: Collection[int] | None = None,
    ) -> tuple[int, ...]:
        given_up = self._states.given_up()
        return self._nodes.choose(count, without=(*without, *given_up), beside=beside, among=among)

    def away(self) -> tuple[int, ...]:
        given_up = self._states.given_up()
        return tuple(number for number in self._nodes.away() if number not in given_up)


def state_key(node_id: int) -> str:
    """The key of a node's state."""
    return f"{STATES}{node_id:06d}"


def decode_state(found: KeyValue | None) -> StoredState | None:
    """What was found at the key; None for a node that is simply active."""
    return None if found is None else msgspec.json.decode(found.value, type=StoredState)


def check_not_removed(node_id: int, stored: StoredState | None) -> None:
    """Raises `InvalidInput` for a node that was removed."""
    if stored is not None and stored.state is StorageState.REMOVED:
        raise InvalidInput(
            f"storage node {node_id} was removed from the cluster for good; a storage node that "
            "is to join needs a number of its own (node.node_id) and an empty data folder"
        )
