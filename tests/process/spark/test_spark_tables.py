"""`format("dovetail")` in a real Spark on a real node; one session for all tests, it is dear."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from tests.conftest import RunningNode
from typer.testing import CliRunner

pytest.importorskip("pyspark")
import pyarrow.dataset
from tests.java import need_java

from dovetail.cli.app import app
from dovetail.kafka.client.brokers import Brokers
from dovetail.kafka.client.client import EARLIEST, LATEST, KafkaClient
from dovetail.spark import register, session
from dovetail.spark.decoder import to_arrow
from dovetail.spark.fetching import fetch
from dovetail.spark.offsets import progress_of
from dovetail.spark.source import SPARK_SCHEMA

#: A killed driver is given so long to come so far.
DRIVER_S_MAX = 250


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The one session. Without Java the tests skip, in CI they fail."""
    need_java()
    settings = {
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        # A test is over before the second compiler pays.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    spark = session("tests", master="local[2]", **settings)
    yield spark
    spark.stop()


@pytest.fixture(scope="module")
def client(node: RunningNode) -> Iterator[KafkaClient]:
    """Looks at topics without Spark."""
    made = KafkaClient(Brokers(node.bootstrap))
    yield made
    made.close()


def topic_of(node: RunningNode, partitions: int = 2) -> str:
    name = f"s-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic(name, num_partitions=partitions)])[name].result(30)
    return name


def produce(node: RunningNode, topic: str, numbers: Any, **more: Any) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap, "linger.ms": 5})
    for n in numbers:
        producer.produce(topic, key=f"k{n}", value=f"{n}", **more)
    assert producer.flush(30) == 0


def stored(client: KafkaClient, topic: str) -> list[int]:
    """The values in a topic, sorted."""
    found = []
    for number in client.partitions([topic])[topic]:
        place = (topic, number)
        bounds = [client.offsets({place: at})[place] for at in (EARLIEST, LATEST)]
        for fetched in fetch(client, place, *bounds):
            columns = to_arrow(
                fetched.batches, (topic, number), offset_min=bounds[0], offset_end=bounds[1]
            )
            found += [int(value) for value in columns.column("value").to_pylist()]
    return sorted(found)


def reading(spark: Any, node: RunningNode, **options: str) -> Any:
    return spark.read.format("dovetail").options(bootstrap=node.bootstrap, **options).load()


def stream(spark: Any, node: RunningNode, topic: str, **options: str) -> Any:
    reader = spark.readStream.format("dovetail").option("kafka.bootstrap.servers", node.bootstrap)
    return reader.options(subscribe=topic, startingOffsets="earliest", **options).load()


def run_now(frame: Any, node: RunningNode, topic: str, checkpoint: Path, **options: str) -> Any:
    """Runs a stream to the end of what is there."""
    writer = frame.writeStream.format("dovetail").option("bootstrap", node.bootstrap)
    query = (
        writer.options(topic=topic, **options)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def test_a_topic_is_a_table(spark: Any, node: RunningNode) -> None:
    """T9: the columns of Spark's Kafka source, ranges by offset, by time and by partition."""
    topic = topic_of(node)
    produce(node, topic, range(50), headers=[("h", b"x")], timestamp=1_700_000_000_000)
    produce(node, topic, range(50, 100), timestamp=1_700_000_100_000)
    frame = reading(spark, node, subscribe=topic, includeHeaders="true")
    assert frame.columns == [*SPARK_SCHEMA.fieldNames(), "headers"]
    rows = {int(row.value): row for row in frame.collect()}
    assert sorted(rows) == list(range(100))
    assert bytes(rows[7].key) == b"k7"
    assert (rows[7].topic, rows[7].timestampType) == (topic, 0)
    assert [(pair.key, bytes(pair.value)) for pair in rows[7].headers] == [("h", b"x")]
    assert rows[70].headers == []
    assert rows[7].timestamp.timestamp() == 1_700_000_000
    later = reading(
        spark,
        node,
        subscribePattern=topic[:-1] + ".",
        startingTimestamp="1700000050000",
        minPartitions="5",
    )
    assert sorted(int(row.value) for row in later.collect()) == list(range(50, 100))
    assert later.rdd.getNumPartitions() >= 5
    part = reading(
        spark,
        node,
        assign=json.dumps({topic: [1]}),
        startingOffsets=json.dumps({topic: {"1": 2}}),
        endingOffsets=json.dumps({topic: {"1": 9}}),
    )
    assert [(row.partition, row.offset) for row in part.collect()] == [(1, n) for n in range(2, 9)]


def test_a_schema_chooses_columns(spark: Any, node: RunningNode) -> None:
    """T9: only the columns of a schema are made, in its order; what no topic has is refused."""
    topic = topic_of(node)
    produce(node, topic, range(20), headers=[("h", b"x")])
    for reader in (spark.read, spark.readStream):
        frame = (
            reader.format("dovetail")
            .options(bootstrap=node.bootstrap, subscribe=topic)
            .schema("offset bigint, headers array<struct<key:string,value:binary>>, value binary")
            .load()
        )
        assert frame.columns == ["offset", "headers", "value"]
        if not frame.isStreaming:
            rows = frame.collect()
            assert sorted(int(row.value) for row in rows) == list(range(20))
            assert {row.headers[0].key for row in rows} == {"h"}
    for columns in ("value string", "number int"):
        wrong = spark.read.format("dovetail").options(bootstrap=node.bootstrap, subscribe=topic)
        with pytest.raises(Exception, match="a topic has no column"):
            wrong.schema(columns).load().collect()


def test_a_table_is_written_to_a_topic(spark: Any, node: RunningNode, client: KafkaClient) -> None:
    """T9: strings and bytes, a topic for all or one in each row, compressed."""
    first, second = topic_of(node), topic_of(node)
    frame = spark.range(1_000).selectExpr("string(id) as key", "string(id) as value")
    writer = frame.write.format("dovetail").mode("append").option("bootstrap", node.bootstrap)
    writer.option("topic", first).option("kafka.compression.type", "zstd").save()
    assert stored(client, first) == list(range(1_000))
    routed = frame.selectExpr("value", f"if(value < 500, '{first}', '{second}') as topic")
    routed.write.format("dovetail").mode("append").option("bootstrap", node.bootstrap).save()
    assert stored(client, second) == list(range(500, 1_000))
    assert len(stored(client, first)) == 1_500


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (["id as value"], "column 'value' is bigint; it must be string or binary"),
        (["'x' as key"], "no column 'value'"),
    ],
)
def test_what_can_not_be_written_is_refused(
    spark: Any, node: RunningNode, columns: list[str], words: str
) -> None:
    """T9: before anything is written, with a message that names the column."""
    frame = spark.range(1).selectExpr(*columns)
    writer = frame.write.format("dovetail").mode("append").option("bootstrap", node.bootstrap)
    with pytest.raises(Exception, match=words):
        writer.option("topic", "refused").save()


def test_a_stream_keeps_to_its_limit_and_goes_on_where_it_stopped(
    spark: Any, node: RunningNode, client: KafkaClient, tmp_path: Path
) -> None:
    """T9: admission control, AvailableNow, a restart from the checkpoint, positions in a group;
    a partition that is added later is read from its beginning."""
    source, target, group = topic_of(node), topic_of(node), f"g-{uuid.uuid4().hex[:8]}"
    produce(node, source, range(250))
    frame = stream(spark, node, source, maxOffsetsPerTrigger="100", **{"kafka.group.id": group})
    query = run_now(frame.select("key", "value"), node, target, tmp_path)
    sizes = [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]]
    assert sizes == [100, 100, 50]
    assert stored(client, target) == list(range(250))
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_partitions([NewPartitions(source, 3)])[source].result(30)
    produce(node, source, range(250, 400))
    run_now(frame.select("key", "value"), node, target, tmp_path)
    assert stored(client, target) == list(range(400))
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": group})
    committed = consumer.committed([TopicPartition(source, n) for n in range(3)], timeout=30)
    consumer.close()
    # Spark tells a source of a finished micro-batch when it begins the next one.
    assert sum(max(one.offset, 0) for one in committed) >= 200


def test_a_stream_says_how_far_it_is(spark: Any, node: RunningNode, tmp_path: Path) -> None:
    """T20, F7b: each micro-batch reports where it ended and where the topic ended; names, lag and
    rate follow."""
    source = topic_of(node)
    produce(node, source, range(6))
    frame = stream(spark, node, source, maxOffsetsPerTrigger="2")
    writer = frame.writeStream.format("noop").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    query.awaitTermination()
    found = [one for reported in query.recentProgress for one in progress_of(reported) if one.rows]
    assert [(one.topics, one.lag, one.rows) for one in found] == [
        ((source,), 4, 2),
        ((source,), 2, 2),
        ((source,), 0, 2),
    ]
    assert all(one.rows_per_s > 0 for one in found)


def test_lost_records_fail_the_query_or_are_passed_over(
    spark: Any, node: RunningNode, client: KafkaClient, tmp_path: Path
) -> None:
    """T9: failOnDataLoss, for records that retention took."""
    source, target = topic_of(node, 1), topic_of(node)
    produce(node, source, range(100))
    first = stream(spark, node, source).select("key", "value")
    run_now(first, node, target, tmp_path)
    produce(node, source, range(100, 200))
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    for future in admin.delete_records([TopicPartition(source, 0, 150)]).values():
        future.result(30)
    with pytest.raises(Exception, match=r"begins at 150.*failOnDataLoss"):
        run_now(first, node, target, tmp_path)
    again = stream(spark, node, source, failOnDataLoss="false").select("key", "value")
    run_now(again, node, target, tmp_path)
    assert stored(client, target) == [*range(100), *range(150, 200)]


DRIVER = """
import sys
from dovetail.spark import session
bootstrap, source, target, checkpoint, by_id = sys.argv[1:]
spark = session("driver", master="local[2]", **{
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
})
frame = spark.readStream.format("dovetail").options(
    bootstrap=bootstrap, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="2000"
).load()
columns = ["key", "value"] + (["cast(value as string) as id"] if by_id == "yes" else [])
frame = frame.selectExpr(*columns)
if by_id == "yes":
    frame = frame.repartition(3)
query = frame.writeStream.format("dovetail").options(
    bootstrap=bootstrap, topic=target, checkpointLocation=checkpoint
).start()
print("started", flush=True)
query.awaitTermination()
"""


@pytest.mark.parametrize("by_id", ["no", "yes"][: int(os.environ.get("SPARK_DRIVER_KILLS", "1"))])
def test_a_driver_that_is_killed_leaves_each_row_once(
    spark: Any, node: RunningNode, client: KafkaClient, tmp_path: Path, by_id: str
) -> None:
    """T2, T5: kill -9 of the driver in the middle of a micro-batch, whose workers may live on for a
    moment; another driver takes over from the checkpoint; rows by position, and by id behind a
    shuffle."""
    source, target = topic_of(node), topic_of(node)
    count = 12_000
    produce(node, source, range(count))
    command = [sys.executable, "-c", DRIVER, node.bootstrap, source, target]
    driver = subprocess.Popen(
        [*command, str(tmp_path / "checkpoint"), by_id],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _wait_for_records(node, target, 3_000)
        assert driver.poll() is None
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate()
    assert len(stored(client, target)) < count, "it was over before it was killed"
    frame = stream(spark, node, source).selectExpr(
        "key", "value", *(["cast(value as string) as id"] if by_id == "yes" else [])
    )
    if by_id == "yes":
        frame = frame.repartition(3)
    run_now(frame, node, target, tmp_path / "checkpoint")
    counted = Counter(stored(client, target))
    assert set(counted) == set(range(count))
    assert {n: times for n, times in counted.items() if times > 1} == {}


def _wait_for_records(node: RunningNode, topic: str, count: int) -> None:
    consumer = Consumer(
        {"bootstrap.servers": node.bootstrap, "group.id": "w", "auto.offset.reset": "earliest"}
    )
    consumer.assign([TopicPartition(topic, n, 0) for n in range(2)])
    deadline = time.monotonic() + DRIVER_S_MAX
    while count > 0:
        assert time.monotonic() < deadline
        count -= len(consumer.consume(num_messages=1_000, timeout=1.0))
    consumer.close()


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")
def test_a_task_that_fails_and_is_run_again_doubles_nothing(
    spark: Any, node: RunningNode, client: KafkaClient, tmp_path: Path
) -> None:
    """T5: a worker dies after it has written half of its rows; the micro-batch is run again."""
    source, target = topic_of(node, 1), topic_of(node)
    produce(node, source, range(5_000))
    trap = tmp_path / "trap"
    trap.touch()

    def falls_once(batches: Any) -> Any:
        for batch in batches:
            for at in range(0, batch.num_rows, 500):
                if at >= 2_000 and trap.exists():
                    trap.unlink()
                    os._exit(1)
                yield batch.slice(at, 500)

    frame = stream(spark, node, source).select("key", "value")
    frame = frame.mapInArrow(falls_once, "key binary, value binary")
    with pytest.raises(Exception, match=r"crashed|exited"):
        run_now(frame, node, target, tmp_path / "checkpoint")
    assert not trap.exists()
    run_now(frame, node, target, tmp_path / "checkpoint")
    assert stored(client, target) == list(range(5_000))


def test_a_session_can_be_taught_twice(spark: Any) -> None:
    """T9: `register` leaves a session alone that knows the format."""
    register(spark)
    with pytest.raises(Exception, match="which topics to read"):
        spark.read.format("dovetail").option("bootstrap", "127.0.0.1:1").load()


def test_archive_replay_and_statistics(
    spark: Any, node: RunningNode, client: KafkaClient, tmp_path: Path
) -> None:
    """T13: a topic to Parquet, and again only what is new; a range of it back into a topic; counts
    per window."""
    source, target = topic_of(node), topic_of(node)
    day_ms, first_ms = 86_400_000, 1_700_006_400_000
    produce(node, source, range(300), timestamp=first_ms, headers=[("h", b"x")])
    archive = str(tmp_path / "archive")
    assert command(node, "archive", source, "--to", archive)["records"] == 300
    produce(node, source, range(300, 400), timestamp=first_ms + day_ms)
    assert command(node, "archive", source, "--to", archive)["records"] == 100
    files = pyarrow.dataset.dataset(archive, partitioning="hive").to_table()
    assert sorted(int(value) for value in files.column("value").to_pylist()) == list(range(400))
    assert Counter(files.column("day").to_pylist()) == {"2023-11-15": 300, "2023-11-16": 100}
    later = ["--from", "2023-11-16T00:00Z"]
    replayed = command(node, "replay", source, "--to", target, "--archive", archive, *later)
    assert replayed["records"] == 100
    assert stored(client, target) == list(range(300, 400))
    produce(node, source, [400], timestamp=first_ms)
    days = command(node, "stats", source, "--window", "1 day")
    assert [row["records"] for row in days] == [301, 100]
    assert days[0]["late_ms_max"] == day_ms
    assert days[1]["late_ms_max"] == 0
    assert abs(days[1]["keys"] - 100) <= 10
    assert days[1]["bytes"] == sum(len(f"k{n}") + len(f"{n}") for n in range(300, 400))
    assert 1 <= days[0]["skew"] <= 2


def test_archive_to_iceberg_and_replay_from_it(
    spark: Any, node: RunningNode, client: KafkaClient, tmp_path: Path
) -> None:
    """T13: each record once, a file holds one day, columns are added later, and what is
    read by name of a metadata file, as other engines do, is what was written."""
    from pyiceberg.table import StaticTable

    source, target = topic_of(node), topic_of(node)
    day_ms, first_ms = 86_400_000, 1_700_006_400_000
    produce(node, source, range(200), timestamp=first_ms + day_ms - 1, headers=[("h", b"x")])
    lake = ["--format", "iceberg", "--to", str(tmp_path / "the lake")]
    assert command(node, "archive", source, *lake)["records"] == 200
    produce(node, source, range(200, 300), timestamp=first_ms + day_ms)
    spark.conf.set("spark.sql.session.timeZone", "Pacific/Auckland")
    try:
        widened = command(node, "archive", source, *lake, "--column", "n=int(string(value))")
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert widened["records"] == 100
    assert command(node, "archive", source, *lake)["records"] == 0
    assert list((tmp_path / "the lake").rglob("*.parquet")), "nothing is beside the folder"

    table = StaticTable.from_metadata(widened["metadata"])
    rows = table.scan().to_arrow()
    assert sorted(int(value) for value in rows.column("value").to_pylist()) == list(range(300))
    assert Counter(rows.column("n").is_valid().to_pylist()) == {False: 200, True: 100}
    assert rows.column("headers").to_pylist()[0] is not None
    days = table.inspect.partitions().to_pylist()
    found = {str(one["partition"]["timestamp_day"]): one["record_count"] for one in days}
    assert found == {"2023-11-15": 200, "2023-11-16": 100}

    later = ["--from", "2023-11-16T00:00Z"]
    again = ["--archive", str(tmp_path / "the lake"), *later]
    assert command(node, "replay", source, "--to", target, *again)["records"] == 100
    assert stored(client, target) == list(range(200, 300))


def command(node: RunningNode, *arguments: str) -> Any:
    """What a command of `dovetail` answers."""
    given = [*arguments, "--master", "local[2]", "--bootstrap", node.bootstrap, "--json"]
    answer = CliRunner().invoke(app, given)
    assert answer.exit_code == 0, answer.output
    return json.loads(answer.stdout)
