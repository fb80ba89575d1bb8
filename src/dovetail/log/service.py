"""The log of one node: its topics, the partitions that it owns, and their upkeep.

Start: read the topics → finish what a crash left half-way → take over every partition → let go
ledgers that no chain names (a crash between trimming a chain and deleting a ledger leaves them).
A partition that can not be opened is out of service and says why; the others are served (B18).
"""

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Iterable

from dovetail.clock import Clock
from dovetail.coordination.protocol import Coordinator
from dovetail.errors import DovetailError, InvalidInput, NotOwner, TopicUnknown
from dovetail.ledger import Ensembles, LedgerId, StorageNode
from dovetail.log import chain
from dovetail.log.catalog import Catalog, IdBlocks, partition_key
from dovetail.log.partition import Partition, PartitionContext
from dovetail.log.tail import TailBudget
from dovetail.log.topic import (
    TopicConfig,
    TopicRecord,
    TopicState,
    check_config,
    check_name,
    check_partitions,
)
from dovetail.logging import get_logger

_log = get_logger("log")

#: Partitions that are opened or closed at the same time. Their writes share syncs, and each may
#: hold 2 MB that it reads: 1000 partitions with 10 MB each need 340 MB at 128, 140 MB at 32.
_AT_ONCE = 32

#: A partition that could not be opened for want of something that may come back is tried again.
REOPEN_MS = 1000

#: Ledger ids taken at once; one costs nothing, and a block is lost at each start.
_LEDGER_BLOCK = 100

#: Producer ids taken at once. Kafka takes as many.
_PRODUCER_BLOCK = 1000


class Log:
    """Topics and partitions of this node."""

    def __init__(
        self,
        *,
        node_id: int,
        coordinator: Coordinator,
        ensembles: Ensembles,
        clock: Clock,
        defaults: TopicConfig,
        tail_bytes_max: int,
        swept: StorageNode | None = None,
    ) -> None:
        """`swept` is the storage node that holds ledgers of this log alone, if there is one."""
        self._ensembles = ensembles
        self._swept = swept
        self._clock = clock
        self._defaults = defaults
        self._catalog = Catalog(coordinator)
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._broken: dict[tuple[str, int], DovetailError] = {}
        self._ledger_ids = IdBlocks(coordinator, "ledger", block=_LEDGER_BLOCK)
        self._producer_ids = IdBlocks(coordinator, "producer", block=_PRODUCER_BLOCK)
        self._context = PartitionContext(
            node_id,
            coordinator,
            ensembles,
            clock,
            TailBudget(tail_bytes_max),
            self._next_ledger_id,
            self._on_lost,
        )
        self._background: set[asyncio.Task[None]] = set()
        self._deletions: set[asyncio.Task[None]] = set()
        #: Called with the topic's name when it is deleted.
        self.on_deleted: list[Callable[[str], None]] = []

    async def _next_ledger_id(self) -> LedgerId:
        return LedgerId(await self._ledger_ids.next())

    async def next_producer_id(self) -> int:
        """An id for an idempotent producer."""
        return await self._producer_ids.next()

    async def start(self) -> None:
        """Takes over everything; serves when it returns."""
        referenced: set[int] = set()
        topics = await self._catalog.load()
        for record in topics:
            for partition in await self._catalog.partitions(record.id):
                referenced.update(info.ledger for info in partition.ledgers)
        if self._swept is not None:
            for ledger in await self._swept.ledgers() - referenced:
                await self._swept.delete(LedgerId(ledger))
        for record in topics:
            if record.state is TopicState.DELETING:
                self._start_deletion(record)
            elif record.state is TopicState.CREATING:
                await self._finish_creation(record)
        await self._gather(
            self._open_partition(record, number)
            for record in topics
            if record.state is TopicState.READY
            for number in range(record.partitions)
        )

    async def close(self) -> None:
        """Gives every partition back."""
        for task in tuple(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._gather(self._close_partition(p) for p in self._partitions.values())
        self._partitions.clear()

    async def _close_partition(self, partition: Partition) -> None:
        try:
            await partition.close()
        except DovetailError as error:
            _log.warning("partition not closed cleanly", partition=partition.name, error=str(error))

    async def _gather(self, work: Iterable[Coroutine[None, None, None]]) -> None:
        limit = asyncio.Semaphore(_AT_ONCE)

        async def one(job: Coroutine[None, None, None]) -> None:
            async with limit:
                await job

        await asyncio.gather(*(one(job) for job in work))

    # Topics

    def topics(self) -> list[TopicRecord]:
        """The topics that clients see."""
        return self._catalog.ready()

    def topic(self, name: str) -> TopicRecord:
        """Raises `TopicUnknown`."""
        return self._catalog.topic(name)

    def topic_by_id(self, topic_id: str) -> TopicRecord:
        """Raises `TopicUnknown`."""
        return self._catalog.topic_by_id(topic_id)

    def config(self, record: TopicRecord) -> TopicConfig:
        """The topic's settings with defaults filled in."""
        return self._defaults.with_overrides(record.config)

    def partition(self, name: str, number: int) -> Partition:
        """Raises `TopicUnknown`, or what keeps the partition out of service."""
        found = self._partitions.get((name, number))
        if found is not None:
            return found
        if (name, number) in self._broken:
            raise self._broken[name, number]
        raise TopicUnknown(f"there is no partition {number} of topic {name!r}")

    def partitions(self) -> list[Partition]:
        """All partitions that are served."""
        return list(self._partitions.values())

    def broken(self) -> dict[tuple[str, int], DovetailError]:
        """Partitions that are out of service, and why."""
        return self._broken

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int,
        config: dict[str, str] | None = None,
        internal: bool = False,
        check_only: bool = False,
    ) -> TopicRecord:
        """Raises `InvalidInput` or `TopicExists`, with nothing changed."""
        check_name(name)
        check_partitions(partitions)
        check_config(config or {})
        record = TopicRecord(
            name,
            uuid.uuid4().hex,
            partitions,
            self._clock.wall_ms(),
            config=config or {},
            internal=internal,
        )
        self._catalog.check_free(name)
        if check_only:
            return record
        await self._catalog.announce(record)
        return await self._finish_creation(record)

    async def _finish_creation(self, record: TopicRecord) -> TopicRecord:
        await self._catalog.register_partitions(record)
        await self._gather(self._open_partition(record, n) for n in range(record.partitions))
        return await self._catalog.change(record.name, state=TopicState.READY)

    async def delete_topic(self, name: str) -> None:
        """Clients see it no more when this returns; its bytes go in the background."""
        record = self.topic(name)
        record = await self._catalog.change(name, state=TopicState.DELETING)
        for listener in self.on_deleted:
            listener(name)
        self._start_deletion(record)

    def _start_deletion(self, record: TopicRecord) -> None:
        task = self._start(self._delete_until_done(record))
        self._deletions.add(task)
        task.add_done_callback(self._deletions.discard)

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Runs work in the background, until the log is closed."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def deletions_done(self) -> None:
        """Waits until no deletion is under way."""
        if self._deletions:
            await asyncio.wait(self._deletions)

    async def _delete_until_done(self, record: TopicRecord) -> None:
        while True:
            try:
                await self._finish_deletion(record)
                return
            except DovetailError as error:
                _log.warning("deletion goes on later", topic=record.name, error=str(error))
                await asyncio.sleep(REOPEN_MS / 1000)

    async def _finish_deletion(self, record: TopicRecord) -> None:
        for number in range(record.partitions):
            partition = self._partitions.pop((record.name, number), None)
            self._broken.pop((record.name, number), None)
            if partition is not None:
                await self._close_partition(partition)
        for stored in await self._catalog.partitions(record.id):
            for info in stored.ledgers:
                await self._ensembles.delete(info.placement)
        await self._catalog.remove(record)

    async def add_partitions(self, name: str, total: int, *, check_only: bool = False) -> None:
        """Raises `InvalidInput` if `total` is not more than there are."""
        record = self.topic(name)
        check_partitions(total)
        if total <= record.partitions:
            raise InvalidInput(
                f"topic {name!r} has {record.partitions} partitions; it can only get more"
            )
        if check_only:
            return
        more = await self._catalog.change(name, partitions=total)
        await self._catalog.register_partitions(more, first=record.partitions)
        await self._gather(
            self._open_partition(more, number) for number in range(record.partitions, total)
        )

    async def alter_config(
        self, name: str, config: dict[str, str], *, check_only: bool = False
    ) -> None:
        """Replaces the topic's own settings. Raises `InvalidInput`."""
        record = self.topic(name)
        check_config(config)
        if check_only:
            return
        record = await self._catalog.change(name, config=config)
        for number in range(record.partitions):
            found = self._partitions.get((name, number))
            if found is not None:
                found.config = self.config(record)

    async def _open_partition(self, record: TopicRecord, number: int) -> None:
        key, name = partition_key(record.id, number), f"{record.name}-{number}"
        try:
            partition = await Partition.open(self._context, key, name, self.config(record))
        except DovetailError as error:
            if (record.name, number) not in self._broken:
                _log.error("partition out of service", partition=name, error=str(error))
            self._broken[record.name, number] = error
            if error.retriable:
                self._start(self._open_later(record, number))
            return
        if not self._catalog.lives(record):  # It was deleted while it was being opened.
            await self._close_partition(partition)
            return
        if self._broken.pop((record.name, number), None) is not None:
            _log.info("partition back in service", partition=name)
        self._partitions[record.name, number] = partition

    def _on_lost(self, partition: Partition, error: NotOwner) -> None:
        """It had another owner for a while; this node is the one that serves, so it tries again."""
        for place, known in self._partitions.items():
            if known is partition:
                del self._partitions[place]
                self._broken[place] = error
                _log.warning("partition lost", partition=partition.name, error=str(error))
                self._start(self._open_later(self._catalog.topic(place[0]), place[1]))
                return

    async def _open_later(self, record: TopicRecord, number: int) -> None:
        await asyncio.sleep(REOPEN_MS / 1000)
        if (record.name, number) in self._broken:
            await self._open_partition(record, number)

    # Upkeep

    async def maintain(self) -> None:
        """Closes old ledgers and lets expired ones go (L11)."""
        now_ms = self._clock.wall_ms()
        for partition in self.partitions():
            try:
                await _maintain(partition, now_ms)
            except DovetailError as error:
                _log.warning("retention failed", partition=partition.name, error=str(error))


async def _maintain(partition: Partition, now_ms: int) -> None:
    config = partition.config
    for ledger in partition.open_ledgers[-1:]:
        age_ms = now_ms - ledger.info.opened_ms
        expired = (
            0
            <= config.retention_ms
            < now_ms - max(ledger.index.timestamp_max, ledger.info.opened_ms)
        )
        if ledger.index.payload_bytes and (age_ms >= config.ledger_age_ms_max or expired):
            partition.roll()
    log_start = chain.expired_before(
        partition.record,
        now_ms=now_ms,
        retention_ms=config.retention_ms,
        retention_bytes=config.retention_bytes,
        open_bytes=partition.open_bytes,
    )
    if log_start > partition.log_start:
        await partition.trim(log_start)
