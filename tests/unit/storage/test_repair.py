"""Repair, sweeping and wholeness on real storage nodes and a real coordinator, step by step."""

import asyncio
import random
from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from dovetail.clock import ManualClock
from dovetail.coordination import EmbeddedCoordinator, Put
from dovetail.errors import Damaged, InvalidInput, Unavailable
from dovetail.log.owners import DELETED
from dovetail.log.partition import Partition
from dovetail.log.reading import read_from_storage
from dovetail.log.service import Log
from dovetail.log.topic import TopicConfig
from dovetail.record_batch import check_batch, decode_batch, encode_batch
from dovetail.storage import (
    Ensembles,
    EntryId,
    LedgerId,
    LedgerStore,
    LocalStorageNode,
    Quorum,
    RealDisk,
    StorageNode,
    StoreSettings,
    Term,
)
from dovetail.storage.chain import LedgerInfo
from dovetail.storage.disk.commands import Append
from dovetail.storage.held import Span, held_in
from dovetail.storage.repair.rate import ByteRate
from dovetail.storage.repair.repairer import Repairer, RepairSettings
from dovetail.storage.repair.sweeping import sweep
from dovetail.storage.repair.upkeep import StorageUpkeep

DEADLINE_S = 60
AFTER_MS = 1_000
DEFAULTS = TopicConfig(
    retention_ms=-1,
    retention_bytes=-1,
    ledger_bytes_max=1 << 28,
    ledger_age_ms_max=1 << 40,
    batch_bytes_max=1 << 20,
    quorum=Quorum(3, 3, 2),
)


class Away:
    """A node that does not answer; what is asked of it is told at once."""

    def __getattr__(self, name: str) -> object:
        async def fail(*_: object, **__: object) -> None:
            raise Unavailable("the node is away")

        def append(_: object, answer: object) -> None:
            asyncio.get_running_loop().call_soon(answer, Unavailable("the node is away"))  # type: ignore[arg-type]

        return append if name == "append" else fail


class Cluster:
    """Storage nodes 1 to 4 in one process, with an owner of everything."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.storage: dict[int, LocalStorageNode] = {}
        self.dead: set[int] = set()
        #: They hold their lease, and do nothing that they are asked for.
        self.refusing: set[int] = set()
        self.leaving: set[int] = set()
        self.coordinator: EmbeddedCoordinator
        self.log: Log
        self.ensembles: Ensembles
        self.repairer = Repairer(
            self,
            self,
            clock=self.clock,
            settings=RepairSettings(after_ms=AFTER_MS, bytes_per_second=1 << 40),
        )

    async def start(self) -> None:
        self.coordinator = await EmbeddedCoordinator.open(
            self.folder / "coordination.sqlite", clock=self.clock
        )
        for number in (1, 2, 3, 4):
            await self.open_node(number)
        self.ensembles = Ensembles(self)
        self.log = Log(
            node_id=1,
            coordinator=self.coordinator,
            ensembles=self.ensembles,
            clock=self.clock,
            defaults=DEFAULTS,
            tail_bytes_max=0,
        )
        await self.log.load()
        await self.log.start()

    async def stop(self) -> None:
        self.dead.clear()
        await self.log.close()
        await self.ensembles.close()
        for node in self.storage.values():
            await node.close()
        await self.coordinator.close()

    async def open_node(self, number: int) -> None:
        settings = StoreSettings(segment_bytes=1 << 20, disk_free_bytes_min=1)
        store = LedgerStore(RealDisk(self.folder / str(number)), settings, random.Random(1))
        self.storage[number] = LocalStorageNode(store)
        await self.upkeep(number).once()

    def upkeep(self, number: int) -> StorageUpkeep:
        return StorageUpkeep(self.storage[number], number, self.coordinator)

    # `Nodes` and `StorageView`

    def node(self, number: int) -> StorageNode:
        away = number in self.dead | self.refusing
        return Away() if away else self.storage[number]  # type: ignore[return-value]

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
        there = [n for n in sorted(self.present()) if n not in (*without, *self.leaving)]
        there = [n for n in there if among is None or n in among]
        if len(there) < count:
            raise Unavailable(f"{count} storage nodes are needed, {len(there)} are there")
        return tuple(there[:count])

    def away(self) -> tuple[int, ...]:
        return tuple(sorted(self.dead))

    def present(self) -> dict[int, str]:
        return {n: str(id(node)) for n, node in self.storage.items() if n not in self.dead}

    def given_up(self) -> frozenset[int]:
        return frozenset(self.leaving)

    # What tests do

    def segments_with(self, number: int, text: bytes) -> list[Path]:
        """The files of a node that hold a text. Two of three copies are enough for an answer, so
        that the third may come later."""
        segments = (self.folder / str(number)).glob("*.segment")
        return [segment for segment in segments if text in segment.read_bytes()]

    def damage(self, number: int, text: bytes) -> None:
        """Changes one bit of a text that a node has stored."""
        for segment in self.segments_with(number, text):
            data = bytearray(segment.read_bytes())
            data[data.find(text)] ^= 1
            segment.write_bytes(data)

    async def partition(self) -> Partition:
        await self.log.create_topic("t", partitions=1)
        return self.log.partition("t", 0)

    async def send(self, partition: Partition, *values: bytes) -> None:
        for value in values:
            raw = memoryview(encode_batch([(None, value)], timestamp=self.clock.wall_ms()))
            async with asyncio.timeout(DEADLINE_S):
                await partition.append(raw, check_batch(raw, bytes_max=1 << 20))

    async def roll(self, partition: Partition) -> LedgerInfo:
        """Closes the open ledger."""
        closed = len(partition.record.closed)
        partition.roll()
        await self.until(lambda: len(partition.record.closed) > closed)
        return partition.record.closed[-1]

    async def until(self, reached: object) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not reached():  # type: ignore[operator]
                await asyncio.sleep(0.001)

    async def lacks(self, info: LedgerInfo) -> dict[int, list[Span]]:
        """What nodes of the placement do not hold."""
        found = {}
        for number in info.placement.nodes:
            everything = Span(0, info.entry_last)
            held = await held_in(self.storage[number], LedgerId(info.ledger), everything)
            if held != [everything]:
                found[number] = held
        return found


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path)
    await made.start()
    yield made
    await made.stop()


async def values_in(partition: Partition) -> list[bytes | None]:
    found: list[bytes | None] = []
    offset = partition.log_start
    while offset < partition.high_watermark:
        for batch in await read_from_storage(partition, offset, 1 << 20):
            for record in decode_batch(batch):
                found.append(record.value)
                offset = record.offset + 1
    return found


async def test_a_node_that_is_gone_is_replaced_after_the_grace_time(cluster: Cluster) -> None:
    """L10: not before; then everything is copied, and the chain names the new node."""
    partition = await cluster.partition()
    await cluster.send(partition, b"a", b"b", b"c")
    info = await cluster.roll(partition)
    gone = min(info.placement.nodes)
    await cluster.repairer.mend(partition)
    cluster.dead.add(gone)
    await cluster.repairer.mend(partition)
    cluster.clock.advance(AFTER_MS - 1)
    await cluster.repairer.mend(partition)
    assert gone in partition.record.closed[0].placement.nodes
    assert cluster.repairer.report.lacking == {"t-0": 1}
    cluster.clock.advance(1)
    await cluster.repairer.mend(partition)
    moved = partition.record.closed[0]
    assert moved.placement.nodes == {1, 2, 3, 4} - {gone}
    assert await cluster.lacks(moved) == {}
    assert (moved.entry_last, moved.offset_end) == (info.entry_last, info.offset_end)
    assert await values_in(partition) == [b"a", b"b", b"c"]


async def test_repair_does_not_starve_on_a_node_that_takes_no_copy(cluster: Cluster) -> None:
    """F34: the node that would be chosen first refuses; the next pass takes another one."""
    partition = await cluster.partition()
    await cluster.send(partition, b"a", b"b", b"c")
    info = await cluster.roll(partition)
    assert info.placement.nodes == {1, 2, 3}
    await cluster.open_node(5)
    cluster.refusing.add(4)
    await cluster.repairer.mend(partition)
    cluster.dead.add(1)
    await cluster.repairer.mend(partition)
    cluster.clock.advance(AFTER_MS)

    for _ in range(2):
        await cluster.repairer.mend(partition)
    moved = partition.record.closed[0]
    assert moved.placement.nodes == {2, 3, 5}
    assert await cluster.lacks(moved) == {}


async def test_what_a_node_missed_is_copied_to_it(cluster: Cluster) -> None:
    """L10: entries that were written while it was away, with no other node to take its place."""
    partition = await cluster.partition()
    cluster.dead.add(4)
    await cluster.send(partition, b"a")
    cluster.dead.add(3)
    await cluster.send(partition, b"b", b"c")
    cluster.dead.clear()
    assert partition.open_ledgers[0].writer.went_on_with_fewer
    await cluster.repairer.mend(partition)
    assert not partition.record.closed, "a ledger is not closed for a short absence"
    cluster.clock.advance(AFTER_MS)
    await cluster.repairer.mend(partition)
    await cluster.until(lambda: partition.record.closed)
    info = partition.record.closed[0]
    assert 3 in await cluster.lacks(info)
    await cluster.repairer.mend(partition)
    assert await cluster.lacks(partition.record.closed[0]) == {}
    assert cluster.repairer.report.lacking == {"t-0": 0}


async def test_a_node_that_leaves_gives_everything_away_first(cluster: Cluster) -> None:
    """L10: its open ledger is closed, all ledgers move, and it is read from meanwhile."""
    partition = await cluster.partition()
    await cluster.send(partition, b"a", b"b")
    leaving = min(partition.open_ledgers[0].writer.placement.nodes)
    other = max(partition.open_ledgers[0].writer.placement.nodes)
    cluster.leaving.add(leaving)
    await cluster.repairer.mend(partition)
    await cluster.until(lambda: partition.record.closed)
    assert leaving not in partition.open_ledgers[-1].writer.placement.nodes
    await cluster.storage[other].delete(LedgerId(partition.record.closed[0].ledger))
    await cluster.repairer.mend(partition)
    assert all(leaving not in info.placement.nodes for info in partition.record.ledgers)
    await cluster.send(partition, b"c")
    assert await values_in(partition) == [b"a", b"b", b"c"]


async def test_without_another_node_nothing_is_given_up(cluster: Cluster) -> None:
    """L10: the chain keeps naming a node that may still come back."""
    partition = await cluster.partition()
    await cluster.send(partition, b"a")
    info = await cluster.roll(partition)
    cluster.dead |= {4, min(info.placement.nodes)}
    await cluster.repairer.mend(partition)
    cluster.clock.advance(AFTER_MS)
    await cluster.repairer.mend(partition)
    assert partition.record.closed[0].placement == info.placement


async def test_a_damaged_node_is_repaired_by_its_peers(cluster: Cluster) -> None:
    """L6, L10: it denies nothing meanwhile, and is whole again, also after a restart."""
    partition = await cluster.partition()
    await cluster.send(partition, b"a" * 500, b"THE-DAMAGED-ONE", b"c" * 500)
    info = await cluster.roll(partition)
    number = min(info.placement.nodes)
    await cluster.repairer.mend(partition)
    await cluster.until(lambda: bool(cluster.segments_with(number, b"THE-DAMAGED-ONE")))
    await cluster.storage[number].close()
    cluster.damage(number, b"THE-DAMAGED-ONE")
    await cluster.open_node(number)
    node = cluster.storage[number]
    assert node.damaged
    upkeep = cluster.upkeep(number)
    await upkeep.once()
    assert LedgerId(info.ledger) in upkeep.doubted
    with pytest.raises(Damaged):
        await node.read(LedgerId(info.ledger), EntryId(2), last=EntryId(2), bytes_max=1)
    await cluster.repairer.mend(partition)  # Nobody told it: it sees that the node was restarted.
    assert await cluster.lacks(info) == {}
    await cluster.send(partition, b"d")
    await cluster.roll(partition)  # What was open when the damage was found is in doubt as well.
    await upkeep.once()
    await cluster.until(lambda: not node.damaged)
    await node.close()
    await cluster.open_node(number)
    assert not cluster.storage[number].damaged
    assert await cluster.lacks(info) == {}


async def test_a_reader_that_meets_damage_tells_repair(cluster: Cluster) -> None:
    """L10: what a disk has changed is put right when it is first noticed."""
    partition = await cluster.partition()
    await cluster.send(partition, b"a", b"THE-DAMAGED-ONE")
    info = await cluster.roll(partition)
    await cluster.repairer.mend(partition)
    cluster.ensembles.reader.on_damaged = cluster.repairer.doubt
    first_asked = {info.placement.nodes_for(entry)[0] for entry in (0, 1)}
    for number in first_asked:
        cluster.damage(number, b"THE-DAMAGED-ONE")
    assert await values_in(partition) == [b"a", b"THE-DAMAGED-ONE"]
    assert await cluster.lacks(info) != {}
    await cluster.repairer.mend(partition)
    assert await cluster.lacks(info) == {}


async def append(node: LocalStorageNode, ledger: int) -> None:
    done = asyncio.get_running_loop().create_future()
    node.append(Append(LedgerId(ledger), EntryId(0), Term(1), EntryId(-1), b"x"), done.set_result)
    assert await done is None


async def test_what_no_chain_names_is_swept_away(cluster: Cluster) -> None:
    """L8, L11: on a node that was away when the ledger was let go; copies for others stay."""
    partition = await cluster.partition()
    await cluster.send(partition, b"a")
    info = await cluster.roll(partition)
    away = min(info.placement.nodes)
    while LedgerId(info.ledger) not in await cluster.storage[away].ledgers():
        await asyncio.sleep(0)  # Two of three acknowledge; this one may be the third.
    cluster.dead.add(away)
    await partition.trim(info.offset_end)
    assert LedgerId(info.ledger) in await cluster.storage[away].ledgers()
    open_ledger = partition.open_ledgers[0].info.ledger
    other = next(
        n for n in cluster.storage if n not in partition.open_ledgers[0].info.placement.nodes
    )
    await append(cluster.storage[other], open_ledger)
    for number in (away, other):
        await cluster.upkeep(number).once()
    assert LedgerId(info.ledger) not in await cluster.storage[away].ledgers()
    assert LedgerId(open_ledger) in await cluster.storage[other].ledgers()


async def test_nothing_is_swept_by_an_old_copy_of_the_coordination(cluster: Cluster) -> None:
    """L6: a ledger whose id was not given yet tells that the chains are older than the disk."""
    node = cluster.storage[1]
    await append(node, 5)
    await append(node, 700)
    await cluster.coordinator.transact([Put("/ids/ledger", b"100")])
    with pytest.raises(Damaged, match="ledger 700"):
        await sweep(node, cluster.coordinator)
    assert await node.ledgers() == {5, 700}
    await cluster.coordinator.transact([Put("/ids/ledger", b"800")])
    assert (await sweep(node, cluster.coordinator)).deleted == {5, 700}


async def test_a_node_that_is_away_holds_up_no_retention_but_a_deletion(cluster: Cluster) -> None:
    """L8, L11: what is trimmed is gone at once; a topic's deletion insists."""
    partition = await cluster.partition()
    await cluster.send(partition, b"a")
    info = await cluster.roll(partition)
    cluster.dead.add(min(info.placement.nodes))
    with pytest.raises(Unavailable):
        await cluster.ensembles.delete(info.placement)
    async with asyncio.timeout(DEADLINE_S):
        await partition.trim(info.offset_end)
    assert partition.record.closed == ()
    without = Ensembles(cluster, removed=lambda: cluster.dead)
    await without.delete(info.placement)


async def test_quorums_change_on_a_live_topic(cluster: Cluster) -> None:
    """L14: from the next ledger on, at once; what is written stays as it was until it goes."""
    partition = await cluster.partition()
    await cluster.send(partition, b"a")
    changed = DEFAULTS.with_overrides({"dovetail.ensemble": "4", "dovetail.write.quorum": "4"})
    partition.config = changed
    await cluster.until(lambda: partition.record.closed)
    await cluster.send(partition, b"b")
    assert [info.placement.quorum for info in partition.record.ledgers] == [
        Quorum(3, 3, 2),
        Quorum(4, 4, 2),
    ]
    cluster.dead |= {3, 4}
    partition.config = DEFAULTS.with_overrides({"dovetail.ensemble": "4"})
    await cluster.send(partition, b"c")
    assert len(partition.record.ledgers) == 2, "it goes on as it is while nodes are missing"
    cluster.dead.clear()
    await cluster.repairer.mend(partition)
    await cluster.until(lambda: len(partition.record.closed) == 2)
    assert partition.record.ledgers[-1].placement.quorum == Quorum(4, 3, 2)
    assert await values_in(partition) == [b"a", b"b", b"c"]


async def test_a_bad_quorum_places_nothing(cluster: Cluster) -> None:
    """L2: the last check before data would lie on too few nodes."""
    with pytest.raises(InvalidInput, match="write quorum 3 > ensemble 2"):
        cluster.ensembles.place(LedgerId(1), Quorum(2, 3, 2))


def test_bytes_are_spread_over_time() -> None:
    """L10: no more than the rate, and a pause is not made up for."""
    rate = ByteRate(1_000_000)
    assert rate.take(500_000, now_ms=0) == 0
    assert rate.take(250_000, now_ms=100) == 400
    assert rate.take(1, now_ms=500) == 250
    assert rate.take(1_000_000, now_ms=60_000) == 0
    assert rate.take(1, now_ms=60_000) == 1000


async def test_a_ledger_that_is_closed_during_a_pass_is_looked_at_by_the_next(
    cluster: Cluster,
) -> None:
    """L10: what was not looked at is not taken for whole."""
    partition = await cluster.partition()
    await cluster.send(partition, b"a")
    first = await cluster.roll(partition)
    await cluster.repairer.mend(partition)
    lost = max(partition.open_ledgers[0].writer.placement.nodes)
    cluster.dead |= {lost, *({1, 2, 3, 4} - set(first.placement.nodes))}
    await cluster.send(partition, b"b", b"c")
    await cluster.repairer.mend(partition)
    cluster.dead.discard(lost)
    cluster.clock.advance(AFTER_MS + 1)
    held = cluster.storage[lost].held

    async def slow_held(*args: Any, **named: Any) -> Any:
        await cluster.until(lambda: len(partition.record.closed) == 2)
        return await held(*args, **named)

    cluster.storage[lost].held = slow_held  # type: ignore[method-assign]
    await cluster.repairer.mend(partition)
    cluster.storage[lost].held = held  # type: ignore[method-assign]
    assert await cluster.lacks(partition.record.closed[-1])
    await cluster.repairer.mend(partition)
    assert not await cluster.lacks(partition.record.closed[-1])


async def test_a_deletion_that_waits_for_a_node_writes_nothing_meanwhile(cluster: Cluster) -> None:
    """L8: the partitions are claimed for it once."""
    await cluster.log.create_topic("gone", partitions=5)
    for number in range(5):
        await cluster.send(cluster.log.partition("gone", number), b"a")
    record = cluster.log.topic("gone")
    cluster.dead.add(1)
    await cluster.log.delete_topic("gone")

    async def owners_and_terms() -> list[tuple[int, int]]:
        return [(p.owner, p.term) for p in await cluster.log.catalog.partitions(record.id)]

    while any(owner != DELETED for owner, _ in await owners_and_terms()):
        await asyncio.sleep(0.01)
    before = await owners_and_terms()
    await asyncio.sleep(1.2)  # One more attempt, at the least.
    assert await owners_and_terms() == before
    cluster.dead.clear()
    await cluster.log.deletions_done()
    assert await owners_and_terms() == []
