"""Sending record batches to many partitions: pipelined, in order, sent again after what can pass.

Promise: `send_all` returns when every batch is stored, each partition's in its order, none twice:
batches carry sequence numbers, of which the broker stores each once, so that sending again is
safe. At most `WINDOW` batches of a partition are on their way, which is what a broker remembers.

States of a batch: to be made → on its way → stored. What goes wrong with one takes everything that
is on its way back to "to be sent", in order: a broken connection, a leader that moved, a timeout.
A sequence number that the broker does not expect is the caller's to judge (`SequenceTaken`).
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from dovetail.errors import ProtocolViolation, SequenceGap, Unavailable, Uncertain
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
    on_the_way: int = 0

    def take(self) -> EncodedBatch | None:
        return self.again.popleft() if self.again else next(self.source, None)


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
        #: The partition whose batch the broker refused for good, after `send_all` raised that.
        self.refused: Partition | None = None

    def send_all(self, batches: dict[Partition, Iterator[EncodedBatch]]) -> None:
        """Returns when all are stored.

        Raises `SequenceTaken`, `ProducerFenced`, or what the broker refuses for good; `refused`
        names the partition. What is not stored of the others is kept: `drop` that partition or
        give new batches for it, and call again.
        """
        self.stored = []
        self.refused = None
        for partition, source in batches.items():
            self._lanes[partition] = _Lane(source)

        retries = Retries(self._client.timeout_s)
        while self._lanes:
            stored = len(self.stored)
            try:
                self._run()
            except (Unavailable, Uncertain, ProtocolViolation) as error:
                self._recall()
                self.refused = None
                if len(self.stored) > stored:
                    retries.begin()
                retries.pause(error)
                self._client.forget_leaders()
            except BaseException:
                self._recall()
                raise

    def drop(self, partition: Partition) -> None:
        """Drops what is not stored of one partition."""
        self._recall()
        del self._lanes[partition]

    def forget(self) -> None:
        """Drops what is not stored; the caller makes it anew."""
        self._recall()
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
        """Sends round by round, a batch of each partition at a time."""
        while self._lanes:
            for partition in list(self._lanes):
                lane = self._lanes[partition]
                while lane.on_the_way >= WINDOW or len(self._sent) >= WINDOW_ALL:
                    self._receive()
                batch = lane.take()
                if batch is not None:
                    self._send(partition, batch)
                    continue
                while lane.on_the_way:
                    self._receive()
                del self._lanes[partition]

    def _send(self, partition: Partition, batch: EncodedBatch) -> None:
        lane = self._lanes[partition]
        request = m.ProduceRequest(
            acks=-1,
            timeout_ms=int(self._client.request_s * 1000),
            topic_data=(
                m.ProduceRequestTopic(
                    name=partition[0],
                    partition_data=(
                        m.ProduceRequestPartition(
                            index=partition[1], records=memoryview(batch.data)
                        ),
                    ),
                ),
            ),
        )
        try:
            connection = self._connection(partition)
            header = connection.send(ApiKey.PRODUCE, request)
        except BaseException:
            lane.again.appendleft(batch)
            raise
        lane.on_the_way += 1
        self._sent.append(_Sent(connection, header, partition, batch))

    def _receive(self) -> None:
        """The oldest answer. Raises for anything but success, the batch still among the sent."""
        sent = self._sent[0]
        answer: m.ProduceResponse = sent.connection.receive(sent.header)
        one = answer.responses[0].partition_responses[0]
        doing = f"writing to {name_of(sent.partition)}"
        if one.error_code not in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self.refused = sent.partition
            if one.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                reason = f"{doing}: another attempt has written there ({one.error_message})"
                raise SequenceTaken(reason, sent.partition)
            raise error_of(one.error_code, doing, one.error_message)

        self._sent.popleft()
        self._lanes[sent.partition].on_the_way -= 1
        batch = sent.batch
        self.stored.append(
            Stored(sent.partition, one.base_offset, batch.count, batch.records_checksum)
        )
        end = one.base_offset + batch.count
        self.ends[sent.partition] = max(end, self.ends.get(sent.partition, 0))

    def _recall(self) -> None:
        """Takes back what is on its way; its answers are not waited for."""
        for sent in reversed(self._sent):
            lane = self._lanes[sent.partition]
            lane.again.appendleft(sent.batch)
            lane.on_the_way -= 1
        self._sent.clear()
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

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
