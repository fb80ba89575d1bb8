"""The due topics of a broker: stores incoming records in their timeline, appends what is due.

Every batch for a due topic comes through here. A batch without due records is appended as usual,
but after those that reached its partition earlier. A batch with due records is split (`records`);
it is acknowledged when its due records are in the timeline and then the rest is in the log. If the
owner dies in between, nothing was acknowledged; when an idempotent producer sends the batch again,
the timeline recognises it by the producer's sequence numbers, and the log does as usual.

If a record has the key of one that is being appended right now, it waits for that append and only
then takes the key: the other record no longer waits, so there is nothing to replace.
"""

import asyncio
import hashlib
import itertools
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Final

from dovetail.background import Tasks
from dovetail.clock import Clock
from dovetail.errors import DovetailError, Exists, InvalidBatch, InvalidInput, Unavailable
from dovetail.log.examining import Store
from dovetail.log.open_ledger import Appended
from dovetail.log.partition import Partition
from dovetail.log.service import Log
from dovetail.log.topic import TopicRecord
from dovetail.logging import get_logger
from dovetail.node.due.pump import Pump
from dovetail.node.due.records import Split, in_doubt, split
from dovetail.record_batch import CODEC_MASK, BatchHeader
from dovetail.timeline.config import TimelineConfig, check_name
from dovetail.timeline.message import BUCKETS_MAX, BatchId, NewMessage, State, Status
from dovetail.timeline.running import RunningTimeline
from dovetail.timeline.service import TimelineService

_log = get_logger("due")

PREFIX: Final = "due."
#: Names of batches are kept so far back, in records of their producer: five batches of any size.
_SETTLED: Final = 5_000_000
#: Pause before an interrupted partition is served again.
_AGAIN_S: Final = 0.2
#: A plain batch of so many bytes is split at once: in under ten milliseconds, whatever it holds. A
#: larger one, or one that must be inflated, can take half a minute, and is split in a thread.
_AT_ONCE_BYTES: Final = 16 * 1024
#: How often, and for how long, a record waits for the one that has its key and is being appended.
#: That one is leased for less, so it is appended by then, or free.
_KEY_AGAIN_S: Final = 0.02
_KEY_AGAIN_MAX: Final = 3_000

Place = tuple[str, int]
Cut = Callable[[], Split | None]


class _Coming:
    """A batch of a partition on its way to a timeline."""

    __slots__ = ("before", "begun", "done")

    def __init__(self, before: "_Coming | None") -> None:
        #: The one that came before it, until its own turn.
        self.before = before
        #: Set when those before it are stored, and when it is stored itself, or was refused.
        self.begun, self.done = asyncio.Event(), asyncio.Event()


class DueTopics:
    """See the module. One for each broker."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._service: TimelineService | None = None
        #: Why nothing can wait here; empty while timelines are served, or are about to be.
        self._missing = ""
        self._tasks = Tasks()
        self._pumps: dict[Place, tuple[Pump, asyncio.Task[None]]] = {}
        #: The last batch of each partition that is on its way to a timeline.
        self._last: dict[Partition, _Coming] = {}
        self._making: dict[str, asyncio.Lock] = {}
        #: One batch is split at a time, or nobody else would have a thread.
        self._splitting = asyncio.Lock()

    def start(self, service: TimelineService | None) -> None:
        """Serves from now on what is owned here; nothing waits where no timelines are served."""
        self._service = service
        if service is None:
            self._missing = "this node serves no timelines, in which due records could wait"
            return
        self._log.owned.on_opened.append(self._opened)
        self._log.owned.on_gone.append(self._gone)
        for record in self._log.topics():
            for number in range(record.partitions):
                partition = self._log.owned.open.get((record.name, number))
                if partition is not None:
                    self._opened(record, number, partition)

    async def stop(self) -> None:
        """Appends nothing more."""
        await self._tasks.stop()

    # What comes

    def append(
        self, partition: Partition, topic: str, number: int, batch: memoryview, header: BatchHeader
    ) -> "asyncio.Future[Appended]":
        """Stores a checked batch. The future raises what `Partition.append` does.

        Raises `InvalidBatch` for due records that cannot be.
        """
        record = self._log.topic(topic)
        pending = self._pending(record, batch, header)
        if pending is None and partition not in self._last:
            return partition.append(batch, header)

        coming = _Coming(self._last.get(partition))
        storing = self._store(coming, partition, record, number, batch, header, pending)
        return self._begin(partition, topic, coming, storing)

    def append_now(
        self,
        partition: Partition,
        append: Store,
        topic: str,
        number: int,
        batch: memoryview,
        header: BatchHeader,
    ) -> "asyncio.Future[Appended]":
        """Stores a checked batch of a transaction: what of it is due later is in doubt until that
        has ended."""
        record = self._log.topic(topic)
        pending = self._pending(record, batch, header)
        if pending is None and partition not in self._last:
            return append(batch, header)

        coming = _Coming(self._last.get(partition))
        storing = self._store_in_doubt(coming, append, record, number, batch, header, pending)
        return self._begin(partition, topic, coming, storing)

    def _pending(
        self, record: TopicRecord, batch: memoryview, header: BatchHeader
    ) -> Split | Cut | None:
        """What of a batch waits, or how to find that out later; None if all of it is due now."""
        cut = partial(split, batch, header, topic_id=record.id, now_ms=self._clock.wall_ms())
        if not _at_once(batch, header):
            return cut
        found = cut()
        if found is not None:
            self._check(record.name)
        return found

    def _check(self, topic: str) -> None:
        if self._missing:
            raise InvalidBatch(self._missing)
        try:
            timeline_name(topic)
        except InvalidInput as error:
            raise InvalidBatch(f"due records of {topic!r} have no place: {error}") from error

    def _begin(
        self,
        partition: Partition,
        topic: str,
        coming: _Coming,
        storing: Coroutine[None, None, Appended],
    ) -> "asyncio.Task[Appended]":
        """Stores a batch behind those that came to its partition before."""
        task = self._tasks.start(storing, name="due/store", of=topic, expected=(DovetailError,))
        self._last[partition] = coming
        task.add_done_callback(partial(self._stored, partition, coming))
        return task

    def _stored(self, partition: Partition, coming: _Coming, _: object) -> None:
        coming.begun.set()
        coming.done.set()
        if self._last.get(partition) is coming:
            del self._last[partition]

    async def _in_turn(self, coming: _Coming, pending: Split | Cut | None) -> Split | None:
        """What of a batch waits; returns when those that came before it are stored.

        It is split while the one before it is being stored, so that neither the timeline nor the
        processor waits; those behind it are not, or they would all be held in memory."""
        before = coming.before
        try:
            if before is not None:
                await before.begun.wait()
            return await self._aside(pending) if callable(pending) else pending
        finally:
            # Also if it is refused: the next one waits for it, and so for those before it. One that
            # was cancelled before it began has waited for nobody.
            while before is not None:
                await before.done.wait()
                before = before.before
            coming.before = None
            coming.begun.set()

    async def _store(
        self,
        coming: _Coming,
        partition: Partition,
        record: TopicRecord,
        number: int,
        batch: memoryview,
        header: BatchHeader,
        pending: Split | Cut | None,
    ) -> Appended:
        found = await self._in_turn(coming, pending)
        if found is None:
            return await partition.append(batch, header)

        self._check(record.name)
        await self._keep(await self._timeline(record), number, header, found.waiting)
        self._note_stored(record, number, found.waiting)
        if found.batch is None:
            return Appended(-1, -1)
        return await partition.append(found.batch, found.header)

    async def _store_in_doubt(
        self,
        coming: _Coming,
        append: Store,
        record: TopicRecord,
        number: int,
        batch: memoryview,
        header: BatchHeader,
        pending: Split | Cut | None,
    ) -> Appended:
        """Appends first, for the offset. If this owner dies in between, the batch is not answered:
        its producer sends it again, or the transaction is aborted."""
        found = await self._in_turn(coming, pending)
        if found is None:
            return await append(batch, header)

        self._check(record.name)
        running = await self._timeline(record)
        assert found.batch is not None
        appended = await append(found.batch, found.header)
        now_ms = self._clock.wall_ms()
        waiting = [
            in_doubt(each, appended.base_offset, header.producer_id, now_ms=now_ms)
            for each in found.waiting
        ]
        await self._keep(running, number, header, waiting)
        self._note_stored(record, number, waiting)
        return appended

    def _note_stored(self, record: TopicRecord, number: int, waiting: list[NewMessage]) -> None:
        if (record.name, number) not in self._pumps:
            # The topic is one of due records since a moment ago.
            self._opened(record, number, self._log.partition(record.name, number))
        self._pumps[record.name, number][0].stored(min(each.due_ms for each in waiting))

    async def _aside(self, cut: Cut) -> Split | None:
        """Splits a batch beside the event loop."""
        async with self._splitting:
            return await asyncio.to_thread(cut)

    async def _keep(
        self,
        running: RunningTimeline,
        number: int,
        header: BatchHeader,
        waiting: Sequence[NewMessage],
    ) -> None:
        """Stores what waits, in the timeline. Raises `Unavailable`.

        Each attempt has a name of its own: what one of them was told is told to it again.
        """
        for attempt in itertools.count():
            now_ms, name = self._clock.wall_ms(), _batch_id(number, header, attempt)
            outcomes = await running.use(
                "insert",
                lambda store, new=waiting, name=name, now_ms=now_ms: store.insert(  # type: ignore[misc]
                    new, buckets=[number] * len(new), now_ms=now_ms, batch=name
                ),
            )
            pairs = zip(waiting, outcomes, strict=True)
            waiting = [message for message, outcome in pairs if outcome.status is Status.EXISTS]
            if not waiting:
                return
            await self._until_appended(running, [message.key or "" for message in waiting])

    async def _until_appended(self, running: RunningTimeline, keys: Sequence[str]) -> None:
        """Waits until nothing with these keys is being appended."""
        for _ in range(_KEY_AGAIN_MAX):
            now_ms = self._clock.wall_ms()
            shown = await running.use(
                "look",
                lambda store, now_ms=now_ms: store.look_up_keys(keys, now_ms=now_ms),  # type: ignore[misc]
            )
            if all(one is None or one.state is not State.LEASED for one in shown):
                return
            await asyncio.sleep(_KEY_AGAIN_S)
        raise Unavailable("a record with the same dovetail-key is being appended; send again")

    async def _timeline(self, record: TopicRecord) -> RunningTimeline:
        """The timeline of a topic, made if it is not there. Raises `Unavailable`."""
        name = timeline_name(record.name)
        async with self._making.setdefault(name, asyncio.Lock()):
            if self._service is None:
                raise Unavailable("timelines are not served yet; try again")
            if name not in self._service.timelines:
                try:
                    config = TimelineConfig(
                        buckets=BUCKETS_MAX, topic=record.name, attempts_max=10_000
                    )
                    await self._service.create(name, config)
                except Exists:
                    pass
        return self._running(record.name)

    def _running(self, topic: str) -> RunningTimeline:
        found, name = self._found(topic), timeline_name(topic)
        if found is None:
            raise Unavailable(f"timeline {name!r} is not served here yet")
        if found.record.config.topic != topic:
            raise InvalidBatch(
                f"due records of {topic!r} have no place: there is a timeline {name!r} that is not "
                "of this topic"
            )
        return found

    def _found(self, topic: str) -> RunningTimeline | None:
        """What has the name of the topic's timeline; it may be somebody's own."""
        return None if self._service is None else self._service.timelines.get(timeline_name(topic))

    # What is due

    def _opened(self, record: TopicRecord, number: int, partition: Partition) -> None:
        place = (record.name, number)
        self._gone(record.name, number)
        try:
            found = self._found(record.name)
        except InvalidInput:
            return
        if not partition.config.due and (found is None or found.record.config.topic != record.name):
            partition.producers.due_settled = True  # Nothing waits.
            return
        pump = Pump(
            partition,
            number,
            record.id,
            timeline=partial(self._running, record.name),
            now_ms=self._now_ms,
        )
        task = self._tasks.keep(partial(self._pump, pump, place), name="due/pump", of=record.name)
        self._pumps[place] = (pump, task)

    def _gone(self, topic: str, number: int, *_: object) -> None:
        found = self._pumps.pop((topic, number), None)
        if found is not None:
            found[1].cancel()

    async def _pump(self, pump: Pump, place: Place) -> None:
        while True:
            try:
                await pump.run()
            except DovetailError as error:
                _log.debug("due records wait", topic=place[0], partition=place[1], error=str(error))
                await asyncio.sleep(_AGAIN_S)

    def _now_ms(self) -> int | None:
        """The present; None while our clock is off."""
        assert self._service is not None
        return None if self._service.health.drift_reason else self._clock.wall_ms()


def timeline_name(topic: str) -> str:
    """Where the records of a topic wait. Raises `InvalidInput` if its name is too long."""
    return check_name(PREFIX + topic)


def _at_once(batch: memoryview, header: BatchHeader) -> bool:
    """Whether splitting the batch takes no time to speak of."""
    return not header.attributes & CODEC_MASK and len(batch) <= _AT_ONCE_BYTES


def _batch_id(partition: int, header: BatchHeader, attempt: int) -> BatchId | None:
    """What an idempotent producer's batch is known by; None for another one's."""
    if header.producer_id < 0:
        return None
    named = b"%d %d %d" % (header.producer_id, header.producer_epoch, partition)
    if attempt:
        named += b" %d" % attempt
    producer = int.from_bytes(hashlib.blake2b(named, digest_size=8).digest()) >> 1
    return BatchId(producer, header.base_sequence, max(0, header.base_sequence - _SETTLED))
