"""Sends batches under sequence numbers that were chosen beforehand.

An ordinary producer chooses its numbers in memory and begins with others after a restart, so the
broker cannot recognise a batch. Here the numbers are written down with the batch (`batch.py`) and
go into the record batches unchanged. `kafka.client` finds leaders, logs in and sends.

Promise: an outcome of `ACKNOWLEDGED` means that all replicas asked for have it. After a lost
answer, a moved leader or while a broker starts, the same bytes are sent again until `delivery_ms`
have passed; then the outcome is `FAILED`, which says nothing about whether the batch was stored.

All workers of a relay share one sender. Each call has a client to itself while it runs.
"""

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol

from dovetail.compression import codec_number
from dovetail.errors import (
    DovetailError,
    InvalidBatch,
    InvalidInput,
    ProducerFenced,
    SequenceGap,
    Unavailable,
)
from dovetail.foreign import check_topic
from dovetail.kafka.client.brokers import Brokers
from dovetail.kafka.client.client import KafkaClient, Partition
from dovetail.kafka.client.producer import EncodedBatch, Producer
from dovetail.outbox.batch import Batch, Identity, Row
from dovetail.outbox.drain import Dead, Fate, Outcome
from dovetail.outbox.message import (
    DELAY_HEADER,
    DUE_HEADER,
    MESSAGE_ID_HEADER,
    Headers,
    due_ms_of,
    headers_from_text,
)
from dovetail.outbox.spans import follow
from dovetail.record_batch import NewRecord, build_batch

#: Time that an answer may take before it is asked for again.
REQUEST_S = 15.0
#: Time that a topic may take to appear: one that is not there must not hold up the others.
METADATA_S = 5.0
#: The setting of a topic that takes due records (K11).
DUE_SETTING = "dovetail.due"
#: Batches in hand at once: two of each worker, and those of locks that were lost meanwhile.
SENDS_MAX = 64


class Sender(Protocol):
    """What a worker needs of a Kafka; the real one and a model in the tests."""

    def partitions(self, topic: str) -> int:
        """How many partitions the topic has. Raises `Unavailable`."""
        ...

    def new_identity(self) -> Identity:
        """A new producer. Raises `Unavailable`."""
        ...

    def send(
        self, topic: str, batch: Batch, sets: dict[int, list[Row]], after: "Future[Any] | None"
    ) -> "Future[dict[int, Outcome]]":
        """Sends, once `after` is acknowledged in full; else everything is `SKIPPED`."""
        ...


def encode(
    rows: Sequence[Row], *, producer_id: int, epoch: int, sequence: int, codec: int = 0
) -> EncodedBatch:
    """The rows as one record batch. The same rows and numbers are the same batch to a broker."""
    records = []
    for _, key, _, headers, payload, message_id, created_ms in rows:
        pairs: tuple[tuple[str, bytes | None], ...] = ((MESSAGE_ID_HEADER, message_id.encode()),)
        if headers is not None:
            pairs += _due_at(headers_from_text(headers), created_ms)
        records.append(NewRecord(created_ms, key, payload, pairs))

    data = build_batch(
        records, producer_id=producer_id, producer_epoch=epoch, sequence=sequence, codec=codec
    )
    return EncodedBatch(data, sequence, len(records))


def _due_at(headers: Headers, published_ms: int) -> Headers:
    """With the time at which it is due, instead of the time that it waits: that began before."""
    if all(name != DELAY_HEADER for name, _ in headers):
        return headers
    due_ms = due_ms_of(headers, published_ms=published_ms)
    others = tuple(pair for pair in headers if pair[0] not in (DELAY_HEADER, DUE_HEADER))
    return (*others, (DUE_HEADER, str(due_ms).encode()))


def due_later(row: Row) -> bool:
    """Whether the row says when it is due."""
    headers = row.headers
    return headers is not None and (DUE_HEADER in headers or DELAY_HEADER in headers)


def _why_no_topic(name: str) -> str:
    """Why no topic can have this name, which a writer without `Message` may have chosen."""
    try:
        check_topic(name)
    except InvalidInput as error:
        return str(error)
    return ""


class KafkaSender:
    """The real one."""

    def __init__(self, brokers: Brokers, *, delivery_ms: int, compression: str = "none") -> None:
        """Raises `InvalidInput` if the files of TLS cannot be used."""
        self._brokers = brokers
        self._codec = codec_number(compression)
        self._delivery_s = delivery_ms / 1000
        self._threads = ThreadPoolExecutor(SENDS_MAX, thread_name_prefix="outbox-sender")
        self._lock = threading.Lock()
        self._closed = False
        #: Clients that nobody uses at the moment; their connections stay open.
        self._idle = [self._new_client()]

    def close(self) -> None:
        """Closes the connections; a batch that is on its way is abandoned."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for client in idle:
            client.close()

    def partitions(self, topic: str) -> int:
        if _why_no_topic(topic):
            # Its messages are set aside, which takes no partition.
            return 1
        with self._client() as client:
            try:
                found = client.partitions([topic], create=True, timeout_s=METADATA_S)
            except DovetailError as error:
                raise Unavailable(
                    f"cannot find topic {topic!r} at {self._brokers.bootstrap}: {error}"
                ) from error
        return len(found[topic])

    def new_identity(self) -> Identity:
        with self._client() as client:
            try:
                return Identity(*client.new_producer(timeout_s=METADATA_S))
            except DovetailError as error:
                raise Unavailable(
                    f"cannot get a producer id from {self._brokers.bootstrap}: {error}"
                ) from error

    def send(
        self, topic: str, batch: Batch, sets: dict[int, list[Row]], after: "Future[Any] | None"
    ) -> "Future[dict[int, Outcome]]":
        if reason := _why_no_topic(topic):
            refused: Future[dict[int, Outcome]] = Future()
            refused.set_result(
                {
                    partition: Outcome(
                        Fate.ACKNOWLEDGED, dead=tuple(Dead(row.id, reason) for row in rows)
                    )
                    for partition, rows in sets.items()
                }
            )
            return refused

        encoded = {
            (topic, partition): encode(
                rows,
                producer_id=batch.producer_id,
                epoch=batch.epoch,
                sequence=batch.first_by_partition[partition],
                codec=self._codec,
            )
            for partition, rows in sets.items()
        }
        due = {part for part, rows in sets.items() if any(map(due_later, rows))}
        # Threads take sends in their order, so `after` is never behind one that waits for it.
        sent = self._threads.submit(self._send, encoded, after, due)
        follow(sent, topic, sets)
        return sent

    def _send(
        self,
        encoded: Mapping[Partition, EncodedBatch],
        after: "Future[Any] | None",
        due: Collection[int],
    ) -> dict[int, Outcome]:
        if after is not None:
            before: dict[int, Outcome] = after.result()
            if any(outcome.fate is not Fate.ACKNOWLEDGED for outcome in before.values()):
                return {partition: Outcome(Fate.SKIPPED, "not sent") for _, partition in encoded}
        with self._client() as client:
            refused = _refuse_due(client, encoded, due) if due else {}
            sent = {place: data for place, data in encoded.items() if place[1] not in refused}
            return {**refused, **_deliver(client, sent)}

    def _new_client(self) -> KafkaClient:
        return KafkaClient(
            self._brokers,
            client_id="dovetail-outbox",
            timeout_s=self._delivery_s,
            request_s=REQUEST_S,
        )

    @contextmanager
    def _client(self) -> Iterator[KafkaClient]:
        """A client for the caller alone."""
        with self._lock:
            idle = self._idle.pop() if self._idle else None
        client = idle or self._new_client()
        try:
            yield client
        finally:
            with self._lock:
                keep = not self._closed
                if keep:
                    self._idle.append(client)
            if not keep:
                client.close()


def _refuse_due(
    client: KafkaClient, encoded: Mapping[Partition, EncodedBatch], due: Collection[int]
) -> dict[int, Outcome]:
    """Refuses the parts that hold a message with a due time, if the topic would not wait for it."""
    topic = next(iter(encoded))[0]
    try:
        takes = client.topic_setting(topic, DUE_SETTING, timeout_s=METADATA_S)
    except DovetailError as error:
        return {number: Outcome(Fate.FAILED, str(error)) for _, number in encoded}
    if takes == "true":
        return {}
    reason = (
        f"the message is due later, and topic {topic!r} takes no due records; set {DUE_SETTING}="
        "true on it, or schedule the message in a timeline"
    )
    return {partition: Outcome(Fate.REFUSED, reason) for partition in due}


def _deliver(client: KafkaClient, encoded: Mapping[Partition, EncodedBatch]) -> dict[int, Outcome]:
    """Sends one batch to each partition; one that is refused does not hold up the others."""
    producer = Producer(client)
    outcomes: dict[int, Outcome] = {}
    unsent = {partition: iter((batch,)) for partition, batch in encoded.items()}
    try:
        while len(outcomes) < len(encoded):
            failure: DovetailError | None = None
            try:
                producer.send_all(unsent)
            except DovetailError as error:
                failure = error

            for stored in producer.stored:
                outcomes[stored.partition[1]] = Outcome(Fate.ACKNOWLEDGED)
            for partition, refusal in producer.refused.items():
                outcomes[partition[1]] = outcome_of(refusal)
                producer.drop(partition)
            if failure is not None and not producer.refused:
                # Nobody took it in time, or nobody lets us in.
                failed = Outcome(Fate.FAILED, str(failure))
                return {number: outcomes.get(number, failed) for _, number in encoded}
            unsent = {}
    finally:
        producer.close()
    return outcomes


def outcome_of(error: DovetailError) -> Outcome:
    """What the refusal of a batch means for its rows."""
    if isinstance(error, InvalidBatch):
        return Outcome(Fate.REFUSED, str(error))
    if isinstance(error, SequenceGap | ProducerFenced):
        return Outcome(Fate.FORGOTTEN, str(error))
    return Outcome(Fate.FAILED, str(error))
