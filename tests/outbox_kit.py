"""What the outbox's tests share: databases of three kinds, a Kafka, killed workers, and a reader.

`OUTBOX_KAFKA=host:port` points the suite at any other Kafka; without it an embedded node is
started. Tests that stop or reconfigure the Kafka use a node of their own in any case.
"""

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy.engine import Engine

from dovetail.kafka.client.brokers import Brokers
from dovetail.outbox.database import open_engine
from dovetail.outbox.message import MESSAGE_ID_HEADER
from dovetail.outbox.metrics import RelayMetrics
from dovetail.outbox.schema import create_tables
from dovetail.outbox.sender import KafkaSender
from dovetail.outbox.status import read_status
from dovetail.outbox.store import Store
from dovetail.outbox.timeline_sender import TimelineSender
from dovetail.outbox.worker import Memory, OnStep, RelayOptions, Worker

#: Nothing here takes so long unless it hangs.
SECONDS_MAX = 60.0

#: A lock short enough for tests to wait out, and long enough for a loaded machine.
LOCK_MS = 1_000


class Killed(BaseException):
    """Raised in a worker where a kill would hit it; nothing of it is cleaned up."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record that was read back."""

    partition: int
    key: bytes | None
    value: bytes | None
    message_id: str
    headers: tuple[tuple[str, bytes | None], ...]


def other_kafka() -> str | None:
    """The Kafka that the suite is pointed at, if any."""
    return os.environ.get("OUTBOX_KAFKA") or None


def new_database(kind: str, request: "Callable[[str], object]", folder: Path) -> str:
    """The address of a new database with the tables; `request` gets a fixture by name."""
    if kind == "sqlite":
        url = f"sqlite:///{folder / uuid.uuid4().hex}.db"
    else:
        server = request("postgres_server" if kind == "postgres" else "maria_server")
        url = server.create_database().url  # type: ignore[attr-defined]
    engine = open_engine(url)
    create_tables(engine)
    return url


def new_topic(bootstrap: str, *, partitions: int = 3, **config: str) -> str:
    """A topic of its own."""
    name = f"outbox-{uuid.uuid4().hex[:10]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config)
    admin.create_topics([new])[name].result(SECONDS_MAX)
    return name


def read_all(bootstrap: str, topic: str) -> list[Record]:
    """Every record of the topic, by partition and offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 20,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=SECONDS_MAX).topics[topic].partitions
        ends: dict[int, int] = {}
        places = []
        for partition in sorted(partitions):
            place = TopicPartition(topic, partition)
            low, high = consumer.get_watermark_offsets(place, timeout=SECONDS_MAX)
            if low < high:
                ends[partition] = high
                places.append(TopicPartition(topic, partition, low))
        consumer.assign(places)
        return _read_to(consumer, ends)
    finally:
        consumer.close()


def _read_to(consumer: Consumer, ends: dict[int, int]) -> list[Record]:
    found: dict[int, list[Record]] = {partition: [] for partition in ends}
    left = set(ends)
    deadline = time.monotonic() + SECONDS_MAX
    while left:
        assert time.monotonic() < deadline, f"not read to the end: {left}"
        message = consumer.poll(1.0)
        if message is None:
            continue
        assert message.error() is None, message.error()
        found[message.partition()].append(_record_of(message))
        if message.offset() + 1 >= ends[message.partition()]:
            left.discard(message.partition())
    return [record for partition in sorted(found) for record in found[partition]]


def _record_of(message: Message) -> Record:
    headers = tuple(message.headers() or ())
    ids = [value.decode() for name, value in headers if name == MESSAGE_ID_HEADER and value]
    others = tuple(pair for pair in headers if pair[0] != MESSAGE_ID_HEADER)
    return Record(message.partition(), message.key(), message.value(), ids[0], others)


@contextmanager
def a_worker(
    url: str,
    bootstrap: str,
    options: RelayOptions | None = None,
    *,
    name: str = "",
    on_step: OnStep | None = None,
    metrics: RelayMetrics | None = None,
) -> Iterator[Worker]:
    """A worker that the test moves itself, with `work_once`."""
    options = options or RelayOptions(lock_ms=LOCK_MS)
    store = Store(open_engine(url))
    sender = KafkaSender(Brokers(bootstrap), delivery_ms=options.delivery_ms)
    timelines = TimelineSender(Brokers(bootstrap))
    worker = Worker(
        name or uuid.uuid4().hex[:12],
        store,
        sender,
        options,
        memory=Memory(),
        metrics=metrics or RelayMetrics(),
        stopping=threading.Event(),
        woken=threading.Event(),
        on_step=on_step,
        timelines=timelines,
    )
    try:
        yield worker
    finally:
        sender.close()
        timelines.close()
        worker.close()


def pending(engine: Engine) -> int:
    """Messages that wait."""
    return sum(topic.pending for topic in read_status(engine).topics)


def drain_all(
    url: str,
    bootstrap: str,
    options: RelayOptions | None = None,
    *,
    metrics: RelayMetrics | None = None,
) -> None:
    """Works until nothing waits; also waits out the locks of those who died."""
    engine = open_engine(url)
    deadline = time.monotonic() + SECONDS_MAX
    with a_worker(url, bootstrap, options, metrics=metrics) as worker:
        while True:
            worked = worker.work_once()
            if not worked and pending(engine) == 0:
                return
            assert time.monotonic() < deadline, read_status(engine)
            if not worked:
                time.sleep(0.02)
