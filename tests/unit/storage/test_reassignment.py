"""Partitions that are moved to the storage nodes that somebody named (K13)."""

import asyncio

import pytest
from tests.unit.storage.test_repair import AFTER_MS, DEADLINE_S, Cluster, cluster, values_in

from dovetail.log.partition import Partition
from dovetail.log.service import Moving

__all__ = ["cluster"]


def nodes_of(partition: Partition) -> set[int]:
    """All that hold something of it."""
    return {node for info in partition.record.ledgers for node in info.placement.nodes}


async def moved(cluster: Cluster, partition: Partition, *nodes: int) -> None:
    """Passes until it lies there: one closes the open ledger, another copies."""
    async with asyncio.timeout(DEADLINE_S):
        while nodes_of(partition) != set(nodes):
            await cluster.repairer.mend(partition)
            await asyncio.sleep(0.01)


async def test_a_partition_moves_to_the_nodes_that_were_named(cluster: Cluster) -> None:
    """K13: the open ledger is closed, all copies move, new ledgers are there too; the move is
    listed as long as it lasts, and nothing is lost."""
    partition = await cluster.partition()
    await cluster.send(partition, b"a", b"b")
    await cluster.roll(partition)
    await cluster.send(partition, b"c")
    assert nodes_of(partition) == {1, 2, 3}

    await cluster.log.assign("t", 0, (2, 3, 4))
    wanted = frozenset((2, 3, 4))
    assert await cluster.log.moving("t") == {0: Moving(frozenset((1, 2, 3)), wanted)}
    await moved(cluster, partition, 2, 3, 4)
    assert await cluster.log.moving("t") == {}

    await cluster.send(partition, b"d")
    await cluster.roll(partition)
    assert nodes_of(partition) == wanted
    cluster.dead.add(1)
    assert await values_in(partition) == [b"a", b"b", b"c", b"d"]


async def test_a_named_node_that_is_gone_is_replaced_like_any_other(cluster: Cluster) -> None:
    """K13, L10: copies come before wishes; when it is back the wish holds again."""
    partition = await cluster.partition()
    await cluster.log.assign("t", 0, (2, 3, 4))
    await cluster.send(partition, b"a")
    await cluster.roll(partition)
    await cluster.repairer.mend(partition)
    cluster.dead.add(4)
    await cluster.repairer.mend(partition)
    cluster.clock.advance(AFTER_MS)
    await moved(cluster, partition, 1, 2, 3)
    assert await cluster.lacks(partition.record.closed[0]) == {}

    cluster.dead.clear()
    await moved(cluster, partition, 2, 3, 4)
    assert await values_in(partition) == [b"a"]


async def test_a_drained_node_beats_a_wish(cluster: Cluster) -> None:
    """K13, L10: and passes come to rest, instead of copying to and fro."""
    partition = await cluster.partition()
    await cluster.log.assign("t", 0, (2, 3, 4))
    await cluster.send(partition, b"a")
    cluster.leaving.add(2)
    await moved(cluster, partition, 1, 3, 4)
    before = cluster.repairer.report.ledgers_moved
    for _ in range(3):
        await cluster.repairer.mend(partition)
    assert cluster.repairer.report.ledgers_moved == before


@pytest.mark.parametrize("nodes", [(2,), (1, 2, 3, 4)])
async def test_a_wish_of_another_size_has_no_effect(
    cluster: Cluster, nodes: tuple[int, ...]
) -> None:
    """K13: the number of copies is the topic's, also if its setting changed after the wish."""
    partition = await cluster.partition()
    await cluster.log.assign("t", 0, nodes)
    await cluster.send(partition, b"a")
    for _ in range(3):
        await cluster.repairer.mend(partition)
    assert nodes_of(partition) == {1, 2, 3}
