"""Sends record batches to many partitions: pipelined, in order, retried after transient failures.

Promise: `send_all` returns when every batch is stored, each partition's in its order, none twice:
batches carry sequence numbers, and the broker stores each number once, so a retry is safe. At most
`WINDOW` batches of a partition are in flight, which is as many as a broker remembers.

States of a batch: to be made → in flight → stored. A partition with a problem (a broken connection,
a leader that moved, a timeout) takes no further batch in this round, and does not delay the others.
When all partitions are done or have a problem, what is not stored is sent again, in order. The
caller decides about a batch that the broker refuses for good.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from dovetail.errors import DovetailError, ProtocolViolation, SequenceGap, Unavailable
from dovetail.kafka.client.client import KafkaClient, Partition, Retries, name_of
from dovetail.kafka.client.connection import Connection
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.apis import ApiKey
from dovetail.kafka.codec.error_codes import ErrorCode, error_of
from dovetail.kafka.codec.headers import RequestHeader

#: A broker remembers the last five batches of a producer.
WINDOW = 4
#: Over all partitions; with batches of 1 MB the memory that sending takes.
WINDOW_ALL = 16


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """A record batch, and which sequence numbers it takes."""

    data: bytes
    sequence: int
    count: int
    #: Of the records alone, for who reads them back; see `BatchView.records_checksum`.
    records_checksum: int = 0


class SequenceTaken(SequenceGap):
    """Another attempt has written to the partition; `partition` says where."""

    def __init__(self, message: str, partition: Partition) -> None:
        super().__init__(message)
        self.partition = partition


@dataclass(slots=True)
class _Lane:
    """One partition: batches that are to be made, and those that must be sent again."""

    source: Iterator[EncodedBatch]
    again: deque[EncodedBatch] = field(default_factory=deque)
    #: Not stored in this round, in their order, and why the first of them is not.
    failed: list[EncodedBatch] = field(default_factory=list)
    error: DovetailError | None = None
    on_the_way: int = 0

    def take(self) -> EncodedBatch | None:
        if self.error is not None:
            return None
        return self.again.popleft() if self.again else next(self.source, None)

    def fail(self, batch: EncodedBatch, error: DovetailError) -> None:
        self.failed.append(batch)
        self.error = self.error or error

    def begin_again(self) -> None:
        self.again.extendleft(reversed(self.failed))
        self.failed, self.error = [], None


@dataclass(frozen=True, slots=True)
class _Sent:
    connection: Connection
    header: RequestHeader
    partition: Partition
    batch: EncodedBatch


@dataclass(frozen=True, slots=True)
class Stored:
    """A batch for which the broker answered that it is stored, and where."""

    partition: Partition
    base_offset: int
    count: int
    records_checksum: int


class Producer:
    """Sends what one writer has made; not for two threads at once."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._connections: dict[Partition, Connection] = {}
        self._sent: deque[_Sent] = deque()
        self._lanes: dict[Partition, _Lane] = {}
        #: The offset behind the last stored record of each partition.
        self.ends: dict[Partition, int] = {}
        #: What was answered since the last `send_all` began.
        self.stored: list[Stored] = []
        #: What the broker refused for good when `send_all` raised: the reason by partition.
        self.refused: dict[Partition, DovetailError] = {}

    def send_all(self, batches: dict[Partition, Iterator[EncodedBatch]]) -> None:
        """Returns when all are stored.

        Raises `SequenceTaken`, `ProducerFenced`, or another error that is in `refused`. What is not
        stored is kept: `drop` a partition or give new batches for it, and call again.
        Raises `Unavailable` when the time is over, or why nobody lets us in.
        """
        self.stored = []
        self.refused = {}
        for partition, source in batches.items():
            self._lanes[partition] = _Lane(source)

        retries = Retries(self._client.timeout_s)
        while self._lanes:
            stored = len(self.stored)
            try:
                self._run()
            except BaseException:
                self._recall()
                raise

            errors = self._begin_again()
            self.refused = {key: one for key, one in errors.items() if not _can_pass(one)}
            if self.refused:
                raise next(iter(self.refused.values()))
            if errors:
                if len(self.stored) > stored:
                    retries.begin()
                retries.pause(next(iter(errors.values())))
                self._client.forget_leaders()

    def drop(self, partition: Partition) -> None:
        """Drops what is not stored of one partition."""
        del self._lanes[partition]

    def forget(self) -> None:
        """Drops what is not stored; the caller makes it again."""
        self._lanes.clear()

    def close(self) -> None:
        """Gives connections back, or closes those on which answers are outstanding."""
        outstanding = {id(sent.connection) for sent in self._sent}
        for connection in {id(one): one for one in self._connections.values()}.values():
            if id(connection) in outstanding:
                connection.close()
            else:
                self._client.give_back(connection)
        self._connections.clear()
        self._sent.clear()

    def _run(self) -> None:
        """Sends a batch of each partition at a time, until each is done or in trouble."""
        while any(lane.error is None for lane in self._lanes.values()):
            for partition, lane in list(self._lanes.items()):
                while lane.on_the_way >= WINDOW or len(self._sent) >= WINDOW_ALL:
                    self._receive()
                batch = lane.take()
                if batch is not None:
                    self._send(partition, batch)
                    continue

                while lane.on_the_way:
                    self._receive()
                if lane.error is None:
                    del self._lanes[partition]

        while self._sent:
            self._receive()

    def _begin_again(self) -> dict[Partition, DovetailError]:
        """After a round: which partitions had trouble. All that is not stored is to be sent."""
        errors = {}
        for partition, lane in self._lanes.items():
            if lane.error is not None:
                errors[partition] = lane.error
            lane.begin_again()
        if errors:
            # Leaders may have moved; no answer is outstanding.
            self.close()
        return errors

    def _send(self, partition: Partition, batch: EncodedBatch) -> None:
        records = m.ProduceRequestPartition(index=partition[1], records=memoryview(batch.data))
        request = m.ProduceRequest(
            acks=-1,
            timeout_ms=int(self._client.request_s * 1000),
            topic_data=(m.ProduceRequestTopic(name=partition[0], partition_data=(records,)),),
        )
        lane = self._lanes[partition]
        connection = None
        try:
            connection = self._connection(partition)
            header = connection.send(ApiKey.PRODUCE, request)
        except Unavailable as error:
            if connection is not None:
                self._lose(connection, error)
            lane.fail(batch, error)
        except BaseException:
            lane.again.appendleft(batch)
            raise
        else:
            lane.on_the_way += 1
            self._sent.append(_Sent(connection, header, partition, batch))

    def _receive(self) -> None:
        """Takes the oldest answer."""
        sent = self._sent[0]
        try:
            answer: m.ProduceResponse = sent.connection.receive(sent.header)
        except (Unavailable, ProtocolViolation) as error:
            self._lose(sent.connection, error)
            return

        self._sent.popleft()
        lane, batch = self._lanes[sent.partition], sent.batch
        lane.on_the_way -= 1
        one = answer.responses[0].partition_responses[0]
        if one.error_code not in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            lane.fail(batch, _error_of(one, sent.partition))
            return
        self.stored.append(
            Stored(sent.partition, one.base_offset, batch.count, batch.records_checksum)
        )
        end = one.base_offset + batch.count
        self.ends[sent.partition] = max(end, self.ends.get(sent.partition, 0))

    def _lose(self, connection: Connection, error: DovetailError) -> None:
        """A connection broke: no answer comes on it any more."""
        lost = [sent for sent in self._sent if sent.connection is connection]
        self._sent = deque(sent for sent in self._sent if sent.connection is not connection)
        for sent in lost:
            lane = self._lanes[sent.partition]
            lane.on_the_way -= 1
            lane.fail(sent.batch, error)

    def _recall(self) -> None:
        """Takes back what is on its way; its answers are not waited for."""
        interrupted = Unavailable("interrupted")
        for connection in {id(one): one for one in self._connections.values()}.values():
            connection.close()
            self._lose(connection, interrupted)
        self._connections.clear()
        for lane in self._lanes.values():
            lane.begin_again()

    def _connection(self, partition: Partition) -> Connection:
        """One connection to each broker, for this producer alone."""
        if partition not in self._connections:
            borrowed = self._client.borrow(partition)
            for known in self._connections.values():
                if known.address == borrowed.address:
                    self._client.give_back(borrowed)
                    borrowed = known
                    break
            self._connections[partition] = borrowed
        return self._connections[partition]


def _can_pass(error: DovetailError) -> bool:
    return error.retriable or isinstance(error, ProtocolViolation)


def _error_of(answer: m.ProduceResponsePartition, partition: Partition) -> DovetailError:
    doing = f"writing to {name_of(partition)}"
    if answer.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
        reason = f"{doing}: another attempt has written there ({answer.error_message})"
        return SequenceTaken(reason, partition)
    return error_of(answer.error_code, doing, answer.error_message)
