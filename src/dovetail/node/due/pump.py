"""One partition of a due topic: moves what is due from its timeline to the log, once.

    lease what is due → append it as one batch → delete it → lease the next

Promise: a record is appended once, whichever process dies between any two steps, and never early.

Why once: at most one batch lies between its append and its deletion, and each of its records names
the message it was, and its timeline (`records.ID`). All our batches have one producer, so the
partition's table of producers, which is a function of the log, has the offset of the last one. A
broker that begins to serve the partition reads that batch: the messages it names are in the log, so
the broker deletes them and does not append them. A former owner that wakes up is fenced by its
term, as with every append. The next owner takes the leases over under the same name, with new
versions, so it does not wait for them to end.

A record of a transaction waits in doubt until the transaction has ended (`records.Doubt`): the log
says how it ended, and any owner of the partition can read it there.

Compaction keeps that batch until the messages it names are deleted (`ProducerTable.held_from`).

Not covered: a batch that retention has removed cannot be found again. A record can therefore be
doubled if its owner died in between and no broker served the partition until the batch had expired.
"""

import asyncio
import hashlib
import itertools
from collections.abc import Callable, Sequence
from typing import Final

from dovetail.errors import InvalidInput, Unavailable
from dovetail.log.partition import Partition
from dovetail.log.reading import (
    aborted_between,
    read_from_storage,
    read_from_tail,
)
from dovetail.logging import get_logger
from dovetail.node.due.records import (
    PRODUCER_ID,
    Doubt,
    Origin,
    due_batch,
    names_in,
    record_of,
    without_doubt,
)
from dovetail.record_batch import SEQUENCE_END, NewRecord, read_header
from dovetail.timeline.message import BatchId, Leased, Release, State, Status
from dovetail.timeline.running import RunningTimeline
from dovetail.timeline.stores.protocol import LeaseAsk

_log = get_logger("due")

#: Messages that are leased at once: the most, at first and however large they are, and as many as
#: take so many bytes. A message has up to a megabyte, and what is leased is held in memory.
LEASED_MAX: Final = 500
LEASED_MIN: Final = 16
LEASED_BYTES: Final = 4 * 1024 * 1024
#: Bytes of one batch.
BATCH_BYTES: Final = 512 * 1024
#: A lease of the owner. It ends only if the partition has no owner for so long.
LEASE_MS: Final = 30_000
#: Pause while our clock is off, or the timeline is paused.
PAUSE_MS: Final = 1_000
#: Longest sleep. What is stored or moved meanwhile wakes us, whoever did it.
SLEEP_MS_MAX: Final = 60_000
#: Attempts of a message: it is leased again after each death of an owner.
ATTEMPTS_MAX: Final = 10_000
#: How often it is looked whether a transaction with a due record has ended.
DOUBT_MS: Final = 250
#: Pause while the partition cannot be read or written.
_AGAIN_S: Final = 0.05


class Pump:
    """See the module. One for each partition that this broker owns."""

    def __init__(
        self,
        partition: Partition,
        number: int,
        topic_id: str,
        *,
        timeline: Callable[[], RunningTimeline],
        now_ms: Callable[[], int | None],
    ) -> None:
        """`timeline` raises `Unavailable` while there is none; `now_ms` is None while our clock
        cannot be trusted."""
        self._partition = partition
        self._number = number
        self._topic_id = topic_id
        self._timeline = timeline
        self._now_ms = now_ms
        #: Names of messages that are in the log and may still be in the timeline.
        self._appended: set[str] = set()
        self._look_ms = 0
        #: How many messages are leased at once.
        self._limit = LEASED_MIN
        self._news = asyncio.Event()

    def stored(self, due_ms: int) -> None:
        """A record was stored that is due then."""
        if due_ms < self._look_ms:
            self._news.set()

    async def run(self) -> None:
        """Serves the partition until it is cancelled. Raises what interrupts it; begin again."""
        while self._partition.mending or not self._partition.serving:
            await asyncio.sleep(_AGAIN_S)
        self._appended = await self._last_appended()
        await self._take_up()
        while True:
            self._news.clear()
            self._look_ms = 1 << 62
            await self._sleep(await self._move())

    async def _sleep(self, next_ms: int) -> None:
        """Until something is due, or was stored that is due sooner."""
        now_ms = self._now_ms()
        if now_ms is None:
            await asyncio.sleep(PAUSE_MS / 1000)
            return
        self._look_ms = min(next_ms, now_ms + SLEEP_MS_MAX)
        try:
            async with asyncio.timeout(max(0, self._look_ms - now_ms) / 1000):
                await self._news.wait()
        except TimeoutError:
            pass

    async def _last_appended(self) -> set[str]:
        """The names of the messages of our last batch in the log."""
        known = self._partition.producers.known().get(PRODUCER_ID)
        if known is None or not known.batches:
            return set()
        offset = known.batches[-1].base_offset
        while offset >= self._partition.high_watermark:
            # It was sent by this owner, and is not confirmed yet.
            await asyncio.sleep(_AGAIN_S)
        if offset < self._partition.log_start:
            return set()
        found = read_from_tail(self._partition, offset, 1)
        if found is None:
            found = await read_from_storage(self._partition, offset, 1)
        batch = memoryview(found[0])
        header = read_header(batch)
        # An older version let compaction remove it: then the next one is somebody else's.
        ours = header.producer_id == PRODUCER_ID and header.base_offset == offset
        return names_in(batch, header) if ours else set()

    async def _take_up(self) -> None:
        """What a former owner has leased is ours, at once."""
        while True:
            now_ms = self._now_ms()
            if now_ms is None:
                raise Unavailable("the clock of this broker is off")
            held = await self._timeline().use(
                "held",
                lambda store, at=now_ms: store.take_up(  # type: ignore[misc]
                    self._name, known=(), now_ms=at, limit=LEASED_MIN
                ),
            )
            if not held:
                return
            await self._put(held)

    @property
    def _name(self) -> str:
        return f"owner of partition {self._number}"

    async def _move(self) -> int:
        """Moves what is due, and says when to look again."""
        now_ms = self._now_ms()
        timeline = self._timeline()
        timeline.pumps.add(self)
        if now_ms is None or timeline.record.config.paused:
            return (now_ms or 0) + PAUSE_MS
        number = self._number
        limit = self._limit
        ask = LeaseAsk(self._name, number, number + 1, now_ms, limit, LEASE_MS)
        result = await timeline.use(
            "lease",
            lambda store: store.lease([ask], now_ms=now_ms, attempts_max=ATTEMPTS_MAX),
        )
        (leased,) = result.leased
        await self._put(leased)
        size = sum(len(message.body) + len(message.headers) for message in leased)
        self._limit = next_limit(limit, count=len(leased), size=size)
        if len(leased) == limit:
            return now_ms
        # All that is due was leased, what is in the log already among it, and is deleted.
        self._partition.producers.due_settled = True
        times_ms = [at for at in (result.next_ms, result.ends_ms) if at is not None]
        return min(times_ms, default=now_ms + SLEEP_MS_MAX)

    async def _put(self, leased: Sequence[Leased]) -> None:
        """Appends what is not in the log yet, and deletes it all; batch by batch."""
        done = [message for message in leased if self._name_of(message) in self._appended]
        await self._delete(done)
        records: list[NewRecord] = []
        messages: list[Leased] = []
        size = 0
        for message in sorted(leased, key=lambda each: (each.due_ms, each.id)):
            if self._name_of(message) in self._appended:
                continue
            record = await self._record(message)
            if record is None:
                continue
            records.append(record)
            messages.append(message)
            size += len(message.body) + len(message.headers)
            if size >= BATCH_BYTES:
                await self._append(records, messages)
                records, messages, size = [], [], 0
        if records:
            await self._append(records, messages)

    def _name_of(self, message: Leased) -> str:
        """Ids are counted in each timeline: one that was deleted and made anew gives them again."""
        return f"{self._timeline().record.id}-{message.id}"

    async def _record(self, message: Leased) -> NewRecord | None:
        """The record; None for what is of no topic, or of one that was deleted."""
        try:
            origin, record = record_of(message, self._name_of(message))
        except InvalidInput as error:
            _log.warning("not a record", partition=self._partition.name, error=str(error))
            await self._reject(message, str(error))
            return None
        if origin.topic_id != self._topic_id:
            await self._delete([message])
            return None
        if origin.doubt is not None:
            await self._resolve(message, origin, origin.doubt)
            return None
        return record

    async def _resolve(self, message: Leased, origin: Origin, doubt: Doubt) -> None:
        """A record of a transaction goes when that was aborted, and waits for its time when it was
        committed: as another message, stored once under a name of this one."""
        now_ms = self._now_ms()
        if now_ms is None or doubt.offset >= self._partition.last_stable:
            await self._look_again(message, now_ms or message.due_ms)
            return
        if doubt.offset < self._partition.log_start:
            await self._reject(message, "nobody knows whether its transaction was committed")
            return
        if await self._is_aborted(doubt):
            await self._delete([message])
            return

        sure = without_doubt(message, origin)
        for attempt in itertools.count():
            # Under the next name, because what one was told is told to it again.
            if await self._is_being_appended(sure.key, now_ms):
                await self._look_again(message, now_ms)
                return
            name = _batch_id(f"{self._name_of(message)} {attempt}")
            (stored,) = await self._timeline().use(
                "insert",
                lambda store, name=name: store.insert(  # type: ignore[misc]
                    [sure], buckets=[self._number], now_ms=now_ms, batch=name
                ),
            )
            if stored.status is not Status.EXISTS:
                break
        await self._delete([message])
        self.stored(sure.due_ms)

    async def _is_being_appended(self, key: str | None, now_ms: int) -> bool:
        """Whether somebody appends a record with this key right now, perhaps we."""
        if key is None:
            return False
        (shown,) = await self._timeline().use(
            "look", lambda store: store.look_up_keys([key], now_ms=now_ms)
        )
        return shown is not None and shown.state is State.LEASED

    async def _is_aborted(self, doubt: Doubt) -> bool:
        found = await aborted_between(self._partition, doubt.offset, doubt.offset + 1)
        return any(each.producer_id == doubt.producer_id for each in found)

    async def _reject(self, message: Leased, reason: str) -> None:
        """Makes a dead letter of a message that cannot be appended."""
        release = Release(message.handle, message.due_ms, reason=reason, rejected=True)
        await self._timeline().use(
            "release",
            lambda store: store.release(
                [release], now_ms=message.due_ms, attempts_max=ATTEMPTS_MAX
            ),
        )

    async def _look_again(self, message: Leased, now_ms: int) -> None:
        """Its transaction is open: nothing was tried."""
        release = Release(message.handle, now_ms + DOUBT_MS, counted=False)
        await self._timeline().use(
            "release",
            lambda store: store.release([release], now_ms=now_ms, attempts_max=ATTEMPTS_MAX),
        )

    async def _append(self, records: list[NewRecord], messages: Sequence[Leased]) -> None:
        known = self._partition.producers.known().get(PRODUCER_ID)
        sequence = 0
        if known is not None and known.batches:
            sequence = (known.batches[-1].sequence_last + 1) % SEQUENCE_END
        batch = due_batch(records, sequence)
        self._partition.producers.due_settled = False
        await self._partition.append(memoryview(batch), read_header(batch))
        self._appended = {self._name_of(message) for message in messages}
        await self._delete(messages)

    async def _delete(self, messages: Sequence[Leased]) -> None:
        if messages:
            handles = [message.handle for message in messages]
            await self._timeline().use("delete", lambda store: store.delete(handles))


def next_limit(limit: int, *, count: int, size: int) -> int:
    """How many messages are leased next, after `count` of `size` bytes in all: twice as many at
    most, and no more of them than fit `LEASED_BYTES`, if they are as large."""
    fitting = LEASED_BYTES * count // size if size else limit * 2
    return max(LEASED_MIN, min(LEASED_MAX, limit * 2, fitting))


def _batch_id(name: str) -> BatchId:
    """What a record that was in doubt is stored under, once."""
    named = hashlib.blake2b(f"sure {name}".encode(), digest_size=8).digest()
    return BatchId(int.from_bytes(named) >> 1, 0)
