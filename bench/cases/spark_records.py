"""Record batches to Arrow columns: our decoder, compiled and plain, against confluent-kafka.

confluent-kafka's `consume(10000)` with every field taken is what a source without a decoder would
do; ours is the fetch, the checksum and the columns, from the same node and topic.
"""

import random
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition

from bench.node import Node
from bench.run import Run
from bench.table import Line
from dovetail.kafka.client.brokers import Brokers
from dovetail.kafka.client.client import KafkaClient
from dovetail.kafka.client.producer import Producer
from dovetail.spark import _plain_records as plain
from dovetail.spark import records
from dovetail.spark.decoder import batches_in, to_arrow
from dovetail.spark.encoder import Rows, encode_batches
from dovetail.spark.fetching import fetch

_CASE = "a records"
_UNIT = "messages/s"
_BYTES = 100
_TIMES_CLIENT = 5.0
#: The plain half is measured on so many: it takes as long as it takes.
_PLAIN = 20_000


def rows(count: int) -> pa.RecordBatch:
    """Messages of 100 bytes with a key.

    No two bodies are equal: in Parquet, equal ones would be one entry of a dictionary, and reading
    them would be reading nothing.
    """
    keys = pa.array([f"key-{n % 100_000}" for n in range(count)], pa.binary())
    text = random.Random(count).randbytes(count * _BYTES // 2).hex().encode()
    ends = pa.array(range(0, (count + 1) * _BYTES, _BYTES), pa.int32())
    values = pa.Array.from_buffers(
        pa.binary(), count, [None, ends.buffers()[1], pa.py_buffer(text)]
    )
    return pa.record_batch({"key": keys, "value": values})


def fill(bootstrap: str, topic: str, count: int, *, partitions: int) -> None:
    """Writes messages with our own encoder, the same into each partition."""
    client = KafkaClient(Brokers(bootstrap))
    client.partitions([topic], create=True)
    share = rows(count // partitions)
    chosen = pa.array(range(share.num_rows), pa.int32()).buffers()[1]
    producer = Producer(client)
    producer.send_all(
        {
            (topic, number): encode_batches(
                Rows.of(share),
                chosen,
                codec=0,
                bytes_max=120_000,
                now_ms=time.time_ns() // 1_000_000,
                producer_id=-1,
                producer_epoch=-1,
                sequence=-1,
            )
            for number in range(partitions)
        }
    )
    producer.close()
    client.close()


def _rate(count: int, rounds: int, work: Callable[[], object]) -> float:
    best = 0.0
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        best = max(best, count / (time.perf_counter() - started))
    return best


def _read_ours(client: KafkaClient, topic: str, count: int) -> int:
    found = 0
    for fetched in fetch(client, (topic, 0), 0, count):
        found += to_arrow(fetched.batches, (topic, 0), offset_end=count).num_rows
    assert found == count
    return found


def _read_confluent(bootstrap: str, topic: str, count: int) -> int:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "queued.min.messages": 1_000_000,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[tuple[object, ...]] = []
    while len(found) < count:
        found += [
            (m.key(), m.value(), m.topic(), m.partition(), m.offset(), m.timestamp())
            for m in consumer.consume(10_000, 1.0)
        ]
    consumer.close()
    return len(found)


def measure(run: Run) -> list[Line]:
    count = run.sized(1_000_000, quick=50_000)
    lines = _pure_lines(run, count)
    with Node(Path(run.folder) / "records") as node:
        topic = f"r-{uuid.uuid4().hex[:8]}"
        run.step("writing messages")
        fill(node.bootstrap, topic, count, partitions=1)
        client = KafkaClient(Brokers(node.bootstrap))
        run.step("reading with our decoder")
        ours = _rate(count, run.rounds, lambda: _read_ours(client, topic, count))
        client.close()
        run.step("reading with confluent-kafka")
        theirs = _rate(count, run.rounds, lambda: _read_confluent(node.bootstrap, topic, count))
    name = "fetch and decode to columns" + ("" if records.COMPILED else " (NOT compiled)")
    return [
        *lines,
        Line(_CASE, name, ours, _UNIT, "confluent-kafka", theirs, ratio_min=_TIMES_CLIENT),
    ]


def _pure_lines(run: Run, count: int) -> list[Line]:
    run.step("encoding and decoding in memory")
    table = rows(count)
    everything = pa.array(range(count), pa.int32()).buffers()[1]
    given = Rows.of(table)
    few = pa.array(range(_PLAIN), pa.int32()).buffers()[1]
    made = b"".join(
        one.data
        for one in encode_batches(
            given,
            everything,
            codec=0,
            bytes_max=120_000,
            now_ms=0,
            producer_id=-1,
            producer_epoch=-1,
            sequence=-1,
        )
    )
    sections = [view.section() for view in batches_in(made, where="memory")]
    some = sections[: max(1, _PLAIN // sections[0][1])]
    counted = sum(section[1] for section in some)
    arguments = (given.keys, given.values, None, None, 0)
    end = 1 << 62
    return [
        Line(
            _CASE,
            "decode, in memory",
            _rate(count, run.rounds, lambda: records.decode(sections, 0, end, False)),
            _UNIT,
            "in Python",
            _rate(counted, 1, lambda: plain.decode(some, 0, end, False)),
        ),
        Line(
            _CASE,
            "encode, in memory",
            _rate(count, run.rounds, lambda: records.encode(*arguments, everything, 0, 1 << 30)),
            _UNIT,
            "in Python",
            _rate(_PLAIN, 1, lambda: plain.encode(*arguments, few, 0, 1 << 30)),
        ),
    ]
