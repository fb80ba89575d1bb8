"""The journal of a coordinator, kept in a partition of an internal topic.

Its records are stored like those of any partition: synced, fenced and, in a cluster, replicated;
the owner of the partition is the coordinator. To keep the journal short, the coordinator writes the
live state again and trims what lies before it. A crash in between leaves both, and replaying both
gives the same state.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from dovetail.clock import Clock
from dovetail.log.groups.journal import JournalRecord
from dovetail.log.open_ledger import Appended
from dovetail.log.partition import Partition
from dovetail.log.reading import read_from_storage
from dovetail.record_batch import decode_batch, encode_batch, read_header

GROUPS_TOPIC = "__dovetail_groups"

#: Bytes of records to a batch when the state is written anew.
_BATCH_BYTES = 256 * 1024

#: The journal is written anew when it has grown by this much, and to several times its live size.
_GROWTH_BYTES = 4 * 1024 * 1024
_GROWTH_FACTOR = 4

_READ_BYTES = 1024 * 1024


class Journaled(Protocol):
    """A coordinator's state, so that its journal can be kept short."""

    @property
    def loaded(self) -> bool:
        """Whether it knows what the journal holds."""
        ...

    def snapshot(self) -> list[JournalRecord]:
        """The live state as records, with what is on its way to the journal."""
        ...


class PartitionJournal:
    """A `GroupJournal` on one partition that this node owns."""

    def __init__(self, partition: Partition, clock: Clock) -> None:
        self._partition = partition
        self._clock = clock
        self._bytes_live = 0

    @property
    def term(self) -> int:
        """Under which the owner writes; a later coordinator has a higher one."""
        return self._partition.term

    async def append(self, records: Sequence[JournalRecord]) -> None:
        """Stores the records; raises what the partition raises."""
        await self._send(records)

    def _send(self, records: Sequence[JournalRecord]) -> "asyncio.Future[Appended]":
        pairs = [(record.key, record.value) for record in records]
        batch = memoryview(encode_batch(pairs, timestamp=self._clock.wall_ms()))
        return self._partition.append(batch, read_header(batch))

    async def replay(self) -> AsyncIterator[JournalRecord]:
        """Everything that is stored, in order."""
        offset = self._partition.log_start
        while offset < self._partition.high_watermark:
            for batch in await read_from_storage(self._partition, offset, _READ_BYTES):
                for record in decode_batch(batch):
                    if record.key is not None:
                        yield JournalRecord(record.key, record.value)
                offset = read_header(batch).offset_end

    async def shorten(self, coordinator: Journaled) -> None:
        """Writes the live state anew and trims what lies before, if that is worth it.

        A journal that is not loaded, or cannot be, is left as it is: its records are all there is.
        """
        if not coordinator.loaded:
            return
        grown = self._partition.payload_bytes
        if grown < max(_GROWTH_BYTES, _GROWTH_FACTOR * self._bytes_live):
            return

        start = self._partition.high_watermark
        sent: list[asyncio.Future[Appended]] = []
        chunk: list[JournalRecord] = []
        live = size = 0
        for record in coordinator.snapshot():
            chunk.append(record)
            size += len(record.key) + len(record.value or b"")
            if size >= _BATCH_BYTES:
                sent.append(self._send(chunk))
                live, size, chunk = live + size, 0, []
        if chunk:
            sent.append(self._send(chunk))

        appended = await asyncio.gather(*sent)
        self._bytes_live = live + size
        self._partition.roll()
        await self._partition.trim(appended[0].base_offset if appended else start)
