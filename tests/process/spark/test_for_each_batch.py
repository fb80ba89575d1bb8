"""The recipe for `foreachBatch` of docs/spark.md: a kill between the write and Spark's commit."""

import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.conftest import RunningNode
from tests.java import need_java
from tests.kafka_server import running_kafka

pytest.importorskip("pyspark")
from dovetail.errors import InvalidInput
from dovetail.kafka.client.brokers import Brokers
from dovetail.spark.options import ReadOptions, WriteOptions
from dovetail.spark.source import TopicReader

pytestmark = pytest.mark.timeout(900)
DRIVER_S_MAX = 400
COUNT = 500

DRIVER = """
import os, signal, sys, threading
from dovetail.spark import session
mode, checkpoint, *places = sys.argv[1:]
spark = session("driver", master="local[2]", **{
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
})
written = threading.Barrier(len(places))

def writing(bootstrap, name):
    def write(frame, batch_id):
        counts = frame.groupBy("key").count()
        counts = counts.selectExpr("key", "string(count) as value", "key as id")
        for rows, topic in ((counts, name + "-counts"), (frame.select("value"), name + "-copy")):
            rows.write.format("dovetail").mode("append").options(
                bootstrap=bootstrap, topic=topic, txnAppId=topic, txnVersion=batch_id
            ).save()
        if mode == "die" and batch_id == 1:
            # Both have written their second micro-batch, and Spark has committed neither.
            written.wait(300)
            os.kill(os.getpid(), signal.SIGKILL)
    return write

queries = []
for number, place in enumerate(places):
    bootstrap, name = place.split("/")
    frame = spark.readStream.format("dovetail").options(
        bootstrap=bootstrap, subscribe=name, startingOffsets="earliest", maxOffsetsPerTrigger="200"
    ).load()
    writer = frame.writeStream.foreachBatch(writing(bootstrap, name)).trigger(availableNow=True)
    queries.append(writer.option("checkpointLocation", f"{checkpoint}/{number}").start())
for query in queries:
    query.awaitTermination()
print("complete", flush=True)
"""


@pytest.fixture
def places(node: RunningNode, tmp_path: Path) -> Iterator[list[str]]:
    """A topic with records on Dovetail and one on Apache Kafka, and two to write to on each."""
    with running_kafka(tmp_path / "kafka") as kafka:
        found = []
        for bootstrap in (node.bootstrap, kafka.bootstrap):
            name = f"e-{uuid.uuid4().hex[:8]}"
            admin = AdminClient({"bootstrap.servers": bootstrap})
            names = [name, f"{name}-counts", f"{name}-copy"]
            new = [NewTopic(one, num_partitions=1, replication_factor=1) for one in names]
            for future in admin.create_topics(new).values():
                future.result(60)
            producer = Producer({"bootstrap.servers": bootstrap})
            for n in range(COUNT):
                producer.produce(name, key=f"k{n % 7}", value=f"{n}")
            assert producer.flush(60) == 0
            found.append(f"{bootstrap}/{name}")
        yield found


def run_driver(mode: str, folder: Path, places: list[str]) -> tuple[int, str]:
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, mode, str(folder), *places],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        told = driver.communicate(timeout=DRIVER_S_MAX)[0]
        return driver.returncode, told
    finally:
        try:
            os.killpg(driver.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def stored(bootstrap: str, topic: str) -> list[tuple[str, int]]:
    """Keys and values of a topic."""
    reader = TopicReader(ReadOptions(Brokers(bootstrap), (topic,)))
    batches = [batch for one in reader.partitions() for batch in reader.read(one)]
    pairs = [(row["key"] or b"", row["value"]) for one in batches for row in one.to_pylist()]
    return [(key.decode(), int(value)) for key, value in pairs]


def test_a_micro_batch_that_comes_again_is_stored_once(places: list[str], tmp_path: Path) -> None:
    """T2, T20: kill -9 of the driver when all rows of a micro-batch are written and Spark has not
    committed it; rows behind a shuffle by id, others by position, on Dovetail and on Kafka."""
    need_java()
    code, told = run_driver("die", tmp_path / "checkpoint", places)
    assert code == -signal.SIGKILL, told
    code, told = run_driver("end", tmp_path / "checkpoint", places)
    assert (code, told.splitlines()[-1:]) == (0, ["complete"]), told
    for place in places:
        bootstrap, name = place.split("/")
        copied = Counter(value for _, value in stored(bootstrap, f"{name}-copy"))
        assert copied == Counter(range(COUNT))
        # Three micro-batches of 200, 200 and 100 records, with a row for each of seven keys.
        counts = stored(bootstrap, f"{name}-counts")
        assert Counter(key for key, _ in counts) == {f"k{n}": 3 for n in range(7)}
        assert sum(count for _, count in counts) == COUNT


def test_half_of_a_name_is_refused() -> None:
    """T20: a version without an application would say nothing."""
    at = {"bootstrap": "unused:1", "topic": "x"}
    for half in ({"txnAppId": "a"}, {"txnVersion": "1"}):
        with pytest.raises(InvalidInput, match="or neither"):
            WriteOptions.of(at | half)
    with pytest.raises(InvalidInput, match="txnVersion"):
        WriteOptions.of(at | {"txnAppId": "a", "txnVersion": "-1"})
    assert WriteOptions.of(at | {"txnAppId": "a", "txnVersion": "0"}).transaction == ("a", 0)
