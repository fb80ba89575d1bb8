"""Events of a topic, on Dovetail or on Apache Kafka: all partitions, read by assignment.

No consumer group takes part: every replica reads everything. A thread polls the client, passes
batches to the event loop, and pauses when enough of them wait there. While nothing arrives, the
thread asks the broker for the end of a partition: a client that is cut off is as silent as one at
the end, and only an answer tells them apart.

Survives: brokers that go and return, within the quiet time and by itself; after that the reader
raises `Unavailable` and is reopened. Partitions that are added later are read from their start. A
position that the topic no longer holds (retention was shorter than the absence) is reported and
counted in `lost_count`, and reading continues with the first record that is left.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from dovetail.election import Position
from dovetail.election.kafka_client import ClientConfig, Poller, Value, consumer_config
from dovetail.errors import TopicUnknown, Unavailable
from dovetail.logging import get_logger
from dovetail.stream.source import Event

#: Batches that wait for the event loop before reading pauses.
BATCHES_WAITING_MAX = 4
#: Events in one batch.
BATCH_EVENTS_MAX = 1_000
#: A poll without events returns after this, so that a stop is noticed.
POLL_S = 0.05
#: A broker that answers later than this is taken for lost, however short the timeout is.
LOST_S_MIN = 1.0
#: Partitions that were added are found within this.
PARTITIONS_S = 10.0

_log = get_logger("stream")


class KafkaSource:
    """A topic as a source; a lane is a partition."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        timeout_ms: int = 5_000,
        config: ClientConfig | None = None,
    ) -> None:
        self._topic = topic
        self._timeout_s = max(timeout_ms / 1000, LOST_S_MIN)
        self._config: dict[str, Value] = {
            **consumer_config(bootstrap, timeout_ms, config or {}, group="dovetail-stream-source"),
            "auto.offset.reset": "earliest",
        }
        self._asker: Consumer | None = None
        self._asking = threading.Lock()
        #: Events between a position that was asked for and the first one that is left.
        self.lost_count = 0

    async def end(self) -> Position:
        try:
            return await asyncio.to_thread(self._ask_ends)
        except KafkaException as error:
            raise _unreached(self._topic, error) from error

    @asynccontextmanager
    async def read(self, position: Position) -> AsyncIterator[AsyncIterator[Sequence[Event]]]:
        reader = _Reader(self, self._config, self._topic, position, self._timeout_s)
        await asyncio.to_thread(reader.start)
        try:
            yield reader.batches()
        finally:
            await asyncio.to_thread(reader.close)

    @property
    def name(self) -> str:
        return self._topic

    async def close(self) -> None:
        await asyncio.to_thread(self._close_asker)

    def _ask_ends(self) -> dict[int, int]:
        with self._asking:
            if self._asker is None:
                self._asker = Consumer(self._config)
            return {
                lane: self._asker.get_watermark_offsets(
                    TopicPartition(self._topic, lane), timeout=self._timeout_s
                )[1]
                for lane in lanes_of(self._asker, self._topic, self._timeout_s)
            }

    def _close_asker(self) -> None:
        with self._asking:
            asker, self._asker = self._asker, None
            if asker is not None:
                asker.close()


def lanes_of(consumer: Consumer, topic: str, timeout_s: float) -> list[int]:
    """The partitions of the topic. Raises `TopicUnknown`."""
    found = consumer.list_topics(topic, timeout=timeout_s).topics.get(topic)
    if found is None or found.error is not None or not found.partitions:
        raise TopicUnknown(
            f"no topic {topic!r} to read events from; create it, for example with "
            f"`dovetail topic create {topic}`"
        )
    return sorted(found.partitions)


def _unreached(topic: str, error: KafkaException) -> Unavailable:
    return Unavailable(f"cannot reach the stream {topic!r}: {error.args[0].str()}")


class _Reader:
    """One reading: a consumer, its thread, and the batches that wait."""

    def __init__(
        self,
        source: KafkaSource,
        config: dict[str, Value],
        topic: str,
        position: Position,
        timeout_s: float,
    ) -> None:
        self._source = source
        self._topic = topic
        self._asked = dict(position)
        self._timeout_s = timeout_s
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Sequence[Event] | Unavailable] = asyncio.Queue()
        self._room = threading.Semaphore(BATCHES_WAITING_MAX)
        self._lanes: list[int] = []
        self._heard_s = self._looked_s = time.monotonic()
        self._poller: Poller | None = None

    def start(self) -> None:
        """Connects and assigns, on a thread of the pool. Raises `Unavailable`, `TopicUnknown`."""
        self._consumer = Consumer(self._config)
        try:
            self._lanes = lanes_of(self._consumer, self._topic, self._timeout_s)
            self._consumer.assign([self._at(lane) for lane in self._lanes])
        except KafkaException as error:
            self._consumer.close()
            raise _unreached(self._topic, error) from error
        except TopicUnknown:
            self._consumer.close()
            raise

        self._heard_s = self._looked_s = time.monotonic()
        self._poller = Poller(
            f"stream-{self._topic}",
            self._poll,
            lambda error: self._fail(f"reading {self._topic!r} met a defect: {error!r}"),
        )
        self._poller.start()

    def close(self) -> None:
        """Ends the thread, then the consumer; on a thread of the pool."""
        if self._poller is not None:
            self._poller.stop()
            self._room.release()
            self._poller.join()
            self._consumer.close()

    async def batches(self) -> AsyncIterator[Sequence[Event]]:
        """What the thread hands over."""
        while True:
            batch = await self._queue.get()
            if isinstance(batch, Unavailable):
                raise batch
            self._room.release()
            yield batch

    def _at(self, lane: int) -> TopicPartition:
        return TopicPartition(self._topic, lane, self._asked.get(lane, 0))

    # --- on the thread ----------------------------------------------------------------------------

    def _poll(self) -> None:
        first = self._consumer.poll(POLL_S)
        now_s = time.monotonic()
        if first is not None:
            rest = self._consumer.consume(BATCH_EVENTS_MAX - 1, 0)
            events = [self._event(m) for m in (first, *rest) if m.error() is None]
            if events:
                self._heard_s = now_s
                self._hand_over(events)
                return
        if now_s - self._heard_s > self._timeout_s / 3:
            self._look(now_s)

    def _look(self, now_s: float) -> None:
        """Nothing comes: is the stream there at all?"""
        try:
            lane = self._lanes[0]
            self._consumer.get_watermark_offsets(
                TopicPartition(self._topic, lane), timeout=self._timeout_s / 2, cached=False
            )
            if now_s - self._looked_s > PARTITIONS_S:
                self._looked_s = now_s
                self._add_lanes()
        except KafkaException as error:
            if time.monotonic() - self._heard_s > self._timeout_s:
                self._fail(f"the stream {self._topic!r} is lost: {error.args[0].str()}")
            return
        self._heard_s = time.monotonic()
        self._hand_over([])

    def _add_lanes(self) -> None:
        lanes = lanes_of(self._consumer, self._topic, self._timeout_s / 2)
        added = [lane for lane in lanes if lane not in self._lanes]
        if added:
            self._lanes = lanes
            self._consumer.incremental_assign([TopicPartition(self._topic, n, 0) for n in added])

    def _fail(self, reason: str) -> None:
        assert self._poller is not None
        self._poller.stop()
        self._loop.call_soon_threadsafe(self._queue.put_nowait, Unavailable(reason))

    def _hand_over(self, events: Sequence[Event]) -> None:
        assert self._poller is not None
        while not self._room.acquire(timeout=POLL_S):
            if self._poller.stopping:
                return
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._queue.put_nowait, events)

    def _note_lost(self, lane: int, asked: int, *, first_left: int) -> None:
        """Counts what was deleted; offsets of markers and of compacted records are gaps."""
        place = TopicPartition(self._topic, lane)
        try:
            start, _ = self._consumer.get_watermark_offsets(place, self._timeout_s, cached=False)
        except KafkaException:
            start = first_left
        lost = min(start, first_left) - asked
        if lost > 0:
            self._source.lost_count += lost
            _log.error(
                "events were deleted before they were read",
                topic=self._topic,
                lane=lane,
                asked=asked,
                first_left=first_left,
            )

    def _event(self, message: Message) -> Event:
        lane, offset = message.partition(), message.offset()
        assert lane is not None
        assert offset is not None
        asked = self._asked.pop(lane, None)
        if asked is not None and offset > asked:
            self._note_lost(lane, asked, first_left=offset)

        value = message.value()
        return Event(
            lane,
            offset,
            value or b"",
            message.key(),
            message.timestamp()[1],
            tuple(message.headers() or ()),  # type: ignore[arg-type] # Values come as bytes.
            stream=self._topic,
            tombstone=value is None,
        )
