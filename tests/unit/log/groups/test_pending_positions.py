"""Positions that wait for the end of a transaction, beside those that do not."""

import asyncio

import pytest
from tests.unit.log.groups.test_group_coordinator import (
    OK,
    OUTSIDE,
    P0,
    P1,
    G,
    GatedJournal,
    Node,
    settle,
    started,
)

from dovetail.errors import Unavailable
from dovetail.log.groups.types import NO_GENERATION, OffsetCommit, TransactionOf
from dovetail.record_batch import Marker

OF = TransactionOf(7, 0, 1)


LATER = TransactionOf(8, 0, 1)


async def wait(node: Node, *offsets: int, of: TransactionOf = OF) -> None:
    """The transaction commits a position in each partition, which waits."""
    wanted = {key: OffsetCommit(at) for key, at in zip((P0, P1), offsets, strict=False)}
    found = await node.coordinator.commit(G, OUTSIDE, NO_GENERATION, wanted, of=of)
    assert set(found.values()) == {OK}


async def end(node: Node, *, commit: bool = True, of: TransactionOf = OF) -> None:
    marker = Marker(of.producer_id, of.epoch, commit, 1, of.number)
    assert await node.coordinator.end_transaction(marker) is OK


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_commit_behind_a_position_that_waits_is_newer(restarts: bool) -> None:
    """K8: as with Kafka, the one that was stored last counts, whatever the transaction does."""
    node = await started(GatedJournal())
    await wait(node, 5, 6)
    assert await node.commit(9) is OK
    assert (await node.coordinator.fetch(G)).unstable == {P1}
    if restarts:
        node = await node.again()
    await end(node)
    assert (await node.position(P0), await node.position(P1)) == (9, 6)
    again = await node.again()
    assert (await again.position(P0), await again.position(P1)) == (9, 6)


async def test_a_commit_that_fails_takes_nothing_from_a_transaction() -> None:
    """K8: what waits is still there for its end."""
    node = await started(GatedJournal())
    await wait(node, 5)
    node.journal.failure = Unavailable("no")
    assert await node.commit(9) is not OK
    node.journal.failure = None
    await end(node)
    assert await node.position() == 5


async def test_a_transaction_behind_a_commit_is_newer() -> None:
    """K8: the other way round."""
    node = await started(GatedJournal())
    assert await node.commit(9) is OK
    await wait(node, 5)
    await end(node)
    assert await node.position() == 5


@pytest.mark.parametrize("stored", [True, False])
async def test_an_end_waits_for_a_commit_that_is_on_its_way(stored: bool) -> None:
    """K8: the marker comes while the journal is still writing a newer commit, or refuses it."""
    node = await started(GatedJournal())
    await wait(node, 5, 6)
    node.journal.gate.clear()
    committing = asyncio.create_task(node.commit(9))
    await settle()
    ending = asyncio.create_task(end(node))
    await settle()
    node.journal.failure = None if stored else Unavailable("no")
    node.journal.gate.set()
    assert (await committing is OK) is stored
    node.journal.failure = None
    await ending
    wanted = 9 if stored else 5, 6
    assert (await node.position(P0), await node.position(P1)) == wanted
    again = await node.again()
    assert (await again.position(P0), await again.position(P1)) == wanted


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("restarts", [False, True])
async def test_of_two_transactions_the_position_that_was_sent_last_counts(
    restarts: bool, commit: bool
) -> None:
    """K8: as with Kafka, whichever of them ends first."""
    node = await started(GatedJournal())
    await wait(node, 4, 6)
    await wait(node, 7, of=LATER)
    if restarts:
        node = await node.again()
    await end(node, of=LATER, commit=commit)
    await end(node)
    wanted = 7 if commit else 4, 6
    assert (await node.position(P0), await node.position(P1)) == wanted
    again = await node.again()
    assert (await again.position(P0), await again.position(P1)) == wanted


async def test_a_position_that_is_sent_again_is_the_last_one() -> None:
    """K8: the order is that of what counts, not of the first attempt."""
    node = await started(GatedJournal())
    await wait(node, 4)
    await wait(node, 7, of=LATER)
    await wait(node, 5)
    await end(node, of=LATER)
    await end(node)
    assert await node.position() == 5
    assert (await node.coordinator.fetch(G)).unstable == frozenset()


async def test_an_end_does_not_bring_back_a_topic_that_is_forgotten() -> None:
    """K8, L8: the marker comes while the positions in a deleted topic are being removed."""
    node = await started(GatedJournal())
    await wait(node, 5)
    node.journal.gate.clear()
    forgetting = asyncio.create_task(node.coordinator.forget_topic(P0.topic))
    await settle()
    ending = asyncio.create_task(end(node))
    await settle()
    node.journal.gate.set()
    assert await forgetting is OK
    await ending
    assert await node.position() is None
    assert await (await node.again()).position() is None


async def test_an_end_that_waits_is_told_when_the_coordinator_goes() -> None:
    """K8, L1: it waits for a commit that nobody will ever know of."""
    node = await started(GatedJournal())
    await wait(node, 5)
    node.journal.gate.clear()
    committing = asyncio.create_task(node.commit(9))
    await settle()
    marker = Marker(OF.producer_id, OF.epoch, True, 1, OF.number)
    ending = asyncio.create_task(node.coordinator.end_transaction(marker))
    await settle()
    await node.coordinator.close()
    assert await committing is not OK
    async with asyncio.timeout(60):
        assert await ending is not OK
