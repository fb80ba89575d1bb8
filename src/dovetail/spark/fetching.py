"""Reads a range of offsets, one fetch ahead.

While one answer is decoded, the broker prepares the next; a task needs no more concurrency. A
reader has its own connection while it reads, so that two readers in one thread do not take each
other's answers.

A reader with `read_committed` gets nothing from the last stable offset on, and skips aborted
transactions like control batches, without decoding them (F3b).
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dovetail.errors import OffsetOutOfRange, ProtocolViolation, Unavailable
from dovetail.kafka.client.client import EARLIEST, LATEST, KafkaClient, Partition, name_of
from dovetail.kafka.client.connection import Connection
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.apis import ApiKey
from dovetail.kafka.codec.error_codes import ErrorCode, error_of
from dovetail.kafka.codec.headers import RequestHeader
from dovetail.record_batch import CONTROL, HEADER_BYTES, TRANSACTIONAL
from dovetail.spark.decoder import BatchView, batches_in

#: The size of one fetch. More costs: the C library returns larger buffers to the system, and every
#: page of the next one is a fault (6,500 instead of 3,500 for a million records with twice this).
FETCH_BYTES = 2 * 1024 * 1024
_FETCH_WAIT_MS = 500
#: The size of a small one: a reply that a broker reads and sends at once.
_FETCH_BYTES_MIN = 64 * 1024
#: What is believed of a record before one was seen: a little, for a fetch that was too small costs
#: one more, and one that was too large has fetched what nobody wants.
_BYTES_OF_OFFSET = 100
#: How much more is asked for than the seen records say.
_MARGIN = 1.1


@dataclass(frozen=True, slots=True)
class FetchSizes:
    """How much one fetch brings, and how long it and the reader wait."""

    bytes_max: int = FETCH_BYTES
    bytes_min: int = 1
    wait_ms: int = _FETCH_WAIT_MS
    #: How long a reader waits for a record that was there; None: as long as for an answer.
    patience_s: float | None = None


USUAL_SIZES = FetchSizes()


@dataclass(frozen=True, slots=True)
class Fetched:
    """What one fetch returned: whole batches, and the bounds of the partition at that moment."""

    batches: list[BatchView]
    log_start: int
    high_watermark: int

    @property
    def density(self) -> float:
        """Bytes for an offset, as they are stored; there is a batch."""
        first, last = self.batches[0], self.batches[-1]
        size = sum(HEADER_BYTES + len(batch.records) for batch in self.batches)
        return size / max(1, last.offset_end - first.base_offset)


def fetch(
    client: KafkaClient,
    partition: Partition,
    start: int,
    end: int,
    *,
    committed: bool = False,
    sizes: FetchSizes = USUAL_SIZES,
) -> Iterator[Fetched]:
    """Batches from `start` on until `end` is reached; with `committed` no aborted records.

    Raises `OffsetOutOfRange` if the partition does not hold the position, `InvalidBatch` for a
    malformed answer, `Unavailable` if records below `end` do not come in time.
    """
    reader = Reader(client, partition, committed=committed, sizes=sizes)
    patience_s = client.timeout_s if sizes.patience_s is None else sizes.patience_s
    position, empty_since = start, None
    density: float = _BYTES_OF_OFFSET
    try:
        while position < end:
            reader.bytes_max = enough_bytes(end - position, density, sizes.bytes_max)
            fetched = reader.read(position)
            if fetched.batches:
                empty_since = None
                position, density = fetched.batches[-1].offset_end, fetched.density
                if position < end:
                    reader.bytes_max = enough_bytes(end - position, density, sizes.bytes_max)
                    reader.ask(position)
                yield fetched
                continue

            now = time.monotonic()
            empty_since = empty_since or now
            if now - empty_since > patience_s:
                raise Unavailable(
                    f"reading {name_of(partition)}: no record at offset {position} within "
                    f"{patience_s:g} s; records up to {end} were there, and the partition "
                    f"now ends at {fetched.high_watermark}"
                )
    finally:
        reader.close()


def enough_bytes(offsets: int, density: float, bytes_max: int) -> int:
    """The size of a fetch for so many offsets: some more than they will need, up to the limit.

    What a fetch brings behind the end of its range is thrown away. A broker gives one whole batch
    however large it is, so one that is too small costs a further request and nothing else.
    """
    return min(bytes_max, max(_FETCH_BYTES_MIN, int(offsets * density * _MARGIN)))


class Reader:
    """Fetches one partition, on a connection that it uses alone meanwhile."""

    def __init__(
        self,
        client: KafkaClient,
        partition: Partition,
        *,
        committed: bool = False,
        sizes: FetchSizes = USUAL_SIZES,
    ) -> None:
        self._client = client
        self._sizes = sizes
        self._committed = committed
        self._partition = partition
        #: Of the next fetch.
        self.bytes_max = sizes.bytes_max
        self._connection: Connection | None = None
        self._asked: RequestHeader | None = None

    def ask(self, position: int, *, wait_ms: int | None = None) -> None:
        """Sends the next request; `read` handles what goes wrong.

        The broker may hold it for `wait_ms` while there is nothing to answer.
        """
        wait_ms = self._sizes.wait_ms if wait_ms is None else wait_ms
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
            raise OffsetOutOfRange(f"{doing}: it holds {self._bounds()}")
        if one is None or code != ErrorCode.NONE:
            self.drop()
            raise error_of(code, doing)

        self._client.bytes_fetched += sum(len(data) for data in one.records or ())
        batches = [
            batch
            for data in one.records or ()
            for batch in batches_in(data, where=name_of(self._partition))
            if batch.offset_end > position
        ]
        if self._committed:
            batches = [*_marked(batches, one.aborted_transactions or ())]
        return Fetched(batches, one.log_start_offset, one.high_watermark)

    def _bounds(self) -> str:
        """What the partition holds; Kafka does not say so where it refuses a position."""
        first, end = (
            self._client.offsets({self._partition: bound})[self._partition]
            for bound in (EARLIEST, LATEST)
        )
        return f"{first} to {end}"

    def _request(self, position: int, wait_ms: int) -> m.FetchRequest:
        topic, number = self._partition
        wanted = m.FetchRequestPartition(
            partition=number, fetch_offset=position, partition_max_bytes=self.bytes_max
        )
        return m.FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=self._sizes.bytes_min,
            max_bytes=self.bytes_max,
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
