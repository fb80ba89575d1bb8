"""What topics hold, read and written without Spark: on Dovetail and on a real Apache Kafka."""

import random
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

pytest.importorskip("pyspark")
import pyarrow as pa
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, LessThan
from pyspark.sql.streaming.datasource import ReadAllAvailable

from dovetail.errors import (
    BatchTooLarge,
    Damaged,
    InvalidInput,
    InvalidTimestamp,
    TopicUnknown,
)
from dovetail.kafka.client.brokers import Brokers
from dovetail.kafka.client.client import KafkaClient
from dovetail.spark.exactly_once import Attempt
from dovetail.spark.options import ReadOptions, WriteOptions
from dovetail.spark.source import TopicReader, TopicStreamReader
from dovetail.spark.writing import TaskWriter, write_rows

#: What is told at once is told within this, also on a loaded machine; a call is tried for 60 s.
AT_ONCE_S = 30.0
DEADLINE_S = 60.0


def topic_at(bootstrap: str, partitions: int = 1, config: dict[str, str] | None = None) -> str:
    name = f"k-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config or {})
    admin.create_topics([new])[name].result(30)
    return name


def produce(bootstrap: str, topic: str, numbers: Any, **more: Any) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for n in numbers:
        producer.produce(topic, value=f"{n}", **more)
    assert producer.flush(30) == 0


def options_at(bootstrap: str, topic: str, **more: str) -> ReadOptions:
    given = {name.replace("__", "."): value for name, value in more.items()}
    return ReadOptions.of({"bootstrap": bootstrap, "subscribe": topic, **given})


def read(bootstrap: str, topic: str, **more: str) -> list[int]:
    """The values, as a batch of Spark reads them."""
    reader = TopicReader(options_at(bootstrap, topic, **more))
    batches = [batch for one in reader.partitions() for batch in reader.read(one)]
    return [int(value) for batch in batches for value in batch.column("value").to_pylist()]


def rows(numbers: Any, **columns: Any) -> pa.RecordBatch:
    listed = [f"{n}" for n in numbers]
    given = {name: pa.array(values) for name, values in columns.items()}
    return pa.RecordBatch.from_pydict({"value": pa.array(listed), **given})


def write(bootstrap: str, topic: str, *batches: pa.RecordBatch, **more: str) -> None:
    given = {name.replace("__", "."): value for name, value in more.items()}
    options = WriteOptions.of({"bootstrap": bootstrap, "topic": topic, **given})
    write_rows(Attempt(uuid.uuid4().hex, 0, 0), options, batches, by_id=False)


def refused_at_once(doing: Callable[[], object], error: type[Exception], words: str) -> None:
    began = time.monotonic()
    with pytest.raises(error, match=words):
        doing()
    assert time.monotonic() - began < AT_ONCE_S


def test_transactions_are_read_as_the_level_says(bootstrap: str) -> None:
    """T21, F3b: aborted records, and those of a transaction that is still open."""
    topic = topic_at(bootstrap)
    settings = {"bootstrap.servers": bootstrap, "transactional.id": uuid.uuid4().hex}
    producer = Producer(settings)
    producer.init_transactions(30)
    for start, ending in ((0, "commit"), (10, "abort"), (20, "commit"), (30, "open")):
        producer.begin_transaction()
        for n in range(start, start + 10):
            producer.produce(topic, value=f"{n}")
        assert producer.flush(30) == 0
        if ending == "commit":
            producer.commit_transaction(30)
        elif ending == "abort":
            producer.abort_transaction(30)

    assert read(bootstrap, topic) == list(range(40))
    committed = {"kafka__isolation__level": "read_committed"}
    assert read(bootstrap, topic, **committed) == [*range(10), *range(20, 30)]
    stream = TopicStreamReader(
        options_at(bootstrap, topic, startingOffsets="earliest", **committed)
    )
    end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert end == {topic: {"0": 33}}, "three marks, and nothing of the open one"
    producer.commit_transaction(30)
    # A broker answers when the decision is stored; the mark in the topic follows.
    deadline = time.monotonic() + DEADLINE_S
    while len(found := read(bootstrap, topic, **committed)) < 30:
        assert time.monotonic() < deadline
    assert found == [*range(10), *range(20, 40)]


def test_a_compacted_topic_of_kafka_has_gaps(kafka: str) -> None:
    """T21: what compaction took is neither read nor missed."""
    quick = {
        "cleanup.policy": "compact",
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0.001",
        "min.compaction.lag.ms": "0",
    }
    topic = topic_at(kafka, config=quick)
    for start in range(0, 40, 10):
        for n in range(start, start + 10):
            produce(kafka, topic, [n], key=f"k{n % 5}")
    deadline = time.monotonic() + DEADLINE_S
    while len(found := read(kafka, topic)) > 20:
        assert time.monotonic() < deadline, "the cleaner has not run"
        # A segment ends with the first record after its time, which the cleaner needs.
        produce(kafka, topic, [99], key="k")
    assert found == sorted(found)
    assert {35, 36, 37, 38, 39} <= set(found)
    assert 0 not in found
    part = read(kafka, topic, startingOffsets=f'{{"{topic}": {{"0": 3}}}}')
    assert part[-5:] == read(kafka, topic)[-5:]


def test_deleted_records_fail_a_query_or_are_passed_over(bootstrap: str) -> None:
    """T21, T9: failOnDataLoss, also where they go between planning and reading."""
    topic = topic_at(bootstrap)
    produce(bootstrap, topic, range(100))
    start = {"startingOffsets": f'{{"{topic}": {{"0": 10}}}}'}
    strict = TopicReader(options_at(bootstrap, topic, **start))
    loose = TopicReader(options_at(bootstrap, topic, failOnDataLoss="false", **start))
    planned = [*strict.partitions(), *loose.partitions()]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 0, 50)]).values():
        future.result(30)

    refused_at_once(lambda: list(strict.read(planned[0])), Damaged, "set failOnDataLoss to false")
    refused_at_once(strict.partitions, Damaged, "begins at 50")
    late = [v for batch in loose.read(planned[1]) for v in batch.column("value").to_pylist()]
    assert [int(value) for value in late] == list(range(50, 100))


def test_partitions_that_are_added_are_read_from_their_beginning(bootstrap: str) -> None:
    """T21: a stream sees them at its next micro-batch."""
    topic = topic_at(bootstrap)
    produce(bootstrap, topic, range(5))
    stream = TopicStreamReader(options_at(bootstrap, topic, startingOffsets="earliest"))
    first = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert first == {topic: {"0": 5}}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)
    produce(bootstrap, topic, range(5, 8), partition=1)
    second = stream.latestOffset(first, ReadAllAvailable())
    assert second == {topic: {"0": 5, "1": 3}}
    batches = [b for one in stream.partitions(first, second) for b in stream.read(one)]
    assert [int(v) for b in batches for v in b.column("value").to_pylist()] == [5, 6, 7]


def test_a_stream_waits_for_the_least_of_offsets(bootstrap: str) -> None:
    """T20: minOffsetsPerTrigger, then maxTriggerDelay; the first micro-batch waits for nothing."""
    topic = topic_at(bootstrap)
    produce(bootstrap, topic, [0])
    least = {"startingOffsets": "earliest", "minOffsetsPerTrigger": "3"}
    patient = TopicStreamReader(options_at(bootstrap, topic, maxTriggerDelay="1h", **least))
    hasty = TopicStreamReader(options_at(bootstrap, topic, maxTriggerDelay="0ms", **least))
    first = patient.latestOffset(patient.initialOffset(), ReadAllAvailable())
    assert first == hasty.latestOffset(hasty.initialOffset(), ReadAllAvailable())
    assert first == {topic: {"0": 1}}
    produce(bootstrap, topic, [1, 2])
    assert patient.latestOffset(first, ReadAllAvailable()) == first
    assert hasty.latestOffset(first, ReadAllAvailable()) == {topic: {"0": 3}}
    produce(bootstrap, topic, [3])
    assert patient.latestOffset(first, ReadAllAvailable()) == {topic: {"0": 4}}


@pytest.mark.parametrize("codec", ["lz4", "zstd", "gzip", "snappy"])
def test_what_is_compressed_here_is_read_by_others(bootstrap: str, codec: str) -> None:
    """F3a: batches of several blocks; Kafka's broker, which is Java, takes a batch apart before it
    stores it, and refuses linked blocks of lz4; librdkafka reads what is stored."""
    topic = topic_at(bootstrap)
    chance = random.Random(3)
    texts = [chance.randbytes(600).hex() for _ in range(600)]
    batch = pa.RecordBatch.from_pydict({"value": pa.array(texts)})
    write(bootstrap, topic, batch, kafka__compression__type=codec)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "f3a", "check.crcs": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[str] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < 600:
        assert time.monotonic() < deadline
        for message in consumer.consume(600, timeout=1.0):
            assert message.error() is None
            found.append((message.value() or b"").decode())
    consumer.close()
    assert found == texts


def test_errors_that_will_not_pass_are_told_at_once(bootstrap: str) -> None:
    """T21, F7b, F3a: a time that the broker refuses, a row that is too large, an end that is not
    there, a topic that nobody has; not after a minute of tries."""
    topic = topic_at(bootstrap, config={"message.timestamp.before.max.ms": "60000"})
    old = rows([1], timestamp=pa.array([1_000_000], pa.timestamp("us", tz="UTC")))
    refused_at_once(lambda: write(bootstrap, topic, old), InvalidTimestamp, topic)
    small = topic_at(bootstrap, config={"max.message.bytes": "2000"})
    large = pa.RecordBatch.from_pydict({"value": pa.array(["x" * 5_000])})
    refused_at_once(lambda: write(bootstrap, small, large), BatchTooLarge, small)

    produce(bootstrap, topic, [1])
    beyond = f'{{"{topic}": {{"0": 2}}}}'
    refused_at_once(
        lambda: read(bootstrap, topic, endingOffsets=beyond), InvalidInput, "which ends at 1"
    )
    refused_at_once(lambda: read(bootstrap, "nobody-has-this"), TopicUnknown, "nobody-has-this")


def test_a_topic_that_kafka_does_not_create_is_told(kafka: str) -> None:
    """T21: Kafka may be told to create none; it is not waited for a minute."""
    refused_at_once(lambda: write(kafka, "not-there", rows([1])), TopicUnknown, "create it first")


def test_one_batch_of_rows_by_id_is_compared_before_the_next(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F3c: another attempt stores its first batch, with other rows under the same numbers, between
    our look and our first batch; our second must not follow it."""
    topic = topic_at(bootstrap)
    attempt = Attempt(uuid.uuid4().hex, 0, 0)
    options = WriteOptions(Brokers("unused:1"), topic, batch_bytes_max=300)
    numbers = list(range(20))
    with (
        closing(KafkaClient(Brokers(bootstrap))) as one,
        closing(KafkaClient(Brokers(bootstrap))) as two,
    ):
        mine = TaskWriter(one, attempt, options, by_id=True)
        other = TaskWriter(two, attempt, options, by_id=True)
        sending = mine._producer.send_all
        count = 0

        def overtaken(batches: Any) -> None:
            nonlocal count
            if count == 0:
                given = {place: list(listed) for place, listed in batches.items()}
                (encoded,) = [listed[0] for listed in given.values()]
                count = encoded.count
                last = numbers[::-1][:count]
                other.write(rows(last, id=[f"{n:02}" for n in last]))
                batches = {place: iter(listed) for place, listed in given.items()}
            sending(batches)

        monkeypatch.setattr(mine._producer, "send_all", overtaken)
        mine.write(rows(numbers, id=[f"{n:02}" for n in numbers]))
        mine.close()
        other.close()
    assert 0 < count < 20
    assert sorted(read(bootstrap, topic)) == numbers


def fetched_bytes(options: ReadOptions, *filters: Filter) -> tuple[list[int], int, int]:
    """The offsets that a batch with filters reads, and what that took: bytes and tasks."""
    client = options.client()
    before = client.bytes_fetched
    reader = TopicReader(options)
    assert reader.pushFilters([*filters]) == [
        one for one in filters if one.attribute == ("timestamp",)
    ]
    tasks = reader.partitions()
    batches = [batch for one in tasks for batch in reader.read(one)]
    offsets = [n for batch in batches for n in batch.column("offset").to_pylist()]
    return offsets, client.bytes_fetched - before, len(tasks)


def test_a_filter_reads_what_it_needs_and_large_ranges_are_split(bootstrap: str) -> None:
    """T20: bytes that were fetched, with filters on offset, time and partition; tasks by size."""
    topic = topic_at(bootstrap, partitions=2)
    texts = pa.array([f"{n:<500}" for n in range(20_000)])
    times = pa.array([1_700_000_000_000_000 + n * 1000 for n in range(20_000)])
    stamped = times.cast(pa.timestamp("us", tz="UTC"))
    for number in (0, 1):
        where = pa.repeat(pa.scalar(number, pa.int32()), 20_000)
        batch = pa.RecordBatch.from_pydict(
            {"value": texts, "timestamp": stamped, "partition": where}
        )
        write(bootstrap, topic, batch, kafka__batch__size="16384")

    options = options_at(bootstrap, topic)
    offsets, whole, tasks = fetched_bytes(options)
    assert len(offsets) == 40_000
    assert whole > 20_000_000
    assert tasks == 2
    first = EqualTo(("partition",), 0)
    few = (first, GreaterThanOrEqual(("offset",), 15_000), LessThan(("offset",), 15_010))
    offsets, some, tasks = fetched_bytes(options, *few)
    assert offsets == [*range(15_000, 15_010)]
    # One small fetch; nothing is read to plan so small a range.
    assert some < whole / 100
    # Small records: a first fetch that believed them to be large would bring a half of them.
    percent = (first, GreaterThanOrEqual(("offset",), 9_000), LessThan(("offset",), 9_300))
    offsets, some, tasks = fetched_bytes(options, *percent)
    assert offsets == [*range(9_000, 9_300)]
    assert some < 300_000, "150,000 bytes of records, and whole batches at both ends"

    moment = datetime.fromtimestamp(1_700_000_018, UTC)
    offsets, late, tasks = fetched_bytes(options, first, GreaterThan(("timestamp",), moment))
    assert offsets == [*range(18_000, 20_000)]
    assert late < whole / 10
    never = datetime.fromtimestamp(1_800_000_000, UTC)
    assert fetched_bytes(options, GreaterThan(("timestamp",), never)) == ([], 0, 0)

    small = options_at(bootstrap, topic, maxBytesPerPartition="1000000")
    offsets, _, tasks = fetched_bytes(small, first)
    assert offsets == [*range(20_000)]
    assert 8 <= tasks <= 14, "ten million bytes and what batches add"
