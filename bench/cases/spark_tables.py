"""Topic to Spark to topic with no function, and what a micro-batch costs when there is no work.

The limit is the same query with nothing of ours in it: Parquet files through `mapInArrow` to a
sink that drops everything. `local[2]`, one session for all, after one round that warms it.

On a real Apache Kafka the peer is Spark's own Kafka connector, in a Spark of its version and with
our source in the same session, in turns.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import GreaterThanOrEqual, LessThan

from bench.cases.spark_records import fill
from bench.client import create_topic
from bench.node import Node
from bench.peers import kafka, spark_connector
from bench.peers.server import PeerMissing
from bench.run import Run
from bench.table import Line
from dovetail.kafka.client.brokers import Brokers
from dovetail.spark import session
from dovetail.spark.options import ReadOptions
from dovetail.spark.source import TopicReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CASE = "b tables"
_UNIT = "messages/s"
_PARTITIONS = 4
#: What is required: topic to topic, and topic to Spark.
_OF_PARQUET, _DROPPED_OF_PARQUET = 0.7, 1.5
#: A hundredth of the offsets is wanted; a fetch brings whole batches and some more than it needs.
_FETCHED_MAX = 0.03
_OF_CONNECTOR = 3.0
_RATE_MIN = 300_000.0
_TRIGGER_MS_MAX = 250.0

_COST_NOTE = (
    "one row a micro-batch, source and sink, 4 partitions of which one has data; the parts are "
    "Spark's own durationMs (median)."
)


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function that does nothing."""
    return batches


def _rate(run: Run, count: int, work: Callable[[], None]) -> float:
    work()
    best = 0.0
    for _ in range(run.rounds):
        started = time.perf_counter()
        work()
        best = max(best, count / (time.perf_counter() - started))
    return best


def measure(run: Run) -> list[Line]:
    count = run.sized(2_000_000, quick=100_000)
    with Node(Path(run.folder) / "tables") as node:
        spark = session("bench", master="local[2]")
        try:
            lines = [*_through(run, spark, node, count), *_micro_batch(run, spark, node)]
        finally:
            spark.stop()
    return [*lines, _beside_connector(run, count)]


def _read(spark: "SparkSession", node: Node, topic: str) -> "DataFrame":
    reader = spark.read.format("dovetail").option("bootstrap", node.bootstrap)
    return reader.schema("key binary, value binary").option("subscribe", topic).load()


def _through(run: Run, spark: "SparkSession", node: Node, count: int) -> list[Line]:
    files = str(Path(run.folder).absolute() / "parquet")
    source = create_topic(node.bootstrap, "in", partitions=_PARTITIONS)
    run.step("writing messages")
    fill(node.bootstrap, source, count, partitions=_PARTITIONS)
    _read(spark, node, source).write.parquet(files)

    def parquet() -> None:
        frame = spark.read.parquet(files).mapInArrow(same, "key binary, value binary")
        frame.write.format("noop").mode("overwrite").save()

    def dropped() -> None:
        _read(spark, node, source).write.format("noop").mode("overwrite").save()

    def through() -> None:
        target = create_topic(node.bootstrap, "out", partitions=_PARTITIONS)
        writer = _read(spark, node, source).write.format("dovetail").mode("append")
        writer.option("bootstrap", node.bootstrap).option("topic", target).save()

    rates = {}
    for name, work in (("parquet", parquet), ("dropped", dropped), ("through", through)):
        run.step(name)
        rates[name] = _rate(run, count, work)
        run.note(f"  {name}: {rates[name]:,.0f} {_UNIT}")
    limit = "Parquet, mapInArrow, null sink"
    return [
        Line(
            _CASE,
            "topic to null sink",
            rates["dropped"],
            _UNIT,
            limit,
            rates["parquet"],
            ratio_min=_DROPPED_OF_PARQUET,
        ),
        Line(
            _CASE,
            "topic to topic",
            rates["through"],
            _UNIT,
            limit,
            rates["parquet"],
            ratio_min=_OF_PARQUET,
        ),
        Line(_CASE, "topic to topic", rates["through"], _UNIT, "floor", _RATE_MIN, ratio_min=1.0),
        _filtered(node, source, count),
    ]


def _filtered(node: Node, topic: str, count: int) -> Line:
    """What is fetched for a hundredth of each partition, in its middle, by a filter on offset."""
    options = ReadOptions(Brokers(node.bootstrap), (topic,))
    client, each = options.client(), count // _PARTITIONS
    fetched = []
    middle = [
        GreaterThanOrEqual(("offset",), each // 2),
        LessThan(("offset",), each // 2 + each // 100),
    ]
    for filters in ([], middle):
        reader = TopicReader(options)
        reader.pushFilters(filters)
        before = client.bytes_fetched
        rows = sum(batch.num_rows for one in reader.partitions() for batch in reader.read(one))
        assert rows == (each // 100 if filters else each) * _PARTITIONS, rows
        fetched.append(client.bytes_fetched - before)
    name = "bytes fetched, 1 % of the offsets"
    whole, some = fetched
    return Line(_CASE, name, some, "bytes", "all of them", whole, ratio_max=_FETCHED_MAX)


def _beside_connector(run: Run, count: int) -> Line:
    """Our source and Spark's own connector, on one Apache Kafka and in one session."""
    ours = theirs = None
    note = ""
    try:
        with kafka.running(Path(run.folder) / "kafka", {}) as server:
            topic = create_topic(server.bootstrap, "in", partitions=_PARTITIONS)
            fill(server.bootstrap, topic, count, partitions=_PARTITIONS)
            run.step(f"Spark's own connector {spark_connector.VERSION}")
            folder = Path(run.folder) / "connector"
            found = spark_connector.rates(
                folder, server.bootstrap, topic, count=count, rounds=run.rounds
            )
            ours, theirs = found["dovetail"], found["kafka"]
    except PeerMissing as error:
        note = str(error)
    peer = f"its own connector {spark_connector.VERSION}"
    name = f"Kafka to mapInArrow, Spark {spark_connector.VERSION}"
    return Line(_CASE, name, ours, _UNIT, peer, theirs, ratio_min=_OF_CONNECTOR, note=note)


def _micro_batch(run: Run, spark: "SparkSession", node: Node) -> list[Line]:
    source, target = (
        create_topic(node.bootstrap, name, partitions=_PARTITIONS) for name in ("in", "out")
    )
    batches = run.sized(60, quick=15)
    fill(node.bootstrap, source, batches, partitions=1)
    run.step("one row at a time")
    reader = spark.readStream.format("dovetail").option("bootstrap", node.bootstrap)
    frame = reader.options(
        subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="1"
    ).load()
    writer = frame.select("key", "value").writeStream.format("dovetail")
    query = (
        writer.options(bootstrap=node.bootstrap, topic=target)
        .option("checkpointLocation", str(Path(run.folder).absolute() / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    # The first ones start workers and compile plans.
    parts = [
        progress["durationMs"] for progress in query.recentProgress if progress["numInputRows"]
    ]
    warm = parts[len(parts) // 2 :]
    run.note(f"  {len(parts)} micro-batches, the later half counted")
    lines = []
    for part in ("triggerExecution", "addBatch", "commitOffsets", "walCommit", "latestOffset"):
        took = statistics.median(one.get(part, 0) for one in warm)
        rule = part == "triggerExecution"
        lines.append(
            Line(
                _CASE,
                f"micro-batch of one row: {part}",
                took,
                "ms",
                "aim on an idle machine" if rule else "",
                _TRIGGER_MS_MAX if rule else None,
                note=_COST_NOTE if rule else "",
            )
        )
    return lines
