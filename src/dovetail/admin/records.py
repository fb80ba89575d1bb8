"""Records of topics: reads a range and writes records, with a separate client each time.

A read limits everything: records to examine, records to return, bytes to return, time. Its result
says how far it came, so that a reader can continue from there. No group's position moves.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

from dovetail.admin.positions import Bounds
from dovetail.errors import DovetailError, Uncertain

if TYPE_CHECKING:
    from confluent_kafka import Message

    from dovetail.admin.kafka import Kafka, Partition

#: Bytes of records that one read keeps; then it says that there is more.
READ_BYTES_MAX = 32 * 1024 * 1024

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


def everything(_: Record) -> bool:
    """A search for nothing in particular."""
    return True


def read(
    kafka: "Kafka",
    topic: str,
    spans: Iterable[Span],
    limits: ReadLimits,
    *,
    wanted: Callable[[Record], bool] = everything,
) -> Reading:
    """The `wanted` records of these spans. Raises `TopicUnknown`, `Unavailable`."""
    spans = [span for span in spans if span.start < span.end]
    if not spans:
        return Reading()

    with kafka.reads:
        consumer = Consumer(
            kafka.config(
                group_id=kafka.client_id,
                enable_auto_commit=False,
                enable_partition_eof=True,
                auto_offset_reset="earliest",
                fetch_wait_max_ms=50,
                queued_min_messages=1_000,
                queued_max_messages_kbytes=16 * 1024,
                fetch_max_bytes=8 * 1024 * 1024,
            )
        )
        try:
            consumer.assign([TopicPartition(topic, span.partition, span.start) for span in spans])
            deadline_s = time.monotonic() + kafka.timeout_s
            return _collect(consumer, spans, limits, wanted, deadline_s=deadline_s)
        except KafkaException as error:
            raise kafka.error_of(f"reading {topic!r}", error) from error
        finally:
            consumer.close()


def _collect(
    consumer: Consumer,
    spans: Sequence[Span],
    limits: ReadLimits,
    wanted: Callable[[Record], bool],
    *,
    deadline_s: float,
) -> Reading:
    found = Reading(next={span.partition: span.start for span in spans})
    ends = {span.partition: span.end for span in spans}
    kept_bytes = 0

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


def last_spans(
    bounds: "Mapping[Partition, Bounds]", count: int, *, before: int | None = None
) -> list[Span]:
    """The last `count` records of each partition; with `before`, those below this offset."""
    spans = []
    for (_, number), bound in bounds.items():
        end = bound.end if before is None else max(bound.first, min(before, bound.end))
        spans.append(Span(number, max(bound.first, end - count), end))
    return spans


def _record(message: "Message", partition: int, offset: int) -> Record:
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


def write(kafka: "Kafka", records: Sequence[NewRecord]) -> list[Written]:
    """Stores records, each acknowledged by all. Raises `Uncertain`, or why one was refused."""
    producer = Producer(
        kafka.config(
            enable_idempotence=True,
            linger_ms=0,
            message_timeout_ms=int(kafka.timeout_s * 1000),
            message_max_bytes=16 * 1024 * 1024,
            partitioner="murmur2_random",
        )
    )
    outcomes: dict[int, Written | DovetailError] = {}

    def reporter(number: int, doing: str) -> Callable[[Any, Any], None]:
        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                outcomes[number] = kafka.error_of(doing, error, changes=True)
                return
            at_ms = message.timestamp()[1]
            outcomes[number] = Written(message.partition(), message.offset(), at_ms)

        return delivered

    try:
        for number, record in enumerate(records):
            doing = f"writing to {record.topic!r}"
            delivered = reporter(number, doing)
            kafka.call(doing, partial(_produce, producer, record, delivered), changes=True)
    finally:
        producer.flush(kafka.timeout_s)

    written = []
    for number in range(len(records)):
        outcome = outcomes.get(number) or Uncertain("a record may or may not be stored")
        if isinstance(outcome, DovetailError):
            raise outcome
        written.append(outcome)
    return written


def _produce(producer: Producer, record: NewRecord, delivered: Callable[[Any, Any], None]) -> None:
    extra: dict[str, Any] = {}
    if record.partition is not None:
        extra["partition"] = record.partition
    if record.timestamp_ms is not None:
        extra["timestamp"] = record.timestamp_ms

    producer.produce(
        record.topic,
        key=record.key,
        value=record.value,
        headers=list(record.headers),
        on_delivery=delivered,
        **extra,
    )
