"""Spark's own programs, each as its users start it: part of `make soak`.

    SPARK_PROGRAMS=1 python -m pytest tests/process/spark/test_spark_programs.py

None of them is told of Dovetail: it is installed, and Spark finds it. Spark Connect and declarative
pipelines need a library that the project does not have (`pyspark[connect]`), which pip fetches.
"""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.conftest import RunningNode
from tests.java import need_java
from tests.spark_cluster import JAVA_OPTIONS

pytest.importorskip("pyspark")

from dovetail.spark.runtime import find_java

#: For pip, and for a program that starts Spark, on a loaded machine.
INSTALL_S_MAX, PROGRAM_S_MAX = 300, 600

pytestmark = [
    pytest.mark.skipif(not os.environ.get("SPARK_PROGRAMS"), reason="minutes: SPARK_PROGRAMS=1"),
    pytest.mark.timeout(INSTALL_S_MAX + PROGRAM_S_MAX),
]

#: What every program is told: nothing about Dovetail.
CONF = {
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    # A Python worker connects back within so long of its start; it is short on a loaded machine.
    "spark.python.authenticate.socketTimeout": "240s",
}
CONF_WORDS = [word for name, value in CONF.items() for word in ("--conf", f"{name}={value}")]
LOCAL = ["--master", "local[2]", *CONF_WORDS]

#: A batch, a table, a filter and a stream; `spark` is there in a shell.
SESSION = """
at = {"kafka.bootstrap.servers": "BOOTSTRAP"}
rows = spark.range(10).selectExpr("string(id) as key", "string(id) as value")
rows.write.format("dovetail").mode("append").options(topic="SOURCE", **at).save()
spark.sql("CREATE TABLE t USING dovetail OPTIONS "
          "(`kafka.bootstrap.servers` 'BOOTSTRAP', subscribe 'SOURCE')")
few = spark.sql("SELECT int(string(value)) AS n FROM t WHERE partition >= 0 ORDER BY n")
stream = spark.readStream.option("startingOffsets", "earliest").table("t")
writer = stream.select("key", "value").writeStream.format("dovetail").trigger(availableNow=True)
writer.options(topic="TARGET", checkpointLocation="CHECKPOINT", **at).start().awaitTermination()
copied = spark.read.format("dovetail").options(subscribe="TARGET", **at).load().count()
print("found", [row.n for row in few.collect()], copied, flush=True)
"""
FOUND = f"found {list(range(10))} 10"

PIPELINE = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
AT = {"kafka.bootstrap.servers": "BOOTSTRAP"}

@dp.table
def orders():
    reader = spark.readStream.format("dovetail").options(subscribe="SOURCE", **AT)
    return reader.option("startingOffsets", "earliest").load().select("key", "value")

@dp.materialized_view
def counted():
    return spark.read.table("orders").selectExpr("count(*) as orders")

dp.create_sink("loud", "dovetail", {**AT, "topic": "TARGET"})

@dp.append_flow(target="loud")
def shouted():
    return spark.readStream.table("orders").selectExpr("key", "concat(string(value), '!') as value")
"""
SPEC = """
name: shop
storage: STORAGE
libraries:
  - glob:
      include: transformations/**
"""


class Place:
    """A node with two topics, and a folder to start programs in."""

    def __init__(self, node: RunningNode, folder: Path) -> None:
        self.folder, self.bootstrap = folder, node.bootstrap
        self.source, self.target = (f"p-{uuid.uuid4().hex[:8]}" for _ in range(2))
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        new = [NewTopic(name, num_partitions=2) for name in (self.source, self.target)]
        for future in admin.create_topics(new).values():
            future.result(60)

    def filled(self, text: str) -> str:
        """A program of this place."""
        values = {
            "BOOTSTRAP": self.bootstrap,
            "SOURCE": self.source,
            "TARGET": self.target,
            "CHECKPOINT": str(self.folder / "checkpoint"),
            "STORAGE": f"file://{self.folder / 'storage'}",
        }
        for name, value in values.items():
            text = text.replace(name, value)
        return text

    def run(self, *words: str, given: str = "", path: str = "") -> str:
        """What a program of PySpark says until its end; `path` has further libraries."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_"))}
        environment = clean | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": path,
            "PYSPARK_PYTHON": sys.executable,
            "JAVA_HOME": str(find_java(os.environ).home),
            "SPARK_SUBMIT_OPTS": JAVA_OPTIONS,
            "SPARK_LOCAL_IP": "127.0.0.1",
            # A shell whose input is no terminal takes itself for a script.
            "PYSPARK_DRIVER_PYTHON_OPTS": "-i" if words[0] == "pyspark" else "",
        }
        done = subprocess.run(
            words,
            input=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PROGRAM_S_MAX,
            check=False,
            env=environment,
            cwd=self.folder,
        )
        assert done.returncode == 0, done.stdout[-6000:]
        return done.stdout


@pytest.fixture
def place(node: RunningNode, tmp_path: Path) -> Place:
    need_java()
    return Place(node, tmp_path)


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with what Spark Connect needs and the project does not have."""
    folder = tmp_path_factory.mktemp("connect")
    import grpc

    # The same release as the library that the project has.
    wanted = [f"grpcio-status=={grpc.__version__}", "zstandard"]
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
    subprocess.run([*pip, *wanted], check=True, timeout=INSTALL_S_MAX)
    return str(folder)


def test_the_shell(place: Place) -> None:
    """T20: lines typed into `pyspark`."""
    assert FOUND in place.run("pyspark", *LOCAL, given=place.filled(SESSION))


def test_spark_submit(place: Place) -> None:
    """T20: a script that makes a plain session, by `spark-submit`."""
    begin = "from pyspark.sql import SparkSession\nspark = SparkSession.builder.getOrCreate()\n"
    script = place.folder / "job.py"
    script.write_text(begin + place.filled(SESSION))
    assert FOUND in place.run("spark-submit", *LOCAL, str(script))


def test_spark_sql(place: Place) -> None:
    """T20: statements alone, by `spark-sql`, where no line of Python is written."""
    statements = (
        "CREATE TABLE t USING dovetail OPTIONS "
        "(`kafka.bootstrap.servers` 'BOOTSTRAP', subscribe 'SOURCE');"
        "INSERT INTO t (key, value) SELECT binary(string(id)), binary(string(id)) FROM range(10);"
        "SELECT concat('found ', sum(int(string(value)))) FROM t WHERE partition >= 0;"
    )
    assert "found 45" in place.run("spark-sql", *LOCAL, "-e", place.filled(statements))


def test_spark_connect(place: Place, connect: str) -> None:
    """T20: a client of Spark Connect; the source runs at its server."""
    begin = (
        "from pyspark.sql import SparkSession\n"
        "builder = SparkSession.builder.remote('local[2]')\n"
        f"for name, value in {CONF!r}.items(): builder = builder.config(name, value)\n"
        "spark = builder.getOrCreate()\n"
        "assert 'connect' in type(spark).__module__, type(spark)\n"
    )
    script = place.folder / "client.py"
    script.write_text(begin + place.filled(SESSION) + "spark.stop()\n")
    assert FOUND in place.run(sys.executable, str(script), path=connect)


def test_a_declarative_pipeline(place: Place, connect: str) -> None:
    """T20: `spark-pipelines`: a topic becomes a table, and a flow writes it to another topic."""
    (place.folder / "spark-pipeline.yml").write_text(place.filled(SPEC))
    (place.folder / "transformations").mkdir()
    (place.folder / "transformations" / "shop.py").write_text(place.filled(PIPELINE))
    produce(place, range(10))
    place.run("spark-pipelines", "run", *CONF_WORDS, path=connect)
    assert sorted(loud(place)) == [f"{number}!" for number in range(10)]


def produce(place: Place, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": place.bootstrap})
    for number in numbers:
        producer.produce(place.source, key=str(number), value=str(number))
    assert producer.flush(60) == 0


def loud(place: Place) -> list[str]:
    """The values in the target, read by nothing of Spark."""
    settings = {"bootstrap.servers": place.bootstrap, "group.id": "loud"}
    consumer = Consumer(settings | {"enable.partition.eof": True})
    try:
        consumer.assign([TopicPartition(place.target, number, 0) for number in range(2)])
        values, ended = [], 0
        while ended < 2:
            message = consumer.poll(60)
            assert message is not None, "no answer"
            if message.error() is None:
                values.append(message.value().decode())
                continue
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            ended += 1
        return values
    finally:
        consumer.close()
