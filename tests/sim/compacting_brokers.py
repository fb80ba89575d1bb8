"""The simulated cluster of brokers with compacted topics: whoever owns a partition compacts it.

Records have one of a few keys. A record that is not read must have a later one of its key that is
stored; everything else is as in `broker_world.py`, whose faults fall between any two steps of a
pass: brokers die, stand still and go on as zombies, storage nodes lose power, answers are lost.
"""

import asyncio
import dataclasses
import zlib

from tests.sim.broker_clients import ANSWER_WAIT_S, Stream, ask
from tests.sim.broker_history import Author
from tests.sim.broker_world import World
from tests.sim.brokers import CLOCK, Life

from dovetail.buffers import Buffer
from dovetail.errors import Damaged, TopicUnknown
from dovetail.log.catalog import partition_key
from dovetail.log.compaction.compactor import CompactionSettings, Compactor
from dovetail.log.partition import Partition
from dovetail.log.reading import read_from_storage, read_from_tail
from dovetail.log.service import Log
from dovetail.record_batch import decode_batch, read_header
from dovetail.storage import chain

SETTINGS = CompactionSettings(check_ms=300, memory_bytes=1, bytes_per_second=1 << 40)
KEYS = 5


class CompactingLife(Life):
    """A broker that compacts what it owns."""

    compaction: "asyncio.Task[None] | None" = None

    def made(self, log: Log) -> None:
        self._log = log

    async def started(self) -> None:
        compactor = Compactor(clock=CLOCK, settings=SETTINGS)
        self.compaction = asyncio.get_running_loop().create_task(
            compactor.run(self._log.partitions), context=self.process.context.copy()
        )


class KeyedStream(Stream):
    """A partition of which some records go."""

    def key_of(self, value: bytes) -> bytes:
        return b"%d" % (zlib.crc32(value) % KEYS)

    async def read(self, life: Life, *, offset: int, everything: bool) -> int:
        async def work() -> tuple[list[Buffer], Partition]:
            partition = self.open_at(life)
            if partition is None:
                raise TopicUnknown("not here any more")
            if offset >= partition.high_watermark:
                return [], partition
            found = None if everything else read_from_tail(partition, offset, 2_000)
            try:
                return found or await read_from_storage(partition, offset, 2_000), partition
            except Damaged:
                if self.deleted or self._is_anothers(life, partition):
                    raise TopicUnknown("what it had another has compacted") from None
                raise

        found, partition = await ask(life, work, wait_s=ANSWER_WAIT_S)
        records = [r for batch in found for r in decode_batch(batch) if r.offset >= offset]
        for record in records:
            value = self.values[record.offset]
            assert (record.key, record.value) == (self.key_of(value), value), f"{self}: changed"
        behind = read_header(found[-1]).offset_end if found else offset
        self._check_gaps({r.offset for r in records}, offset, behind, partition.high_watermark)
        return behind

    def _is_anothers(self, life: Life, partition: Partition) -> bool:
        """Whether a newer owner may have deleted ledgers that this broker believes in."""
        stored = life._client._service.look(partition_key(self.topic_id, self.number))
        return stored is None or chain.decode(stored.value).term != partition.term

    def _check_gaps(self, read: set[int], first: int, behind: int, end: int) -> None:
        for number in set(range(first, min(behind, self.records_acknowledged))) - read:
            key = self.key_of(self.values[number])
            later = (self.key_of(value) for value in self.values[number + 1 : end])
            assert key in later, f"{self}: {number} is lost, the last one of {key!r}"


class CompactingWorld(World):
    """All its topics are compacted."""

    stream_type = KeyedStream

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        rest = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
        self.config = dataclasses.replace(self.config, rest=rest)

    def new_life(self, author: Author) -> Life:
        return CompactingLife(author, **self._surroundings(author))

    async def check_everything(self) -> None:
        """With compaction at rest. An append that is late brings a deleted ledger back, until the
        next sweep."""
        for life in self.live_ones():
            if isinstance(life, CompactingLife) and life.compaction is not None:
                life.compaction.cancel()
        await asyncio.sleep(2)
        await super().check_everything()
