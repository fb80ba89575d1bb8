"""A log on a real disk and a real embedded coordinator, in process."""

import asyncio
import random
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from crc32c import crc32c

from dovetail.clock import ManualClock
from dovetail.coordination import EmbeddedCoordinator
from dovetail.log.open_ledger import Appended
from dovetail.log.partition import Partition
from dovetail.log.reading import read_from_storage, read_from_tail
from dovetail.log.service import Log
from dovetail.log.topic import TopicConfig
from dovetail.record_batch import StoredRecord, check_batch, decode_batch, encode_batch, read_header
from dovetail.storage import (
    Ensembles,
    LedgerStore,
    LocalStorageNode,
    OneNode,
    RealDisk,
    StoreSettings,
)
from dovetail.storage.repair.sweeping import sweep

DEFAULTS = TopicConfig(
    retention_ms=-1,
    retention_bytes=-1,
    ledger_bytes_max=1 << 28,
    ledger_age_ms_max=1 << 40,
    batch_bytes_max=1 << 20,
)


class Bench:
    """One node's log; `restart` gives it back and takes it over again, or crashes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.disk: RealDisk
        self.clock = ManualClock()
        self.log: Log
        self.storage: LocalStorageNode
        self.coordinator: EmbeddedCoordinator

    async def start(self) -> None:
        self.coordinator = await EmbeddedCoordinator.open(
            self.folder / "coordination.sqlite", clock=self.clock
        )
        settings = StoreSettings(segment_bytes=1 << 20, disk_free_bytes_min=1)
        self.disk = RealDisk(self.folder / "ledgers")
        store = LedgerStore(self.disk, settings, random.Random(1))
        self.storage = LocalStorageNode(store)
        self.log = Log(
            node_id=1,
            coordinator=self.coordinator,
            ensembles=Ensembles(OneNode(1, self.storage)),
            clock=self.clock,
            defaults=DEFAULTS,
            tail_bytes_max=1 << 20,
        )
        await sweep(self.storage, self.coordinator)
        await self.log.load()
        await self.log.start()

    async def stop(self, *, crash: bool = False) -> None:
        if not crash:
            await self.log.close()
        await self.storage.close()
        await self.coordinator.close()

    async def restart(self, *, crash: bool = False) -> None:
        await self.stop(crash=crash)
        await self.start()

    async def topic(self, name: str = "t", **config: str) -> Partition:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        await self.log.create_topic(name, partitions=1, config=settings)
        return self.log.partition(name, 0)

    def send(
        self, partition: Partition, *values: bytes, timestamp: int | None = None
    ) -> "asyncio.Future[Appended]":
        stamped = self.clock.wall_ms() if timestamp is None else timestamp
        raw = memoryview(encode_batch([(None, value) for value in values], timestamp=stamped))
        return partition.append(raw, check_batch(raw, bytes_max=1 << 20))

    def send_numbered(
        self, partition: Partition, *values: bytes, sequence: int, producer: int = 1, epoch: int = 0
    ) -> "asyncio.Future[Appended]":
        raw = encode_batch([(None, value) for value in values], timestamp=self.clock.wall_ms())
        struct.pack_into(">qhi", raw, 43, producer, epoch, sequence)
        struct.pack_into(">I", raw, 17, crc32c(bytes(raw[21:])))
        batch = memoryview(raw)
        return partition.append(batch, check_batch(batch, bytes_max=1 << 20))


async def read_all(partition: Partition, *, tail: bool = True) -> list[StoredRecord]:
    """Every record, from memory where it is there unless `tail` is false."""
    found: list[StoredRecord] = []
    offset = partition.log_start
    while offset < partition.high_watermark:
        batches = read_from_tail(partition, offset, 100_000) if tail else None
        if batches is None:
            batches = await read_from_storage(partition, offset, 100_000)
        for batch in batches:
            found += [record for record in decode_batch(batch) if record.offset >= offset]
        offset = read_header(batches[-1]).offset_end
    return found


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    await made.start()
    yield made
    await made.stop()
