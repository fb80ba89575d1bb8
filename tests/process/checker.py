"""A checker of the Jepsen kind: what was acknowledged against what is read.

The workload is one idempotent producer. Each partition gets the numbers 0, 1, 2, ... in order, each
in a value whose other bytes follow from the number, so that a changed byte shows. `check` reads a
topic from its beginning and raises at the first record that is lost, changed, doubled or out of
order.
"""

import hashlib
import os
import threading
import time
from collections import Counter

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

_PADDING_BYTES = 80
#: Records for each partition in a burst, and the pause behind it. A test sees rolls and, when
#: something is away, full queues; more would only keep the processor from those that recover.
#: `make soak` produces without a pause.
BURST_RECORDS = 20
BURST_PAUSE_S = float(os.environ.get("LOAD_PAUSE_S", "0.05"))


def value_of(partition: int, number: int) -> bytes:
    """The one value that this place can have."""
    stem = f"{partition}/{number}/".encode()
    return stem + hashlib.blake2b(stem, digest_size=40).hexdigest().encode()[:_PADDING_BYTES]


class Workload:
    """Produces in a thread until told to stop; counts what was acknowledged."""

    def __init__(self, bootstrap: str, topic: str, *, partitions: int, keys: int = 0) -> None:
        """With `keys`, number n has key n modulo that; else none has a key."""
        self.keys = keys
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "delivery.timeout.ms": 240_000,
                "socket.timeout.ms": 10_000,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 20,
                "queue.buffering.max.messages": 4_000,
                "log_level": 0,
            }
        )
        self.topic = topic
        self.partitions = partitions
        self._stop = threading.Event()
        self._more = threading.Condition()
        self.sent: Counter[int] = Counter()
        self.acknowledged: dict[int, dict[int, int]] = {p: {} for p in range(partitions)}
        self.errors: list[KafkaError] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def acknowledged_count(self) -> int:
        return sum(len(found) for found in self.acknowledged.values())

    def wait_for(self, count: int, *, seconds_max: float = 60) -> None:
        """Waits until so many records are acknowledged in all."""
        deadline = time.monotonic() + seconds_max
        with self._more:
            while self.acknowledged_count < count:
                left = deadline - time.monotonic()
                assert left > 0, f"{self.acknowledged_count} of {count} in {seconds_max} s"
                self._more.wait(left)

    def finish(self) -> None:
        """Stops producing and waits until everything that was sent is decided."""
        self._stop.set()
        self._thread.join(60)
        left = self._producer.flush(120)
        assert left == 0, f"{left} records never decided"

    def _run(self) -> None:
        while not self._stop.wait(BURST_PAUSE_S):
            for partition in [*range(self.partitions)] * BURST_RECORDS:
                number = self.sent[partition]
                try:
                    self._producer.produce(
                        self.topic,
                        value_of(partition, number),
                        key=str(number % self.keys) if self.keys else None,
                        partition=partition,
                        on_delivery=self._on_delivery,
                    )
                except BufferError:
                    self._producer.poll(0.05)
                    continue
                self.sent[partition] += 1
            self._producer.poll(0)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(error)
            return
        number = int(message.value().split(b"/")[1])
        with self._more:
            self.acknowledged[message.partition()][number] = message.offset()
            self._more.notify_all()


def read_all(bootstrap: str, topic: str, partition: int) -> list[tuple[int, bytes]]:
    """Every (offset, value) of a partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "checker",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "check.crcs": True,
            "log_level": 0,
        }
    )
    found: list[tuple[int, bytes]] = []
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for message in consumer.consume(10_000, timeout=0.5):
                error = message.error()
                if error is None:
                    found.append((message.offset(), message.value()))
                elif error.code() == KafkaError._PARTITION_EOF:
                    return found
                else:
                    raise AssertionError(f"read failed: {error}")
        raise AssertionError("no end of the partition within 60 s")
    finally:
        consumer.close()


def check_all(workload: Workload, bootstrap: str) -> int:
    """Compares all partitions; returns how many records were read: as many as were sent."""
    read = sum(check(workload, bootstrap, partition) for partition in range(workload.partitions))
    assert read == sum(workload.sent.values())
    return read


def check(workload: Workload, bootstrap: str, partition: int) -> int:
    """Compares one partition; returns how many records were read."""
    found = read_all(bootstrap, workload.topic, partition)
    where = f"{workload.topic}-{partition}"
    for place, (offset, value) in enumerate(found):
        assert offset == place, f"{where}: gap before offset {offset}, expected {place}"
        number = int(value.split(b"/")[1])
        assert value == value_of(partition, number), f"{where}: offset {offset} was changed"
        assert number == place, (
            f"{where}: record {number} at offset {offset}: lost, doubled or out of order"
        )
    for number, offset in workload.acknowledged[partition].items():
        assert offset in (number, -1), f"{where}: {number} was acknowledged at {offset}"
        assert number < len(found), f"{where}: acknowledged record {number} is lost"
    return len(found)


def check_compacted(workload: Workload, bootstrap: str) -> int:
    """The last record of each key is there with its offset, and nothing that was not sent."""
    count = 0
    for partition in range(workload.partitions):
        found = read_all(bootstrap, workload.topic, partition)
        offsets = [offset for offset, _ in found]
        assert offsets == sorted(set(offsets)), f"partition {partition}: out of order"
        for offset, value in found:
            assert value == value_of(partition, offset), f"offset {offset} was changed or moved"
        sent = workload.sent[partition]
        lost = {*range(max(0, sent - workload.keys), sent)} - {*offsets}
        assert not lost, f"partition {partition}: the last record of a key is lost: {lost}"
        count += len(found)
    return count
