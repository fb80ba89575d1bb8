"""What users of Spark know, on Dovetail and on a real Apache Kafka; one session, it is dear.

The session is one of Spark's own, not `dovetail.spark.session`: the format is found by itself.
"""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.conftest import RunningNode
from tests.java import need_java

pytest.importorskip("pyspark")

from dovetail.spark.runtime import find_java

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session that nobody has told of Dovetail."""
    need_java()
    from pyspark.sql import SparkSession

    os.environ["JAVA_HOME"] = str(find_java(os.environ).home)
    folder = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",
        # 15 s are short on a loaded machine.
        "spark.python.authenticate.socketTimeout": "60s",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        # A test is over before the second compiler pays.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    builder = SparkSession.Builder().master("local[2]").appName("citizen")
    for name, value in settings.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    yield made
    made.stop()


def topic_at(bootstrap: str, partitions: int = 2, **settings: str) -> str:
    """A new topic; `__` in a setting's name stands for a dot."""
    name = f"s-{uuid.uuid4().hex[:8]}"
    config = {key.replace("__", "."): value for key, value in settings.items()}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config)
    admin.create_topics([new])[name].result(30)
    return name


def table(spark: Any, bootstrap: str, **options: str) -> str:
    """A new table of the catalog."""
    name = f"t_{uuid.uuid4().hex[:8]}"
    given = {"kafka.bootstrap.servers": bootstrap} | options
    listed = ", ".join(f"`{key.replace('__', '.')}` '{value}'" for key, value in given.items())
    spark.sql(f"CREATE TABLE {name} USING dovetail OPTIONS ({listed}) TBLPROPERTIES ('by' 'us')")
    return name


def values(spark: Any, name: str) -> list[str]:
    rows = spark.sql(f"SELECT string(value) FROM {name}").collect()
    return sorted(row[0] for row in rows)


def test_a_table_of_the_catalog_is_read_and_written(
    spark: Any, bootstrap: str, tmp_path: Path
) -> None:
    """T20, F74: CREATE TABLE, INSERT INTO, SELECT, readStream.table; what Spark adds itself is
    taken, options of a query go over the table's, and the other table is not written to."""
    topic, other = topic_at(bootstrap), topic_at(bootstrap)
    name = table(spark, bootstrap, subscribe=topic)
    copy = table(spark, bootstrap, topic=other, maxOffsetsPerTrigger="2")
    spark.sql(f"INSERT INTO {name} (key, value) VALUES (binary('k'), binary('a'))")
    spark.sql(
        f"INSERT INTO {name} (value, partition) "
        "SELECT binary(string(id)), if(id = 1, 1, null) FROM range(3)"
    )
    assert values(spark, name) == ["0", "1", "2", "a"]
    assert spark.table(name).where("string(value) = '1'").head().partition == 1
    later = f'{{"{topic}": {{"0": -1, "1": 0}}}}'
    with pytest.raises(Exception, match="starts at the latest"):
        spark.sql(f"SELECT * FROM {name} WITH (startingOffsets = '{later}')").collect()

    # Whole rows have the options of the table that they were read from.
    with pytest.raises(Exception, match="do not say which table they go to"):
        spark.sql(f"INSERT INTO {copy} SELECT * FROM {name}")
    with pytest.raises(Exception, match="do not say which table they go to"):
        spark.table(name).writeTo(copy).append()
    assert values(spark, name) == ["0", "1", "2", "a"]
    assert values(spark, copy) == []

    spark.table(name).select("key", "value").writeTo(copy).append()
    assert values(spark, copy) == ["0", "1", "2", "a"]
    # A frame of a table that names its target itself is not led astray.
    frame = spark.table(name)
    frame.write.format("dovetail").mode("append").options(bootstrap=bootstrap, topic=other).save()
    assert len(values(spark, copy)) == 8
    assert len(values(spark, name)) == 4

    stream = spark.readStream.option("startingOffsets", "earliest").table(copy)
    writer = stream.select("value").writeStream.trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(Exception, match="that writes to a table has to name"):
        writer.toTable(name).awaitTermination()
    writer = writer.option("kafka.bootstrap.servers", bootstrap).option("topic", topic)
    query = writer.toTable(name)
    query.awaitTermination()
    assert [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]] == [2] * 4
    assert len(values(spark, name)) == 12


def test_tables_that_cannot_work_are_refused(spark: Any, node: RunningNode) -> None:
    """T20, F74: a list of columns, a password in the schema, an unknown option, overwriting."""
    at = f"`kafka.bootstrap.servers` '{node.bootstrap}', subscribe 'refused'"
    spark.sql(f"CREATE TABLE listed (key binary, value binary) USING dovetail OPTIONS ({at})")
    with pytest.raises(Exception, match="created without a list of columns"):
        spark.sql("SELECT * FROM listed").collect()
    for option, words in (
        ("`kafka.sasl.password` 'x'", "would be in its schema"),
        ("`kafka.SASL.jaas.config` 'x'", "would be in its schema"),
        ("subscribed 'x'", "did you mean 'subscribe'"),
        ("`kafka.ssl.key.password.env` 'NOWHERE'", "which the driver does not have"),
    ):
        with pytest.raises(Exception, match=words):
            spark.sql(f"CREATE TABLE refused USING dovetail OPTIONS ({at}, {option})")
    name = table(spark, node.bootstrap, subscribe=topic_at(node.bootstrap))
    with pytest.raises(Exception, match="appended to, never overwritten"):
        spark.sql(f"INSERT OVERWRITE {name} (value) VALUES (binary('x'))")

    secret = table(
        spark,
        node.bootstrap,
        subscribe="x",
        kafka__security__protocol="SASL_PLAINTEXT",
        kafka__sasl__username="shop",
        # Java may have been started for another test: its environment is not ours to set.
        kafka__sasl__password__env="PATH",
    )
    assert os.environ["PATH"] not in spark.table(secret).schema.json()


def test_columns_are_taken_as_by_sparks_own_sink(spark: Any, bootstrap: str) -> None:
    """T20, F7b: others are left out, a null partition means "choose", the option `topic` goes over
    the column, a null time is now."""
    topic = topic_at(bootstrap)
    frame = spark.range(4).selectExpr(
        "id as number",
        "string(id) as value",
        "'elsewhere' as topic",
        "cast(null as int) as partition",
        "if(id = 0, timestamp_millis(1700000000000), null) as timestamp",
    )
    to = frame.write.format("dovetail").mode("append").options(bootstrap=bootstrap, topic=topic)
    to.save()
    rows = spark.read.format("dovetail").options(bootstrap=bootstrap, subscribe=topic).load()
    found = {int(row.value): row for row in rows.collect()}
    assert sorted(found) == [0, 1, 2, 3]
    assert found[0].timestamp.timestamp() == 1_700_000_000
    assert found[1].timestamp.timestamp() > 1_700_000_000
    wrong = frame.withColumn("partition", frame.number.cast("int")).write.format("dovetail")
    with pytest.raises(Exception, match="has partitions 0 to 1"):
        wrong.mode("append").options(bootstrap=bootstrap, topic=topic).save()


def test_filters_decide_what_is_read(spark: Any, bootstrap: str) -> None:
    """T20: in SQL and on a table of the catalog; without the setting a query reads more, and finds
    the same rows."""
    topic = topic_at(bootstrap)
    name = table(spark, bootstrap, subscribe=topic)
    frame = (
        spark.range(400)
        .selectExpr(
            "string(id) as value",
            "int(id % 2) as partition",
            "timestamp_seconds(1700000000 + id) as timestamp",
        )
        .coalesce(1)
    )
    to = frame.write.format("dovetail").mode("append").options(bootstrap=bootstrap, topic=topic)
    to.save()
    wanted = (
        f"SELECT string(value) FROM {name} WHERE partition = 1 AND offset >= 100 "
        "AND timestamp < timestamp '2100-01-01' AND timestamp >= timestamp_seconds(1700000300) "
        f"AND topic LIKE '{topic[:4]}%' AND string(value) <> '301'"
    )
    expected = [str(n) for n in range(303, 400, 2)]
    assert [row[0] for row in spark.sql(wanted).collect()] == expected
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        assert [row[0] for row in spark.sql(wanted).collect()] == expected
        plan = spark.sql(f"EXPLAIN FORMATTED {wanted}").head()[0]
        told = next(line for line in plan.splitlines() if "PushedFilters" in line)
        assert "EqualTo(partition,1)" in told
        assert "GreaterThanOrEqual(offset,100)" in told
        assert "StringStartsWith(topic" in told
        assert "timestamp" not in told, "Spark has to look at it again"
        tasks = spark.table(name).where("offset < 0").rdd.getNumPartitions()
        assert tasks == 1, "the placeholder for none"
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_output_modes(spark: Any, bootstrap: str, tmp_path: Path) -> None:
    """T20: complete writes the whole result in every micro-batch and needs ids; Spark refuses
    update for a source in Python."""
    source, target = topic_at(bootstrap, 1), topic_at(bootstrap)
    at = {"kafka.bootstrap.servers": bootstrap}
    rows = spark.range(6).selectExpr("string(id % 2) as key", "string(id) as value").coalesce(1)
    rows.write.format("dovetail").mode("append").options(topic=source, **at).save()
    reader = spark.readStream.format("dovetail").options(subscribe=source, **at)
    frame = reader.options(startingOffsets="earliest", maxOffsetsPerTrigger="3").load()
    counts = frame.groupBy("key").count().selectExpr("key", "string(count) as value")

    def run(given: Any, mode: str) -> None:
        writer = given.writeStream.format("dovetail").outputMode(mode).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(tmp_path / mode))
        writer.options(topic=target, **at).start().awaitTermination()

    with pytest.raises(Exception, match="add a column 'id'"):
        run(counts, "complete")
    with pytest.raises(Exception, match="does not support Update mode"):
        run(counts.withColumn("id", counts.key), "update")
    run(counts.withColumn("id", counts.key), "complete")
    written = spark.read.format("dovetail").options(subscribe=target, **at).load()
    found = written.selectExpr("string(key)", "int(string(value))").collect()
    assert sorted(tuple(row) for row in found) == [("0", 2), ("0", 3), ("1", 1), ("1", 3)]
