"""A partition and an idempotent producer over many lives of a node on a faulty disk, seeded.

The producer does what real ones do: five batches in flight, and after any failure everything that
is not acknowledged again, in order, with the same numbers. A life ends by a power cut in the middle
of a system call, or cleanly. At the end everything is read: each record once, in order, unchanged.
"""

import asyncio
import contextlib
import random
import struct

import pytest
from crc32c import crc32c
from tests.faulty_disk import FaultyDisk
from tests.sim.seeds import run_seeds
from tests.sim.world import (
    MemoryCoordinator,
    PowerCut,
    SimStorageNode,
    VirtualClock,
    VirtualLoop,
    end_all_tasks,
)

from dovetail.errors import DiskFull, DovetailError, ProducerFenced, Unavailable
from dovetail.log.partition import Partition
from dovetail.log.reading import offset_for_time, read_from_storage, read_from_tail
from dovetail.log.service import Log
from dovetail.log.topic import TopicConfig
from dovetail.record_batch import check_batch, decode_batch, encode_batch, read_header
from dovetail.storage import Ensembles, OneNode, chain
from dovetail.storage.disk.options import StoreSettings
from dovetail.storage.disk.store import LedgerStore
from dovetail.storage.repair.sweeping import sweep

STORE = StoreSettings(segment_bytes=20_000, disk_free_bytes_min=0, reserve_bytes=8_000)
CONFIG = TopicConfig(
    retention_ms=-1,
    retention_bytes=-1,
    ledger_bytes_max=6_000,
    ledger_age_ms_max=1 << 40,
    batch_bytes_max=100_000,
)
PRODUCER_ID = 7
IN_FLIGHT_MAX = 5


def numbered(values: list[bytes], *, sequence: int, timestamp: int) -> memoryview:
    """A batch of an idempotent producer."""
    batch = encode_batch([(None, value) for value in values], timestamp=timestamp)
    struct.pack_into(">qhi", batch, 43, PRODUCER_ID, 0, sequence)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return memoryview(batch)


class World:
    """What outlives a node: the disk, the coordination service and the client."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disk = FaultyDisk(self.rng)
        self.disk.power_cut = PowerCut
        self.coordinator = MemoryCoordinator(self.rng)
        #: All batches ever made, as lists of values; the first `acknowledged` of them are stored.
        self.batches: list[list[bytes]] = []
        self.acknowledged = 0
        self.offsets: dict[int, int] = {}
        self.cuts = 0

    def sequence(self, batch: int) -> int:
        return sum(len(values) for values in self.batches[:batch])

    def new_batch(self) -> None:
        at = self.sequence(len(self.batches))
        count = self.rng.randint(1, 5)
        size = self.rng.choice([5, 200, 1500])
        self.batches.append(
            [f"{at + n}/".encode() + self.rng.randbytes(size) for n in range(count)]
        )

    def pages(self) -> int:
        """Pages that the chain has now."""
        return sum(key.startswith(chain.PAGES) for key in self.coordinator._keys)

    async def life(self, *, cut_after: int | None, batches: int) -> None:
        """One life of a node with its client; returns at the power cut or when all is done."""
        self.disk.calls_until_cut = cut_after
        storage: SimStorageNode | None = None
        try:
            storage = SimStorageNode(LedgerStore(self.disk, STORE, self.rng), self.rng)
        except PowerCut:
            self.cuts += 1
            return
        except DiskFull:
            return
        work = asyncio.create_task(self.serve(storage, batches))
        await asyncio.wait({work, storage.dead}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            await work
        else:
            self.cuts += 1
        await end_all_tasks()

    async def serve(self, storage: SimStorageNode, batches: int) -> None:
        log = Log(
            node_id=1,
            coordinator=self.coordinator,
            ensembles=Ensembles(OneNode(1, storage)),
            clock=VirtualClock(),
            defaults=CONFIG,
            tail_bytes_max=self.rng.choice([0, 5_000, 1 << 20]),
        )
        await sweep(storage, self.coordinator)
        await log.load()
        await log.start()
        if not log.topics():
            await log.create_topic("t", partitions=1)
        await self.check_read(await served(log))
        goal = self.acknowledged + batches
        while self.acknowledged < goal:
            partition = await served(log)
            await self.send_round(partition, min(goal, self.acknowledged + 10))
            partition.roll()
        await self.check_read(await served(log))
        await log.close()

    async def send_round(self, partition: Partition, goal: int) -> None:
        """Keeps up to five in flight until one fails, then waits for the others."""
        outcomes: list[asyncio.Future[object]] = []
        at, failed = self.acknowledged, False
        while not failed and (at < goal or outcomes):
            while at < goal and len(outcomes) < IN_FLIGHT_MAX:
                while len(self.batches) <= at:
                    self.new_batch()
                raw = numbered(
                    self.batches[at],
                    sequence=self.sequence(at),
                    timestamp=VirtualClock().wall_ms(),
                )
                header = check_batch(raw, bytes_max=100_000)
                outcomes.append(partition.append(raw, header))  # type: ignore[arg-type]
                at += 1
            first = outcomes.pop(0)
            failed = not await self.note(first)
        for later in outcomes:
            if not failed:
                failed = not await self.note(later)
            else:
                with contextlib.suppress(DovetailError):
                    await later
        if failed:
            await asyncio.sleep(self.rng.random())

    async def note(self, outcome: "asyncio.Future[object]") -> bool:
        try:
            appended = await outcome
        except ProducerFenced:
            raise
        except DovetailError:
            return False
        expected = self.sequence(self.acknowledged)
        found = appended.base_offset  # type: ignore[attr-defined]
        assert found == expected, f"batch {self.acknowledged} is at {found}, not {expected}"
        self.acknowledged += 1
        return True

    async def check_read(self, partition: Partition) -> None:
        """Everything acknowledged is there, once, in order; more may be, if it was sent."""
        values = [value for batch in self.batches for value in batch]
        least = self.sequence(self.acknowledged)
        assert partition.high_watermark >= least, "acknowledged records are lost"
        offset = partition.log_start
        from_storage = self.rng.random() < 0.5
        while offset < partition.high_watermark:
            room = self.rng.choice([1, 3_000, 1 << 20])
            found = None if from_storage else read_from_tail(partition, offset, room)
            if found is None:
                found = await read_from_storage(partition, offset, room)
            assert found
            for batch in found:
                assert read_header(batch).base_offset <= offset, "a gap"
                for record in decode_batch(batch):
                    if record.offset >= offset:
                        assert record.offset == offset, "offsets jump"
                        assert record.value == values[offset], f"offset {offset} changed"
                        offset += 1
        if values and self.rng.random() < 0.3 and partition.high_watermark > partition.log_start:
            first = await offset_for_time(partition, 0)
            assert first is not None
            assert first.offset == partition.log_start


async def served(log: Log) -> Partition:
    """The partition, as soon as it is in service."""
    while True:
        assert all(error.retriable for error in log.broken().values()), log.broken()
        with contextlib.suppress(Unavailable):
            return log.partition("t", 0)
        await asyncio.sleep(1)


def run(seed: int) -> World:
    world = World(seed)
    for life in range(world.rng.randint(2, 5)):
        fault = world.rng.random()
        if fault < 0.1:
            world.disk.writes_until_full = world.rng.randint(0, 40)
            # The disk has room again a while later, as when an operator makes some.
        cut = None if life == 0 and fault > 0.9 else world.rng.randint(1, 90)
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            if world.disk.writes_until_full is not None:
                runner.get_loop().call_later(
                    3, lambda: setattr(world.disk, "writes_until_full", None)
                )
            runner.run(world.life(cut_after=cut, batches=40))
        world.disk.calls_until_cut = None
        world.disk.crash()
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(world.life(cut_after=None, batches=5))
    return world


def test_every_acknowledged_record_is_read_back_once_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """L4, L6, L9, K2, K4: power cuts, torn tails and a full disk; nothing lost, doubled, moved.

    L15: pages of chains hold one ledger here.
    """
    monkeypatch.setattr(chain, "PAGE_BYTES", 60)
    worlds = run_seeds(run, least=60)
    cuts = [world.cuts for world in worlds]
    assert sum(cuts) >= len(cuts), "the simulation hardly cut the power"
    assert sum(world.pages() > 1 for world in worlds) > len(worlds) // 2, "hardly any pages"
