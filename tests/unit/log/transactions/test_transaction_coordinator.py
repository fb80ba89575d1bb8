"""The coordinator of transactions: clocks that jump, and work that fails behind its end."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any

import pytest
from tests.unit.log.groups.memory_journal import MemoryGroupJournal

from dovetail.clock import ManualClock
from dovetail.errors import Unavailable
from dovetail.log.groups.journal import JournalRecord
from dovetail.log.transactions.coordinator import TransactionCoordinator, TransactionSettings
from dovetail.log.transactions.journal import record_of, replay
from dovetail.log.transactions.transaction import Transaction
from dovetail.log.transactions.types import Identity, Place, TransactionError, TransactionState
from dovetail.record_batch import Marker

ID, PLACE, OTHER = "id", Place("t", 0), Place("t", 1)
DAY_MS = 24 * 60 * 60 * 1000


class TermedJournal(MemoryGroupJournal):
    term = 3


class Node:
    """A coordinator, and the markers that it sent."""

    def __init__(self, journal: TermedJournal | None = None) -> None:
        self.clock = ManualClock()
        self.markers: list[Marker] = []
        self.coordinator = TransactionCoordinator(
            journal or TermedJournal(),  # type: ignore[arg-type]
            self.clock,
            TransactionSettings(),
            next_producer_id=self._next_id,
            send_markers=self._send,
        )

    async def _next_id(self) -> int:
        return 70

    async def _send(self, marker: Marker, partitions: Collection[Place]) -> set[Place]:
        self.markers.append(marker)
        return set(partitions)

    def now(self) -> Transaction:
        found = self.coordinator.describe(ID)
        assert isinstance(found, Transaction)
        return found

    async def begin(self) -> Identity:
        who = await self.coordinator.begin(ID, timeout_ms=60_000, expected=None)
        assert isinstance(who, Identity)
        return who

    async def ends(self, state: TransactionState) -> None:
        async with asyncio.timeout(60):
            while self.now().state is not state:
                await asyncio.sleep(0.001)


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    made = Node()
    await made.coordinator.load(MemoryGroupJournal().replay())
    yield made
    await made.coordinator.close()


@pytest.mark.parametrize("jump_ms", [DAY_MS, -DAY_MS])
async def test_the_time_of_a_transaction_does_not_jump(node: Node, jump_ms: int) -> None:
    """K8: a wall clock that is set ends no transaction early, and keeps none open."""
    who = await node.begin()
    await node.coordinator.add(ID, who, [PLACE])
    node.clock.jump_wall(jump_ms)
    await node.coordinator.add(ID, who, [OTHER])
    node.clock.advance(59_000)
    node.coordinator.tick()
    assert node.now().state is TransactionState.ONGOING
    node.clock.advance(1_000)
    node.coordinator.tick()
    await node.ends(TransactionState.COMPLETE_ABORT)


async def test_a_clock_that_is_set_ahead_makes_no_id_old(node: Node) -> None:
    """K8: a producer between two transactions goes on; an id that is old for long goes."""
    who = await node.begin()
    node.clock.jump_wall(8 * DAY_MS)
    node.coordinator.tick()
    assert await node.coordinator.add(ID, who, [PLACE]) == 1
    await node.coordinator.end(ID, who, commit=True, bumps=False)
    await node.ends(TransactionState.COMPLETE_COMMIT)
    node.clock.advance(15 * DAY_MS)
    node.coordinator.tick()
    assert node.coordinator.describe(ID) is TransactionError.NOT_FOUND


async def test_an_end_that_fails_behind_its_last_step_does_not_end_what_is_next(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K8, R5: it is started again, and finds the next transaction open."""
    who = await node.begin()
    await node.coordinator.add(ID, who, [PLACE])
    store, planted = node.coordinator._store, asyncio.Event()

    def fails(transactional_id: str, entry: Any, to: Transaction) -> Any:
        if to.state is TransactionState.COMPLETE_COMMIT and not planted.is_set():
            planted.set()
            raise RuntimeError("planted")
        return store(transactional_id, entry, to)

    monkeypatch.setattr(node.coordinator, "_store", fails)
    await node.coordinator.end(ID, who, commit=True, bumps=False)
    await planted.wait()
    assert await node.coordinator.add(ID, who, [OTHER]) == 2
    async with asyncio.timeout(60):
        while node.coordinator._tasks._tasks:
            await asyncio.sleep(0.01)
    assert node.now().state is TransactionState.ONGOING
    assert [marker.number for marker in node.markers] == [1]


class SlowJournal(TermedJournal):
    """Each append takes a turn of the event loop, and can be made to fail."""

    fails = False

    async def append(self, records: Sequence[JournalRecord]) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        if self.fails:
            raise Unavailable("planted")
        await super().append(records)


async def opened(journal: SlowJournal) -> tuple[Node, Identity]:
    node = Node(journal)
    await node.coordinator.load(MemoryGroupJournal().replay())
    return node, await node.begin()


async def test_partitions_that_come_one_by_one_do_not_cost_their_square() -> None:
    """K8: a producer of KIP-890's protocol names each with its first batch, all at once."""
    journal = SlowJournal()
    node, who = await opened(journal)
    places = [Place("topic", number) for number in range(2_000)]
    found = await asyncio.gather(*(node.coordinator.add(ID, who, [place]) for place in places))
    assert set(found) == {1}
    assert set(node.now().partitions) == {*places}
    once = len(record_of(ID, node.now()).value or b"")
    assert sum(len(record.value or b"") for record in journal.records) < 3 * once
    assert (await replay(journal.replay()))[ID] == node.now()
    assert node.coordinator.verify(ID, who, places[-1]) == 1
    await node.coordinator.close()


async def test_who_waits_behind_one_that_goes_away_or_fails_is_answered() -> None:
    """K8, R5: the first caller leaves, the journal fails, the coordinator closes."""
    journal = SlowJournal()
    node, who = await opened(journal)
    first = asyncio.create_task(node.coordinator.add(ID, who, [PLACE]))
    await asyncio.sleep(0)
    second = asyncio.create_task(node.coordinator.add(ID, who, [OTHER]))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == 1

    journal.fails = True
    adding = [node.coordinator.add(ID, who, [Place("u", number)]) for number in range(2)]
    assert set(await asyncio.gather(*adding)) == {TransactionError.NOT_AVAILABLE}

    last = [asyncio.create_task(node.coordinator.add(ID, who, [Place("v", n)])) for n in range(2)]
    await asyncio.sleep(0)
    await node.coordinator.close()
    async with asyncio.timeout(60):
        assert set(await asyncio.gather(*last)) == {TransactionError.NOT_COORDINATOR}


async def test_another_producer_does_not_join_with_the_first() -> None:
    """K8: a zombie that asks at the same time is fenced, and takes nobody with it."""
    journal = SlowJournal()
    node, zombie = await opened(journal)
    who = await node.begin()
    asked = [
        node.coordinator.add(ID, one, [Place("t", n)]) for n in range(4) for one in (who, zombie)
    ]
    found = await asyncio.gather(*asked)
    assert found[::2] == [1] * 4
    assert found[1::2] == [TransactionError.FENCED] * 4
    await node.coordinator.close()
