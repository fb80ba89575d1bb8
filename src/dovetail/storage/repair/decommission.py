"""Taking a storage node out of the cluster, without a moment in which its data is missing.

    /storage-state/<id>     StoredState, as JSON; no key: active

    ACTIVE ── drain ──► DRAINING ──► DRAINED ── remove ──► REMOVED
       ▲                   │ cancel    │ cancel
       └───────────────────┴───────────┘

DRAINING: new ledgers are not placed on it, and the owners of partitions copy what it holds to
others (repairer.py), while it still serves reads. A node that is already dead can be drained too:
that says that nobody need wait for it. DRAINED is not stored: it *is* the fact that no chain names
the node any more, looked up each time. REMOVED is for good: the number is not used again, and
deletions wait for it no more.

Survives: whoever asks dying at any step; each change is one compare-and-set. An owner whose view is
late may still place a ledger on a node that is being drained: the chain names it then, and repair
moves it. If that happens at the very moment of the removal, the ledger has a dead node, as after a
crash, and repair replaces it.

Chains of topics that are being deleted do not count: their deletion would wait for the node, and
the node for the deletion.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec

from dovetail.coordination import ABSENT, Coordinator, Delete, KeyValue, Put, Unchanged
from dovetail.coordination.membership import Membership
from dovetail.coordination.mirror import Mirror
from dovetail.coordination.protocol import Change, Revision
from dovetail.errors import CoordinationDown, InvalidInput, NotFound, Refused
from dovetail.log.catalog import TOPICS
from dovetail.log.topic import TopicRecord, TopicState
from dovetail.storage import StorageNode
from dovetail.storage.identity import STORAGE
from dovetail.storage.quorum.ensembles import Nodes
from dovetail.storage.repair.sweeping import read_chains

STATES = "/storage-state/"

#: Attempts at a compare-and-set against others before giving up.
_ATTEMPTS_MAX = 20


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


@dataclass(frozen=True, slots=True)
class Decommission:
    """How far a node is: `ledgers_left` are those that chains still name it for."""

    node_id: int
    state: StorageState
    since_ms: int | None
    ledgers_left: int


# What an operator asks for


async def state(coordinator: Coordinator, node_id: int) -> Decommission:
    """Raises `NotFound` if there never was a storage node of this number."""
    await _check_known(coordinator, node_id)
    stored = _decode(await coordinator.get(_key(node_id)))
    if stored is None:
        left = await _ledgers_naming(coordinator, node_id)
        return Decommission(node_id, StorageState.ACTIVE, None, left)
    if stored.state is StorageState.REMOVED:
        return Decommission(node_id, StorageState.REMOVED, stored.since_ms, 0)
    left = await _ledgers_naming(coordinator, node_id)
    found = StorageState.DRAINING if left else StorageState.DRAINED
    return Decommission(node_id, found, stored.since_ms, left)


async def drain(coordinator: Coordinator, node_id: int, *, now_ms: int) -> None:
    """Begins to move everything off the node; again is no error.

    Raises `NotFound`, or `InvalidInput` if it was removed.
    """
    await _check_known(coordinator, node_id)

    def decide(stored: StoredState | None) -> Change | None:
        _check_not_removed(node_id, stored)
        if stored is not None:
            return None
        return _put(node_id, StoredState(StorageState.DRAINING, now_ms))

    await _change(coordinator, node_id, decide)


async def cancel(coordinator: Coordinator, node_id: int) -> None:
    """Keeps the node after all; again is no error. What was moved stays moved.

    Raises `NotFound`, or `InvalidInput` if it was removed.
    """
    await _check_known(coordinator, node_id)

    def decide(stored: StoredState | None) -> Change | None:
        _check_not_removed(node_id, stored)
        return None if stored is None else Delete(_key(node_id))

    await _change(coordinator, node_id, decide)


async def remove(coordinator: Coordinator, node_id: int, *, now_ms: int) -> None:
    """Strikes a drained node off for good; again is no error.

    Raises `NotFound`, `InvalidInput` if it was not drained, `Refused` while a chain names it.
    """
    await _check_known(coordinator, node_id)

    def decide(stored: StoredState | None) -> Change | None:
        if stored is None:
            raise InvalidInput(
                f"storage node {node_id} is active; drain it first, and remove it when it is empty"
            )
        if stored.state is StorageState.REMOVED:
            return None
        return _put(node_id, StoredState(StorageState.REMOVED, now_ms))

    # The state is read first, then the chains: who cancels in between changes the state.
    for _ in range(_ATTEMPTS_MAX):
        found = await coordinator.get(_key(node_id))
        change = decide(_decode(found))
        if change is None:
            return
        left = await _ledgers_naming(coordinator, node_id)
        if left:
            raise Refused(
                f"storage node {node_id} still holds {left} ledgers of the cluster; wait until it "
                "is drained. If it does not get fewer, too few other storage nodes are there"
            )
        if await _applied(coordinator, node_id, found, change):
            return
    raise CoordinationDown(f"storage node {node_id}: others change its state all the time")


async def check_may_start(coordinator: Coordinator, node_id: int) -> None:
    """Raises `InvalidInput` for a storage node that was removed from the cluster."""
    _check_not_removed(node_id, _decode(await coordinator.get(_key(node_id))))


# What the nodes go by


class StorageStates:
    """The nodes that are being drained or were removed, as last seen."""

    def __init__(self, coordinator: Coordinator, *, on_change: Callable[[], None]) -> None:
        self._states: dict[int, StorageState] = {}
        self._mirror = Mirror(coordinator, STATES, apply=self._apply, settled=on_change)

    async def start(self) -> None:
        """Reads all, then follows. Raises `CoordinationDown`."""
        await self._mirror.start()

    async def stop(self) -> None:
        """Follows no more."""
        await self._mirror.stop()

    def given_up(self) -> frozenset[int]:
        """Nodes that are to hold nothing in the end: draining, or removed."""
        return frozenset(self._states)

    def removed(self) -> frozenset[int]:
        """Nodes that left for good."""
        return frozenset(n for n, s in self._states.items() if s is StorageState.REMOVED)

    def _apply(self, key: str, value: bytes | None, revision: Revision) -> None:
        number = int(key.removeprefix(STATES))
        if value is None:
            self._states.pop(number, None)
        else:
            self._states[number] = msgspec.json.decode(value, type=StoredState).state


class SeenStorage:
    """Who repair can count on: `StorageView` of a cluster."""

    def __init__(self, membership: Membership, states: StorageStates) -> None:
        self._membership = membership
        self._states = states

    def present(self) -> dict[int, str]:
        return {number: member.incarnation for number, member in self._membership.storage().items()}

    def given_up(self) -> frozenset[int]:
        return self._states.given_up()


class NodesThatStay:
    """`Nodes` that gives nothing new to those that are being drained."""

    def __init__(self, nodes: Nodes, states: StorageStates) -> None:
        self._nodes = nodes
        self._states = states

    def node(self, number: int) -> StorageNode:
        return self._nodes.node(number)

    def choose(self, count: int, *, without: Sequence[int]) -> tuple[int, ...]:
        return self._nodes.choose(count, without=(*without, *self._states.given_up()))

    def away(self) -> tuple[int, ...]:
        given_up = self._states.given_up()
        return tuple(number for number in self._nodes.away() if number not in given_up)


# Inside


def _key(node_id: int) -> str:
    return f"{STATES}{node_id:06d}"


def _put(node_id: int, stored: StoredState) -> Put:
    return Put(_key(node_id), msgspec.json.encode(stored))


def _decode(found: KeyValue | None) -> StoredState | None:
    return None if found is None else msgspec.json.decode(found.value, type=StoredState)


async def _check_known(coordinator: Coordinator, node_id: int) -> None:
    if await coordinator.get(f"{STORAGE}{node_id:06d}") is None:
        raise NotFound(f"there is no storage node {node_id}")


def _check_not_removed(node_id: int, stored: StoredState | None) -> None:
    if stored is not None and stored.state is StorageState.REMOVED:
        raise InvalidInput(
            f"storage node {node_id} was removed from the cluster for good; a storage node that "
            "is to join needs a number of its own (node.node_id) and an empty data folder"
        )


async def _change(
    coordinator: Coordinator,
    node_id: int,
    decide: Callable[[StoredState | None], Change | None],
) -> None:
    for _ in range(_ATTEMPTS_MAX):
        found = await coordinator.get(_key(node_id))
        change = decide(_decode(found))
        if change is None or await _applied(coordinator, node_id, found, change):
            return
    raise CoordinationDown(f"storage node {node_id}: others change its state all the time")


async def _applied(
    coordinator: Coordinator, node_id: int, found: KeyValue | None, change: Change
) -> bool:
    revision = ABSENT if found is None else found.revision
    condition = Unchanged(_key(node_id), revision)
    return (await coordinator.transact([change], conditions=[condition])).applied


async def _ledgers_naming(coordinator: Coordinator, node_id: int) -> int:
    """Ledgers whose chains name the node, topics that are being deleted left out."""
    topics = await coordinator.range(TOPICS)
    records = (msgspec.json.decode(item.value, type=TopicRecord) for item in topics.items)
    deleting = {record.id for record in records if record.state is TopicState.DELETING}
    return sum(
        node_id in info.placement.nodes
        for record in await read_chains(coordinator)
        if record.topic_id not in deleting
        for info in record.ledgers
    )
