"""Records of topics, read by place and written one at a time, with a short-lived Kafka client.

A read has bounds for everything: records to look at, records to keep, bytes to keep, time. What it
returns says how far it came, so that a reader can go on from there. The client's calls block, so
they run on a thread, a few at a time.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from dovetail.console.kafka_link import CALL_S_MAX, ClientConfig, KafkaLink, told, within
from dovetail.errors import DovetailError, Uncertain

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

#: Bytes of records that one read keeps; then it says that there is more.
READ_BYTES_MAX = 32 * 1024 * 1024
#: Reads at once. Each has a client, its threads and up to 16 MiB of records that it fetched ahead.
READS_MAX = 4

_BATCH = 500
_POLL_S = 0.25


@dataclass(frozen=True, slots=True)
class Record:
    """A record as it lies in a partition."""

    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: Literal["create", "append"]
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def size(self) -> int:
        """Bytes, about."""
        return len(self.key or b"") + len(self.value or b"") + 64 * len(self.headers) + 128

    def header(self, name: str) -> bytes | None:
        """The value of a header; None if there is none."""
        return next((value for key, value in self.headers if key == name), None)


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets of a partition, from `start` up to, not including, `end`."""

    partition: int
    start: int
    end: int


@dataclass(slots=True)
class Reading:
    """What a read found, and how far it came: the next offset of each partition."""

    records: list[Record] = field(default_factory=list)
    next: dict[int, int] = field(default_factory=dict)
    scanned: int = 0
    #: Whether everything was read that was asked for.
    complete: bool = True


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """When a read is enough."""

    scan: int
    keep: int | None = None
    bytes: int = READ_BYTES_MAX


def _everything(_: Record) -> bool:
    return True


class Reader:
    """Reads records; one for each node."""

    def __init__(self, link: KafkaLink) -> None:
        self._link = link
        self._turn = asyncio.Semaphore(READS_MAX)

    async def read(
        self,
        topic: str,
        spans: Iterable[Span],
        limits: ReadLimits,
        *,
        wanted: Callable[[Record], bool] = _everything,
    ) -> Reading:
        """The `wanted` records of these spans. Raises `TopicUnknown`, `Unavailable`."""
        spans = [span for span in spans if span.start < span.end]
        if not spans:
            return Reading()
        config = self._link.config()
        async with self._turn:
            work = self._link.threads.run(_read, config, topic, spans, limits, wanted)
            return await within(f"reading {topic!r}", work)


def _read(
    config: ClientConfig,
    topic: str,
    spans: Sequence[Span],
    limits: ReadLimits,
    wanted: Callable[[Record], bool],
) -> Reading:
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    consumer = Consumer(
        {
            **config,
            "group.id": "dovetail-console",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 50,
            "queued.min.messages": 1_000,
            "queued.max.messages.kbytes": 16 * 1024,
            "fetch.max.bytes": 8 * 1024 * 1024,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, span.partition, span.start) for span in spans])
        return _collect(consumer, topic, spans, limits, wanted)
    except KafkaException as error:
        raise told(f"reading {topic!r}", error) from error
    finally:
        consumer.close()


def _collect(
    consumer: "Consumer",
    topic: str,
    spans: Sequence[Span],
    limits: ReadLimits,
    wanted: Callable[[Record], bool],
) -> Reading:
    from confluent_kafka import KafkaError, KafkaException

    found = Reading(next={span.partition: span.start for span in spans})
    ends = {span.partition: span.end for span in spans}
    deadline_s, kept_bytes = time.monotonic() + CALL_S_MAX, 0
    while ends:
        if time.monotonic() > deadline_s:
            found.complete = False
            return found
        for message in consumer.consume(_BATCH, _POLL_S):
            partition, offset = message.partition(), message.offset()
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                ends.pop(partition or 0, None)
                continue
            if error is not None:
                raise KafkaException(error)
            if partition is None or offset is None or partition not in ends:
                continue
            if offset >= ends[partition]:
                del ends[partition]
                continue
            found.scanned += 1
            found.next[partition] = offset + 1
            if offset + 1 >= ends[partition]:
                del ends[partition]
            record = _record(message, partition, offset)
            if wanted(record):
                found.records.append(record)
                kept_bytes += record.size
            enough = limits.keep is not None and len(found.records) >= limits.keep
            if enough or found.scanned >= limits.scan or kept_bytes >= limits.bytes:
                found.complete = not ends
                return found
    return found


def _record(message: "Message", partition: int, offset: int) -> Record:
    from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME

    kind, timestamp_ms = message.timestamp()
    return Record(
        partition=partition,
        offset=offset,
        timestamp_ms=timestamp_ms,
        timestamp_type="append" if kind == TIMESTAMP_LOG_APPEND_TIME else "create",
        key=_bytes(message.key()),
        value=_bytes(message.value()),
        headers=tuple((name, _bytes(value)) for name, value in _headers(message)),
    )


def _headers(message: "Message") -> Sequence[tuple[str, Any]]:
    found: Any = message.headers()
    return found or ()


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to write; without a partition its key decides, as in Kafka's own clients."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """Where a record lies now."""

    partition: int
    offset: int
    timestamp_ms: int


async def write(link: KafkaLink, records: Sequence[NewRecord]) -> list[Written]:
    """Stores records, each acknowledged by all. Raises `Uncertain`, or why one was refused."""
    config = link.config()
    return await within("writing", link.threads.run(_write, config, records), changes=True)


def _write(config: ClientConfig, records: Sequence[NewRecord]) -> list[Written]:
    from confluent_kafka import KafkaException, Producer

    producer = Producer(
        {
            **config,
            "enable.idempotence": True,
            "linger.ms": 0,
            "message.timeout.ms": int(CALL_S_MAX * 1000),
            "message.max.bytes": 16 * 1024 * 1024,
            "partitioner": "murmur2_random",
        }
    )
    outcomes: dict[int, Written | DovetailError] = {}

    def reporter(number: int, topic: str) -> Callable[[Any, Any], None]:
        def delivered(error: Any, message: Any) -> None:
            doing = f"writing to {topic!r}"
            if error is not None:
                outcomes[number] = told(doing, KafkaException(error), changes=True)
            else:
                outcomes[number] = Written(
                    message.partition(), message.offset(), message.timestamp()[1]
                )

        return delivered

    for number, record in enumerate(records):
        extra: dict[str, Any] = {}
        if record.partition is not None:
            extra["partition"] = record.partition
        if record.timestamp_ms is not None:
            extra["timestamp"] = record.timestamp_ms
        try:
            producer.produce(
                record.topic,
                key=record.key,
                value=record.value,
                headers=list(record.headers),
                on_delivery=reporter(number, record.topic),
                **extra,
            )
        except (KafkaException, BufferError, ValueError, OverflowError) as error:
            producer.flush(CALL_S_MAX)
            raise told(f"writing to {record.topic!r}", error) from error
    producer.flush(CALL_S_MAX)
    written = []
    for number in range(len(records)):
        outcome = outcomes.get(number) or Uncertain("a record may or may not be stored")
        if isinstance(outcome, DovetailError):
            raise outcome
        written.append(outcome)
    return written
