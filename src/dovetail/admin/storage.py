"""The storage nodes of a cluster: list them, drain one, keep it after all, remove it.

`storage/repair/decommission.py` has the states and how the nodes follow them. Each change here is
one compare-and-set, so that two operators at once do no harm.

Chains of topics that are being deleted do not count: their deletion would wait for the node, and
the node for the deletion.
"""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from dovetail.coordination import ABSENT, Coordinator, Delete, KeyValue, Put, Unchanged
from dovetail.coordination.protocol import Change
from dovetail.errors import CoordinationDown, InvalidInput, NotFound, Refused
from dovetail.log.catalog import TOPICS
from dovetail.log.topic import TopicRecord, TopicState
from dovetail.storage.identity import STORAGE
from dovetail.storage.pages import read_chains
from dovetail.storage.repair.decommission import (
    StorageState,
    StoredState,
    check_not_removed,
    decode_state,
    state_key,
)

#: Attempts at a compare-and-set against others before giving up.
_ATTEMPTS_MAX = 20


@dataclass(frozen=True, slots=True)
class Decommission:
    """How far a node is: `ledgers_left` are those that chains still name it for."""

    node_id: int
    state: StorageState
    since_ms: int | None
    ledgers_left: int


async def states(coordinator: Coordinator) -> list[Decommission]:
    """Every storage node that ever joined."""
    known = await coordinator.range(STORAGE)
    numbers = [int(item.key.removeprefix(STORAGE)) for item in known.items]
    return [await state(coordinator, number) for number in numbers]


async def state(coordinator: Coordinator, node_id: int) -> Decommission:
    """Raises `NotFound` if there never was a storage node of this number."""
    await _check_known(coordinator, node_id)
    stored = decode_state(await coordinator.get(state_key(node_id)))
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
        check_not_removed(node_id, stored)
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
        check_not_removed(node_id, stored)
        return None if stored is None else Delete(state_key(node_id))

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
        found = await coordinator.get(state_key(node_id))
        change = decide(decode_state(found))
        if change is None:
            return
        left = await _ledgers_naming(coordinator, node_id)
        if left:
            raise Refused(
                f"storage node {node_id} still holds {left} ledgers of the cluster; wait until it "
                "is drained. If the number does not fall, there are too few other storage nodes"
            )
        if await _applied(coordinator, node_id, found, change):
            return
    raise CoordinationDown(f"storage node {node_id}: others keep changing its state; try again")


def _put(node_id: int, stored: StoredState) -> Put:
    return Put(state_key(node_id), msgspec.json.encode(stored))


async def _check_known(coordinator: Coordinator, node_id: int) -> None:
    if await coordinator.get(f"{STORAGE}{node_id:06d}") is None:
        raise NotFound(f"there is no storage node {node_id}")


async def _change(
    coordinator: Coordinator,
    node_id: int,
    decide: Callable[[StoredState | None], Change | None],
) -> None:
    for _ in range(_ATTEMPTS_MAX):
        found = await coordinator.get(state_key(node_id))
        change = decide(decode_state(found))
        if change is None or await _applied(coordinator, node_id, found, change):
            return
    raise CoordinationDown(f"storage node {node_id}: others keep changing its state; try again")


async def _applied(
    coordinator: Coordinator, node_id: int, found: KeyValue | None, change: Change
) -> bool:
    revision = ABSENT if found is None else found.revision
    condition = Unchanged(state_key(node_id), revision)
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
