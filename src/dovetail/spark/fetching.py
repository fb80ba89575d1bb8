"""Reads a range of offsets, one fetch ahead.

While one answer is decoded, the broker prepares the next; a task needs no more concurrency. A
reader has a connection of its own while it reads, so that two readers in one thread do not take
each other's answers.

A reader of what is committed gets nothing from the last stable offset on, and takes aborted
transactions for control batches, which nobody looks into (F3b).
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dovetail.errors import OffsetOutOfRange, ProtocolViolation, Unavailable
from dovetail.kafka.client.client import KafkaClient, Partition, name_of
from dovetail.kafka.client.connection import Connection
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.apis import ApiKey
from dovetail.kafka.codec.error_codes import ErrorCode, error_of
from dovetail.kafka.codec.headers import RequestHeader
from dovetail.record_batch import CONTROL, TRANSACTIONAL
from dovetail.spark.decoder import BatchView, batches_in

#: The size of one fetch. More gains nothing: the next one comes while this is decoded.
FETCH_BYTES = 4 * 1024 * 1024
_FETCH_WAIT_MS = 500


@dataclass(frozen=True, slots=True)
class Fetched:
    """What one fetch returned: whole batches, and the bounds of the partition at that moment."""

    batches: list[BatchView]
    log_start: int
    high_watermark: int


def fetch(
    client: KafkaClient, partition: Partition, start: int, end: int, *, committed: bool = False
) -> Iterator[Fetched]:
    """Batches from `start` on until `end` is reached; with `committed` no aborted records.

    Raises `OffsetOutOfRange` if the partition does not hold the position, `InvalidBatch` for a
    malformed answer, `Unavailable` if records below `end` do not come in time.
    """
    reader = Reader(client, partition, committed=committed)
    position, empty_since = start, None
    try:
        while position < end:
            fetched = reader.read(position)
            if fetched.batches:
                empty_since = None
                position = fetched.batches[-1].offset_end
                if position < end:
                    reader.ask(position)
                yield fetched
                continue

            now = time.monotonic()
            empty_since = empty_since or now
            if now - empty_since > client.timeout_s:
                raise Unavailable(
                    f"reading {name_of(partition)}: no record at offset {position} within "
                    f"{client.timeout_s:g} s; records up to {end} were there, and the partition "
                    f"now ends at {fetched.high_watermark}"
                )
    finally:
        reader.close()


class Reader:
    """Fetches one partition, on a connection that nobody else uses meanwhile."""

    def __init__(
        self, client: KafkaClient, partition: Partition, *, committed: bool = False
    ) -> None:
        self._client = client
        self._committed = committed
        self._partition = partition
        self._connection: Connection | None = None
        self._asked: RequestHeader | None = None

    def ask(self, position: int, *, wait_ms: int = _FETCH_WAIT_MS) -> None:
        """Sends the next request; `read` handles what goes wrong.

        The broker may hold it for `wait_ms` while there is nothing to answer.
        """
        if self._connection is None:
            self._connection = self._client.borrow(self._partition)
        try:
            self._asked = self._connection.send(ApiKey.FETCH, self._request(position, wait_ms))
        except Unavailable:
            self.drop()

    def read(self, position: int) -> Fetched:
        """What is at `position`; transient failures are retried."""
        return self._client.retried(lambda: self.take(position))

    def fileno(self) -> int:
        """The socket on which the answer comes, to wait for with others; -1: nothing is asked."""
        if self._connection is None or self._asked is None:
            return -1
        return self._connection.fileno()

    def close(self) -> None:
        """Gives the connection back, unless an answer is outstanding on it."""
        if self._connection is not None and self._asked is None:
            self._client.give_back(self._connection)
            self._connection = None
        self.drop()

    def drop(self) -> None:
        """Closes the connection; an answer that is outstanding is not wanted any more."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._asked = None

    def take(self, position: int) -> Fetched:
        """What is at `position`, asked for now or before. Raises what went wrong."""
        doing = f"reading {name_of(self._partition)} at offset {position}"
        if self._asked is None:
            self.ask(position)
        if self._connection is None or self._asked is None:
            raise Unavailable(f"{doing}: no connection to its leader")

        asked, self._asked = self._asked, None
        try:
            answer: m.FetchResponse = self._connection.receive(asked)
        except (Unavailable, ProtocolViolation):
            self.drop()
            raise

        one = answer.responses[0].partitions[0] if answer.responses else None
        code = one.error_code if one is not None and not answer.error_code else answer.error_code
        if one is not None and code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise OffsetOutOfRange(
                f"{doing}: it holds {one.log_start_offset} to {one.high_watermark}"
            )
        if one is None or code != ErrorCode.NONE:
            self.drop()
            raise error_of(code, doing)

        batches = [
            batch
            for data in one.records or ()
            for batch in batches_in(data, where=name_of(self._partition))
            if batch.offset_end > position
        ]
        if self._committed:
            batches = [*_marked(batches, one.aborted_transactions or ())]
        return Fetched(batches, one.log_start_offset, one.high_watermark)

    def _request(self, position: int, wait_ms: int) -> m.FetchRequest:
        topic, number = self._partition
        wanted = m.FetchRequestPartition(
            partition=number, fetch_offset=position, partition_max_bytes=FETCH_BYTES
        )
        return m.FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            isolation_level=int(self._committed),
            topics=(m.FetchRequestTopic(topic=topic, partitions=(wanted,)),),
        )


def _marked(
    batches: Iterable[BatchView], aborted: Iterable[m.FetchResponseAbortedTransaction]
) -> Iterator[BatchView]:
    """The batches, those of aborted transactions as control batches.

    A transaction lasts from its first offset to the next control batch of its producer.
    """
    waiting = deque(sorted(aborted, key=lambda one: one.first_offset))
    gone: set[int] = set()
    for batch in batches:
        while waiting and waiting[0].first_offset < batch.offset_end:
            gone.add(waiting.popleft().producer_id)
        if batch.control:
            gone.discard(batch.producer_id)
        elif batch.attributes & TRANSACTIONAL and batch.producer_id in gone:
            batch = batch._replace(attributes=batch.attributes | CONTROL)
        yield batch
