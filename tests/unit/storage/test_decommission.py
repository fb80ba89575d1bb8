"""Draining, keeping and removing a storage node, on a real coordinator."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from dovetail.admin import storage as decommission
from dovetail.clock import SystemClock
from dovetail.coordination import Coordinator, EmbeddedCoordinator, Put
from dovetail.errors import InvalidInput, NotFound, Refused, Unavailable
from dovetail.log.catalog import partition_key, topic_key
from dovetail.log.topic import TopicRecord, TopicState
from dovetail.storage import Placement, Quorum, StorageNode, chain
from dovetail.storage.chain import LedgerInfo, PartitionRecord
from dovetail.storage.identity import bind_disk
from dovetail.storage.placement import Fragment
from dovetail.storage.repair.decommission import (
    STATES,
    NodesThatStay,
    StorageState,
    StorageStates,
    check_may_start,
)


@pytest_asyncio.fixture
async def coordinator(tmp_path: Path) -> AsyncIterator[EmbeddedCoordinator]:
    async with await EmbeddedCoordinator.open(tmp_path / "c.sqlite", clock=SystemClock()) as made:
        for number in (1, 2, 3):
            await bind_disk(made, number, f"disk-{number}", holds_ledgers=False)
        yield made


async def put_chain(
    coordinator: Coordinator, *nodes: int, topic: str = "t", state: TopicState = TopicState.READY
) -> None:
    """A topic with one ledger on these nodes."""
    record = TopicRecord(topic, f"id-{topic}", 1, 0, state=state)
    ledgers: tuple[LedgerInfo, ...] = ()
    if nodes:
        placement = Placement(1, Quorum(len(nodes), 1, 1), (Fragment(0, nodes),))
        ledgers = (LedgerInfo(placement, 1, 0),)
    partition = PartitionRecord(record.id, 0, ledgers=ledgers)
    await coordinator.transact(
        [
            Put(topic_key(topic), msgspec.json.encode(record)),
            Put(partition_key(record.id, 0), chain.encode(partition)),
        ]
    )


async def state_of(coordinator: Coordinator, node: int) -> tuple[StorageState, int]:
    found = await decommission.state(coordinator, node)
    return found.state, found.ledgers_left


async def test_a_node_is_drained_and_removed(coordinator: EmbeddedCoordinator) -> None:
    """L10: not before no chain names it; each step can be done again."""
    await put_chain(coordinator, 1, 2)
    assert await state_of(coordinator, 1) == (StorageState.ACTIVE, 1)
    with pytest.raises(InvalidInput, match="drain it first"):
        await decommission.remove(coordinator, 1, now_ms=5)
    for _ in range(2):
        await decommission.drain(coordinator, 1, now_ms=5)
    assert await state_of(coordinator, 1) == (StorageState.DRAINING, 1)
    with pytest.raises(Refused, match="still holds 1 ledgers"):
        await decommission.remove(coordinator, 1, now_ms=6)
    await put_chain(coordinator, 3, 2)
    assert await state_of(coordinator, 1) == (StorageState.DRAINED, 0)
    await check_may_start(coordinator, 1)
    for _ in range(2):
        await decommission.remove(coordinator, 1, now_ms=7)
    found = await decommission.state(coordinator, 1)
    assert (found.state, found.since_ms) == (StorageState.REMOVED, 7)
    with pytest.raises(InvalidInput, match="removed from the cluster for good"):
        await check_may_start(coordinator, 1)
    for change in (
        decommission.drain(coordinator, 1, now_ms=8),
        decommission.cancel(coordinator, 1),
    ):
        with pytest.raises(InvalidInput, match="for good"):
            await change


async def test_a_drain_can_be_taken_back(coordinator: EmbeddedCoordinator) -> None:
    """L10: also when nothing was asked for."""
    await put_chain(coordinator, 1)
    await decommission.cancel(coordinator, 1)
    await decommission.drain(coordinator, 1, now_ms=1)
    await decommission.cancel(coordinator, 1)
    assert await state_of(coordinator, 1) == (StorageState.ACTIVE, 1)


async def test_a_node_that_never_was_is_not_drained(coordinator: EmbeddedCoordinator) -> None:
    """U7: a slip of the finger changes nothing."""
    for ask in (
        decommission.state(coordinator, 9),
        decommission.drain(coordinator, 9, now_ms=1),
        decommission.cancel(coordinator, 9),
        decommission.remove(coordinator, 9, now_ms=1),
    ):
        with pytest.raises(NotFound, match="no storage node 9"):
            await ask
    assert not (await coordinator.range(STATES)).items


async def test_a_deletion_that_waits_for_the_node_does_not_keep_it(
    coordinator: EmbeddedCoordinator,
) -> None:
    """L8: a dead node would hold up the deletion, and the deletion the node."""
    await put_chain(coordinator, 1, topic="old", state=TopicState.DELETING)
    await decommission.drain(coordinator, 1, now_ms=1)
    await decommission.remove(coordinator, 1, now_ms=2)


class _Fixed:
    """Nodes 1 to 3, always there."""

    def node(self, number: int) -> StorageNode:
        raise Unavailable(f"node {number} was asked for")

    def near(self, number: int) -> bool:
        return False

    def choose(
        self,
        count: int,
        *,
        without: Sequence[int],
        beside: Sequence[int] = (),
        among: Collection[int] | None = None,
    ) -> tuple[int, ...]:
        there = [n for n in (1, 2, 3) if n not in without]
        if len(there) < count:
            raise Unavailable("too few")
        return tuple(there[:count])

    def away(self) -> tuple[int, ...]:
        return (1, 4)


async def test_nothing_new_is_placed_on_a_node_that_is_drained(
    coordinator: EmbeddedCoordinator,
) -> None:
    """L10: seen by watching; a node that is kept after all is chosen again."""
    changed = asyncio.Event()
    states = StorageStates(coordinator, on_change=changed.set)
    await states.start()

    async def until(reached: bool) -> None:
        async with asyncio.timeout(60):
            while (1 in states.given_up()) is not reached:
                changed.clear()
                await changed.wait()

    try:
        nodes = NodesThatStay(_Fixed(), states)
        assert nodes.choose(3, without=()) == (1, 2, 3)
        await decommission.drain(coordinator, 1, now_ms=1)
        await until(reached=True)
        assert nodes.choose(1, without=(2,)) == (3,)
        assert nodes.away() == (4,)
        with pytest.raises(Unavailable):
            nodes.choose(3, without=())
        with pytest.raises(Unavailable, match="node 1 was asked for"):
            nodes.node(1)
        assert states.removed() == set()
        await decommission.cancel(coordinator, 1)
        await until(reached=False)
        assert nodes.choose(3, without=()) == (1, 2, 3)
        await decommission.drain(coordinator, 1, now_ms=1)
        await decommission.remove(coordinator, 1, now_ms=2)
        async with asyncio.timeout(60):
            while not states.removed():
                changed.clear()
                await changed.wait()
        assert states.removed() == {1}
    finally:
        await states.stop()
