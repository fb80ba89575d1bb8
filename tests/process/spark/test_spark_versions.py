"""The tables on other versions of Spark, each in an environment of its own: part of `make soak`.

    SPARK_VERSIONS=4.0.5,4.1.4,4.2.1 python -m pytest tests/process/spark/test_spark_versions.py

`SPARK_VERSIONS_JAVA` names the Java to use (17 to 25), `SPARK_VERSIONS_FOLDER` a folder that keeps
the environments.
"""

import os
import subprocess
import sysconfig
import uuid
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.conftest import RunningNode
from tests.java import need_java
from tests.kafka_server import running_kafka

VERSIONS = [one for one in os.environ.get("SPARK_VERSIONS", "").split(",") if one]
#: For pip, which fetches half a gigabyte, and for a driver.
INSTALL_S_MAX, DRIVER_S_MAX = 900, 900

pytestmark = [
    pytest.mark.timeout(INSTALL_S_MAX + DRIVER_S_MAX),
    pytest.mark.skipif(not VERSIONS, reason="SPARK_VERSIONS names none; `make soak` does"),
]

DRIVER = """
import sys
import pyspark
from pyspark.sql import SparkSession
wanted, folder, *places = sys.argv[1:]
assert pyspark.__version__ == wanted, pyspark.__version__
builder = SparkSession.builder.master("local[2]").appName("versions")
for name, value in {
    "spark.ui.enabled": "false", "spark.sql.warehouse.dir": folder + "/warehouse",
    "spark.sql.shuffle.partitions": "2", "spark.python.authenticate.socketTimeout": "60s",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()

def values(frame):
    return sorted(int(row[0]) for row in frame.selectExpr("string(value)").collect())

for number, place in enumerate(places):
    bootstrap, source, target = place.split("/")
    at = {"kafka.bootstrap.servers": bootstrap}
    rows = spark.range(500).selectExpr("string(id) as key", "string(id) as value")
    rows.write.format("dovetail").mode("append").options(topic=source, **at).save()
    read = spark.read.format("dovetail").options(subscribe=source, **at).load()
    assert values(read) == list(range(500))
    few = read.where("partition = 0 and offset < 5")
    assert few.count() == 5
    if wanted >= "4.1":
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        again = read.where("partition = 0 and offset < 5")
        assert again.count() == 5
        # What the source has taken Spark does not evaluate again.
        told = again._jdf.queryExecution().optimizedPlan().toString()
        assert " < " not in told, told
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    stream = spark.readStream.format("dovetail").options(
        subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="200", **at
    ).load()
    writer = stream.select("key", "value").writeStream.format("dovetail").options(
        topic=target, checkpointLocation=f"{folder}/{number}", **at
    )
    for count in (500, 1000):
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        batches = [one for one in query.recentProgress if one["numInputRows"]]
        assert sum(one["numInputRows"] for one in batches) == 500, batches
        # Without its position a stream has no limit.
        assert len(batches) == (3 if wanted >= "4.2" else 1), batches
        written = spark.read.format("dovetail").options(subscribe=target, **at).load()
        assert written.count() == count
        rows.write.format("dovetail").mode("append").options(topic=source, **at).save()
    spark.sql(f"CREATE TABLE t{number} USING dovetail OPTIONS "
              f"(`kafka.bootstrap.servers` '{bootstrap}', subscribe '{target}')")
    assert spark.sql(f"SELECT count(*) FROM t{number}").head()[0] == 1000
    try:
        spark.sql(f"INSERT INTO t{number} (value) VALUES (binary('7'))")
        assert spark.sql(f"SELECT count(*) FROM t{number}").head()[0] == 1001
    except Exception as error:
        # The columns that a statement does not name are not filled in.
        assert wanted < "4.1" and "CANNOT_FIND_DATA" in str(error), error
print("complete", pyspark.__version__, flush=True)
"""


@pytest.fixture(scope="module")
def brokers(
    node: RunningNode, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """A node, and Apache Kafka."""
    need_java()
    with running_kafka(tmp_path_factory.mktemp("kafka")) as kafka:
        yield node.bootstrap, kafka.bootstrap


def environment(version: str, folder: Path) -> Path:
    """The Python of an environment that has a version of Spark before all that we have."""
    python = folder / version / "bin" / "python"
    if not python.exists():
        venv.create(folder / version, with_pip=True)
        install = [str(python), "-m", "pip", "install", "-q", f"pyspark=={version}", "pandas<3"]
        subprocess.run(install, check=True, timeout=INSTALL_S_MAX)
    site = next((folder / version / "lib").glob("python*/site-packages"))
    # Behind its own: ours is found there, and what it needs.
    source = Path(__file__).parents[3] / "src"
    (site / "zz_ours.pth").write_text(f"{source}\n{sysconfig.get_path('purelib')}\n")
    return python


@pytest.mark.parametrize("version", VERSIONS)
def test_tables_work_on_other_versions_of_spark(
    version: str, brokers: tuple[str, str], tmp_path: Path
) -> None:
    """T20: batches, filters, streams and a table of the catalog, on Dovetail and on Kafka."""
    kept = os.environ.get("SPARK_VERSIONS_FOLDER")
    python = environment(version, Path(kept) if kept else tmp_path / "environments")
    places = []
    for bootstrap in brokers:
        names = [f"v-{uuid.uuid4().hex[:8]}" for _ in range(2)]
        admin = AdminClient({"bootstrap.servers": bootstrap})
        new = [NewTopic(one, num_partitions=2, replication_factor=1) for one in names]
        for future in admin.create_topics(new).values():
            future.result(60)
        places.append("/".join((bootstrap, *names)))

    settings = dict(os.environ) | {"PYSPARK_PYTHON": str(python)}
    java = os.environ.get("SPARK_VERSIONS_JAVA")
    if java:
        settings["JAVA_HOME"] = java
    settings.pop("SPARK_HOME", None)
    done = subprocess.run(
        [str(python), "-c", DRIVER, version, str(tmp_path / "work"), *places],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DRIVER_S_MAX,
        check=False,
        env=settings,
        cwd=tmp_path,
    )
    assert done.stdout.splitlines()[-1:] == [f"complete {version}"], done.stdout[-6000:]
