"""A compacted partition over many lives of a node on a faulty disk, and a reader that checks it.

A client has one thing on its way at a time: a batch of an idempotent producer, a batch of a
transaction, or the transaction's end; what has no answer is sent again, under its old numbers, in
this life or the next. Meanwhile ledgers are closed, the compactor works with a map of a few keys,
a reader of what is committed reads from the start, and the storage node sweeps. A life ends by a
power cut in the middle of a system call, or cleanly; answers of the coordination service get lost.
"""

import asyncio
import contextlib
import random
from dataclasses import dataclass

from tests.faulty_disk import FaultyDisk
from tests.sim.world import (
    MemoryCoordinator,
    PowerCut,
    SimStorageNode,
    VirtualLoop,
    end_all_tasks,
)

from dovetail.coordination import protocol
from dovetail.errors import CoordinationDown, DiskFull, Unavailable, Uncertain
from dovetail.log.compaction.compactor import CompactionSettings, Compactor
from dovetail.log.partition import Partition
from dovetail.log.producers import AbortedRange
from dovetail.log.reading import known_aborted, read_committed, read_from_tail
from dovetail.log.service import Log
from dovetail.log.topic import TopicConfig
from dovetail.record_batch import (
    CONTROL,
    TRANSACTIONAL,
    Marker,
    NewRecord,
    StoredRecord,
    build_batch,
    build_marker,
    decode_batch,
    read_header,
)
from dovetail.storage import Ensembles, Entry, EntryId, LedgerId, OneNode
from dovetail.storage.chain import PARTITIONS
from dovetail.storage.disk.options import StoreSettings
from dovetail.storage.disk.store import LedgerStore
from dovetail.storage.repair.sweeping import sweep

STORE = StoreSettings(segment_bytes=20_000, disk_free_bytes_min=0, reserve_bytes=8_000)
CONFIG = TopicConfig(
    retention_ms=-1,
    retention_bytes=-1,
    ledger_bytes_max=4_000,
    ledger_age_ms_max=1 << 40,
    batch_bytes_max=100_000,
)
TOMBSTONES_MS = 400
SETTINGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": str(TOMBSTONES_MS),
}
KEYS = [b"a", b"b", b"c", b"d", b"e", b"f"]
PLAIN, TRANSACTED = 1, 7


@dataclass(frozen=True)
class Step:
    """Something that the client does: a batch, or the end of a transaction."""

    producer: int
    pairs: tuple[tuple[bytes, bytes | None], ...] = ()
    sequence: int = 0
    transaction: int = 0
    commit: bool | None = None

    def batch(self, timestamp: int) -> memoryview:
        if self.commit is not None:
            marker = Marker(self.producer, 0, self.commit, 1, self.transaction)
            return memoryview(build_marker(marker, timestamp=timestamp))
        records = [NewRecord(timestamp, key, value) for key, value in self.pairs]
        made = build_batch(
            records,
            producer_id=self.producer,
            producer_epoch=0,
            sequence=self.sequence,
            attributes=TRANSACTIONAL if self.transaction else 0,
        )
        return memoryview(bytearray(made))


@dataclass(frozen=True)
class Written:
    """A record that is stored, as the client knows it."""

    key: bytes
    value: bytes | None
    transaction: int
    at_ms: int


class WorldClock:
    """The loop's time, which goes on from life to life."""

    def __init__(self) -> None:
        self.before_s = 0.0

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + int(self.monotonic_ms())

    def monotonic_ms(self) -> float:
        return (self.before_s + asyncio.get_running_loop().time()) * 1000


class ForgetfulCoordinator(MemoryCoordinator):
    """Loses answers about chains, while it may."""

    loses = False
    #: Whether the next question has no answer either.
    down = False

    async def transact(self, changes, *, conditions=()):  # type: ignore[no-untyped-def]
        outcome = await super().transact(changes, conditions=conditions)
        about_chains = any(change.key.startswith(PARTITIONS) for change in changes)
        if self.loses and about_chains and self._rng.random() < 0.1:
            self.down = self._rng.random() < 0.5
            raise Uncertain("the answer is lost")
        return outcome

    async def get(self, key: str) -> protocol.KeyValue | None:
        if key.startswith(PARTITIONS) and self.loses and self.down:
            self.down = False
            raise CoordinationDown("no connection")
        return await super().get(key)


class SlowStorageNode(SimStorageNode):
    """Some reads take so long that a ledger is replaced meanwhile."""

    async def read(
        self, ledger: LedgerId, first: EntryId, *, last: EntryId, bytes_max: int
    ) -> list[Entry]:
        if self._rng.random() < 0.1:
            await asyncio.sleep(self._rng.random() * 0.02)
        return await super().read(ledger, first, last=last, bytes_max=bytes_max)


class CompactionWorld:
    """What outlives a node: the disk, the coordination service, and what the client knows."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disk = FaultyDisk(self.rng)
        self.disk.power_cut = PowerCut
        self.coordinator: MemoryCoordinator = ForgetfulCoordinator(self.rng)
        self.clock = WorldClock()
        self.written: dict[int, Written] = {}
        self.outcomes: dict[int, bool] = {}
        self.sequences = {PLAIN: 0, TRANSACTED: 0}
        self.transaction = 0
        self.step: Step | None = None
        self.open_records = 0
        self.values = 0
        self.offset_next = 0
        self.cuts = self.swaps = self.removed = 0

    # Lives

    def live(self, *, cut_after: int | None, steps: int, to_the_end: bool = False) -> None:
        """One life of a node; the power is cut after so many system calls."""
        self.disk.calls_until_cut = cut_after
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            if self.disk.writes_until_full is not None:
                runner.get_loop().call_later(
                    3, lambda: setattr(self.disk, "writes_until_full", None)
                )
            runner.run(self._life(steps, to_the_end=to_the_end))
            self.clock.before_s += runner.get_loop().time()
        if cut_after is not None:
            self.disk.calls_until_cut = None
            self.disk.crash()

    async def _life(self, steps: int, *, to_the_end: bool) -> None:
        try:
            storage = SlowStorageNode(LedgerStore(self.disk, STORE, self.rng), self.rng)
        except PowerCut:
            self.cuts += 1
            return
        except DiskFull:
            return
        work = asyncio.create_task(self._serve(storage, steps, to_the_end=to_the_end))
        await asyncio.wait({work, storage.dead}, return_when=asyncio.FIRST_COMPLETED)
        self.coordinator.loses = False  # type: ignore[attr-defined]
        if work.done():
            await work
        else:
            self.cuts += 1
        await end_all_tasks()

    async def _serve(self, storage: SimStorageNode, steps: int, *, to_the_end: bool) -> None:
        log = Log(
            node_id=1,
            coordinator=self.coordinator,
            ensembles=Ensembles(OneNode(1, storage)),
            clock=self.clock,
            defaults=CONFIG,
            tail_bytes_max=self.rng.choice([0, 500, 1 << 20]),
        )
        settings = CompactionSettings(check_ms=20, memory_bytes=1, bytes_per_second=1 << 40)
        compactor = Compactor(clock=self.clock, settings=settings)
        with contextlib.suppress(DiskFull):
            await sweep(storage, self.coordinator)
        await log.load()
        await log.start()
        if not log.topics():
            await log.create_topic("t", partitions=1, config=SETTINGS)
        await self.check_read(await served(log))
        self.coordinator.loses = not to_the_end  # type: ignore[attr-defined]

        beside = [
            asyncio.create_task(compactor.run(log.partitions)),
            asyncio.create_task(self._read_again(log)),
            asyncio.create_task(self._sweep_again(storage)),
        ]
        client = asyncio.create_task(self._send(log, steps, to_the_end=to_the_end))
        await asyncio.wait({client, *beside}, return_when=asyncio.FIRST_COMPLETED)
        for task in beside:
            if task.done():
                task.result()
        await client
        self.coordinator.loses = False  # type: ignore[attr-defined]
        if to_the_end:
            await self._settle(log, compactor, storage)

        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        self.removed += compactor.report.records_removed
        self.swaps += sum(partition.chain.swaps for partition in log.partitions())
        await self.check_read(await served(log))
        await log.close()

    async def _settle(self, log: Log, compactor: Compactor, storage: SimStorageNode) -> None:
        """Everything is compacted in the end, and nothing is left over."""
        partition = await served(log)
        end = partition.high_watermark
        for _ in range(200):
            if partition.record.closed_end < end:
                partition.roll()
            await asyncio.sleep(0.1)
            survey = await compactor.survey(partition)
            if survey.first_dirty == end and partition.record.rewriting is None:
                break
        else:
            raise AssertionError(f"not compacted in the end: {survey}")
        read = await self.check_read(partition)
        assert len({record.key for record in read}) == len(read), "a key is there twice"
        chains = (await sweep(storage, self.coordinator)).chains
        named = {info.ledger for chain in chains for info in chain.ledgers}
        assert await storage.ledgers() <= named, "ledgers are left over"

    async def _sweep_again(self, storage: SimStorageNode) -> None:
        while True:
            await asyncio.sleep(self.rng.random() * 0.02)
            with contextlib.suppress(DiskFull):
                await sweep(storage, self.coordinator)

    # The client

    async def _send(self, log: Log, steps: int, *, to_the_end: bool) -> None:
        while steps > 0 or (to_the_end and self.open_records):
            self.step = self.step or self._next_step(ends=steps <= 0)
            if not await self._try(await served(log), self.step):
                await asyncio.sleep(self.rng.random())
                continue
            self.step = None
            steps -= 1
            if self.rng.random() < 0.25:
                (await served(log)).roll()
            await asyncio.sleep(self.rng.random() * 0.01)

    def _next_step(self, *, ends: bool) -> Step:
        if self.open_records and (ends or self.rng.random() < 0.4):
            commit = self.rng.random() < 0.5
            return Step(TRANSACTED, transaction=self.transaction, commit=commit)
        in_transaction = self.rng.random() < (0.5 if self.open_records else 0.3)
        if in_transaction and not self.open_records:
            self.transaction += 1
        producer = TRANSACTED if in_transaction else PLAIN
        pairs = tuple(self._pair() for _ in range(self.rng.randint(1, 3)))
        number = self.transaction if in_transaction else 0
        return Step(producer, pairs, self.sequences[producer], number)

    def _pair(self) -> tuple[bytes, bytes | None]:
        self.values += 1
        key = self.rng.choice(KEYS)
        if self.rng.random() < 0.25:
            return key, None
        return key, b"%d/" % self.values + bytes(self.rng.choice([3, 300]))

    async def _try(self, partition: Partition, step: Step) -> bool:
        """Whether the step is done; the model says where everything lies."""
        if step.transaction and step.commit is None:
            partition.producers.admit(step.producer, 0, step.transaction)
        batch = step.batch(self.clock.wall_ms())
        try:
            appended = await partition.append(batch, read_header(batch))
        except (Unavailable, Uncertain):
            return False
        assert appended.base_offset == self.offset_next, "stored twice, or in another's place"
        for at, (key, value) in enumerate(step.pairs):
            self.written[self.offset_next + at] = Written(
                key, value, step.transaction, self.clock.wall_ms()
            )
        self.sequences[step.producer] += len(step.pairs)
        if step.commit is not None:
            self.outcomes[step.transaction] = step.commit
            self.open_records = 0
            self.offset_next += 1
        else:
            self.open_records += len(step.pairs) if step.transaction else 0
            self.offset_next += len(step.pairs)
        return True

    # The reader

    async def _read_again(self, log: Log) -> None:
        while True:
            await asyncio.sleep(self.rng.random() * 0.05)
            with contextlib.suppress(Unavailable, Uncertain):
                await self.check_read(log.partition("t", 0))

    async def check_read(self, partition: Partition) -> list[StoredRecord]:
        """Reads what is committed, from the start to the end, and compares it."""
        began_ms = self.clock.wall_ms()
        before, known = dict(self.written), dict(self.outcomes)
        end = partition.last_stable
        read: list[StoredRecord] = []
        offset = partition.log_start
        while offset < (stable := partition.last_stable):  # What goes may have come since it began.
            found, behind = await self._fetch(partition, offset, stable)
            # What is at its offset may have gone, with the next batch behind what was stable then.
            assert behind > offset or partition.last_stable > stable, "a reader does not get on"
            read += found
            offset = behind

        assert [r.offset for r in read] == sorted({r.offset for r in read}), "offsets go back"
        for record in read:
            written = self.written.get(record.offset)
            if written is None:
                assert self.step is not None, f"nobody wrote offset {record.offset}"
                continue  # Its answer is on the way.
            assert (record.key, record.value) == (written.key, written.value)
            assert self._committed(written), f"offset {record.offset} was aborted"

        self._check_last(read, before, known, end, began_ms)
        dirty = first_dirty(partition)
        for number, written in before.items():
            if dirty <= number < end and self._committed(written, known):
                assert any(r.offset == number for r in read), f"offset {number} is lost"
        return read

    async def _fetch(
        self, partition: Partition, offset: int, end: int
    ) -> tuple[list[StoredRecord], int]:
        """One answer as a client reads it, and the offset behind it."""
        room = self.rng.choice([1, 500, 1 << 20])
        batches = read_from_tail(partition, offset, room, end=end)
        aborted: list[AbortedRange] | None = None
        if batches:
            aborted = known_aborted(partition, offset, batches[-1])
        if not batches or aborted is None:
            batches, aborted = await read_committed(partition, offset, room, end=end)
        if not batches:
            return [], offset

        waiting = sorted(aborted, key=lambda found: found.first_offset)
        skipped: set[int] = set()
        read: list[StoredRecord] = []
        for batch in batches:
            header = read_header(batch)
            while waiting and waiting[0].first_offset < header.offset_end:
                skipped.add(waiting.pop(0).producer_id)
            if header.attributes & CONTROL:
                skipped.discard(header.producer_id)
            elif not (header.attributes & TRANSACTIONAL and header.producer_id in skipped):
                read += [record for record in decode_batch(batch) if record.offset >= offset]
        return read, read_header(batches[-1]).offset_end

    def _check_last(
        self,
        read: list[StoredRecord],
        before: dict[int, Written],
        known: dict[int, bool],
        end: int,
        began_ms: int,
    ) -> None:
        """The last record of each key is there; an old tombstone may be gone, with all before."""
        last = {record.key: record for record in read}
        newest: dict[bytes, int] = {}
        for offset, written in sorted(before.items()):
            if offset < end and self._committed(written, known):
                newest[written.key] = offset
        for key, offset in newest.items():
            found = last.get(key)
            if found is None:
                written = before[offset]
                assert written.value is None, f"the last record of {key!r}, {offset}, is lost"
                age_ms = self.clock.wall_ms() - written.at_ms
                assert age_ms >= TOMBSTONES_MS, f"the tombstone at {offset} went too soon"
            else:
                assert found.offset >= offset, f"{key!r} is at {found.offset}, not at {offset}"
        assert self.clock.wall_ms() - began_ms < TOMBSTONES_MS, "the reader was too slow"

    def _committed(self, written: Written, known: dict[int, bool] | None = None) -> bool:
        """Whether readers see the record; of a marker without an answer nobody knows."""
        outcomes = self.outcomes if known is None else known
        if not written.transaction:
            return True
        found = outcomes.get(written.transaction)
        if found is None and known is None and self.step is not None:
            return self.step.commit is True
        return bool(found)


def first_dirty(partition: Partition) -> int:
    """Where the part begins that was not compacted, if the chain has no pages."""
    if partition.chain.pages():
        return partition.high_watermark
    for info in partition.record.closed:
        if not info.is_compacted:
            return max(info.first_offset, info.compacted_to)
    return partition.record.closed_end


async def served(log: Log) -> Partition:
    """The partition, as soon as it is in service."""
    while True:
        assert all(error.retriable for error in log.broken().values()), log.broken()
        with contextlib.suppress(Unavailable, Uncertain):
            return log.partition("t", 0)
        await asyncio.sleep(1)


def run(seed: int) -> CompactionWorld:
    """Some lives that end somehow, and one that ends well."""
    world = CompactionWorld(seed)
    for life in range(world.rng.randint(2, 5)):
        if world.rng.random() < 0.1:
            world.disk.writes_until_full = world.rng.randint(0, 40)
        cut = None if life == 0 else world.rng.randint(1, 150)
        world.live(cut_after=cut, steps=30)
    world.live(cut_after=None, steps=10, to_the_end=True)
    return world
